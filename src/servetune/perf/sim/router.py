"""Routing of requests to replicas and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from types import MappingProxyType
from typing import Literal

from servetune.errors import UnknownName
from servetune.perf.sim.scheduler import Scheduler

Routing = Literal["waiting_first", "cache_pressure", "round_robin", "shortest_queue"]

#: vLLM's data-parallel front end counted a waiting request as four running ones.
_WAITING_WEIGHT = 4
#: vLLM 0.32: a waiting request weighs more from half a cache on, up to three times at a full one.
_PRESSURE_WEIGHT, _PRESSURE_FROM = 6.0, 0.5


def _waiting_first(rank: Scheduler) -> float:
    return _WAITING_WEIGHT * rank.waiting + rank.running


def _cache_pressure(rank: Scheduler) -> float:
    used_fraction = 1 - rank.cache.free_blocks / rank.cache.capacity_blocks
    weight = _PRESSURE_WEIGHT * max(0.0, used_fraction - _PRESSURE_FROM)
    return rank.waiting + rank.running + weight * rank.waiting


def _shortest_queue(rank: Scheduler) -> float:
    return rank.waiting + rank.running


#: Load of a rank by each method; the least loaded takes the request. `round_robin` has none.
#:
#: - `waiting_first`: vLLM's front end up to 0.2x (`DPLBAsyncMPClient`).
#: - `cache_pressure`: vLLM 0.32's and the default here; its search begins at the next rank each
#:   time.
#:   Counts are those of the moment, where vLLM's may be 100 ms old.
#: - `round_robin`, `shortest_queue`: SGLang's `--load-balance-method`
#:   (`data_parallel_controller.py`; its newer `total_requests` is the latter).
ROUTINGS: Mapping[str, Callable[[Scheduler], float] | None] = MappingProxyType(
    {
        "waiting_first": _waiting_first,
        "cache_pressure": _cache_pressure,
        "round_robin": None,
        "shortest_queue": _shortest_queue,
    }
)


class Router:
    """Replicas take turns; inside one, a data-parallel rank is chosen by `routing`.

    Ties go to the rank with the lowest number; with `cache_pressure` to the first from one that
    changes every time.

    Raises:
        UnknownName: There is no such routing.
    """

    def __init__(
        self, replicas: Several[Several[Scheduler]], routing: Routing = "cache_pressure"
    ) -> None:
        if routing not in ROUTINGS:
            raise UnknownName("routing", routing, ROUTINGS)
        self._replicas = replicas
        self._load = ROUTINGS[routing]
        self._rotates = routing == "cache_pressure"
        self._turn = 0

    def choose(self) -> Scheduler:
        turn, count = divmod(self._turn, len(self._replicas))
        ranks = self._replicas[count]
        self._turn += 1
        if self._load is None:
            return ranks[turn % len(ranks)]
        start = turn % len(ranks) if self._rotates else 0
        return min((*ranks[start:], *ranks[:start]), key=self._load)
