"""Server that was started elsewhere: its health is checked, and it is never stopped."""

from __future__ import annotations

import ssl
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from servetune.clock import Clock, MonotonicClock
from servetune.engines.cause import Cause
from servetune.errors import EngineDied, EngineNotReady, InputError
from servetune.probe import Server, ask

_POLL_S = 0.2
_ASK_TIMEOUT_S = 3.0


class ExternalServer:
    """A running server, with the face of `process.ServerProcess`.

    Attributes:
        url: Address of the server, without a path.
    """

    def __init__(
        self,
        url: str,
        *,
        ready_path: str = "/v1/models",
        cafile: str | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Describe it; nothing is asked yet.

        Raises:
            InputError: The URL is none.
        """
        refusal = InputError(
            f"'{url}' is no URL of a server", hint="such as --url http://127.0.0.1:8000"
        )
        try:
            parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
            usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError as error:  # brackets of an IPv6 address, or a port above 65535
            raise refusal from error
        if not usable:
            raise refusal
        self.url = parts.geturl().rstrip("/").removesuffix("/v1")
        self.name = "the external server"
        self.command: tuple[str, ...] = ()
        self.log_path: Path | None = None
        self.pid: int | None = None
        self._parts = parts
        self._ready_path, self._cafile = ready_path, cafile
        self._clock = clock or MonotonicClock()
        self._pause = pause

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave it running: it is not ours."""

    def start(self) -> None:
        """Nothing to start."""

    def stop(self, grace_s: float = 10.0) -> None:
        """Leave it running: it is not ours."""

    def kill(self) -> None:
        """Leave it running: it is not ours."""

    def wait_ready(
        self,
        timeout_s: float,
        *,
        give_up: Callable[[], bool] = lambda: False,
        then: Callable[[], str | None] = lambda: None,
    ) -> float:
        """Wait until it answers and `then` misses nothing, or until `give_up` says so.

        Raises:
            EngineNotReady: It does not, in that time.
        """
        begin_s = self._clock.now_s()
        while True:
            problem = self._problem() or then()
            waited_s = self._clock.now_s() - begin_s
            if problem is None:
                return waited_s
            if waited_s >= timeout_s or give_up():
                raise EngineNotReady(
                    f"{self.url} did not answer after {waited_s:.0f} s: {problem}",
                    waited_s=waited_s,
                    log_tail="",
                    hint="check --url, and --ready-endpoint where it has no /v1/models",
                )
            self._pause(min(_POLL_S, timeout_s - waited_s))

    def alive(self) -> bool:
        return self._problem() is None

    def poll_death(self) -> EngineDied | None:
        """`None`: a server without a process of ours cannot be seen to die, only to refuse."""
        return None

    def cause(self) -> Cause:
        return Cause(kind="unknown", message="its process and log are not ours to see")

    def log_tail(self, lines: int = 40) -> str:
        return ""

    def log_text(self) -> str:
        return ""

    def unready(self) -> str | None:
        """Condition that is missing before it takes requests; `None` when it does."""
        return self._problem()

    def processes(self) -> frozenset[int]:
        return frozenset()

    def _problem(self) -> str | None:
        https = self._parts.scheme == "https"
        tls = ssl.create_default_context(cafile=self._cafile) if https else None
        assert self._parts.hostname is not None
        server = Server(self._parts.hostname, self._parts.port, tls)
        try:
            status = ask(server, self._path, timeout_s=_ASK_TIMEOUT_S).status
        except OSError as error:
            return str(error) or type(error).__name__
        # A key is asked for elsewhere; who refuses without one is there.
        return (
            None if status < 400 or status in {401, 403} else f"{self._ready_path} answers {status}"
        )

    @property
    def _path(self) -> str:
        prefix = self._parts.path.rstrip("/").removesuffix("/v1")
        return f"{prefix}{self._ready_path}"
