"""Exceptions of servetune, as one tree.

    ServetuneError
    ├── InputError           a file, option or value of the user is unusable
    │   ├── UnknownName      kind, name, known
    │   └── GrammarError     text, position
    ├── PlanError            the plan contradicts itself, the model or the machine
    │   ├── DoesNotFit       needed_bytes, available_bytes
    │   └── NotSimulated     a real engine would take it
    ├── EngineError          a server failed to start, answer or stop
    │   ├── EngineNotReady   waited_s, log_tail
    │   ├── EngineDied       exit_code, log_tail
    │   └── PortBusy         port
    ├── LoadError            load could not be sent at all
    │   └── ServerRefused    status, body
    ├── StoreError           a journal or artifact cannot be read or written
    │   └── SchemaTooNew     found, known
    └── DeployError          a deployment cannot be applied
        └── CannotRender     the target's files cannot express it; nothing was sent

A leaf exists where a caller acts differently on it. The message is one line without a full
stop; `hint` names the next step. A request that fails under load is data
(`metrics.Record.outcome`), not an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum

from servetune.secret import redacted_text
from servetune.visible import one_line

__all__ = [
    "CannotRender",
    "DeployError",
    "DoesNotFit",
    "EngineDied",
    "EngineError",
    "EngineNotReady",
    "ExitStatus",
    "GrammarError",
    "InputError",
    "LoadError",
    "NotSimulated",
    "PlanError",
    "PortBusy",
    "SchemaTooNew",
    "ServerRefused",
    "ServetuneError",
    "StoreError",
    "UnknownName",
    "nearest",
]


class ExitStatus(IntEnum):
    """Exit status of the command line; `docs/reference/exit-status.md` says when each is given."""

    DONE = 0
    TARGET_MISSED = 1
    USAGE = 2
    SERVER = 3
    DEPLOY = 4
    INTERRUPTED = 130


class ServetuneError(Exception):
    """Base of the tree; `exit_code` is the exit status of the command line.

    Messages and hints often repeat what a user or a server wrote; credentials are taken out, and
    control characters and newlines shown as escapes.
    """

    exit_code = ExitStatus.USAGE

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = one_line(redacted_text(message))
        self.hint = one_line(redacted_text(hint))
        super().__init__(self.message)


class InputError(ServetuneError):
    """A file, option or value that the user gave cannot be used."""


#: Names that an error lists where none is similar to what was given: all engines, say.
_MOST_NAMES = 24


class UnknownName(InputError):
    """An unknown name of some kind: model, GPU, metric or option.

    Attributes:
        kind: Kind of name, such as "GPU".
        name: Name as given by the user.
        known: All valid names of that kind.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        if not hint:
            close = nearest(name, self.known)
            names = close or _most_alike(name, self.known)
            lead = "did you mean" if close else "known names are"
            more = 0 if close else len(set(self.known)) - len(names)
            hint = f"{lead} {', '.join(names)}" if names else ""
            hint += f" and {more} more" if more else ""
        super().__init__(f"unknown {kind} '{name}'", hint=hint)


class GrammarError(InputError):
    """A syntax error in one of servetune's small grammars.

    Attributes:
        text: Whole text.
        position: Offset of the first character that does not fit.
    """

    def __init__(self, message: str, text: str, position: int, *, hint: str = "") -> None:
        self.text = text
        self.position = position
        first = max(0, position - 24)
        shown = redacted_text(text)
        if shown == text:
            shown = ("..." if first else "") + text[first : position + 24]
        super().__init__(f"{message}, at character {position + 1} of '{shown}'", hint=hint)


class PlanError(ServetuneError):
    """A plan that contradicts itself, the model or the machine."""


class DoesNotFit(PlanError):
    """Weights, or weights plus the smallest useful KV cache, exceed the memory.

    Attributes:
        needed_bytes: Memory required per device.
        available_bytes: Memory available per device.
    """

    def __init__(
        self, message: str, *, needed_bytes: float, available_bytes: float, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class NotSimulated(PlanError):
    """A valid plan with a setting that the simulator does not model."""


class EngineError(ServetuneError):
    """A server that could not be started, reached or stopped."""

    exit_code = ExitStatus.SERVER


class EngineNotReady(EngineError):
    """A running server that did not become ready in time."""

    def __init__(self, message: str, *, waited_s: float, log_tail: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.waited_s = waited_s
        self.log_tail = log_tail


class EngineDied(EngineError):
    """A server process that exited while it was needed.

    Attributes:
        exit_code_of_server: Exit status of the process; negative for a signal.
        log_tail: Last lines of its log.
    """

    def __init__(
        self, message: str, *, exit_code_of_server: int | None, log_tail: str, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code_of_server = exit_code_of_server
        self.log_tail = log_tail


class PortBusy(EngineError):
    """A port on which another process already listens."""

    def __init__(self, port: int, *, hint: str = "") -> None:
        super().__init__(
            f"port {port} is already in use by another process",
            hint=hint or "stop that process, or choose another port with --port",
        )
        self.port = port


class LoadError(ServetuneError):
    """A load run in which no request could be sent."""

    exit_code = ExitStatus.SERVER


class ServerRefused(LoadError):
    """An error status as the answer to the first request.

    Attributes:
        status: HTTP status.
        body: Beginning of the response body.
    """

    def __init__(self, message: str, *, status: int, body: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body


class StoreError(ServetuneError):
    """A journal or artifact that cannot be read or written."""


class SchemaTooNew(StoreError):
    """A file written by a newer servetune."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the file uses schema {found}, this servetune reads up to {known}",
            hint="upgrade servetune",
        )
        self.found = found
        self.known = known


class DeployError(ServetuneError):
    """A deployment that cannot be applied."""

    exit_code = ExitStatus.DEPLOY


class CannotRender(DeployError):
    """A request that the target's files cannot express; raised before anything is sent."""

    exit_code = ExitStatus.USAGE


def _most_alike(name: str, known: Iterable[str]) -> list[str]:
    """Some of the known names in order, those that a name shares most with if there are many."""
    matcher = difflib.SequenceMatcher(b=name.lower())

    def likeness(candidate: str) -> float:
        matcher.set_seq1(candidate.lower())
        return matcher.ratio()

    return sorted(sorted(set(known), key=lambda each: (-likeness(each), each))[:_MOST_NAMES])


def nearest(name: str, known: Iterable[str], *, count: int = 4) -> list[str]:
    """Known names similar to `name`, best match first; letter case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    lowered = name.lower()
    starts = [low for low in by_lower if low.startswith(lowered) or lowered.startswith(low)]
    close = difflib.get_close_matches(lowered, by_lower, n=count, cutoff=0.55)
    ordered = dict.fromkeys([*sorted(starts, key=len), *close])
    return [by_lower[low] for low in ordered][:count]
