"""The process between servetune and a server: no server outlives its servetune.

`watchdog.py LOG COMMAND...` runs by its path on the standard library alone, in a session of
its own, so that Ctrl-C at a terminal does not reach it. It starts the server in a further
session, adopts every orphan that the server leaves (Linux' child subreaper) and ends the
whole tree when it is told to, when the server's first process has died, or when servetune is
gone: then its standard input closes, even after `kill -9`.

    stdin    a line with seconds: end the tree with that much grace; end of file: servetune is gone
    stdout   lines `started PID`, `failed WHY`, `ended CODE` (negative for a signal)
    LOG      the file named first: what the server writes, through a pipe that is always
             drained, so that neither a full disk nor 100 MB a minute reach the server

PR_SET_PDEATHSIG on the server would not do: it follows the thread that forked, not the
process, and reaches the direct child alone. Here it is the second line, for the case
that the watchdog itself is killed; its one thread lives as long as it does. The third is a
process that stands by (`_StandBy`): whatever kills the watchdog and servetune together, as
Ray does where a node goes, would else leave the server's workers and what they hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

MARKS = ("SERVETUNE_OWNER", "SERVETUNE_SERVER_LOG")
"""Variables that every process of a server inherits; `leftovers` says what they hold."""

#: For a server whose servetune is gone, so that nobody waits: long enough to free shared memory,
#: and for a `docker stop` that a busy machine starts late, whose container would else be left.
_ABANDONED_GRACE_S = 6.0
_LEFTOVERS_GRACE_S = 1.0  # for helpers whose server is gone
_BURIAL_S = 5.0  # for what was killed to be gone from the process table
_TICK_S = 0.5
_PIPE_BYTES = 1 << 20  # what a server may write while the log is being shortened

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _stat_rows() -> Iterable[tuple[int, int, int, bool]]:
    """`(pid, parent, session, lives)` of every process; nothing where /proc is not Linux'."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208  this file stays light: no pathlib
    except OSError:
        return
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The command's name may hold blanks and brackets: count from its end.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields:
            yield int(name), int(fields[1]), int(fields[3]), fields[0] not in (b"Z", b"X")


def descendants(root: int) -> set[int]:
    """Live processes below `root`, without itself and without zombies.

    The way leads through zombies: a process whose first thread has ended and whose other
    threads still do is one already, and keeps its children until the last thread is gone.
    """
    children: dict[int, list[int]] = {}
    alive: set[int] = set()
    for pid, parent, _, lives in _stat_rows():
        children.setdefault(parent, []).append(pid)
        if lives:
            alive.add(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), ())
        waiting += below
        found.update(below)
    return found & alive


def session_members(session: int) -> set[int]:
    """Live processes whose session is `session`."""
    return {pid for pid, _, its_session, lives in _stat_rows() if lives and its_session == session}


def marked(marks: Mapping[str, str]) -> set[int]:
    """Live processes that were started with all of these variables."""
    marks_bytes = {os.fsencode(f"{name}={value}") for name, value in marks.items()}
    found = set()
    for pid, _, _, lives in _stat_rows():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if lives and marks_bytes <= set(file.read().split(b"\0")):
                    found.add(pid)
        except OSError:  # it has gone, or is another user's
            continue
    return found


