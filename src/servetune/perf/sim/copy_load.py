"""Load curve of one copy by simulation: at which rate of random arrivals its limits are reached."""

from __future__ import annotations

import bisect
import functools

import msgspec

from servetune.hardware.device import Node
from servetune.metrics import Constraint, summarize
from servetune.models.shape import NetworkShape
from servetune.perf.copy_curve import CopyCurve, CurvePoint, point_of
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.sim.simulation import RunOptions, SimulatedRun, simulate
from servetune.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload.arrivals import Poisson
from servetune.workload.workload import Workload

#: Requests of a run: at least so many, and so many for each that is in flight on average, so that
#: the run is long beside the time of a request; at most as many as one can wait for.
_LEAST, _PER_IN_FLIGHT, _MOST = 1000, 8, 4000
#: Rates from this share of the largest on need the most requests: queues grow slowly there.
_NEAR_FULL = 0.75
#: Share of the throughput of a copy that always has work that it sustains: above it, requests that
#: come at random make queues that grow for longer than a run lasts.
_SUSTAINED = 0.95
#: Rate, as a share of the formula's, at which a copy always has work, and requests of that run at
#: first and at most.
_FLOODED, _FLOOD, _MOST_FLOOD = 1.5, 6000, 48_000
#: Runs with other seeds in which the largest rate must hold too, where queues grow slowly and
#: elsewhere; their requests, and the share of the rate that is tried next where one misses.
_SEEDS_NEAR_FULL, _SEEDS, _LONG, _STEP = 2, 1, 8000, 0.97
#: Share of a run's requests at its beginning, when the copy is not yet full, that are left out.
_WARM_UP = 0.1
#: Precision of the largest rate within the limits, as a share of the largest throughput.
_PRECISION = 0.03
#: Lowest rate, as a share of the largest throughput, at which a limit may hold.
_LOWEST = 0.02
#: Rates as shares of the largest within the limits that a whole curve has, too.
_SHAPE = (0.3, 0.6, 0.85, 1.1)


