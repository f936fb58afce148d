"""The processes that send, seen from the one that plans: started, fed, heard, stopped.

Requests go through one pipe that all processes read, so that whoever is free takes the next.
A process more takes over users of the others without a gap, and what is asked lies in memory
that all of them share.
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
from servetune.loadgen.nodes import NodeShare
from servetune.traffic.asks import LaidOut
from servetune.traffic.seen import (
    Beat,
    Frames,
    GoOn,
    Over,
    Seen,
    Setup,
    Start,
    Stop,
    Users,
    frame,
)
from servetune.traffic.sigv4 import Credentials

__all__ = ["Conducted", "Conductor", "Crew", "Orders"]

READ_BYTES = 1 << 20
WAIT_S = 0.1
READY_S = 20.0
"""For a process to come up; it takes a twentieth of a second on a quiet machine."""

LEAD_S = 0.01
"""Between the order to start and the start: time for the order to get through, on one core too."""

BUSY_FRACTION = 0.7
BUSY_BEATS = 5
"""Half a second of this much CPU, and another process is started if there may be one."""

AS_MANY_AS_CORES = 0
"""Of `Orders.most_processes`: those of the machine that the orders are carried out on."""

_decode = msgspec.msgpack.Decoder(Beat | Over).decode


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a run have in common: `Setup` but for the shared files.

    Attributes:
        users: Requests in flight at most, all processes together; `None` for no limit.
        processes: To start with.
        open_ahead: Whether each user's connection is opened before the clock starts.
        most_processes: That may be added when the others are busy, or `AS_MANY_AS_CORES`.
    """

    setup: Setup
    users: int | None
    processes: int = 1
    most_processes: int = 1
    open_ahead: bool = True


class Conducted(msgspec.Struct, kw_only=True):
    """What a crew did, for `instrument`.

    Attributes:
        start_s: On the monotonic clock.
        seen_count: Requests that ended.
        lates_s: How late departures were.
        lags_s: How long turns of the loops took.
        cpu_s: Of all processes together.
        busy_fraction: Largest share of a core that one of them used over half a second.
        peak_memory_bytes: Of all of them together.
        nodes: Those that shared the load, where there were several.
    """

    start_s: float = 0.0
    seen_count: int = 0
    begun_count: int = 0
    held_count: int = 0
    lates_s: array[float] = msgspec.field(default_factory=lambda: array("d"))
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


class Conductor(Protocol):
    """Whoever has a run's requests sent: processes here, or on the nodes of a cluster.

    Attributes:
        lost: Whether a connection was refused or lost since somebody set it to false.
        broken: Why nobody is left to send, where that is so.
    """

    lost: bool
    broken: str | None

    @property
    def in_flight_count(self) -> int: ...

    def run(self) -> Conducted: ...

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None: ...

    def sign_with(self, credentials: Credentials) -> None: ...


