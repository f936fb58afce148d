"""Servers side by side: each visit to a configuration in a thread, on devices of its own.

A lane is a server under load. A server that starts or stops takes devices and no lane, so the
next one starts while the last one stops wherever devices are left. With several lanes the
first visit's first trial runs alone, as the reference for what the neighbours do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from servetune.servers.gpus import DeviceMemory
from servetune.servers.launchers import Placement
from servetune.trials.neighbours import Neighbours
from servetune.trials.packing import DeviceBlocks, packed
from servetune.trials.server_context import ServerContext
from servetune.trials.trial import Trial

__all__ = ["DevicePool", "TrialBatch", "run_batches"]

_LOOK_S = 0.5


class TrialBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Some trials of one server configuration, one after another on one server.

    Attributes:
        number: Of the configuration.
    """

    number: int
    trials: list[Trial]

    @property
    def device_count(self) -> int:
        return self.trials[0].plan.device_count


class DevicePool(msgspec.Struct, frozen=True, kw_only=True):
    """Where servers run.

    Attributes:
        device_count: `None` where servers share a processor, one at a time.
        lanes: Servers under load at once.
        vendor: Of the devices.
        cpus: That servers are pinned to; empty for no pinning.
        memory: Of the devices.
    """

    device_count: int | None = None
    parallel_servers: int = 1
    vendor: str = "NVIDIA"
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None
    memory: DeviceMemory | None = None


class Measures(Protocol):
    """A group of trials that can be measured; `ServerGroup` is one."""

    def measure(self) -> None: ...

    def kill(self) -> None: ...


def run_batches(
    batches: Sequence[TrialBatch],
    device_pool: DevicePool,
    group_of: Callable[[TrialBatch, ServerContext], Measures],
) -> None:
    """Measure all visits, as many at once as the ground has lanes and devices for.

    Args:
        visits: In the order wanted; with several lanes large ones come first.
        ground: Where they run.
        group_of: Makes a visit's group, which knows what runs beside it.

    Raises:
        KeyboardInterrupt: The user stopped it; every server is stopped by then.
        PlanError: A plan needs more devices than there are; nothing was started.
    """
    for batch in batches:
        if device_pool.device_count is not None:
            DeviceBlocks(device_pool.device_count).take(batch.device_count)
    if device_pool.parallel_servers > 1:
        batches = [batches[place] for place in packed([batch.device_count for batch in batches])]
    _Scheduler(list(batches), device_pool, group_of).work()


class _Running:
    """A visit under way."""

    def __init__(self, batch: TrialBatch, devices: tuple[int, ...]) -> None:
        self.batch, self.devices = batch, devices
        self.loads = True  # or is going to
        self.alone = False
        self.group: Measures | None = None
        self.thread: threading.Thread | None = None


class _Scheduler:
    def __init__(
        self,
        waiting: list[TrialBatch],
        device_pool: DevicePool,
        group_of: Callable[[TrialBatch, ServerContext], Measures],
    ) -> None:
        self._waiting, self._device_pool, self._group_of = waiting, device_pool, group_of
        self._devices = DeviceBlocks(device_pool.device_count or 1)
        self._neighbours = Neighbours()
        self._halt = threading.Event()
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._error: BaseException | None = None
        self._reference_pending = device_pool.parallel_servers > 1 and len(waiting) > 1

    def work(self) -> None:
        """Start what can be started until all is done."""
        try:
            with self._changed:
                while self._goes_on():
                    if not self._start_one():
                        self._changed.wait(_LOOK_S)
        finally:
            self._end()
        if self._error is not None:
            raise self._error

    def _goes_on(self) -> bool:
        return self._error is None and bool(self._waiting or self._running)

    def _start_one(self) -> bool:
        """Start the first visit that there is a lane and room for."""
        if sum(one.loads for one in self._running) >= self._device_pool.parallel_servers:
            return False
        if any(one.alone for one in self._running):
            return False
        busy = {one.batch.number for one in self._running}
        for place, batch in enumerate(self._waiting):
            if batch.number in busy:  # what is learnt of a configuration is learnt in turn
                if self._device_pool.parallel_servers == 1:
                    return False
                continue
            devices = self._devices.take(self._wanted(batch))
            if devices is None:
                if self._device_pool.parallel_servers == 1:
                    return False  # one after another, in the order that was asked for
                continue
            del self._waiting[place]
            self._start(_Running(batch, devices))
            return True
        return False

    def _wanted(self, batch: TrialBatch) -> int:
        return 1 if self._device_pool.device_count is None else batch.device_count

    def _start(self, one: _Running) -> None:
        one.alone, self._reference_pending = self._reference_pending, False
        device_pool = self._device_pool
        whole = len(one.devices) == (device_pool.device_count or 1)
        context = ServerContext(
            placement=Placement(
                devices=() if whole else one.devices,
                vendor=device_pool.vendor,
                cpus=device_pool.cpus,
                numa_node=device_pool.numa_node,
            ),
            neighbours=self._neighbours,
            memory=device_pool.memory,
            halt=self._halt,
            check=one.alone,
            alone_done=lambda: self._set(one, alone=False),
            loads_done=lambda: self._set(one, alone=False, loads=False),
        )
        one.group = self._group_of(one.batch, context)
        one.thread = threading.Thread(
            target=self._measure, args=(one,), name=f"server {one.batch.number}", daemon=True
        )
        self._running.append(one)
        one.thread.start()

    def _set(self, one: _Running, *, alone: bool, loads: bool = True) -> None:
        with self._changed:
            one.alone, one.loads = alone, loads
            self._changed.notify_all()

    def _measure(self, one: _Running) -> None:
        error: BaseException | None = None
        try:
            with self._neighbours.one_more():
                assert one.group is not None
                one.group.measure()
        except BaseException as raised:
            error = raised  # of this thread's own edge; `work` raises it
        with self._changed:
            self._running.remove(one)
            self._devices.give_back(one.devices)
            if error is not None and self._error is None:
                self._error = error
            self._changed.notify_all()

    def _end(self) -> None:
        """Stop what still runs; a second Ctrl-C does so without grace."""
        self._halt.set()
        hurried = False
        while True:
            try:
                with self._changed:
                    running = list(self._running)
                if not running:
                    return
                for one in running:
                    if hurried and one.group is not None:
                        one.group.kill()
                    if one.thread is not None:
                        one.thread.join(_LOOK_S)
            except KeyboardInterrupt:
                hurried = True