class SimulatedCopy:
    """One copy under random arrivals.

    Args:
        plan: Plan of one copy.
        shape: Network.
        node: Machine.
        workload: Requests; their arrivals and number are replaced.
        limits: Limits on latencies.
        most_per_s: Largest throughput as predicted by formula.
        calibration: Calibration by measured runs.
    """

    def __init__(
        self,
        plan: Plan,
        shape: NetworkShape,
        node: Node,
        workload: Workload,
        limits: tuple[Constraint, ...],
        *,
        most_per_s: float,
        calibration: Calibration | None = None,
    ) -> None:
        self._plan, self._shape, self._node = plan, shape, node
        self._workload, self._limits, self._calibration = workload, limits, calibration
        self._formula_per_s = most_per_s
        self._points: dict[float, CurvePoint | None] = {}
        self.runs = 0

    def point(self, rate_per_s: float) -> CurvePoint | None:
        """The copy at a rate; `None` where requests come faster than it sustains."""
        if rate_per_s > self._most_per_s * (1 + 1e-9):
            return None
        if rate_per_s not in self._points:
            first = _MOST if rate_per_s > _NEAR_FULL * self._most_per_s else _LEAST
            point, count = self._run(rate_per_s, first)
            enough = min(_MOST, round(_PER_IN_FLIGHT * point.in_flight)) if point else first
            if enough > count:
                point, _ = self._run(rate_per_s, enough)
            self._points[rate_per_s] = point
        return self._points[rate_per_s]

    def capacity_per_s(self) -> float | None:
        """Largest rate within the limits; `None` where they are missed at the lowest.

        It holds them in longer runs of other seeds as well.
        """
        return self._capacity_per_s

    @functools.cached_property
    def _most_per_s(self) -> float:
        """Largest rate that is sustained, by a run in which the copy always has work."""
        count = _FLOOD
        while True:
            run = self._simulated(_FLOODED * self._formula_per_s, count)
            ends = sorted(record.end_s for record in run.records)
            full_s = max(time_s for time_s in run.admitted_s if time_s is not None)
            first, last = count // 4, bisect.bisect(ends, full_s)
            if last - first >= count // 4 or count >= _MOST_FLOOD:
                break
            count *= 2
        if last - first < count // 8:  # everything was in flight at once
            return _SUSTAINED * self._formula_per_s
        return _SUSTAINED * min(
            (last - first) / (full_s - ends[first - 1]), _FLOODED * self._formula_per_s
        )

    @functools.cached_property
    def _capacity_per_s(self) -> float | None:
        lowest = _LOWEST * self._most_per_s
        if not self._holds(lowest):
            return None
        if not self._holds(self._most_per_s):
            held, missing = lowest, self._most_per_s
            rate = 0.6 * self._most_per_s
            while missing - held > _PRECISION * self._most_per_s:
                held, missing = (rate, missing) if self._holds(rate) else (held, rate)
                rate = (held + missing) / 2
        known = self.known()
        rate = (known.capacity_per_s() if known else None) or lowest
        while rate > lowest and not self._holds_again(rate):
            rate *= _STEP
        return max(rate, lowest)

    def curve(self) -> CopyCurve | None:
        """The curve around the largest rate within the limits; `None` where they never hold."""
        if self._capacity_per_s is None:
            return None
        for share in _SHAPE:
            if share * self._capacity_per_s <= self._most_per_s:
                self.point(share * self._capacity_per_s)
        found = self.known()
        if found is None:
            return None
        return msgspec.structs.replace(found, confirmed_per_s=self._capacity_per_s)

    def known(self) -> CopyCurve | None:
        """The curve of what has been simulated; `None` where nothing was sustained."""
        found: list[CurvePoint] = []
        for rate in sorted(self._points):
            point = self._points[rate]
            if point is None:
                break
            found.append(point)
        return CopyCurve(points=tuple(found), limits=self._limits) if found else None

    def _holds(self, rate_per_s: float) -> bool:
        point = self.point(rate_per_s)
        return point is not None and all(limit.holds(point.values) for limit in self._limits)

    def _holds_again(self, rate_per_s: float) -> bool:
        """Whether the limits hold in longer runs of other seeds; the worst values are kept."""
        near_full = rate_per_s > _NEAR_FULL * self._most_per_s
        worst = self.point(rate_per_s)
        for seed in range(1, 1 + (_SEEDS_NEAR_FULL if near_full else _SEEDS)):
            if worst is None or not self._holds(rate_per_s):
                break
            point, _ = self._run(rate_per_s, _LONG, further_seed=seed)
            if point is not None:
                point = msgspec.structs.replace(
                    point,
                    in_flight=max(point.in_flight, worst.in_flight),
                    values={
                        name: max(value, worst.values[name]) for name, value in point.values.items()
                    },
                    within_fraction=min(point.within_fraction, worst.within_fraction),
                )
            worst = self._points[rate_per_s] = point
        return self._holds(rate_per_s)

    def _simulated(self, rate_per_s: float, count: int, further_seed: int = 0) -> SimulatedRun:
        self.runs += 1
        workload = msgspec.structs.replace(
            self._workload,
            arrivals=Poisson(rate_per_s),
            request_count=count,
            concurrency=None,
            duration_s=None,
            seed=self._workload.seed + further_seed,
        )
        return simulate(
            self._plan,
            self._shape,
            self._node,
            workload,
            calibration=self._calibration,
            options=RunOptions(each_token=any(limit.metric == "itl" for limit in self._limits)),
        )

    def _run(
        self, rate_per_s: float, count: int, further_seed: int = 0
    ) -> tuple[CurvePoint | None, int]:
        run = self._simulated(rate_per_s, count, further_seed)
        if run.saturated:
            return None, count
        kept = run.records[round(_WARM_UP * count) :]
        results = summarize(
            kept,
            duration_s=run.duration_s - kept[0].due_s,
            further_percentiles=[
                float(limit.statistic[1:]) for limit in self._limits if limit.statistic[0] == "p"
            ],
            extras=False,
        )
        mean_ms = results["mean_e2e_latency_ms"]
        if mean_ms is None:
            return None, count
        in_flight = rate_per_s * mean_ms / MS_PER_S
        return point_of(rate_per_s, in_flight, results, self._limits), count
