"""Time, passed in: a clock is an argument, so that a test can be its own clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "VirtualClock"]


class Clock(Protocol):
    """Where seconds come from. Differences mean something, single values do not."""

    def now_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


class MonotonicClock:
    """The machine's monotonic clock; stepping the wall clock does not move it."""

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class VirtualClock:
    """A clock that moves only when somebody sleeps.

    Sleeping never waits: time jumps. It suits one task at a time; many tasks that
    sleep side by side need the simulator's event queue instead.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, duration_s: float) -> None:
        self._now_s += max(0.0, duration_s)
        await asyncio.sleep(0)
