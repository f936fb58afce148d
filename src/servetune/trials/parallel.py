"""Servers side by side on one machine: each batch of trials in a thread, on devices of its own.

Servers are packed onto devices so that as many as possible run at once; the number under load is
limited. A server that starts or stops takes devices but does not count, so the next one starts
while the last one stops wherever devices are left. With several servers under load, the first
trial of the first batch runs alone, as the reference for what the neighbours do to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from servetune.errors import PlanError
from servetune.servers.gpus import DeviceMemory
from servetune.servers.launchers import Placement
from servetune.trials.server_context import Neighbours, ServerContext
from servetune.trials.trial import Trial

_LOOK_S = 0.5


class TrialBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of one server configuration, run one after another on one server.

    Attributes:
        number: Number of the configuration in the study.
    """

    number: int
    trials: list[Trial]

    @property
    def device_count(self) -> int:
        return self.trials[0].plan.device_count


class DevicePool(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of the machine that servers run on.

    Attributes:
        device_count: Number of devices; `None` where servers share a processor, one at a time.
        parallel_servers: Largest number of servers under load at once.
        vendor: Vendor of the devices.
        cpus: Cores that servers are pinned to; empty for no pinning.
        numa_node: NUMA node whose cores and memory servers use; `None` for any.
        memory: Memory of the devices; `None` where nothing reports it.
    """

    device_count: int | None = None
    parallel_servers: int = 1
    vendor: str = "NVIDIA"
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None
    memory: DeviceMemory | None = None


class BatchRun(Protocol):
    """Batch of trials that can be measured; `ServerGroup` is one."""

    def measure(self) -> None: ...

    def kill(self) -> None: ...


def run_batches(
    batches: Sequence[TrialBatch],
    device_pool: DevicePool,
    start: Callable[[TrialBatch, ServerContext], BatchRun],
    *,
    next_batch: Callable[[], TrialBatch | None] = lambda: None,
    halt: threading.Event | None = None,
) -> None:
    """Measure all batches, as many at once as the pool allows and has devices for.

    Args:
        batches: Batches in order; with parallel servers large ones come first.
        device_pool: Devices that they run on.
        start: Makes the run of a batch in its context.
        next_batch: Gives a further batch once every load of those before has ended; `None` at
            the end.
        halt: Event that ends it when set, as the user's interrupt does.

    Raises:
        KeyboardInterrupt: The user stopped it; every server is stopped by then.
        PlanError: A plan needs more devices than there are; nothing was started.
    """
    for batch in batches:
        if device_pool.device_count is not None:
            DeviceBlocks(device_pool.device_count).take(batch.device_count)
    if device_pool.parallel_servers > 1:
        batches = [batches[place] for place in packed([batch.device_count for batch in batches])]
    _Scheduler(list(batches), device_pool, start, next_batch, halt or threading.Event()).run()


class _Running:
    """Batch that is being measured."""

    def __init__(self, batch: TrialBatch, devices: tuple[int, ...]) -> None:
        self.batch, self.devices = batch, devices
        self.loads = True  # or will, once its server is ready
        self.alone = False
        self.group: BatchRun | None = None
        self.thread: threading.Thread | None = None


class _Scheduler:
    """Batches that wait and those that run."""

    def __init__(
        self,
        waiting: list[TrialBatch],
        device_pool: DevicePool,
        start: Callable[[TrialBatch, ServerContext], BatchRun],
        next_batch: Callable[[], TrialBatch | None],
        halt: threading.Event,
    ) -> None:
        self._waiting, self._device_pool, self._make = waiting, device_pool, start
        self._next_batch = next_batch
        self._devices = DeviceBlocks(device_pool.device_count or 1)
        self._neighbours = Neighbours()
        self._halt = halt
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._error: BaseException | None = None
        self._reference_pending = device_pool.parallel_servers > 1 and len(waiting) > 1

    def run(self) -> None:
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
        if self._error is not None:
            return False
        if self._halt.is_set():
            raise KeyboardInterrupt
        if not self._waiting and not any(one.loads for one in self._running):
            batch = self._next_batch()
            self._waiting.extend([] if batch is None else [batch])
        return bool(self._waiting or self._running)

    def _start_one(self) -> bool:
        """Start the first batch that may run now and fits on the free devices."""
        if sum(one.loads for one in self._running) >= self._device_pool.parallel_servers:
            return False
        if any(one.alone for one in self._running):
            return False
        busy = {one.batch.number for one in self._running}
        for place, batch in enumerate(self._waiting):
            if (
                batch.number in busy
            ):  # failures of a configuration are learnt from, so its batches run one after another
                if self._device_pool.parallel_servers == 1:
                    return False
                continue
            devices = self._devices.take(self._devices_of(batch))
            if devices is None:
                if self._device_pool.parallel_servers == 1:
                    return False  # one after another, in the given order
                continue
            del self._waiting[place]
            self._start(_Running(batch, devices))
            return True
        return False

    def _devices_of(self, batch: TrialBatch) -> int:
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
        one.group = self._make(one.batch, context)
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
            error = raised  # the edge of this thread; `run` raises it
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


class DeviceBlocks:
    """Devices of one machine, by number, free or taken.

    A block of 2 begins at an even number, one of 4 at a multiple of four: boards join their devices
    in such pairs and fours, and returned blocks fit together again (the buddy system of Knowlton,
    Communications of the ACM 8, 1965).
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken: set[int] = set()

    def take(self, device_count: int) -> tuple[int, ...] | None:
        """First free block; `None` while there is none.

        Raises:
            PlanError: The machine has fewer devices.
        """
        if device_count > self.count:
            raise PlanError(
                f"the plan needs {device_count} devices and the machine has {self.count}",
                hint="use a smaller tensor_parallel_size, or name a larger machine",
            )
        step = _next_power_of_two(device_count)
        for begin in range(0, self.count, step):
            block = range(begin, begin + device_count)
            if block.stop <= self.count and not self._taken & set(block):
                self._taken |= set(block)
                return tuple(block)
        if device_count == step:
            return None
        for begin in range(self.count - device_count + 1):  # 3, 5, 6 of 8: wherever they fit
            block = range(begin, begin + device_count)
            if not self._taken & set(block):
                self._taken |= set(block)
                return tuple(block)
        return None

    def give_back(self, block: Sequence[int]) -> None:
        self._taken -= set(block)


def packed(counts: Sequence[int]) -> list[int]:
    """Order in which to place plans of so many devices each, as places in `counts`.

    Large ones first, equal ones as they stand. What is left at the end is small, so that the
    machine stays full to the last (Graham's bound for longest-first, SIAM Journal on Applied
    Mathematics 17, 1969, with devices for lengths), and equal sizes together leave no gaps.
    """
    return sorted(range(len(counts)), key=lambda place: -counts[place])


def parallel_servers_for(parallel: int | None, device_count: int, smallest: int) -> int:
    """Number of servers that may be under load at once.

    Args:
        parallel: Number that the user asks for; `None` for as many as there is room for.
        device_count: Devices of the machine.
        smallest: Devices of the smallest plan.

    Raises:
        PlanError: There is no room for so many.
    """
    most = max(1, device_count // max(1, smallest))
    if parallel is None:
        return most
    if parallel > most:
        raise PlanError(
            f"--parallel {parallel} needs {parallel * smallest} devices, the machine has "
            f"{device_count}",
            hint=f"give --parallel {most} at most, or --parallel auto",
        )
    return parallel


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
