"""Causes of a server's end, read from its log, each with a hint."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from servetune.bundled import bundled
from servetune.decoding import ready
from servetune.secret import beginning


class Cause(msgspec.Struct, frozen=True):
    """Cause of a server's end.

    Attributes:
        kind: Category of the cause, such as `out_of_memory`; `unknown` where no symptom was
            recognised.
        message: One line without a full stop, with the log's own numbers.
        hint: Next step for the user; empty where there is no general advice.
    """

    kind: str
    message: str
    hint: str = ""


class Symptom(msgspec.Struct, frozen=True):
    """Pattern of a log by which a known cause is recognised.

    Attributes:
        kind: The cause's kind.
        pattern: A regular expression to look for.
        message: Template of the cause's message; `{name}` takes the named group.
        hint: The cause's hint.
    """

    kind: str
    pattern: str
    message: str
    hint: str = ""

    def read_from(self, text: str) -> Cause | None:
        match = re.search(self.pattern, text)
        if match is None:
            return None
        groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
        return Cause(kind=self.kind, message=self.message.format(**groups), hint=self.hint)


#: Colours; CloudWatch writes the escape as #033.
_ANSI = re.compile(r"(?:\x1b|#033)\[[0-9;]*[A-Za-z]")
_LAST_WORDS = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b|[Ee]rror): ?\S.*")
_CALM = re.compile(r"^.{0,60}?\b(?:DEBUG|INFO|WARN|WARNING)\b")
_KILLED = -9


def plain_log(text: str) -> str:
    """The log without colours; progress bars' carriage returns become line ends."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


@functools.cache
def _common_symptoms() -> list[Symptom]:
    """Symptoms that any server may show, whichever engine it is."""
    return msgspec.convert(bundled("engines", "log.toml")["symptom"], ready(list[Symptom]))


def diagnose(
    log_text: str,
    exit_code: int | None = None,
    *,
    symptoms: Sequence[Symptom] = (),
    echoes: str = r"(?!)",
) -> Cause:
    """The most telling cause that a log shows.

    The engine's own symptoms come first, in their order, then those that any server
    may show, then the signal that ended it. What is left is the last line that reads
    like an error and is not marked as a mere warning, or simply the last line.

    Args:
        log_text: The log, or its last part.
        exit_code: Exit code of the server; negative for a signal, `None` where it is not known.
        symptoms: The engine's own, most specific first.
        echoes: A regular expression of error lines that only repeat an earlier one.
    """
    text = plain_log(log_text)
    for symptom in (*symptoms, *_common_symptoms()):
        cause = symptom.read_from(text)
        if cause is not None:
            return cause
    if exit_code == _KILLED:
        return Cause(
            kind="killed",
            message="it was killed from outside (signal 9), most often for want of memory",
            hint="look for 'Out of memory' in dmesg; use a smaller model or fewer sequences",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        words = _LAST_WORDS.search(line)
        if words and not _CALM.match(line) and not re.search(echoes, line):
            return Cause(kind="unknown", message=_shortened(words[0]))
    return Cause(kind="unknown", message=_last_line(lines))


def _last_line(lines: Sequence[str]) -> str:
    if not lines:
        return "it wrote nothing to its log"
    if _CALM.match(lines[-1]):
        return "its log tells of no error"
    return _shortened(lines[-1])


def _shortened(line: str, *, most: int = 240) -> str:
    line = line.rstrip(". ")
    return line if len(line) <= most else beginning(line, most - 1) + "…"
