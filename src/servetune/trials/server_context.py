"""What one server knows of the run that it is part of, and of what runs beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from servetune.servers.gpus import Card, DeviceMemory
from servetune.servers.launchers import Placement
from servetune.trials.neighbours import Neighbours

__all__ = ["ServerContext"]


class ServerContext:
    """The neighbourhood of a server; by default it is alone and nobody listens.

    Args:
        placement: Its devices and cores.
        neighbours: Who is under load.
        memory: Of the machine's devices; `None` where nobody can tell.
        halt: Set when the run shall end.
        check: Whether its first trial is measured again beside the neighbours.
        alone_done: Called when the first trial has its result.
        loads_done: Called when all have, while the server still runs.
    """

    def __init__(
        self,
        *,
        placement: Placement | None = None,
        neighbours: Neighbours | None = None,
        memory: DeviceMemory | None = None,
        halt: threading.Event | None = None,
        check: bool = False,
        alone_done: Callable[[], None] = lambda: None,
        loads_done: Callable[[], None] = lambda: None,
    ) -> None:
        self.placement = placement or Placement()
        self.neighbours = neighbours or Neighbours()
        self._memory = memory
        self._shared = halt is not None
        self.halt = halt or threading.Event()
        self.check = check
        self.alone_done, self.loads_done = alone_done, loads_done

    def await_memory(self) -> Sequence[Card]:
        """Devices of the server that are not as free as they were, after some patience."""
        if self._memory is None:
            return ()
        return self._memory.await_free(self.placement.devices or None)

    def halt_of_this_load(self) -> threading.Event | None:
        """What ends a load; one that nobody else may set is the load's own affair."""
        return self.halt if self._shared else None
