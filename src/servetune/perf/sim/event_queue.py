"""Discrete-event core: one heap, ordered by (time, priority, order of entry) and nothing else."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """Events to come.

    Of events at the same time the lower priority number comes first, of those the one that was
    entered first, so a run is the same every time.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Event]] = []
        self._entered = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the first event."""
        return self._heap[0][0]

    def enter(self, time_s: float, priority: int, event: Event) -> None:
        heapq.heappush(self._heap, (time_s, priority, self._entered, event))
        self._entered += 1

    def next(self) -> tuple[float, Event]:
        """Remove the first event; its time and the event."""
        time_s, _, _, event = heapq.heappop(self._heap)
        return time_s, event
