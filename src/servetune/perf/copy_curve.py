"""Load curve of one copy: what its requests see when they come at a rate, at random.

Points come from simulated or measured runs. Closed loops, whose users wait for their answers, are
carried over to requests that come at random: a copy that completes X(n) requests per second with n
in flight is a queue whose service rate depends on its length, so that the chance of n is in
proportion to the product of rate / X(k) for k up to n (Chandy, Herzog and Woo, Parametric analysis
of queuing networks, IBM J. Res. Dev. 19, 1975). A percentile of the time to the first token is then
taken as that of the closed loop with as many users as are in flight at that share of all times, as
it depends on whom a request meets when it comes; of all other times as that with the mean number,
as they are spread over a whole answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.metrics import Constraint, value_of
from servetune.metrics.columns import FloatArray, columns_of, known
from servetune.metrics.latency import gaps_of
from servetune.metrics.record import Record
from servetune.metrics.results import ResultFields
from servetune.units import MS_PER_S

#: Rates, as shares of the largest throughput of a closed loop, of the points made of it.
_SHARES = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98)
#: Rates at which a limit is looked for between two points.
_GRID = 2000
#: Times that a backlog makes longer one to one.
WAITING = ("ttft", "e2e_latency")
#: Column of each latency of whole requests.
_COLUMNS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e_latency": "e2e_s"}


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One copy at one rate.

    Attributes:
        rate_per_s: Requests per second.
        in_flight: Requests in flight, on average.
        values: Value of each limited metric by its result field, in milliseconds.
        within_fraction: Share of requests that hold every limit on a latency by themselves.
    """

    rate_per_s: float
    in_flight: float
    values: dict[str, float]
    within_fraction: float

    def worse_of(self, other: CurvePoint) -> CurvePoint:
        """The point with the worse of each value of two runs."""
        values = {name: max(value, other.values[name]) for name, value in self.values.items()}
        return msgspec.structs.replace(
            self,
            in_flight=max(self.in_flight, other.in_flight),
            values=values,
            within_fraction=min(self.within_fraction, other.within_fraction),
        )


class CopyCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Load curve of one copy up to the largest rate that it is known to sustain.

    Attributes:
        points: Points by rate.
        limits: Limits that the points have values for.
        slowdown: Factor on every time. A copy that takes f times as long for everything serves a
            rate as the copy itself serves f times the rate, with times f times as long.
        ttft_slowdown: Factor on the time to the first token, beside the rate's.
        confirmed_per_s: Largest rate at which longer runs held the limits, before the slowdown.
    """

    points: tuple[CurvePoint, ...]
    limits: tuple[Constraint, ...]
    slowdown: float = 1.0
    ttft_slowdown: float = 1.0
    confirmed_per_s: float = math.inf

    @property
    def most_per_s(self) -> float:
        """Largest rate that the copy is known to sustain."""
        return self.points[-1].rate_per_s / self.slowdown

    def slower(self, factor: float, ttft_factor: float | None = None) -> CopyCurve:
        """The curve of a copy whose times are longer by a factor."""
        return msgspec.structs.replace(
            self,
            slowdown=self.slowdown * factor,
            ttft_slowdown=self.ttft_slowdown * (factor if ttft_factor is None else ttft_factor),
        )

    def in_flight(self, rate_per_s: float) -> float:
        """Requests in flight at a rate; at the most that is sustained beyond it."""
        asked = rate_per_s * self.slowdown
        first = self.points[0]
        if asked <= first.rate_per_s:
            return first.in_flight * asked / first.rate_per_s
        return float(np.interp(asked, self._rates, [point.in_flight for point in self.points]))

    def rate_with(self, in_flight: float) -> float:
        """Rate at which so many are in flight, at most the largest that is sustained."""
        held = np.maximum.accumulate([0.0, *(point.in_flight for point in self.points)])
        return float(np.interp(in_flight, held, [0.0, *self._rates])) / self.slowdown

    def value(self, limit: Constraint, rate_per_s: float) -> float:
        """Value of a limited metric in milliseconds; infinite beyond the largest rate."""
        asked = rate_per_s * self.slowdown
        if asked > self.points[-1].rate_per_s * (1 + 1e-9):
            return math.inf
        values = [math.log(max(1e-9, point.values[limit.field])) for point in self.points]
        factor = self.ttft_slowdown if limit.metric == "ttft" else self.slowdown
        return factor * math.exp(float(np.interp(asked, self._rates, values)))

    def within_fraction(self, rate_per_s: float) -> float:
        """Share of requests within the limits on latencies; none beyond what is sustained."""
        asked = rate_per_s * self.slowdown
        if asked > self.points[-1].rate_per_s * (1 + 1e-9):
            return 0.0
        shares = [point.within_fraction for point in self.points]
        return float(np.interp(asked, self._rates, shares))

    def missed(self, rate_per_s: float, wait_ms: float = 0.0) -> tuple[Constraint, ...]:
        """Limits that are missed at a rate, with a wait before what the curve says."""
        return tuple(
            limit
            for limit in self.limits
            if not limit.holds(
                {
                    limit.field: self.value(limit, rate_per_s)
                    + (wait_ms if limit.metric in WAITING else 0.0)
                }
            )
        )

    def capacity_per_s(self) -> float | None:
        """Largest rate up to which every limit holds; `None` where none holds at the lowest."""
        asked = np.unique(
            np.concatenate([self._rates, np.linspace(self._rates[0], self._rates[-1], _GRID)])
        )
        holds = np.ones(len(asked), dtype=bool)
        for limit in self.limits:
            logs = [math.log(max(1e-9, point.values[limit.field])) for point in self.points]
            factor = self.ttft_slowdown if limit.metric == "ttft" else self.slowdown
            holds &= limit.holds_each(factor * np.exp(np.interp(asked, self._rates, logs)))
        if not holds[0]:
            return None
        first = len(holds) if holds.all() else int(np.argmin(holds))
        return min(float(asked[first - 1]), self.confirmed_per_s) / self.slowdown

    @property
    def _rates(self) -> list[float]:
        return [point.rate_per_s for point in self.points]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run of a closed loop, for one copy.

    Attributes:
        users: Requests in flight.
        rate_per_s: Requests per second that were completed.
        results: Results of the run.
    """

    users: float
    rate_per_s: float
    results: ResultFields


