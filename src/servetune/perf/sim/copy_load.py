"""Load curve of one copy by simulation: at which rate of random arrivals its limits are reached."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from servetune.hardware.device import Node
from servetune.metrics import Constraint
from servetune.models.shape import NetworkShape
from servetune.perf.copy_curve import CopyCurve, CurvePoint, point_of_records
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.sim.simulation import RunOptions, SimulatedRun, simulate
from servetune.plan import Plan
from servetune.workload.arrivals import Poisson
from servetune.workload.workload import Workload

#: Requests of a run: at least so many, and so many for each that is in flight on average, so that
#: the run is long beside the time of a request; at most as many as one can wait for.
_LEAST, _PER_IN_FLIGHT, _MOST = 1000, 8, 4000
#: Rates from this share of the largest on need more requests: queues grow slowly there.
_NEAR_FULL, _LEAST_NEAR_FULL = 0.75, 2000
#: Share of the throughput of a copy that always has work that it sustains: above it, requests that
#: come at random make queues that grow for longer than a run lasts.
_SUSTAINED = 0.95
#: Rate, as a share of the formula's, at which a copy always has work, and requests of that run at
#: first and at most.
_FLOODED, _FLOOD, _MOST_FLOOD = 1.5, 4000, 48_000
#: Share of the formula's throughput that is taken as sustained without such a run; tried first.
_SURELY = 0.4
#: Runs with other seeds in which the largest rate must hold too: where queues grow slowly, but only
#: one where its values are below a share of the limits, and elsewhere; their requests. Where one
#: misses, the next rate is where values would be below their limits by so much, between two shares
#: of the rate.
_SEEDS_NEAR_FULL, _FAR_BELOW, _SEEDS, _LONG, _AIM, _STEPS = 2, 0.7, 1, 8000, 0.01, (0.93, 0.98)
#: Share of a run's requests at its beginning, when the copy is not yet full, that are left out.
_WARM_UP = 0.1
#: Precision of the largest rate within the limits, as a share of the largest throughput, and of a
#: value beside its limit.
_PRECISION, _CLOSE = 0.03, 0.02
#: Lowest rate, as a share of the largest throughput, at which a limit may hold.
_LOWEST = 0.02
#: Rates as shares of the largest within the limits near which a whole curve has points, and how
#: near those are.
_SHAPE, _NEAR = (0.3, 0.6, 0.85, 1.1), 0.14
#: Rate, as a share of the formula's throughput, of the last point where the limits are missed far
#: below: what a copy does whose limits are missed anyway.
_TOP = 0.85


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

    Attributes:
        runs: Simulations so far.
        upper_per_s: Rate that the largest within the limits does not exceed, as known so far.
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
        self._bounds, self._bracket = self._narrowed(), (0.0, 0.0)
        self.runs, self.upper_per_s = 0, math.inf

    def point(self, rate_per_s: float) -> CurvePoint | None:
        """The copy at a rate; `None` where requests come faster than it sustains."""
        if not self._sustains(rate_per_s):
            return None
        if rate_per_s not in self._points:
            count = self._count(rate_per_s)
            point = self._run(rate_per_s, count)
            enough = min(_MOST, round(_PER_IN_FLIGHT * point.in_flight)) if point else count
            if enough > 1.5 * count:
                point = self._run(rate_per_s, enough)
            self._points[rate_per_s] = point
        return self._points[rate_per_s]

    def narrow(self) -> bool:
        """Lower `upper_per_s` by a simulation or two; `False` where that was done already.

        A caller that has no use for so small a rate stops here. In the end the largest rate is
        known to the precision of short runs.
        """
        bound = next(self._bounds, None)
        if bound is None:
            return False
        self.upper_per_s = bound
        return True

    def _narrowed(self) -> Iterator[float]:
        """Upper bounds by a bracket of short runs, which ends as `_bracket`."""
        lowest, first = _LOWEST * self._formula_per_s, _SURELY * self._formula_per_s
        if self._holds(first):
            held, missing = min(first, self._most_per_s), self._most_per_s
            yield missing
            if self._holds(missing):
                held = missing
        else:
            held, missing = lowest, first
            yield missing
            if not self._holds(lowest):
                held = missing = 0.0
                yield missing
        while missing - held > _PRECISION * self._formula_per_s:
            rate = self._between(held, missing)
            excess = self._excess(rate)
            held, missing = (rate, missing) if excess <= 1 else (held, rate)
            yield missing
            if abs(excess - 1) < _CLOSE:
                break
        self._bracket = (held, missing)

    def capacity_per_s(self) -> float | None:
        """Largest rate within the limits; `None` where they are missed at the lowest.

        It holds them in longer runs of other seeds as well.
        """
        return self._capacity_per_s

    def _sustains(self, rate_per_s: float) -> bool:
        most = _SURELY * self._formula_per_s
        return rate_per_s <= most or rate_per_s <= self._most_per_s * (1 + 1e-9)

    def _near_full(self, rate_per_s: float) -> bool:
        surely = rate_per_s <= _SURELY * self._formula_per_s
        return not surely and rate_per_s > _NEAR_FULL * self._most_per_s

    def _count(self, rate_per_s: float) -> int:
        """Requests of a run, by what is in flight at the nearest rate below."""
        least = _LEAST_NEAR_FULL if self._near_full(rate_per_s) else _LEAST
        known = [point for point in self._points.values() if point is not None]
        below = [point for point in known if point.rate_per_s <= rate_per_s]
        if not below:
            return least
        nearest = max(below, key=lambda point: point.rate_per_s)
        in_flight = nearest.in_flight * rate_per_s / nearest.rate_per_s
        return min(_MOST, max(least, round(_PER_IN_FLIGHT * in_flight)))

    def _excess(self, rate_per_s: float) -> float:
        """Largest value over its limit; infinite where the rate is not sustained."""
        point = self.point(rate_per_s)
        if point is None:
            return math.inf
        return max(point.values[limit.field] / (limit.value or 1e-9) for limit in self._limits)

    def _between(self, held: float, missing: float) -> float:
        """The rate between two where the logarithm of values over limits crosses zero."""
        low, high = self._excess(held), self._excess(missing)
        share = 0.5
        if 0 < low < 1 < high < math.inf:
            share = math.log(1 / low) / math.log(high / low)
        return held + min(0.9, max(0.1, share)) * (missing - held)

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
        while self.narrow():
            pass
        held, missing = self._bracket
        known = self.known()
        if not held or known is None:
            return None
        lowest = known.points[0].rate_per_s
        rate = min(known.capacity_per_s() or lowest, missing)
        rates = [point.rate_per_s for point in known.points]
        logs = [math.log(max(1e-9, self._excess(each))) for each in rates]
        while rate > lowest and not self._holds_again(rate):
            more = math.log(self._excess(rate)) - float(np.interp(rate, rates, logs))
            crossing = _crossing(rates, [each + more + _AIM for each in logs])
            rate *= min(max(crossing / rate, _STEPS[0]), _STEPS[1])
        return max(rate, lowest)

    def curve(self) -> CopyCurve | None:
        """The curve around the largest rate within the limits; `None` where they never hold."""
        if self._capacity_per_s is None:
            return None
        self.point(_LOWEST * self._formula_per_s)
        for share in _SHAPE:
            rate, near = share * self._capacity_per_s, _NEAR * self._capacity_per_s
            if not any(abs(other - rate) < near for other in self._points) and self._sustains(rate):
                self.point(rate)
        if max(self._points) <= 1.2 * _SURELY * self._formula_per_s:
            top = _TOP * self._formula_per_s
            self._points[top] = self._run(top, _LEAST_NEAR_FULL)
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
        worst, near_full = self._points.get(rate_per_s), self._near_full(rate_per_s)
        for seed in range(1, 1 + (_SEEDS_NEAR_FULL if near_full else _SEEDS)):
            point = self._run(rate_per_s, _LONG, further_seed=seed)
            worst = point.worse_of(worst) if point is not None and worst is not None else point
            self._points[rate_per_s] = worst
            if not self._holds(rate_per_s):
                return False
            if self._excess(rate_per_s) < _FAR_BELOW:
                break
        return True

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

    def _run(self, rate_per_s: float, count: int, further_seed: int = 0) -> CurvePoint | None:
        run = self._simulated(rate_per_s, count, further_seed)
        if run.saturated:
            return None
        return point_of_records(rate_per_s, run.records[round(_WARM_UP * count) :], self._limits)


def _crossing(rates: Sequence[float], logs: Sequence[float]) -> float:
    """Rate from which on a logarithm is above zero, by straight lines between rates."""
    above = next((n for n, log in enumerate(logs) if log > 0), len(logs))
    if above in (0, len(logs)):
        return rates[min(above, len(logs) - 1)]
    low, high = logs[above - 1], logs[above]
    return rates[above - 1] + low / (low - high) * (rates[above] - rates[above - 1])
