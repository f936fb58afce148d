"""Causes of a server's end, read off its log, each with a way on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec


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


_MEMORY_HINT = (
    "use fewer sequences, a shorter max_model_len, a smaller share of memory or more devices"
)

#: Symptoms that any server may show, whichever engine it is.
COMMON_SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "port_in_use",
        r"(?i)address already in use|EADDRINUSE",
        "its port is already in use",
        "stop the process that listens there, or choose another port with --port",
    ),
    Symptom(
        "out_of_memory",
        r"(?:CUDA|HIP|XPU) out of memory\. (?P<detail>Tried to allocate [\d.]+ [GM]iB)",
        "the GPU is out of memory ({detail})",
        _MEMORY_HINT,
    ),
    Symptom(
        "out_of_memory",
        r"(?:CUDA|HIP|XPU) (?:error: )?out of memory",
        "the GPU is out of memory",
        _MEMORY_HINT,
    ),
    Symptom(
        "out_of_memory",
        r"DefaultCPUAllocator: (?:can't|not enough) [^\n]*|Cannot allocate memory|"
        r"(?m:^|: |\] )MemoryError\b",
        "the machine is out of memory",
        _MEMORY_HINT,
    ),
    # Docker's command line, where no container was made: words of 28.2, and as users published.
    Symptom(
        "image_not_found",
        r"(?m)^docker: [^\n]*(?:pull access denied for|manifest for) (?P<image>[^\s,]+)",
        "there is no image {image} that may be pulled",
        "check its name and tag with `docker pull`; a private one needs `docker login`",
    ),
    Symptom(
        "no_gpu_runtime",
        r"could not select device driver [^\n]*capabilities: \[\[gpu",
        "Docker has no runtime for GPUs",
        "install nvidia-container-toolkit and restart Docker",
    ),
    Symptom(
        "container_refused",
        r"(?m)^docker: (?:Error response from daemon: )?(?P<words>[^\n]{1,200}?)\.?$",
        "Docker refuses the container: {words}",
        "see the log for all that it says",
    ),
    Symptom(
        "disk_full",
        r"No space left on device",
        "a disk is full",
        "free space in the model cache and in /dev/shm",
    ),
)

#: Colours; CloudWatch writes the escape as #033.
_ANSI = re.compile(r"(?:\x1b|#033)\[[0-9;]*[A-Za-z]")
_LAST_WORDS = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b|[Ee]rror): ?\S.*")
_CALM = re.compile(r"^.{0,60}?\b(?:DEBUG|INFO|WARN|WARNING)\b")
_KILLED = -9


def plain_log(text: str) -> str:
    """The log without colours; progress bars' carriage returns become line ends."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


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
        exit_code: Of the server; negative for a signal, `None` where it is not known.
        symptoms: The engine's own, most specific first.
        echoes: A regular expression of error lines that only repeat an earlier one.
    """
    text = plain_log(log_text)
    for symptom in (*symptoms, *COMMON_SYMPTOMS):
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
    return line if len(line) <= most else line[: most - 1] + "…"