def end_processes(pids: Iterable[int], signal_number: int) -> None:
    """Send one signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except (ProcessLookupError, PermissionError):
            continue


class _Log(Protocol):
    def write(self, data: bytes) -> None: ...


class _StandBy:
    """A process that waits for the watchdog's end, and strikes where that came unannounced.

    It is nobody's child and in a session of its own, so that it is missed by what kills a
    process with its children. It knows the server's processes by their marks.
    """

    def __init__(self) -> None:
        wake_pipe, self._word = os.pipe()
        self._until_gone, kept = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(self._word)
                os.close(self._until_gone)
                _stand_by(wake_pipe)
            finally:
                os._exit(0)
        os.close(wake_pipe)
        os.close(kept)
        os.waitpid(child, 0)

    def dismiss(self) -> None:
        """All has ended as it should; returns when the process is gone."""
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._word, b".")
        os.read(self._until_gone, 1)


def _stand_by(wake_pipe: int) -> None:
    os.setsid()
    if os.fork():
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # servetune must not take it for the watchdog
        os.dup2(nothing, stream)
    if os.read(wake_pipe, 1):
        return
    marks = {name: os.environ[name] for name in MARKS}
    while left := marked(marks) - {os.getpid()}:
        end_processes(left, signal.SIGKILL)
        time.sleep(0.05)


class _Watch:
    """One server from its start until nothing of it is left."""

    def __init__(self, command: list[str], log: _Log) -> None:
        self._log = log
        self._parent = os.getppid()
        self._ended = False
        self._childless = False
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._stop_requested = False
        # Python's handlers, not SIG_IGN: an ignored signal would stay so in the server.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_stop_requested", True))
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._written: int | None
        self._written, pen = _pipe()
        try:
            # The object is kept: its __del__ would warn of a child that it has not reaped.
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=pen,
                stderr=pen,
                start_new_session=True,
                preexec_fn=_die_with_the_watchdog,  # noqa: PLW1509  one thread only
            )
        finally:
            os.close(pen)
        self.pid = self._server.pid

    def run(self) -> None:
        grace_s = self._wait_for_the_end()
        self._end_tree(grace_s)

    def _wait_for_the_end(self) -> float:
        """Seconds of grace, once there is a reason to end the tree."""
        while True:
            ready = self._look([0, self._woken], _TICK_S)
            self._reap()
            if self._ended:
                return 0.0
            if 0 in ready:
                try:
                    return float(os.read(0, 64))
                except ValueError:
                    return _ABANDONED_GRACE_S
            # A process that servetune forked may hold the pipe open: look at the parent too.
            if self._stop_requested or os.getppid() != self._parent:
                return _ABANDONED_GRACE_S

    def _end_tree(self, grace_s: float) -> None:
        if not self._ended:
            # The first process alone: it dismisses its workers in its own order.
            end_processes([self.pid], signal.SIGTERM)
            self._wait_until(lambda: self._ended, grace_s)
        if self._ended and descendants(os.getpid()):
            end_processes(descendants(os.getpid()), signal.SIGTERM)
            self._wait_until(lambda: not descendants(os.getpid()), _LEFTOVERS_GRACE_S)
        # A tree may grow while it is being felled: strike until nothing stands.
        while alive := descendants(os.getpid()) | (set() if self._ended else {self.pid}):
            end_processes(alive, signal.SIGKILL)
            self._wait_until(lambda: False, 0.02)
        # Not before each is reaped: a zombie handed on to a PID 1 that does not wait for
        # children, as in many containers, would stay for good.
        self._wait_until(lambda: self._childless, _BURIAL_S)
        self._drain()

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._reap()
        while not holds() and (left_s := deadline_s - time.monotonic()) > 0:
            self._look([self._woken], min(left_s, 0.05))
            self._reap()

    def _look(self, files: list[int], timeout_s: float) -> list[int]:
        """Files that can be read, now or soon; the server's output is read meanwhile."""
        pipe = [] if self._written is None else [self._written]
        ready, _, _ = select.select([*files, *pipe], [], [], timeout_s)
        if self._written in ready:
            self._drain()
        return ready

    def _drain(self, most: int = 64) -> None:
        """Move what the server wrote to the log, in pieces of a pipe."""
        for _ in range(most):
            if self._written is None:
                return
            try:
                data = os.read(self._written, _PIPE_BYTES)
            except BlockingIOError:
                return
            if not data:  # nobody is left who could write
                os.close(self._written)
                self._written = None
                return
            self._log.write(data)

    def _reap(self) -> None:
        """Take leave of every child that has ended, adopted ones too."""
        try:
            while os.read(self._woken, 256):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                self._childless = False
                return
            if pid == self.pid:
                self._ended = True
                self._server.returncode = os.waitstatus_to_exitcode(status)
                self._drain()  # whoever hears of the death will read its last words
                _say(f"ended {self._server.returncode}")


def _pipe() -> tuple[int, int]:
    """A pipe that holds much, and whose reading end never waits."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with contextlib.suppress(OSError, AttributeError):  # where there is no more, a small one does
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read_end, write_end


def _die_with_the_watchdog() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Best effort: where the call does not exist, the other lines of defence remain."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError):
        return


def _say(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        return  # nobody listens any more; the tree is still ended


def _log_at(path: str) -> _Log:
    """The log; its module lies beside this file and is no part of a package here."""
    drain_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drain.py")  # noqa: PTH100, PTH118, PTH120
    spec = importlib.util.spec_from_file_location("drain", drain_path)
    assert spec is not None
    assert spec.loader is not None
    drain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drain)
    log: _Log = drain.BoundedLog(path)
    return log


def main(log_path: str, command: list[str]) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # Popen restores it in the server
    # Before the watchdog adopts orphans, or it would adopt this one.
    stand_by = _StandBy() if all(name in os.environ for name in MARKS) else None
    try:
        return _watched(log_path, command)
    finally:
        if stand_by is not None:
            stand_by.dismiss()


def _watched(log_path: str, command: list[str]) -> int:
    try:
        watch = _Watch(command, _log_at(log_path))
    except OSError as error:
        _say(f"failed {error.strerror or error}")
        return 127
    _say(f"started {watch.pid}")
    watch.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
