"""Pool of sender processes: started, fed with requests, read, and stopped.

Requests go through one pipe that all processes read, so that whichever is free takes the next.
A process that is added takes over users of the others without a gap. The requests themselves
lie in memory that all processes share.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from typing import IO, Protocol

import msgspec

from servetune.errors import LoadError
from servetune.loadgen.target import Target
from servetune.traffic.messages import (
    Finished,
    FrameReader,
    Heartbeat,
    MoveUsers,
    RequestTrace,
    Resume,
    Setup,
    Start,
    Stop,
    frame,
)
from servetune.traffic.request_file import RequestFile
from servetune.traffic.sigv4 import Credentials

READ_BYTES = 1 << 20
WAIT_S = 0.1
START_TIMEOUT_S = 20.0
"""Time for a process to come up; it takes a twentieth of a second on a quiet machine."""

START_LEAD_S = 0.01
"""Time between the order to start and the start, enough for the order to arrive on one core."""

BUSY_FRACTION = 0.7
"""CPU use of every process above which another process is started."""

BUSY_HEARTBEATS = 5
"""Heartbeats in a row, half a second together, over which `BUSY_FRACTION` is measured."""

ONE_PER_CORE = 0
"""Value of `SenderPoolConfig.most_processes`: the cores of the machine that sends."""

ALL_NODES_LOST = "every node that sent the load was lost"
"""Beginning of `LoadSender.broken` where a cluster sent and none of its nodes is left."""

_decode = msgspec.msgpack.Decoder(Heartbeat | Finished).decode


class SenderPoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration that the processes of a run share.

    Attributes:
        setup: Order that each process gets first, but for the shared files.
        users: Largest number of requests in flight, all processes together; `None` for no limit.
        processes: Processes to start with.
        most_processes: Largest number of processes, or `ONE_PER_CORE`.
        open_ahead: Whether each user's connection is opened before the clock starts.
    """

    setup: Setup
    users: int | None
    processes: int = 1
    most_processes: int = 1
    open_ahead: bool = True


class NodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a run that one node of a cluster sent.

    Attributes:
        name: Name, address and id of the node.
        request_count: Requests that it reported the end of.
        clock_offset_s: Monotonic clock of the node less that of the machine that runs the load.
        clock_error_s: Bound of that offset's error: half the quickest round trip.
        lost: Reason why it was gone before the end; empty otherwise.
    """

    name: str
    request_count: int
    clock_offset_s: float
    clock_error_s: float
    lost: str = ""


class SendStatistics(msgspec.Struct, kw_only=True):
    """Statistics of a run's sender processes, for `instrument`.

    Attributes:
        start_s: Start of the run on the monotonic clock.
        ended_count: Requests that ended.
        begun_count: Requests that were begun.
        held_count: Requests that were due while all users were busy.
        lateness_s: Lateness of each departure.
        lags_s: Durations of turns of the event loops.
        skipped: Requests that never became due, because the answer they follow failed.
        cpu_s: CPU time of all processes together.
        busy_fraction: Largest share of a core that one process used over half a second.
        opened_count: Connections made.
        reused_count: Requests that left on a connection made before.
        retried_count: Requests that had to be sent twice.
        process_count: Processes that sent.
        peak_memory_bytes: Largest resident sets of all processes, added up.
        nodes: Shares of the nodes, where a cluster sent.
    """

    start_s: float = 0.0
    ended_count: int = 0
    begun_count: int = 0
    held_count: int = 0
    lateness_s: array[float] = msgspec.field(default_factory=lambda: array("d"))
    lags_s: array[float] = msgspec.field(default_factory=lambda: array("d"))
    skipped: list[int] = msgspec.field(default_factory=list)
    cpu_s: float = 0.0
    busy_fraction: float = 0.0
    opened_count: int = 0
    reused_count: int = 0
    retried_count: int = 0
    process_count: int = 0
    peak_memory_bytes: int = 0
    nodes: list[NodeShare] = msgspec.field(default_factory=list)

    def add(self, other: SendStatistics) -> None:
        """Add the statistics of another pool of the same run; ended requests are counted apart."""
        self.lateness_s += other.lateness_s
        self.lags_s += other.lags_s
        self.skipped += other.skipped
        self.cpu_s += other.cpu_s
        self.busy_fraction = max(self.busy_fraction, other.busy_fraction)
        for count in (
            "begun_count", "held_count", "opened_count", "reused_count", "retried_count",
            "process_count", "peak_memory_bytes",
        ):  # fmt: skip
            setattr(self, count, getattr(self, count) + getattr(other, count))


class LoadSender(Protocol):
    """Sender of one run: processes on this machine, or on the nodes of a cluster.

    Attributes:
        lost: Whether a connection was refused or lost since a caller reset it.
        broken: Reason why no sender is left; `None` while there is one.
    """

    lost: bool
    broken: str | None

    @property
    def in_flight_count(self) -> int: ...

    def run(self) -> SendStatistics: ...

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None: ...

    def sign_with(self, credentials: Credentials) -> None: ...


class SenderEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that a sender calls during a run.

    Attributes:
        on_start: Gets the time of the start on the monotonic clock.
        on_trace: Gets the trace of every request that ended.
        on_turn: Gets the sender about ten times a second.
        agreed_start: Gives the time of the start when all processes are ready, where other
            senders start at the same time.
    """

    on_start: Callable[[float], None]
    on_trace: Callable[[RequestTrace], None]
    on_turn: Callable[[LoadSender], None]
    agreed_start: Callable[[], float] | None = None


