"""Copies of a server that start and end together, each on devices and a port of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from servetune.engines.cause import Cause
from servetune.errors import EngineDied, EngineError
from servetune.servers.process import ServerProcess


class ServerCopies:
    """Several equal servers, with the face of `process.ServerProcess`.

    Load is spread over all by who sends it; the death of one is the death of all.

    Attributes:
        copies: Servers, at least one.
        url: Address of the first copy, without a path.
    """

    def __init__(self, copies: Sequence[ServerProcess]) -> None:
        self.copies = tuple(copies)
        first = self.copies[0]
        self.name, self.url, self.command = first.name, first.url, first.command
        self._died: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """First process of the first copy; `None` before the start."""
        return self.copies[0].pid

    def start(self) -> None:
        """Start every copy; none is left where one cannot be started.

        Raises:
            PortBusy: Somebody listens on the port of one already.
            EngineError: The program cannot be run.
        """
        try:
            for copy in self.copies:
                copy.start()
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def wait_ready(
        self,
        timeout_s: float,
        *,
        give_up: Callable[[], bool] | None = None,
        then: Sequence[Callable[[], str | None]] = (),
    ) -> float:
        """Wait until every copy takes requests; they start at the same time.

        Args:
            timeout_s: Longest wait for all.
            give_up: Asked a few times a second; ends the wait when it says so.
            then: What each copy must give besides, in their order.

        Returns:
            Seconds it took, from this call on.

        Raises:
            EngineDied: A process ended.
            EngineNotReady: One lives, and was not ready in time.
            EngineError: `stop` was called meanwhile, or the wait was given up.
        """

        def give_up_now() -> bool:
            died = self.poll_death()
            if died is not None:
                raise died
            return give_up is not None and give_up()

        waited_s = 0.0
        for place, copy in enumerate(self.copies):
            try:
                waited_s += copy.wait_ready(
                    timeout_s - waited_s,
                    give_up=give_up_now,
                    then=then[place] if then else None,
                )
            except EngineDied:
                self.poll_death()
                raise
        return waited_s

    def unready(self) -> str | None:
        """Condition that a copy lacks before it takes requests; `None` when all do."""
        return next((why for copy in self.copies if (why := copy.unready()) is not None), None)

    def alive(self) -> bool:
        """Whether the first process of every copy runs."""
        return all(copy.alive() for copy in self.copies)

    def poll_death(self) -> EngineDied | None:
        """The error that tells of the death of a copy, `None` while all live."""
        for copy in self.copies:
            died = copy.poll_death()
            if died is not None:
                self._died = self._died or copy
                return died
        return None

    def cause(self) -> Cause:
        """Cause of the end of the copy that died, else of the first."""
        return self._in_question().cause()

    @property
    def log_path(self) -> Path | None:
        """Log of the copy that died, else of the first."""
        return self._in_question().log_path

    def log_text(self) -> str:
        """All that is kept of what that copy wrote, without colours."""
        return self._in_question().log_text()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that it wrote, without credentials."""
        return self._in_question().log_tail(lines)

    def _in_question(self) -> ServerProcess:
        """The copy that died first, else the first."""
        return self._died or self.copies[0]

    def processes(self) -> frozenset[int]:
        """Ids of the live processes of all copies."""
        return frozenset[int]().union(*(copy.processes() for copy in self.copies))

    def kill(self) -> None:
        """End every process at once."""
        for copy in self.copies:
            copy.kill()

    def stop(self, grace_s: float = 10.0) -> None:
        """End every process of all copies, which have their grace at the same time.

        Raises:
            EngineError: A process survived SIGKILL.
        """
        errors: list[EngineError] = []

        def stop(copy: ServerProcess) -> None:
            try:
                copy.stop(grace_s)
            except EngineError as error:
                errors.append(error)

        threads = [threading.Thread(target=stop, args=(copy,)) for copy in self.copies[1:]]
        for thread in threads:
            thread.start()
        try:
            stop(self.copies[0])
        finally:
            for thread in threads:
                with contextlib.suppress(KeyboardInterrupt):
                    thread.join()
        if errors:
            raise errors[0]
