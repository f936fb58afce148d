"""Reactor: event loop of a sender process, for sockets that are ready and timers that are due.

It is written for this one use. Compared with asyncio it saves a callback, a task switch and two
copies for each token; compared with a selector, the objects around each event.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from servetune.traffic.connection import Address, Call, Connection, monotonic
from servetune.traffic.sleep_planner import SleepPlanner

EVENTS_A_TURN = 256

SPIN_S = 0.002
"""Time before a timer at which the wait becomes fine: epoll waits in whole milliseconds."""

FEW_EVENTS = 32
"""Number of ready sockets that is worth a turn; before fewer are read, more may gather."""

PATIENCE_S = 0.01
"""Lateness allowed to timers set by `about`, where it saves a wake-up."""

SILENT_S = 0.25
"""Time after which bytes of a server that fell silent are parsed."""

CHORES_A_TURN = 8

_READ_BOTH_S = 2e-6
"""Longest time to read both clocks; where the kernel helps, a tenth of it is enough."""

_NEVER_S = float("inf")

_Timers = list[tuple[float, int, Callable[..., None], tuple[Any, ...]]]
"""Heap of timers: due time, order, function, arguments."""

_NOT_FOUND = (OSError, UnicodeError)  # UnicodeError: text that cannot be a host name


class Reactor:
    """Event loop that sends requests over kept connections; a `ConnectionOwner`.

    Attributes:
        offset_s: Monotonic clock less the wall clock.
        turn_s: Start of this turn of the loop.
        opened_count: Connections made.
        reused_count: Calls that left on a connection made before.
        retried_count: Calls that had to be sent twice.
        lags_s: Durations of turns of the loop.
    """

    def __init__(self, addresses: Sequence[Address], *, may_sleep: bool = True) -> None:
        self._addresses = list(addresses)
        # Over TLS this process takes the times, so it must read at once.
        self._may_sleep = may_sleep and all(one.scheme == "http" for one in addresses)
        self.sleep_planner = SleepPlanner()
        self._resolved: dict[int, list[tuple[int, tuple[object, ...]]] | str] = {}
        self._tls: dict[int, Any] = {}
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._idle: list[list[Connection]] = [[] for _ in addresses]
        self._calls: dict[Call, None] = {}  # in order of departure, so of deadlines as well
        self._in_flight_counts = [0] * len(self._addresses)
        self._next_deadline_s = float("inf")
        self._timers: _Timers = []
        self._unhurried: _Timers = []
        self._sequence = itertools.count()
        self._chores: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._stopping = False
        self._opening_count = 0
        self._waits = False
        self._looks_for_silent = False
        self.turn_s = monotonic()
        self.offset_s = self.turn_s - time.time()
        self._read_both_s = max(_READ_BOTH_S, 2 * _fastest_reading_s())
        for _ in range(100):
            self._set_offset()
        self.opened_count = 0
        self.reused_count = 0
        self.retried_count = 0
        self.lags_s: list[float] = []

    # used by the load controller

    @property
    def in_flight_count(self) -> int:
        return len(self._calls)

    def in_flight_to(self, target: int) -> int:
        """Calls to one address that are not answered yet."""
        return self._in_flight_counts[target]

    def prepare(self) -> None:
        """Look up host names and read certificates, so that no call waits for it."""
        for target, address in enumerate(self._addresses):
            self._resolve(target)
            if address.scheme == "https":
                self._context(target)

    def open_ahead(self, target: int, count: int) -> None:
        """Open connections that later calls use; failures are noticed by the calls."""
        resolved = self._resolve(target)
        if isinstance(resolved, str):
            return
        for _ in range(count):
            self._opening_count += 1
            self._connection(target, resolved).open_ahead()

    def wait_open(self, limit_s: float) -> None:
        """Turn until the connections opened ahead are open, or have failed, or time is up."""
        if self._opening_count:
            self.at(monotonic() + limit_s, self._stop_waiting)
            self._waits = True
            self.run()
            self._stopping = self._waits = False

    def _stop_waiting(self) -> None:
        if self._waits:
            self.stop()

    def exchange(self, call: Call) -> None:
        """Send a call; its `on_done` runs when it has ended, one way or another."""
        call.deadline_s = monotonic() + call.limit_s
        self._calls[call] = None
        self._in_flight_counts[call.target] += 1
        self._next_deadline_s = min(self._next_deadline_s, call.deadline_s)
        idle = self._idle[call.target]
        if idle:
            connection = idle.pop()
            call.connect_s, connection.connect_s = connection.connect_s, None
            call.reused = call.connect_s is None
            self.reused_count += call.reused
            connection.start(call)
        else:
            self._connect(call)
        if not self._looks_for_silent:
            self._looks_for_silent = True
            self.about(monotonic() + SILENT_S, self._look_for_silent)

    def _look_for_silent(self) -> None:
        """Parse what silent connections have kept: they keep reads until there are many."""
        now_s = monotonic()
        for connection in tuple(self._connections.values()):
            connection.digest_before(now_s - SILENT_S)
        if self._calls:
            self.about(now_s + SILENT_S, self._look_for_silent)
        else:
            self._looks_for_silent = False

    def at(self, due_s: float, action: Callable[..., None], *given: object) -> None:
        """Run a function at a time on the monotonic clock, or as soon after as possible."""
        heapq.heappush(self._timers, (due_s, next(self._sequence), action, given))

    def about(self, due_s: float, action: Callable[..., None], *given: object) -> None:
        """Run a function around a time: soon after, together with what wakes the loop anyway."""
        heapq.heappush(self._unhurried, (due_s, next(self._sequence), action, given))

    def later(self, action: Callable[..., None], *given: object) -> None:
        """Run a function when nothing is due, a few in each turn; all of them before the end."""
        self._chores.append((action, given))

    def _do_chores(self, most: int) -> None:
        for _ in range(min(most, len(self._chores))):
            action, given = self._chores.popleft()
            action(*given)

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Run a function whenever a file can be read."""
        self._watched[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def abandon(self, outcome: str, detail: str) -> None:
        """End every call in flight with this outcome."""
        for call in tuple(self._calls):
            self._drop(call, outcome, detail)

    def stop(self) -> None:
        """Leave `run` after this turn."""
        self._stopping = True

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._connections.values()):
            connection.give_up()
        self._epoll.close()

    def run(self) -> None:
        """Turn until `stop`."""
        connections = self._connections
        while True:
            now_s = monotonic()
            if now_s >= self._next_deadline_s:
                self._time_out(now_s)
            _run_due(self._timers, now_s)
            if self._stopping:
                self._do_chores(len(self._chores))
                self._stopping = False
                return
            _run_due(self._unhurried, now_s)
            if self._chores:
                self._do_chores(CHORES_A_TURN)
            events = self._wait()
            if not events:
                continue
            begun_s = self._set_offset()
            for fd, mask in events:
                connection = connections.get(fd)
                if connection is not None:
                    connection.ready(mask)
                elif fd in self._watched:
                    self._watched[fd]()
            self.lags_s.append(monotonic() - begun_s)

    def _wait(self) -> list[tuple[int, int]]:
        """Events that are ready, as soon as any is or a timer is due; slightly later to let more
        gather.
        """
        poll = self._epoll.poll
        if self._chores or self._stopping:
            return poll(0, EVENTS_A_TURN)
        now_s = monotonic()
        left_s = self._timers[0][0] - now_s if self._timers else _NEVER_S
        if left_s <= 0:
            return poll(0, EVENTS_A_TURN)
        if left_s < SPIN_S:
            select.select((self._epoll,), (), (), left_s)
            return poll(0, EVENTS_A_TURN)
        wake_s = min(left_s - SPIN_S / 2, self._next_deadline_s - now_s)
        if self._unhurried:
            wake_s = min(wake_s, self._unhurried[0][0] + PATIENCE_S - now_s)
        events = poll(max(0.0, wake_s) if wake_s < _NEVER_S else None, EVENTS_A_TURN)
        if self._may_sleep and 0 < len(events) < FEW_EVENTS:
            sleep_s = self.sleep_planner.sleep_s(monotonic())
            if sleep_s and left_s > SPIN_S + sleep_s:
                time.sleep(sleep_s)
                events = poll(0, EVENTS_A_TURN)
        return events

    def _set_offset(self) -> float:
        """Current time; updates the clocks' difference, unless the process was suspended
        meanwhile.
        """
        before_s = monotonic()
        wall_s = time.time()
        after_s = monotonic()
        if after_s - before_s < self._read_both_s:
            self.offset_s = after_s - wall_s
        self.turn_s = after_s
        return after_s

    # ConnectionOwner

    def register(self, connection: Connection, mask: int) -> None:
        """See `connection.ConnectionOwner`."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, mask)

    def modify(self, connection: Connection, mask: int) -> None:
        """See `connection.ConnectionOwner`."""
        self._epoll.modify(connection.fd, mask)

    def forget(self, connection: Connection) -> None:
        """See `connection.ConnectionOwner`."""
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)
        idle = self._idle[connection.target]
        if connection in idle:
            idle.remove(connection)

    def idle(self, connection: Connection) -> None:
        """See `connection.ConnectionOwner`."""
        self._idle[connection.target].append(connection)

    def opened_ahead(self, connection: Connection | None) -> None:
        """See `connection.ConnectionOwner`."""
        self._opening_count -= 1
        if connection is not None:
            self.idle(connection)
        if not self._opening_count and self._waits:
            self.stop()

    def again(self, call: Call) -> None:
        """See `connection.ConnectionOwner`."""
        self.retried_count += 1
        self._connect(call)

    def ended(self, call: Call, outcome: str, at_s: float, detail: str = "") -> None:
        """See `connection.ConnectionOwner`."""
        if call.done:
            return
        call.done = True
        call.outcome, call.end_s, call.detail = outcome, at_s, detail
        if call in self._calls:
            del self._calls[call]
            self._in_flight_counts[call.target] -= 1
        self.at(
            monotonic(), call.on_done, call
        )  # in the next turn: a function may send another call

    # connections

    def _connect(self, call: Call) -> None:
        address = self._addresses[call.target]
        resolved = self._resolve(call.target)
        if isinstance(resolved, str):
            if call.sent_s is None:
                call.sent_s = monotonic()
            self.ended(call, "refused", monotonic(), f"cannot connect to {address}: {resolved}")
            return
        self._connection(call.target, resolved).connect(call)

    def _connection(
        self, target: int, resolved: list[tuple[int, tuple[object, ...]]]
    ) -> Connection:
        address = self._addresses[target]
        tls = self._context(target) if address.scheme == "https" else None
        return Connection(self, target, address, resolved, tls)

    def _resolve(self, target: int) -> list[tuple[int, tuple[object, ...]]] | str:
        """Addresses of a host, or the reason why there are none.

        Names are looked up once: later connections go where the first one went, and a name that was
        not found is not looked up again by ten thousand requests, each of which would delay all
        others.
        """
        if target not in self._resolved:
            address = self._addresses[target]
            try:
                found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                self._resolved[target] = [(int(family), where) for family, _, _, _, where in found]
            except _NOT_FOUND as error:
                self._resolved[target] = getattr(error, "strerror", None) or str(error)
        return self._resolved[target]

    def _context(self, target: int) -> Any:
        if target not in self._tls:
            import ssl

            self._tls[target] = ssl.create_default_context(cafile=self._addresses[target].cafile)
        return self._tls[target]

    # time-outs

    def _time_out(self, now_s: float) -> None:
        for call in tuple(self._calls):
            if call.deadline_s > now_s:
                break
            self._drop(call, "timeout", f"no whole answer within {call.limit_s:g} s")
        first = next(iter(self._calls), None)
        self._next_deadline_s = first.deadline_s if first is not None else float("inf")

    def _drop(self, call: Call, outcome: str, detail: str) -> None:
        if call.connection is not None:
            call.connection.give_up()
        if call.sent_s is None:
            call.sent_s = monotonic()
        self.ended(call, outcome, monotonic(), detail)


def _run_due(timers: _Timers, now_s: float) -> None:
    while timers and timers[0][0] <= now_s:
        _, _, action, given = heapq.heappop(timers)
        action(*given)


def _fastest_reading_s() -> float:
    """Shortest time in which this machine reads both clocks."""
    fastest_s = float("inf")
    for _ in range(100):
        before_s = monotonic()
        time.time()
        fastest_s = min(fastest_s, monotonic() - before_s)
    return fastest_s
