"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence as Several

from servetune.perf.sim.batcher import Batcher

__all__ = ["Router"]

#: vLLM's data-parallel front end counts a waiting request as four running ones.
_WAITING_WEIGHT = 4


class Router:
    """Replicas take turns; inside one, the least loaded data-parallel rank takes the request.

    Ties go to the rank with the lowest number.
    """

    def __init__(self, replicas: Several[Several[Batcher]]) -> None:
        self._replicas = replicas
        self._turn = 0

    def choose(self) -> Batcher:
        ranks = self._replicas[self._turn % len(self._replicas)]
        self._turn += 1
        return min(ranks, key=lambda rank: _WAITING_WEIGHT * rank.waiting + rank.running)
