"""Context of one server: its share of the machine, its study, and servers loaded at the same time.

Servers on disjoint devices still share cores, memory, the bus, power and cooling. So the first
trial of a parallel study is measured while nothing else runs, and once more while its neighbours
are under load. If it is worse then, by more than its own uncertainty, every figure of the study is,
and a note says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from servetune.json_value import JsonObject
from servetune.loadgen import SenderSource
from servetune.servers.gpus import Card, DeviceMemory
from servetune.servers.launchers import Placement
from servetune.store import Results
from servetune.trials.budget import Budget
from servetune.trials.repeated import changes_between, changes_beyond_noise
from servetune.trials.retry import Attempts
from servetune.trials.watch import RunWatch


class Neighbours:
    """Number of servers under load now, and of servers at all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._servers = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a server from its start to its end."""
        self._add(servers=1)
        try:
            yield
        finally:
            self._add(servers=-1)

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Count a server as under load, for the duration of the context."""
        self._add(count=1)
        try:
            yield
        finally:
            self._add(count=-1)

    @property
    def count(self) -> int:
        return self._count

    def await_any(self, timeout_s: float) -> int:
        """Servers under load besides the caller, once there is one, none that could be, or a
        timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._count > 0 or self._servers <= 1, timeout_s)
            return self._count

    def _add(self, *, servers: int = 0, count: int = 0) -> None:
        with self._changed:
            self._servers += servers
            self._count += count
            self._changed.notify_all()


def disturbance(
    alone: Results, with_neighbours: Results, *, neighbours: tuple[int, int]
) -> JsonObject:
    """Difference that the neighbours made to a trial, for its record.

    A figure counts as worse when the change is beyond noise (`repeated`).

    Args:
        alone: Results of the trial with nothing beside it.
        with_neighbours: Results of the same trial again, beside its neighbours.
        neighbours: Servers under load when that began, and when it ended.
    """
    found = changes_between(alone, with_neighbours)
    changes = {
        field: {"alone": change.before, "beside": change.after, "change": change.relative}
        for field, change in found.items()
    }
    worse = [
        f"{change.name} {'-' if change.more_is_better else '+'}{change.loss:.0%}"
        for change in changes_beyond_noise(alone, with_neighbours, found).values()
        if change.loss > 0
    ]
    between = f"{min(neighbours)} to {max(neighbours)} neighbours"
    if worse:
        words = f"NEIGHBOURS DISTURB: with {between} {', '.join(worse)} against alone"
    elif not max(neighbours):
        words = "not checked: no neighbour was under load while the reference ran again"
    else:
        words = f"with {between} the reference trial ran as it did alone"
    return {
        "neighbours": list(neighbours),
        "disturbed": bool(worse),
        "checked": max(neighbours) > 0,
        "changes": changes,
        "words": words,
    }


class ServerContext(msgspec.Struct, kw_only=True):
    """Context of one server; by default it is alone on its machine.

    Attributes:
        attempts: Earlier failures of the configuration; `None` where it is new.
        budget: Time and money of the whole study.
        placement: Devices and cores of the server.
        neighbours: Servers under load at the same time.
        memory: Memory of the machine's devices; `None` where nothing reports it.
        halt: Event that is set when the study shall end.
        watch: Observer that is told what the trials do.
        senders: Machines that send the load; `None` for this one.
        check: Whether the first trial is measured again beside the neighbours.
        alone_done: Function called when the first trial has its result.
        loads_done: Function called when all trials have a result, while the server still runs.
    """

    attempts: Attempts | None = None
    budget: Budget = msgspec.field(default_factory=Budget)
    placement: Placement = msgspec.field(default_factory=Placement)
    neighbours: Neighbours = msgspec.field(default_factory=Neighbours)
    memory: DeviceMemory | None = None
    halt: threading.Event = msgspec.field(default_factory=threading.Event)
    watch: RunWatch = msgspec.field(default_factory=RunWatch)
    senders: SenderSource | None = None
    check: bool = False
    alone_done: Callable[[], None] = lambda: None
    loads_done: Callable[[], None] = lambda: None

    def await_memory(self) -> Sequence[Card]:
        """Devices of the server whose memory is still in use by others after a wait."""
        if self.memory is None:
            return ()
        return self.memory.await_free(self.placement.devices or None)
