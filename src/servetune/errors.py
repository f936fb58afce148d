"""Every error that servetune raises on purpose.

    ServetuneError
    ├── InputError           what the user wrote cannot be used
    │   ├── UnknownName      kind, name, known
    │   └── GrammarError     text, position
    ├── PlanError            the plan contradicts itself, the model or the machine
    │   ├── DoesNotFit       needed_bytes, available_bytes
    │   └── NotSimulated     a real engine would take it
    ├── EngineError          a server could not be run
    │   ├── EngineNotReady   waited_s, log_tail
    │   ├── EngineDied       exit_code, log_tail
    │   └── PortBusy         port
    ├── LoadError            load could not be sent at all
    │   └── ServerRefused    status, body
    ├── StoreError           a journal or artifact cannot be read or written
    │   └── SchemaTooNew     found, known
    └── DeployError          a deployment cannot be applied
        └── CannotRender     it cannot even be said: nothing was sent

A leaf exists where a caller would act differently. The message is one line
without a full stop; `hint` says how to go on. A request that fails under load is
data (`metrics.Record.outcome`), not an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CannotRender",
    "DeployError",
    "DoesNotFit",
    "EngineDied",
    "EngineError",
    "EngineNotReady",
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


class ServetuneError(Exception):
    """Base of the tree; `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(ServetuneError):
    """A file, option or value that the user gave cannot be used."""


class UnknownName(InputError):
    """A name of some kind (model, GPU, metric, option) is not known.

    Attributes:
        kind: What was looked up, such as "GPU".
        name: The name as given.
        known: All names of that kind, for a caller that wants to choose again.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        if not hint:
            close = nearest(name, self.known)
            names = close or sorted(self.known)[:12]
            lead = "did you mean" if close else "known names are"
            hint = f"{lead} {', '.join(names)}" if names else ""
        super().__init__(f"unknown {kind} '{name}'", hint=hint)


class GrammarError(InputError):
    """A text in one of servetune's small grammars cannot be read.

    Attributes:
        text: The whole text.
        position: Offset of the first character that does not fit.
    """

    def __init__(self, message: str, text: str, position: int, *, hint: str = "") -> None:
        self.text = text
        self.position = position
        first = max(0, position - 24)
        shown = ("..." if first else "") + text[first : position + 24]
        super().__init__(f"{message}, at character {position + 1} of '{shown}'", hint=hint)


class PlanError(ServetuneError):
    """A plan contradicts itself, the model or the machine."""


class DoesNotFit(PlanError):
    """Weights, or weights and the smallest useful cache, exceed the memory.

    Attributes:
        needed_bytes: Per device.
        available_bytes: Per device.
    """

    def __init__(
        self, message: str, *, needed_bytes: float, available_bytes: float, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class NotSimulated(PlanError):
    """A real engine would serve the plan, and the simulator does not play one of its settings."""


class EngineError(ServetuneError):
    """A server could not be started, reached or stopped."""

    exit_code = 3


class EngineNotReady(EngineError):
    """A server was alive but did not become ready in time."""

    def __init__(self, message: str, *, waited_s: float, log_tail: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.waited_s = waited_s
        self.log_tail = log_tail


class EngineDied(EngineError):
    """A server's process ended while it was needed.

    Attributes:
        exit_code_of_server: As the operating system reports it; negative for a signal.
        log_tail: The last lines that it wrote.
    """

    def __init__(
        self, message: str, *, exit_code_of_server: int | None, log_tail: str, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_code_of_server = exit_code_of_server
        self.log_tail = log_tail


class PortBusy(EngineError):
    """Another process already listens where the server should."""

    def __init__(self, port: int, *, hint: str = "") -> None:
        super().__init__(
            f"port {port} is already in use by another process",
            hint=hint or "stop that process, or choose another port with --port",
        )
        self.port = port


class LoadError(ServetuneError):
    """Load could not be sent at all."""

    exit_code = 3


class ServerRefused(LoadError):
    """The server answered the first request with an error.

    Attributes:
        status: HTTP status.
        body: The beginning of what it said.
    """

    def __init__(self, message: str, *, status: int, body: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body


class StoreError(ServetuneError):
    """A journal or artifact cannot be read or written."""


class SchemaTooNew(StoreError):
    """A file was written by a newer servetune."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the file uses schema {found}, this servetune reads up to {known}",
            hint="upgrade servetune",
        )
        self.found = found
        self.known = known


class DeployError(ServetuneError):
    """A deployment cannot be applied."""

    exit_code = 4


class CannotRender(DeployError):
    """What was asked for cannot be said to a target; found out before anything was sent."""

    exit_code = 2


def nearest(name: str, known: Iterable[str], *, count: int = 4) -> list[str]:
    """Known names that look like `name`, best first; letter case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    starts = [low for low in by_lower if low.startswith(wanted) or wanted.startswith(low)]
    close = difflib.get_close_matches(wanted, by_lower, n=count, cutoff=0.55)
    ordered = dict.fromkeys([*sorted(starts, key=len), *close])
    return [by_lower[low] for low in ordered][:count]
