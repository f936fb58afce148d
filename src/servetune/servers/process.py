"""One server from start to stop: nothing of it is left, however servetune ends.

A server runs below a watchdog (`watchdog.py`) in a session of its own and writes to a file,
which is always drained and never grows beyond bounds (`drain.py`). It counts as ready when
three things hold in turn: its process lives, its port is open, and its health path answers
200; then the listening socket must be its own, and whoever waits may ask for more, such as a
real completion. A death on the way is noticed within a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from servetune.clock import Clock, MonotonicClock
from servetune.engines.cause import Cause, diagnose, plain_log
from servetune.errors import EngineDied, EngineError, EngineNotReady, PortBusy
from servetune.probe import ConnectError, Server, ask
from servetune.secret import redacted_text
from servetune.servers import watchdog
from servetune.servers.drain import MOST_BYTES, lines_of_note
from servetune.servers.leftovers import marked_processes, marks_of
from servetune.servers.ports import listens_among, reachable_host, require_free_port
from servetune.units import MS_PER_S

_POLL_S = 0.15
_HEALTH_TIMEOUT_S = 0.8
_LAUNCH_TIMEOUT_S = 20.0  # for the watchdog, not for the server
_FELLING_TIMEOUT_S = 10.0  # after SIGKILL; longer only in uninterruptible sleep
_TAIL_BYTES = 64 * 1024
_SESSION_NICENESS = 5  # the least of 1, 3, 5 and 10 that cured the client's lateness
_EXPLAINED_BYTES = 1024 * 1024


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Name, readiness, environment and end of a server's process.

    Attributes:
        name: Name in messages.
        ready_path: Route that answers 200 once it takes requests.
        environment: The whole environment; `None` for servetune's own.
        folder: Working directory; `None` for servetune's own.
        explain: Cause of its end, from its log and exit code.
        holds_port: Whether one of its own processes listens; processes in a container cannot be
            seen from here.
        removed_by: Command that removes it where it is no child process, such as a container, and
            its watchdog is lost.
    """

    name: str = "the server"
    ready_path: str = "/health"
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    explain: Callable[[str, int | None], Cause] = diagnose
    holds_port: bool = True
    removed_by: Sequence[str] = ()