def point_of(
    rate_per_s: float, in_flight: float, results: ResultFields, limits: Sequence[Constraint]
) -> CurvePoint | None:
    """Point of one run under random arrivals; `None` without a value for each limit."""
    values = {limit.field: value_of(results, limit.metric, limit.statistic) for limit in limits}
    known = {field: value for field, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    within = min((share_within(results, limit) for limit in limits), default=1.0)
    return CurvePoint(
        rate_per_s=rate_per_s, in_flight=in_flight, values=known, within_fraction=within
    )


def point_of_records(
    rate_per_s: float, records: Sequence[Record], limits: Sequence[Constraint]
) -> CurvePoint | None:
    """Point of a run's records, with no more of its results than that; as of `point_of`."""
    columns = columns_of(records)
    answered = columns.only(columns.whole)
    if not len(answered):
        return None
    values, within = {}, 1.0
    for limit in limits:
        if limit.metric == "itl":
            of_each = gaps_of([each for each in records if each.outcome == "ok"]).seconds
        else:
            of_each = known(getattr(answered, _COLUMNS[limit.metric]))
        if not len(of_each):
            return None
        of_each = of_each * MS_PER_S
        within = min(within, float(limit.holds_each(of_each).mean()))
        values[limit.field] = _statistic(of_each, limit.statistic)
    return CurvePoint(
        rate_per_s=rate_per_s,
        in_flight=rate_per_s * float(answered.e2e_s.mean()),
        values=values,
        within_fraction=within,
    )


def _statistic(values: FloatArray, statistic: str) -> float:
    if statistic == "mean":
        return float(values.mean())
    return float(np.percentile(values, 50 if statistic == "median" else float(statistic[1:])))


def share_within(results: ResultFields, limit: Constraint) -> float:
    """Share of requests whose latency is within a limit, by the quantiles of a run."""
    grid = (results.get("quantiles") or {}).get(f"{limit.metric}_ms") or {}
    points = sorted((float(key), value) for key, value in grid.items() if value is not None)
    if not points:
        value = value_of(results, limit.metric, limit.statistic)
        return float(value is not None and limit.holds({limit.field: value}) is True)
    percents, values = zip(*points, strict=True)
    if limit.value >= values[-1]:
        return 1.0
    return float(np.interp(limit.value, values, percents, left=0.0)) / 100


def open_curve(levels: Sequence[Level], limits: Sequence[Constraint]) -> CopyCurve | None:
    """Curve of random arrivals from closed loops of one copy.

    Returns:
        `None` where fewer than two levels have a value for each limit.
    """
    found = [
        (level, point)
        for level in sorted(levels, key=lambda one: one.users)
        if (point := point_of(level.rate_per_s, level.users, level.results, limits)) is not None
    ]
    if len(found) < 2:
        return None
    users = np.array([level.users for level, _ in found])
    rates = np.maximum.accumulate([level.rate_per_s for level, _ in found])
    states = np.arange(1, math.ceil(4 * users[-1]) + 50)
    served = np.interp(states, [0.0, *users], [0.0, *rates])
    points = []
    for share in _SHARES:
        rate = share * float(rates[-1])
        chances = _chances(rate, served)
        values = {}
        for limit in limits:
            among = _users_at(limit, chances)
            if among > users[-1]:
                break
            logs = [math.log(max(1e-9, point.values[limit.field])) for _, point in found]
            values[limit.field] = math.exp(float(np.interp(among, users, logs)))
        if len(values) < len(limits):
            break
        shares = np.interp(states, users, [point.within_fraction for _, point in found])
        mean = float(np.dot(chances[1:], states))
        within = float(chances[0] * shares[0] + np.dot(chances[1:], shares))
        points.append(
            CurvePoint(rate_per_s=rate, in_flight=mean, values=values, within_fraction=within)
        )
    return CopyCurve(points=tuple(points), limits=tuple(limits)) if points else None


def _chances(rate_per_s: float, served: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chance of each number in flight, from none on."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(rate_per_s / served))])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _users_at(limit: Constraint, chances: NDArray[np.float64]) -> float:
    """Number in flight that a limited metric is taken at."""
    if limit.metric != "ttft" or limit.statistic == "mean":
        return float(np.dot(chances, np.arange(len(chances))))
    share = 0.5 if limit.statistic == "median" else float(limit.statistic[1:]) / 100
    return float(np.searchsorted(np.cumsum(chances), share))