class _Member:
    """One process, and what it last said."""

    def __init__(self, fds: tuple[int, ...], setup: Setup) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the member
        # -P: a file of the user's called select.py is not the one that is meant.
        # A terminal's Ctrl-C is for this process alone: also while the other has no group of its
        # own yet, and does not know that it should ignore it.
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
        self.frames = Frames()
        self.ready = False
        self.held_back = False
        self.over: Over | None = None
        self.last: Beat | None = None
        self.users = setup.users or 0
        self.owed_users = 0
        self.busy: list[float] = []
        self.tell(setup)

    def tell(self, order: msgspec.Struct) -> None:
        """Send an order; a process that has gone does not hear it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(frame(order))
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def last_words(self) -> str:
        """What it printed before it broke."""
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.poll()}"

    def end(self) -> None:
        """Have it gone."""
        if self.process.poll() is None and self.over is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self.process.wait()
        self.errors.close()


class Crew:
    """Conducts one run: as many processes as it needs over one list of requests."""

    def __init__(
        self,
        orders: Orders,
        asks: LaidOut,
        *,
        on_start: Callable[[float], None],
        on_seen: Callable[[Seen], None],
        on_turn: Callable[[Crew], None],
        agree: Callable[[], float] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            orders: For all of them.
            asks: What is asked, in order; the caller closes it, after the run.
            on_start: Is told the time of the start on the monotonic clock.
            on_seen: Is told of every request that ended.
            on_turn: Runs about ten times a second.
            agree: Asked when all are ready: the time of the start, where others start as well.
        """
        self._orders = orders
        self._agree = agree
        self._on_start = on_start
        self._on_seen = on_seen
        self._on_turn = on_turn
        self._selector = selectors.DefaultSelector()
        self._members: list[_Member] = []
        self._stopped = False
        self._adding = False
        self._owed_users: list[float] = []
        self.conducted = Conducted()
        self.lost = False
        self.broken: str | None = None
        self._asks = asks
        self._queue_fd, self._feed_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._to_feed = memoryview(array("I", asks.firsts).tobytes())
        if self._to_feed.nbytes:
            self._selector.register(self._feed_fd, selectors.EVENT_WRITE, None)
        else:
            self._close_feed()
        users = orders.users
        if orders.most_processes == AS_MANY_AS_CORES:
            cores = max(1, len(os.sched_getaffinity(0)))
            orders = msgspec.structs.replace(orders, most_processes=cores)
        # A process without a user would have nothing to do.
        self._most = orders.most_processes if users is None else min(orders.most_processes, users)
        count = orders.processes if users is None else min(orders.processes, users)
        for i in range(count):
            self._add(None if users is None else _shares(users, count)[i])

    # what callers use

    @property
    def in_flight_count(self) -> int:
        return sum(m.last.in_flight_count for m in self._members if m.last and not m.over)

    @property
    def begun_count(self) -> int:
        """Requests begun, as far as the processes have told."""
        return sum(member.last.begun_count for member in self._members if member.last)

    def run(self) -> Conducted:
        """Until all is done or stopped.

        Raises:
            LoadError: One of the processes broke.
        """
        try:
            self._wait_ready(self._members)
            agreed_s = None if self._agree is None else self._agree()
            if self._stopped:  # before the start: nothing is in flight that could be waited for
                return self._sum_up()
            self._start(self._members, agreed_s)
            while any(member.over is None for member in self._members):
                self._turn()
            return self._sum_up()
        finally:
            self.close()

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None:
        """Send nothing more, and end what is in flight after a while."""
        self._stopped = True
        self._close_feed()
        for member in self._members:
            member.tell(Stop(outcome=outcome, detail=detail, grace_s=grace_s))

    def sign_with(self, credentials: Credentials) -> None:
        """From now on; processes that are added later begin with them."""
        setup = msgspec.structs.replace(self._orders.setup, credentials=credentials)
        self._orders = msgspec.structs.replace(self._orders, setup=setup)
        for member in self._members:
            member.tell(credentials)

    def close(self) -> None:
        """Have everything gone that was started."""
        for member in self._members:
            member.end()
        self._close_feed()
        self._selector.close()
        if self._queue_fd >= 0:
            os.close(self._queue_fd)
        self._queue_fd = -1

    # processes

    def _add(self, users: int | None) -> _Member:
        setup = msgspec.structs.replace(
            self._orders.setup,
            asks_fd=self._asks.fd,
            queue_fd=self._queue_fd,
            columns=self._asks.columns,
            users=users,
            ahead=users or 0 if self._orders.open_ahead else 0,
        )
        member = _Member((self._asks.fd, self._queue_fd), setup)
        assert member.process.stdout is not None
        self._selector.register(member.process.stdout, selectors.EVENT_READ, member)
        self._members.append(member)
        return member

    def _wait_ready(self, members: Sequence[_Member]) -> None:
        deadline_s = time.monotonic() + READY_S
        while not all(member.ready for member in members) and not self._stopped:
            if time.monotonic() > deadline_s:
                raise LoadError(
                    f"the load generator's processes did not start within {READY_S:g} s",
                    hint="is the machine overloaded, or the server's name not found for long?",
                )
            self._turn()

    def _start(self, members: Sequence[_Member], agreed_s: float | None) -> None:
        self.conducted.start_s = time.monotonic() + LEAD_S if agreed_s is None else agreed_s
        self._on_start(self.conducted.start_s)
        for member in members:
            member.tell(Start(start_s=self.conducted.start_s))

    def _turn(self) -> None:
        for key, _ in self._selector.select(WAIT_S):
            if key.data is None:
                self._feed()
            else:
                self._hear(key.data)
        self._on_turn(self)
        self._let_go_on()
        self._balance()

    def _let_go_on(self) -> None:
        """Whoever holds back after failures in a row sends again, unless the run was stopped."""
        for member in self._members:
            if member.held_back:
                member.held_back = False
                if not self._stopped:
                    member.tell(GoOn())

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

    def _hear(self, member: _Member) -> None:
        assert member.process.stdout is not None
        data = os.read(member.process.stdout.fileno(), READ_BYTES)
        if not data:
            self._selector.unregister(member.process.stdout)
            if member.over is None:
                member.process.wait()
                raise LoadError(f"the load generator broke: {member.last_words()}")
            return
        for packed in member.frames.feed(data):
            told = _decode(packed)
            if isinstance(told, Over):
                member.over = told
                # It was over before it heard that it should let users go: they are free.
                self._owed_users += [time.monotonic()] * member.owed_users
                member.owed_users = 0
            else:
                self._note(member, told)

    def _note(self, member: _Member, beat: Beat) -> None:
        conducted = self.conducted
        before, member.last = member.last, beat
        member.ready = True
        member.held_back = beat.held_back
        if before is not None and beat.at_s > before.at_s:
            member.busy.append((beat.cpu_s - before.cpu_s) / (beat.at_s - before.at_s))
            recent = member.busy[-BUSY_BEATS:]
            if len(recent) == BUSY_BEATS:
                busy = sum(recent) / BUSY_BEATS
                conducted.busy_fraction = max(conducted.busy_fraction, busy)
        self.lost = self.lost or beat.lost
        conducted.lates_s.frombytes(beat.late_s)
        conducted.lags_s.frombytes(beat.lag_s)
        conducted.skipped += beat.skipped
        conducted.seen_count += len(beat.seen)
        self._owed_users += beat.let_go_s
        member.owed_users -= len(beat.let_go_s)
        for seen in beat.seen:
            self._on_seen(seen)

    # more of them

    def _balance(self) -> None:
        """Another process where those that run are busy, with its share of the users."""
        if self._owed_users and not self._adding:
            self._hand_over()
        orders = self._orders
        if self._stopped or self._adding or len(self._members) >= self._most:
            return
        running = [member for member in self._members if member.over is None]
        if not running or not all(_is_busy(member) for member in running):
            return
        if orders.setup.closed and orders.users is None:
            return  # everything has left already
        self._adding = True
        newcomer = self._add(None if orders.users is None else 0)
        self._wait_ready([newcomer])
        newcomer.tell(Start(start_s=self.conducted.start_s))
        if orders.users is not None:
            self._ask_for_users(orders.users)
        for member in self._members:
            member.busy.clear()
        self._adding = False

    def _ask_for_users(self, users: int) -> None:
        """Have each of the others let go of what it has over its share."""
        *others, _ = self._members
        for member, share in zip(others, _shares(users, len(self._members)), strict=False):
            if member.users > share and member.over is None:
                member.owed_users += member.users - share
                member.tell(Users(let_go=member.users - share))
                member.users = share

    def _hand_over(self) -> None:
        newcomer = self._members[-1]
        newcomer.tell(Users(due_s=self._owed_users))
        newcomer.users += len(self._owed_users)
        self._owed_users = []

    def _sum_up(self) -> Conducted:
        conducted = self.conducted
        conducted.process_count = len(self._members)
        for member in self._members:
            if member.last is not None:
                conducted.cpu_s += member.last.cpu_s
                conducted.held_count += member.last.held_count
                conducted.begun_count += member.last.begun_count
            if member.over is not None:
                conducted.opened_count += member.over.opened_count
                conducted.reused_count += member.over.reused_count
                conducted.retried_count += member.over.retried_count
                conducted.peak_memory_bytes += member.over.peak_memory_bytes
        return conducted


def _is_busy(member: _Member) -> bool:
    recent = member.busy[-BUSY_BEATS:]
    return len(recent) == BUSY_BEATS and min(recent) > BUSY_FRACTION


def _shares(total: int, parts: int) -> list[int]:
    """A total in whole parts that differ by one at most."""
    return [total // parts + (i < total % parts) for i in range(parts)]
