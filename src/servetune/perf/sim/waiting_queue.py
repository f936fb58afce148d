"""Queue of waiting sequences, in order of arrival or by priority."""

from __future__ import annotations

import heapq
from collections import deque

from servetune.perf.sim.sequence import Sequence


class FifoQueue(deque[Sequence]):
    """First come, first served; a preempted sequence is first again."""

    def first(self) -> Sequence:
        return self[0]

    def remove_first(self) -> None:
        self.popleft()

    def put_back(self, sequence: Sequence) -> None:
        self.appendleft(sequence)


class PriorityQueue:
    """Smallest priority number first, of equal ones the earliest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, sequence: Sequence) -> bool:
        return any(entry[2] is sequence for entry in self._heap)

    def append(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*sequence.rank, sequence))

    put_back = append

    def first(self) -> Sequence:
        return self._heap[0][2]

    def remove_first(self) -> None:
        heapq.heappop(self._heap)

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not sequence]
        heapq.heapify(self._heap)


WaitingQueue = FifoQueue | PriorityQueue
