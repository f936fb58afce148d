"""A fleet under a scaling policy, request by request: every copy, its starts and its stops.

What `perf.fleet_day` plays in windows, for as many requests as one can wait for.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import msgspec

from servetune.metrics.record import Record
from servetune.perf.sim.router import Router
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.serving import DEADLINE, EngineLayout
from servetune.perf.sim.simulation import PreparedRun, VirtualRun
from servetune.perf.target_tracking import ScalingPolicy, TargetTracker


class FleetRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a fleet.

    Attributes:
        records: One per request, by index.
        instance_s: Instances times seconds until the last request was due, starting ones included.
        serving: Instances that served, by period of the policy's metric.
    """

    records: tuple[Record, ...]
    instance_s: float
    serving: tuple[int, ...]


class _LeastOutstanding(Router):
    """Router to the copy with the fewest requests among those that serve; ties take turns."""

    def __init__(self, copies: Several[Several[Scheduler]]) -> None:
        super().__init__(copies)
        self.serving: list[int] = []

    def choose(self) -> Scheduler:
        self._turn += 1
        count = len(self.serving)
        start = self._turn % count
        order = (*self.serving[start:], *self.serving[:start])
        chosen = min(order, key=self._outstanding)
        return min(self._replicas[chosen], key=lambda rank: rank.waiting + rank.running)

    def _outstanding(self, copy: int) -> int:
        return sum(rank.waiting + rank.running for rank in self._replicas[copy])


class _FleetRun(VirtualRun):
    """Users, router and copies of a fleet whose size follows a policy."""

    def __init__(self, run: PreparedRun, tracker: TargetTracker, copies: int) -> None:
        super().__init__(run.requests, run.config, run.law, run.load, run.layout)
        self._tracker, self._copies = tracker, copies
        self._last_due_s = run.requests[-1].due_s
        self.instance_s = 0.0
        self.serving: list[int] = []
        assert isinstance(self._router, _LeastOutstanding)
        self._least = self._router
        self._least.serving = list(range(tracker.serving * copies))
        self.events.enter(tracker.policy.period_s, DEADLINE, self._observe)

    def _new_router(self, copies: Several[Several[Scheduler]], layout: EngineLayout) -> Router:
        return _LeastOutstanding(copies)

    def _observe(self, now_s: float) -> None:
        """Let the autoscaler see the fleet; instances that leave answer what they have."""
        tracker = self._tracker
        period_s = tracker.policy.period_s
        self.serving.append(tracker.serving)
        self.instance_s += (tracker.serving + tracker.starting) * period_s
        tracker.advance(now_s)
        tracker.observe(now_s, self._in_flight)
        self._least.serving = list(range(tracker.serving * self._copies))
        if now_s + period_s <= self._last_due_s:
            self.events.enter(now_s + period_s, DEADLINE, self._observe)


def simulate_fleet(
    run: PreparedRun, policy: ScalingPolicy, *, copies: int, start_up_s: float, first: int
) -> FleetRun:
    """Serve requests by a fleet of equal instances.

    Args:
        run: Requests, and the engine of one copy.
        policy: Autoscaler's policy.
        copies: Copies on an instance.
        start_up_s: Time from the decision to add an instance until it serves.
        first: Instances that serve at the beginning.
    """
    replicas = policy.maximum * copies
    wide = msgspec.structs.replace(
        run, layout=msgspec.structs.replace(run.layout, replicas=replicas)
    )
    fleet = _FleetRun(wide, TargetTracker(policy, start_up_s, first), copies)
    fleet.play(float("inf"))
    return FleetRun(
        records=tuple(record for record in fleet.records if record is not None),
        instance_s=fleet.instance_s,
        serving=tuple(fleet.serving),
    )
