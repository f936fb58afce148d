"""Context of one server: its share of the machine, and the study that it is part of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from servetune.loadgen import SenderSource
from servetune.servers.gpus import Card, DeviceMemory
from servetune.servers.launchers import Placement
from servetune.trials.budget import Budget
from servetune.trials.neighbours import Neighbours
from servetune.trials.retry import Attempts


class ServerContext(msgspec.Struct, kw_only=True):
    """Context of one server; by default it is alone on its machine.

    Attributes:
        attempts: Earlier failures of the configuration; `None` where it is new.
        budget: Time and money of the whole study.
        placement: Devices and cores of the server.
        neighbours: Servers under load at the same time.
        memory: Memory of the machine's devices; `None` where nothing reports it.
        halt: Event that is set when the study shall end.
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
    senders: SenderSource | None = None
    check: bool = False
    alone_done: Callable[[], None] = lambda: None
    loads_done: Callable[[], None] = lambda: None

    def await_memory(self) -> Sequence[Card]:
        """Devices of the server whose memory is still in use by others after a wait."""
        if self.memory is None:
            return ()
        return self.memory.await_free(self.placement.devices or None)
