"""Routing of requests to replicas and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from types import MappingProxyType
from typing import Literal

import numpy as np

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


def _shortest_queue(rank: Scheduler) -> int:
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


#: Tells the draws of copies from others of the same seed.
_STREAM = 7

CopyRouting = Literal["round-robin", "random", "least-outstanding"]
"""Rules that choose the copy for a request: in turn, by chance (the default of an endpoint of
SageMaker that names none), or the one with the fewest requests in flight."""


class Router:
    """Router of requests to copies, and inside one to a data-parallel rank by `routing`.

    Among ranks with equal loads the one with the lowest number is chosen; with `cache_pressure`,
    and among copies with equally many requests, the first from a place that moves on each time.

    Attributes:
        serving: Numbers of the copies that take requests.

    Raises:
        UnknownName: There is no such routing.
    """

    def __init__(
        self,
        replicas: Several[Several[Scheduler]],
        routing: Routing = "cache_pressure",
        among: CopyRouting = "round-robin",
        seed: int = 0,
    ) -> None:
        if routing not in ROUTINGS:
            raise UnknownName("routing", routing, ROUTINGS)
        rules: dict[str, Callable[[int], int]] = {
            "round-robin": self._in_turn,
            "random": self._by_chance,
            "least-outstanding": self._least_outstanding,
        }
        if among not in rules:
            raise UnknownName("routing", among, rules)
        self._replicas = replicas
        self.serving: Several[int] = range(len(replicas))
        self._load = ROUTINGS[routing]
        self._rotates = routing == "cache_pressure"
        self._copy_for = rules[among]
        self._chance = np.random.default_rng((seed, _STREAM))
        self._turn, self._turns = 0, [0] * len(replicas)

    def choose(self) -> Scheduler:
        copy = self.serving[self._copy_for(self._turn)] if len(self._replicas) > 1 else 0
        self._turn += 1
        ranks, turn = self._replicas[copy], self._turns[copy]
        self._turns[copy] += 1
        if self._load is None:
            return ranks[turn % len(ranks)]
        start = turn % len(ranks) if self._rotates else 0
        return min((*ranks[start:], *ranks[:start]), key=self._load)

    def _in_turn(self, turn: int) -> int:
        return turn % len(self.serving)

    def _by_chance(self, turn: int) -> int:
        return int(self._chance.integers(len(self.serving)))

    def _least_outstanding(self, turn: int) -> int:
        """Position of the copy with the fewest requests; ties take turns."""
        count = len(self.serving)
        order = ((turn + ahead) % count for ahead in range(count))
        return min(order, key=lambda position: self._outstanding(self.serving[position]))

    def _outstanding(self, copy: int) -> int:
        return sum(_shortest_queue(rank) for rank in self._replicas[copy])