class ServerProcess:
    """A server process and all its children.

    Calls may come from any thread: `stop` ends a `wait_ready` that runs elsewhere, so
    asyncio can use `asyncio.to_thread(server.wait_ready, 600)`.

    Attributes:
        command: Exact command line.
        url: Address of the server from this machine, without a path.
        log_path: Path of the log, with standard output and standard error.

    Example:
        with ServerProcess(command, log_path=Path("server.log"), port=8000) as server:
            server.wait_ready(600)
            ...
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        port: int,
        host: str = "127.0.0.1",
        options: ServerOptions | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Describe a server; `start`, or `with`, starts it.

        Args:
            command: Command line; the program is looked up on the server's PATH.
            log_path: File for its output, replaced if it exists.
            port: Port to listen on, which must be free.
            host: Address to listen on.
            options: Name, readiness, environment and end of the process.
            clock: Clock of the deadlines.
            pause: Waits a number of seconds.
        """
        self.command = tuple(command)
        self.log_path = log_path
        self.port = port
        self.host = host
        options = options or ServerOptions()
        self.name = options.name
        self._ready_path = options.ready_path
        self._environment, self._folder = options.environment, options.folder
        self._explain, self._holds_port = options.explain, options.holds_port
        self._removed_by = tuple(options.removed_by)
        self._clock = clock or MonotonicClock()
        self._pause = pause
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._ended = False
        self._exit_code: int | None = None
        self._failure: str | None = None
        self._events = b""
        self._events_lock = threading.Lock()
        self._stop_lock = threading.Lock()
        self._stopping = False
        self._stopped = False

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
    def url(self) -> str:
        host = reachable_host(self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's first process, also the id of its session; `None` before the start."""
        return self._pid

    def start(self) -> None:
        """Start the process; it is not ready yet.

        Raises:
            PortBusy: Somebody listens on the port already.
            EngineError: The program cannot be run.
        """
        if self._watchdog is not None:
            raise EngineError(f"{self.name} was started before")
        require_free_port(self.host, self.port)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ if self._environment is None else self._environment
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(log, "ab") as own_words:  # the watchdog's, should it fail itself
            self._watchdog = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", watchdog.__file__),
                    *(str(self.log_path.absolute()), *self.command),
                ],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=own_words,
                env={**environment, **marks_of(self.log_path)},
                start_new_session=True,
            )
        try:
            self._await_launch()
            self._yield_to_others()
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def wait_ready(
        self,
        timeout_s: float,
        *,
        give_up: Callable[[], bool] | None = None,
        then: Callable[[], str | None] | None = None,
    ) -> float:
        """Wait until the server takes requests.

        Args:
            timeout_s: Longest wait.
            give_up: Asked a few times a second; ends the wait when it says so.
            then: The rung above health: what is still missing, `None` for nothing.

        Returns:
            Seconds it took, from this call on.

        Raises:
            EngineDied: The process ended.
            EngineNotReady: It lives, and was not ready in time.
            PortBusy: Another process answers on the port.
            EngineError: `stop` was called meanwhile, or the wait was given up.
        """
        begin_s = self._clock.now_s()
        while True:
            self._raise_if_ended("before it was ready")
            if give_up is not None and give_up():
                raise EngineError(f"the wait for {self.name} was cancelled")
            rung = self._rung()
            if rung is None:
                self._require_own_socket()
                rung = then() if then is not None else None
            waited_s = self._clock.now_s() - begin_s
            if rung is None:
                return waited_s
            if waited_s >= timeout_s:
                raise EngineNotReady(
                    f"{self.name} was not ready after {waited_s:.0f} s: {rung}",
                    waited_s=waited_s,
                    log_tail=self.log_tail(),
                    hint=f"give it longer, or see {self.log_path}",
                )
            self._pause(min(_POLL_S, timeout_s - waited_s))

    def unready(self) -> str | None:
        """Condition that is missing before the server takes requests; `None` when it does."""
        return self._rung() if self.alive() else "its process has ended"

    def alive(self) -> bool:
        """Whether the server's first process runs."""
        self._read_events()
        return self._pid is not None and not self._ended

    def poll_death(self) -> EngineDied | None:
        """The error that tells of the server's death, `None` while it lives.

        A server that `stop` ended has not died.
        """
        if self._pid is None or self.alive() or self._stopping:
            return None
        return self._death("while it was needed")

    def cause(self) -> Cause:
        """Cause of its end: the log's last lines, else earlier ones that tell of trouble; without
        credentials.
        """
        cause = self._cause()
        return msgspec.structs.replace(cause, message=redacted_text(cause.message))

    def _cause(self) -> Cause:
        cause = self._explain(self._log_end(_EXPLAINED_BYTES), self._exit_code)
        if cause.kind != "unknown":
            return cause
        noted = b"\n".join(lines_of_note(self._log_end(MOST_BYTES).encode()))
        earlier = self._explain(noted.decode(errors="replace"), self._exit_code)
        return cause if earlier.kind == "unknown" else earlier

    def log_text(self) -> str:
        """All that is kept of what it wrote, without colours."""
        return plain_log(self._log_end(MOST_BYTES))

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that it wrote, without colours, blank lines and credentials."""
        text = redacted_text(plain_log(self._log_end(_TAIL_BYTES)))
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def processes(self) -> frozenset[int]:
        """Ids of the server's live processes, children and orphans included."""
        if self._watchdog is None or self._watchdog.poll() == 0:
            return frozenset()
        found = watchdog.descendants(self._watchdog.pid)
        if self._pid is not None:
            found |= watchdog.session_members(self._pid)
        if self._watchdog.returncode is not None:  # it was killed: orphans are nobody's now
            found |= marked_processes(self.log_path)
        return frozenset(found)

    def kill(self) -> None:
        """End every process at once; a `stop` under way elsewhere need not wait any longer."""
        watchdog.end_processes(self.processes(), signal.SIGKILL)

    def stop(self, grace_s: float = 10.0) -> None:
        """End every process of the server; calling it again does nothing.

        The first process gets SIGTERM and `grace_s` seconds, what it leaves behind SIGTERM
        and one second, and the rest SIGKILL. Ctrl-C during the grace ends it.

        Raises:
            EngineError: A process survived SIGKILL.
        """
        self._stopping = True
        with self._stop_lock:
            if self._stopped or self._watchdog is None:
                return
            try:
                self._tell_watchdog(grace_s)
                self._wait_for_watchdog(grace_s + _FELLING_TIMEOUT_S)
            finally:
                self._fell()
                self._read_events()
                self._close_pipes()

    def _close_pipes(self) -> None:
        with self._events_lock:
            self._stopped = True
            assert self._watchdog is not None
            for pipe in (self._watchdog.stdin, self._watchdog.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _await_launch(self) -> None:
        assert self._watchdog is not None
        deadline_s = self._clock.now_s() + _LAUNCH_TIMEOUT_S
        while True:
            self._read_events(wait_s=_POLL_S)
            if self._pid is not None:
                return
            if self._failure is not None:
                raise EngineError(
                    f"{self.command[0]} cannot be started: {self._failure}",
                    hint="check that the path is right and may be executed",
                )
            if self._watchdog.poll() is not None or self._clock.now_s() > deadline_s:
                raise EngineError(
                    f"the process that guards {self.name} did not start",
                    hint=f"see {self.log_path}",
                )

    def _yield_to_others(self) -> None:
        """Let the load client run when both want the same core.

        Linux shares a busy core between sessions first (autogroup), and a client that mostly
        sleeps was woken up to a second late beside an engine that fills all cores; see
        docs/design/0004. Where the kernel has no autogroups there is nothing to do.
        """
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._pid}/autogroup").write_text(str(_SESSION_NICENESS))

    def _read_events(self, wait_s: float = 0.0) -> None:
        """Take in what the watchdog has said."""
        with self._events_lock:
            if self._watchdog is None or self._watchdog.stdout is None or self._stopped:
                return
            pipe = self._watchdog.stdout.fileno()
            poll = select.poll()  # not select(): under load this number may pass 1023
            poll.register(pipe, select.POLLIN)
            while poll.poll(wait_s * MS_PER_S):
                wait_s = 0.0
                received = os.read(pipe, 4096)
                if not received:
                    # It never ends before its server, unless it was killed itself.
                    self._ended = True
                    return
                *lines, self._events = (self._events + received).split(b"\n")
                for line in lines:
                    self._take(line.decode())

    def _take(self, event: str) -> None:
        word, _, value = event.partition(" ")
        if word == "started":
            self._pid = int(value)
        elif word == "ended":
            self._ended, self._exit_code = True, int(value)
        elif word == "failed":
            self._failure = value

    def _raise_if_ended(self, when: str) -> None:
        if self._watchdog is None:
            raise EngineError(f"{self.name} was not started")
        if self._stopping:
            raise EngineError(f"{self.name} was stopped {when}")
        if not self.alive():
            raise self._death(when)

    def _death(self, when: str) -> EngineDied:
        cause = self.cause()
        return EngineDied(
            f"{self.name} {_ending(self._exit_code)} {when}: {cause.message}",
            exit_code_of_server=self._exit_code,
            log_tail=self.log_tail(),
            hint=cause.hint or f"see {self.log_path}",
        )

    def _rung(self) -> str | None:
        """Condition that is still missing before the server is ready; `None` when it is."""
        server = Server(reachable_host(self.host), self.port)
        try:
            status = ask(server, self._ready_path, timeout_s=_HEALTH_TIMEOUT_S).status
        except ConnectError:
            return f"port {self.port} is not open"
        except OSError:
            return f"{self._ready_path} does not answer"
        return None if status == HTTPStatus.OK else f"{self._ready_path} answers {status}"

    def _require_own_socket(self) -> None:
        """A stranger may have taken the port after the start; it must not be measured."""
        if self._holds_port and listens_among(self.processes(), self.port) is False:
            raise PortBusy(self.port, hint=f"{self.name} is not who answers there; choose another")

    def _log_end(self, most_bytes: int) -> str:
        try:
            with self.log_path.open("rb") as log:
                size_bytes = log.seek(0, os.SEEK_END)
                log.seek(max(0, size_bytes - most_bytes))
                text = log.read().decode("utf-8", errors="replace")
                whole = size_bytes <= most_bytes
                return text if whole else re.sub(r"\A(?:[^\n]{0,2000}\n|\S*)", "", text)
        except FileNotFoundError:
            return ""

    def _tell_watchdog(self, grace_s: float) -> None:
        assert self._watchdog is not None
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._watchdog.stdin.fileno(), f"{grace_s}\n".encode())

    def _wait_for_watchdog(self, timeout_s: float) -> None:
        assert self._watchdog is not None
        deadline_s = self._clock.now_s() + timeout_s
        while self._watchdog.poll() is None and self._clock.now_s() < deadline_s:
            self._pause(0.02)

    def _fell(self) -> None:
        """Kill what the watchdog left: nothing, unless it hangs or was killed itself."""
        assert self._watchdog is not None
        if self._watchdog.returncode == 0:
            return
        deadline_s = self._clock.now_s() + _FELLING_TIMEOUT_S
        while (left := self.processes()) and self._clock.now_s() < deadline_s:
            watchdog.end_processes(left, signal.SIGKILL)
            self._pause(0.02)
        self._remove()
        self._wait_for_watchdog(1.0)
        if self._watchdog.poll() is None:
            self._watchdog.kill()
            self._watchdog.wait()
        if left:
            raise EngineError(
                f"processes {', '.join(map(str, sorted(left)))} of {self.name} cannot be ended",
                hint="they wait for a device or a disk; look at them with ps",
            )

    def _remove(self) -> None:
        if self._removed_by:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    self._removed_by,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_FELLING_TIMEOUT_S,
                    check=False,
                )


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "was lost"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"was ended by signal {-exit_code}"
