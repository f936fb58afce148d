"""A fleet under a scaling policy, request by request: every copy, its starts and its stops.

What `perf.fleet_day` plays in windows, for as many requests as one can wait for.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import msgspec
import numpy as np

from servetune.metrics.record import Record
from servetune.perf.sim.router import Router
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import Sequence
from servetune.perf.sim.serving import DEADLINE, EngineLayout, Rank
from servetune.perf.sim.simulation import PreparedRun, VirtualRun
from servetune.perf.target_tracking import ScalingPolicy, TargetTracker


class FixedInstances(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of another type that always run beside those that are scaled.

    Attributes:
        run: Engine of one of their copies; its requests are not used.
        copies: Copies on an instance.
        count: Number of instances.
        relative_capacity: Requests per second of one of them within the limits, over those of one
            that is scaled.
    """

    run: PreparedRun
    copies: int
    count: int
    relative_capacity: float


class FleetRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a fleet.

    Attributes:
        records: One per request, by index.
        instance_s: Scaled instances times seconds until the last request was due, starting ones
            included.
        serving: Scaled instances that served, by period of the policy's metric.
        fixed_requests: Requests that instances beside the scaled ones served, by index.
    """

    records: tuple[Record, ...]
    instance_s: float
    serving: tuple[int, ...]
    fixed_requests: frozenset[int] = frozenset()


def _least_outstanding(copies: Several[Several[Scheduler]]) -> Router:
    return Router(copies, "shortest_queue", "least-outstanding")


class _ByCapacity(Router):
    """Router that draws the type of each request by the capacity of what serves of it.

    Args:
        scaled: Router among copies of the type that is scaled.
        fixed: Router among copies of the other type.
        fixed_weight: Capacity of all of the latter, in copies of the former.
        seed: Seed of the draws.
    """

    def __init__(self, scaled: Router, fixed: Router, fixed_weight: float, seed: int) -> None:
        super().__init__([])
        self._scaled, self._fixed, self._fixed_weight = scaled, fixed, fixed_weight
        self._rng = np.random.default_rng(seed)

    def choose(self) -> Scheduler:
        share = self._fixed_weight / (self._fixed_weight + len(self._scaled.serving))
        return (self._fixed if self._rng.random() < share else self._scaled).choose()


class _FleetRun(VirtualRun):
    """Users, router and copies of a fleet whose size follows a policy.

    The time from sending to the scheduler's queue is that of the scaled type for all requests.
    """

    def __init__(
        self,
        run: PreparedRun,
        tracker: TargetTracker,
        copies: int,
        fixed: FixedInstances | None,
        seed: int,
    ) -> None:
        super().__init__(run.requests, run.config, run.law, run.load, run.layout)
        self._tracker, self._copies = tracker, copies
        self._last_due_s = run.requests[-1].due_s
        self.instance_s = 0.0
        self.serving: list[int] = []
        self._least = self._router
        self._least.serving = range(tracker.serving * copies)
        self._fixed_ranks = self._beside(fixed, seed) if fixed is not None else []
        self.events.enter(tracker.policy.period_s, DEADLINE, self._observe)
        self.fixed_requests: set[int] = set()

    def _new_router(self, copies: Several[Several[Scheduler]], layout: EngineLayout) -> Router:
        return _least_outstanding(copies)

    def _beside(self, fixed: FixedInstances, seed: int) -> list[Rank]:
        """Ranks of the instances that always run, with their share of the requests."""
        run, replicas = fixed.run, fixed.count * fixed.copies
        layout = msgspec.structs.replace(run.layout, replicas=replicas)
        copies = self._new_copies(run.config, run.law, layout)
        ranks = [rank for copy in copies for rank in copy]
        router = _least_outstanding([[rank.scheduler for rank in copy] for copy in copies])
        weight = fixed.count * fixed.relative_capacity * self._copies
        self._router = _ByCapacity(self._least, router, weight, seed)
        self.ranks += ranks
        self.schedulers += [rank.scheduler for rank in ranks]
        return list(ranks)

    def committed(self, rank: Rank, ended: list[Sequence], now_s: float) -> None:
        """Take in what ended with a stretch of steps."""
        if rank in self._fixed_ranks:
            self.fixed_requests.update(sequence.index for sequence in ended)
        super().committed(rank, ended, now_s)

    def _observe(self, now_s: float) -> None:
        """Let the autoscaler see the scaled instances; those that leave answer what they have."""
        tracker = self._tracker
        period_s = tracker.policy.period_s
        self.serving.append(tracker.serving)
        self.instance_s += (tracker.serving + tracker.starting) * period_s
        tracker.advance(now_s)
        elsewhere = sum(
            each.scheduler.waiting + each.scheduler.running for each in self._fixed_ranks
        )
        tracker.observe(now_s, self._in_flight - elsewhere)
        self._least.serving = range(tracker.serving * self._copies)
        if now_s + period_s <= self._last_due_s:
            self.events.enter(now_s + period_s, DEADLINE, self._observe)


def simulate_fleet(
    run: PreparedRun,
    policy: ScalingPolicy,
    *,
    copies: int,
    start_up_s: float,
    first: int,
    fixed: FixedInstances | None = None,
    seed: int = 0,
) -> FleetRun:
    """Serve requests by a fleet of equal instances that is scaled, and others beside it.

    Args:
        run: Requests, and the engine of one copy.
        policy: Autoscaler's policy.
        copies: Copies on an instance.
        start_up_s: Time from the decision to add an instance until it serves.
        first: Instances that serve at the beginning.
        fixed: Instances of another type that always run beside these; requests are divided at
            random, in proportion to the capacity of what serves.
        seed: Seed of that division.
    """
    replicas = policy.maximum * copies
    wide = msgspec.structs.replace(
        run, layout=msgspec.structs.replace(run.layout, replicas=replicas)
    )
    fleet = _FleetRun(wide, TargetTracker(policy, start_up_s, first), copies, fixed, seed)
    fleet.play(float("inf"))
    return FleetRun(
        records=tuple(record for record in fleet.records if record is not None),
        instance_s=fleet.instance_s,
        serving=tuple(fleet.serving),
        fixed_requests=frozenset(fleet.fixed_requests),
    )
