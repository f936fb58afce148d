"""Clocks, passed in as arguments so that tests control time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "VirtualClock"]


class Clock(Protocol):
    """Source of seconds. Only differences between readings have a meaning."""

    def now_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


class MonotonicClock:
    """Monotonic clock of the machine; changes of the wall clock do not affect it."""

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class VirtualClock:
    """Clock that advances only by sleeping.

    Sleeping never waits: time jumps. It serves one task at a time; concurrent sleepers need
    the simulator's event queue instead.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, duration_s: float) -> None:
        self._now_s += max(0.0, duration_s)
        await asyncio.sleep(0)
