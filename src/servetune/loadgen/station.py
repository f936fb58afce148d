"""What sends on one node of a cluster: crews, as on one machine, told and heard over Ray.

A station is given the whole list of requests and those indices that it is to send, so that
what a lost node left undone needs no second journey. Each such deal is a crew of its own.
"""

from __future__ import annotations

import os
import threading
import time
from array import array

import msgspec

from servetune import __version__
from servetune.errors import ServetuneError
from servetune.loadgen.sender_pool import SenderPool, SenderPoolConfig, SendStatistics
from servetune.traffic.messages import RequestTrace
from servetune.traffic.request_file import RequestColumns, RequestFile

__all__ = ["Carried", "DealState", "News", "Station", "carried"]

ABANDONED_S = 20.0
"""Of silence after which nobody conducts any more, and the load is ended."""

_encode = msgspec.msgpack.Encoder().encode


class DealState(msgspec.Struct, frozen=True, array_like=True):
    """How far one deal is."""

    number: int
    ready: bool
    over: bool
    begun_count: int
    in_flight_count: int
    broken: str


class News(msgspec.Struct, frozen=True, array_like=True):
    """What happened on a node since it was last asked.

    Attributes:
        now_s: Its monotonic clock.
        seen: Requests that ended, on that clock.
        lost: Whether a connection was refused or lost.
    """

    now_s: float
    seen: list[RequestTrace]
    lost: bool
    deals: list[DealState]


class _Stop(msgspec.Struct, frozen=True):
    outcome: str
    detail: str
    grace_s: float


class Carried(msgspec.Struct, frozen=True):
    """What is asked, as it travels: what `RequestFile` has, and no file."""

    bodies: bytes
    columns: RequestColumns

    def write_request_file(self) -> int:
        """A file of it on this machine, for the rest of this process's life."""
        fd = os.memfd_create("servetune-asks", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(self.bodies)
        return fd


def carried(request_file: RequestFile) -> Carried:
    """What is asked, ready to travel."""
    size, parts = os.fstat(request_file.fd).st_size, []
    at = 0
    while at < size:
        parts.append(os.pread(request_file.fd, size - at, at))
        at += len(parts[-1])
    return Carried(b"".join(parts), request_file.columns)


class _Deal:
    """One crew in a thread of its own."""

    def __init__(
        self, number: int, station: Station, config: SenderPoolConfig, request_file: RequestFile
    ) -> None:
        self._number = number
        self._station = station
        self._start_s: float | None = None
        self._begun = threading.Event()
        self._stopped = False
        self.ready = False
        self.over = False
        self.broken = ""
        self.statistics = SendStatistics()
        self.crew: SenderPool | None = None
        self._thread = threading.Thread(target=self._run, args=(config, request_file), daemon=True)
        self._thread.start()

    def begin(self, start_s: float) -> None:
        """Start at this time on this machine's clock."""
        self._start_s = start_s
        self._begun.set()

    @property
    def state(self) -> DealState:
        crew = self.crew
        return DealState(
            number=self._number,
            ready=self.ready,
            over=self.over,
            begun_count=crew.begun_count if crew else 0,
            in_flight_count=crew.in_flight_count if crew and not self.over else 0,
            broken=self.broken,
        )

    def _run(self, config: SenderPoolConfig, request_file: RequestFile) -> None:
        try:
            self.crew = crew = SenderPool(
                config,
                request_file,
                on_start=lambda _: None,
                on_trace=self._station.note,
                on_turn=self._look,
                agreed_start=self._agreed_start,
            )
            self.statistics = crew.run()
        except (ServetuneError, OSError) as error:
            self.broken = str(error)
        finally:
            self.over = True

    def _agreed_start(self) -> float:
        self.ready = True
        while not self._begun.wait(0.05):
            assert self.crew is not None
            self._look(self.crew)
            if self._stopped:
                break
        return time.monotonic() if self._start_s is None else self._start_s

    def _look(self, crew: SenderPool) -> None:
        if crew.lost:
            self._station.lost, crew.lost = True, False
        order = self._station.order()
        if order is not None and not self._stopped:
            self._stopped = True
            crew.stop(order.outcome, order.detail, grace_s=order.grace_s)


class Station:
    """An actor: its methods are called from the machine that conducts the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: list[RequestTrace] = []
        self._deals: dict[int, _Deal] = {}
        self._requests_fd = -1
        self._columns = RequestColumns(begins=b"", due_s=b"")
        self._config: SenderPoolConfig | None = None
        self._stop: _Stop | None = None
        self._heard_s = time.monotonic()
        self.lost = False

    # called from afar

    def version(self) -> str:
        """Of servetune here."""
        return __version__

    def now_s(self) -> float:
        """This machine's monotonic clock."""
        return time.monotonic()

    def prepare(self, config: SenderPoolConfig, request_file: Carried) -> None:
        """Take in what all deals have in common."""
        self._config = config
        self._requests_fd, self._columns = request_file.write_request_file(), request_file.columns

    def deal(self, number: int, packed_firsts: bytes, users: int | None) -> None:
        """Get ready to send these requests and what follows them; calls may come in any order."""
        assert self._config is not None
        self._heard_s = time.monotonic()
        request_file = RequestFile(
            self._requests_fd, self._columns, list(array("I", packed_firsts))
        )
        config = msgspec.structs.replace(self._config, users=users)
        self._deals[number] = _Deal(number, self, config, request_file)

    def begin(self, number: int, start_s: float) -> None:
        """Let a deal start at this time on this machine's clock."""
        self._deals[number].begin(start_s)

    def news(self) -> bytes:
        """`News`, packed."""
        self._heard_s = time.monotonic()
        with self._lock:
            # States before what was seen: a request is never both over and unheard of.
            states = [deal.state for deal in list(self._deals.values())]
            seen, self._seen = self._seen, []
        lost, self.lost = self.lost, False
        return _encode(News(time.monotonic(), seen, lost, states))

    def stop(self, outcome: str, detail: str, grace_s: float) -> None:
        """Send nothing more; end what is in flight after a while."""
        self._stop = _Stop(outcome, detail, grace_s)

    def accounts(self) -> list[SendStatistics]:
        """What the crews did, when they are over."""
        return [deal.statistics for deal in self._deals.values()]

    # called by the deals' threads

    def note(self, seen: RequestTrace) -> None:
        """A request ended."""
        with self._lock:
            self._seen.append(seen)

    def order(self) -> _Stop | None:
        """To stop, if that was said, or if nobody says anything any more."""
        if self._stop is None and time.monotonic() - self._heard_s > ABANDONED_S:
            self._stop = _Stop("cancelled", "nobody conducts the run any more", 0.0)
        return self._stop