class SenderSource(Protocol):
    """Machines that a run's senders come from, where it is not this machine."""

    def require(self, targets: Sequence[Target], *, signed: bool) -> None: ...

    def open(
        self, config: SenderPoolConfig, request_file: RequestFile, events: SenderEvents
    ) -> LoadSender: ...


class _Sender:
    """Sender process, with its last heartbeat."""

    def __init__(self, fds: tuple[int, ...], setup: Setup) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        # -P: the user's folder may hold a file called select.py.
        # A terminal's Ctrl-C is for this process alone, also before the other process has a
        # group of its own and ignores the signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "servetune.traffic"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                pass_fds=fds,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.frames = FrameReader()
        self.ready = False
        self.paused = False
        self.finished: Finished | None = None
        self.last: Heartbeat | None = None
        self.users = setup.users or 0
        self.owed_users = 0
        self.busy: list[float] = []
        self.send(setup)

    def send(self, command: msgspec.Struct) -> None:
        """Send a command; one to a process that has exited is dropped."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(frame(command))
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def error_message(self) -> str:
        """Last line that the process printed before it broke."""
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.poll()}"

    def end(self) -> None:
        """End the process and close its pipes."""
        if self.process.poll() is None and self.finished is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self.process.wait()
        self.errors.close()


class SenderPool:
    """Sender processes of one run, as many as it needs, over one list of requests."""

    def __init__(
        self, config: SenderPoolConfig, request_file: RequestFile, events: SenderEvents
    ) -> None:
        """Start the processes.

        Args:
            config: Configuration of all of them.
            request_file: Requests in order; the caller closes it after the run.
            events: Functions to call during the run.
        """
        self._config = config
        self._events = events
        self._selector = selectors.DefaultSelector()
        self._senders: list[_Sender] = []
        self._stopped = False
        self._adding = False
        self._released_users: list[float] = []
        self.statistics = SendStatistics()
        self.lost = False
        self.broken: str | None = None
        self._request_file = request_file
        self._queue_fd, self._feed_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._to_feed = memoryview(array("I", request_file.firsts).tobytes())
        if self._to_feed.nbytes:
            self._selector.register(self._feed_fd, selectors.EVENT_WRITE, None)
        else:
            self._close_feed()
        users = config.users
        if config.most_processes == ONE_PER_CORE:
            cores = max(1, len(os.sched_getaffinity(0)))
            config = msgspec.structs.replace(config, most_processes=cores)
        # A process without a user would have nothing to do.
        self._most = config.most_processes if users is None else min(config.most_processes, users)
        count = config.processes if users is None else min(config.processes, users)
        for i in range(count):
            self._add(None if users is None else _shares(users, count)[i])

    # used by callers

    @property
    def in_flight_count(self) -> int:
        return sum(m.last.in_flight_count for m in self._senders if m.last and not m.finished)

    @property
    def begun_count(self) -> int:
        """Requests begun, as far as the processes have reported."""
        return sum(sender.last.begun_count for sender in self._senders if sender.last)

    def run(self) -> SendStatistics:
        """Send until all is done or stopped.

        Raises:
            LoadError: One of the processes broke.
        """
        try:
            self._wait_ready(self._senders)
            agreed_start = self._events.agreed_start
            agreed_s = None if agreed_start is None else agreed_start()
            if self._stopped:  # before the start nothing is in flight
                return self._finish_statistics()
            self._start(self._senders, agreed_s)
            while any(sender.finished is None for sender in self._senders):
                self._turn()
            return self._finish_statistics()
        finally:
            self.close()

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None:
        """Send nothing more, and end what is in flight after a while."""
        self._stopped = True
        self._close_feed()
        for sender in self._senders:
            sender.send(Stop(outcome=outcome, detail=detail, grace_s=grace_s))

    def sign_with(self, credentials: Credentials) -> None:
        """Sign further requests with these credentials; processes added later begin with them."""
        setup = msgspec.structs.replace(self._config.setup, credentials=credentials)
        self._config = msgspec.structs.replace(self._config, setup=setup)
        for sender in self._senders:
            sender.send(credentials)

    def close(self) -> None:
        """End all processes and close all pipes."""
        for sender in self._senders:
            sender.end()
        self._close_feed()
        self._selector.close()
        if self._queue_fd >= 0:
            os.close(self._queue_fd)
        self._queue_fd = -1

    # processes

    def _add(self, users: int | None) -> _Sender:
        setup = msgspec.structs.replace(
            self._config.setup,
            requests_fd=self._request_file.fd,
            queue_fd=self._queue_fd,
            columns=self._request_file.columns,
            users=users,
            ahead=users or 0 if self._config.open_ahead else 0,
        )
        sender = _Sender((self._request_file.fd, self._queue_fd), setup)
        assert sender.process.stdout is not None
        self._selector.register(sender.process.stdout, selectors.EVENT_READ, sender)
        self._senders.append(sender)
        return sender

    def _wait_ready(self, senders: Sequence[_Sender]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not all(sender.ready for sender in senders) and not self._stopped:
            if time.monotonic() > deadline_s:
                raise LoadError(
                    f"the load generator's processes did not start within {START_TIMEOUT_S:g} s",
                    hint="is the machine overloaded, or the server's name not found for long?",
                )
            self._turn()

    def _start(self, senders: Sequence[_Sender], agreed_s: float | None) -> None:
        self.statistics.start_s = time.monotonic() + START_LEAD_S if agreed_s is None else agreed_s
        self._events.on_start(self.statistics.start_s)
        for sender in senders:
            sender.send(Start(start_s=self.statistics.start_s))

    def _turn(self) -> None:
        for key, _ in self._selector.select(WAIT_S):
            if key.data is None:
                self._feed()
            else:
                self._read(key.data)
        self._events.on_turn(self)
        self._resume_paused()
        self._balance()

    def _resume_paused(self) -> None:
        """Let processes that paused after failures send again, unless the run was stopped."""
        for sender in self._senders:
            if sender.paused:
                sender.paused = False
                if not self._stopped:
                    sender.send(Resume())

    def _feed(self) -> None:
        try:
            written = os.write(self._feed_fd, self._to_feed[:READ_BYTES])
        except BlockingIOError:
            return
        self._to_feed = self._to_feed[written:]
        if not self._to_feed.nbytes:
            self._close_feed()

    def _close_feed(self) -> None:
        if self._feed_fd < 0:
            return
        if self._feed_fd in self._selector.get_map():
            self._selector.unregister(self._feed_fd)
        os.close(self._feed_fd)
        self._feed_fd = -1

    def _read(self, sender: _Sender) -> None:
        assert sender.process.stdout is not None
        data = os.read(sender.process.stdout.fileno(), READ_BYTES)
        if not data:
            self._selector.unregister(sender.process.stdout)
            if sender.finished is None:
                sender.process.wait()
                raise LoadError(f"the load generator failed: {sender.error_message()}")
            return
        for packed in sender.frames.feed(data):
            message = _decode(packed)
            if isinstance(message, Finished):
                sender.finished = message
                # It had finished before it could release its users: they are free.
                self._released_users += [time.monotonic()] * sender.owed_users
                sender.owed_users = 0
            else:
                self._add_heartbeat(sender, message)

    def _add_heartbeat(self, sender: _Sender, heartbeat: Heartbeat) -> None:
        statistics = self.statistics
        before, sender.last = sender.last, heartbeat
        sender.ready = True
        sender.paused = heartbeat.paused
        if before is not None and heartbeat.at_s > before.at_s:
            sender.busy.append((heartbeat.cpu_s - before.cpu_s) / (heartbeat.at_s - before.at_s))
            recent = sender.busy[-BUSY_HEARTBEATS:]
            if len(recent) == BUSY_HEARTBEATS:
                busy = sum(recent) / BUSY_HEARTBEATS
                statistics.busy_fraction = max(statistics.busy_fraction, busy)
        self.lost = self.lost or heartbeat.lost
        statistics.lateness_s.frombytes(heartbeat.lateness_s)
        statistics.lags_s.frombytes(heartbeat.lags_s)
        statistics.skipped += heartbeat.skipped
        statistics.ended_count += len(heartbeat.traces)
        self._released_users += heartbeat.released_s
        sender.owed_users -= len(heartbeat.released_s)
        for trace in heartbeat.traces:
            self._events.on_trace(trace)

    # further processes

    def _balance(self) -> None:
        """Start another process where all that run are busy, with its share of the users."""
        if self._released_users and not self._adding:
            self._hand_over()
        config = self._config
        if self._stopped or self._adding or len(self._senders) >= self._most:
            return
        running = [sender for sender in self._senders if sender.finished is None]
        if not running or not all(_is_busy(sender) for sender in running):
            return
        if config.setup.closed and config.users is None:
            return  # every request has left already
        self._adding = True
        newcomer = self._add(None if config.users is None else 0)
        self._wait_ready([newcomer])
        newcomer.send(Start(start_s=self.statistics.start_s))
        if config.users is not None:
            self._request_users(config.users)
        for sender in self._senders:
            sender.busy.clear()
        self._adding = False

    def _request_users(self, users: int) -> None:
        """Have each of the others release the users that it has above its share."""
        *others, _ = self._senders
        for sender, share in zip(others, _shares(users, len(self._senders)), strict=False):
            if sender.users > share and sender.finished is None:
                sender.owed_users += sender.users - share
                sender.send(MoveUsers(release_users=sender.users - share))
                sender.users = share

    def _hand_over(self) -> None:
        newcomer = self._senders[-1]
        newcomer.send(MoveUsers(due_s=self._released_users))
        newcomer.users += len(self._released_users)
        self._released_users = []

    def _finish_statistics(self) -> SendStatistics:
        statistics = self.statistics
        statistics.process_count = len(self._senders)
        for sender in self._senders:
            if sender.last is not None:
                statistics.cpu_s += sender.last.cpu_s
                statistics.held_count += sender.last.held_count
                statistics.begun_count += sender.last.begun_count
            if sender.finished is not None:
                statistics.opened_count += sender.finished.opened_count
                statistics.reused_count += sender.finished.reused_count
                statistics.retried_count += sender.finished.retried_count
                statistics.peak_memory_bytes += sender.finished.peak_memory_bytes
        return statistics


def _is_busy(sender: _Sender) -> bool:
    recent = sender.busy[-BUSY_HEARTBEATS:]
    return len(recent) == BUSY_HEARTBEATS and min(recent) > BUSY_FRACTION


def _shares(total: int, parts: int) -> list[int]:
    """Whole parts of a total that differ by one at most."""
    return [total // parts + (i < total % parts) for i in range(parts)]
