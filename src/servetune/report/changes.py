"""Changes of metrics between two sides of runs of one load, each with a verdict.

A change is worse or better when its interval leaves no difference out after all rows are counted
(Holm: with twenty figures one would be told apart by chance), and every difference up to the
tolerance. Runs of an unchanged server differ from day to day by more than the requests of one run
show; what one run a side cannot show is what the tolerance stands for, and repeated runs need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from servetune.metrics.differences import (
    LEVEL,
    Difference,
    Ends,
    RunFigure,
    difference_of_runs,
    difference_of_shares,
    holm,
)
from servetune.metrics.results import ResultFields
from servetune.metrics.slo import field_of, interval_of
from servetune.report.quantities import QUANTITIES, quantity_value, shown

#: Relative difference that is treated as noise where a side has one run.
TOLERANCE = 0.05
#: Largest relative difference that an interval around none may hold to be called the same. A larger
#: tolerance takes its place.
SAME = 0.1
#: The same for the share of failed requests, as a difference of the shares.
SAME_SHARE = 0.05

#: Quantity and statistic of each row.
COMPARED_CHANGES: tuple[tuple[str, str], ...] = (
    ("output_throughput", "mean"),
    ("request_throughput", "mean"),
    ("goodput", "mean"),
    *(
        (latency, statistic)
        for latency in ("ttft", "itl", "tpot", "e2e_latency")
        for statistic in ("mean", "median", "p90", "p99")
    ),
    ("error_rate", "mean"),
    ("cost_per_million_tokens", "mean"),
)

Verdict = Literal["same", "close", "worse", "better", "unknown"]


class RunResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run, and how far its metrics may be off.

    Attributes:
        results: Results under the journal's field names.
        reaches: Reach of the logarithm of each metric to the ends of its 95% interval, by result
            field, as resampled from its requests, infinite where these do not tell; `None` without
            them, when the record's own intervals are used.
    """

    results: ResultFields
    reaches: Mapping[str, float] | None = None

    def figure(self, quantity: str, statistic: str, band: float | None) -> RunFigure | None:
        """Value of a metric with its interval; `None` without data.

        Args:
            quantity: Quantity.
            statistic: Statistic of it.
            band: Relative half width of a mean or median where the run has no interval at all, up
                to `TOLERANCE`.
        """
        value = quantity_value(self.results, quantity, statistic)
        if value is None:
            return None
        return RunFigure(value, self._ends(quantity, statistic, value, band))

    def _ends(self, quantity: str, statistic: str, value: float, band: float | None) -> Ends:
        if self.reaches:
            rate = "output_throughput" if quantity == "cost_per_million_tokens" else quantity
            reach = self.reaches.get(field_of(rate, statistic))
            if reach is not None:
                return _around(value, reach) if math.isfinite(reach) else (None, None)
        alike = self.results.get("correlated")
        if isinstance(alike, list) and quantity in alike:
            return None, None
        ends = interval_of(self.results, quantity, statistic)
        if ends is not None:
            return ends
        unmeasured = self.reaches is None and not self.results.get("intervals")
        if band is not None and unmeasured and statistic in ("mean", "median"):
            half = min(band, TOLERANCE)
            return value * (1 - half), value * (1 + half)
        return None, None


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one metric.

    Attributes:
        field: Result field.
        quantity: Quantity.
        statistic: Statistic of it.
        before: Value before; of several runs their geometric mean.
        before_ends: Sampling interval of the value before, where it is of one run.
        now: Value now.
        now_ends: Sampling interval of the value now.
        change_fraction: Relative change, now / before - 1; of the share of failed requests now -
            before.
        change_low: Lower end of the 95% interval of the change; `None` where unknown.
        change_high: Upper end of the interval.
        tellable_fraction: Smallest change that runs like these tell in nine of ten cases.
        method: Source of the interval: pairs of runs, runs, or the requests of one run.
        verdict: Verdict; `unknown` where the runs cannot tell.
    """

    field: str
    quantity: str
    statistic: str
    before: float | None
    before_ends: Ends | None = None
    now: float | None
    now_ends: Ends | None = None
    change_fraction: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    tellable_fraction: float | None = None
    method: str = "none"
    verdict: Verdict = "unknown"

    @property
    def name(self) -> str:
        """Name in a sentence: `p99 TTFT`."""
        quantity = QUANTITIES[self.quantity]
        return f"{self.statistic} {quantity.short}" if quantity.has_statistics else quantity.short

    def with_unit(self, value: float | None) -> str:
        """Value of this metric as text."""
        return shown(value, QUANTITIES[self.quantity].unit)


def difference_in(
    base: Sequence[RunResults],
    new: Sequence[RunResults],
    quantity: str,
    statistic: str,
    *,
    paired: bool = False,
    band: float | None = None,
) -> Difference:
    """Difference of one metric; without change or interval where a side has no value.

    Args:
        base: Runs before.
        new: Runs now.
        quantity: Quantity.
        statistic: Statistic of it.
        paired: Whether the run in each place sent the same requests on both sides.
        band: Relative half width that stands for the interval of runs without any.
    """
    counted = _COUNTED.get(quantity)
    if counted is not None:
        return difference_of_shares(_counts(base, counted), _counts(new, counted))
    figures = [[run.figure(quantity, statistic, band) for run in side] for side in (base, new)]
    before, now = ([each for each in side if each is not None] for side in figures)
    whole = len(before) == len(base) and len(now) == len(new)
    return difference_of_runs(before, now, paired=paired and whole)


def changes(
    base: Sequence[RunResults],
    new: Sequence[RunResults],
    *,
    paired: bool = False,
    band: float | None = None,
) -> list[tuple[MetricChange, Difference]]:
    """Change of every metric that either side has, without its verdict (`judged`)."""
    found = []
    for quantity, statistic in COMPARED_CHANGES:
        difference = difference_in(base, new, quantity, statistic, paired=paired, band=band)
        if difference.base is None and difference.new is None:
            continue
        ends = [
            None if len(side) != 1 else _ends_of(side[0], quantity, statistic, band)
            for side in (base, new)
        ]
        row = MetricChange(
            field=field_of(quantity, statistic),
            quantity=quantity,
            statistic=statistic,
            before=difference.base,
            before_ends=ends[0],
            now=difference.new,
            now_ends=ends[1],
            change_fraction=difference.change,
            change_low=difference.low,
            change_high=difference.high,
            method=difference.method,
        )
        found.append((row, difference))
    return found


def judged(
    rows: Sequence[tuple[MetricChange, Difference]], tolerances: Sequence[float]
) -> list[MetricChange]:
    """Rows with their verdicts, which share the probability of a false alarm.

    Args:
        rows: Rows of all configurations that are compared.
        tolerances: For each row, the relative difference that is treated as noise.
    """
    chances = holm([difference.chance for _, difference in rows])
    tests = sum(chance is not None for chance in chances)
    return [
        msgspec.structs.replace(
            row,
            verdict=_verdict(row, difference, chance, tolerance),
            tellable_fraction=difference.tellable(max(tests, 1)),
        )
        for (row, difference), chance, tolerance in zip(rows, chances, tolerances, strict=True)
    ]


def _verdict(
    row: MetricChange, difference: Difference, chance: float | None, tolerance: float
) -> Verdict:
    change = difference.change
    if change is None:
        return "unknown"
    low, high = difference.low, difference.high
    if chance is not None and chance <= 1 - LEVEL:
        noise = 0.0 if difference.absolute else difference.scaled(tolerance)
        nearest = low if change > 0 else high
        if nearest is not None and abs(difference.scaled(nearest)) > noise:
            return "better" if (change > 0) == QUANTITIES[row.quantity].maximize else "worse"
        return "close" if abs(difference.scaled(change)) <= noise else "unknown"
    if low is None or high is None or low > 0 or high < 0:
        return "unknown"
    most = difference.scaled(SAME_SHARE if difference.absolute else max(SAME, tolerance))
    return "same" if max(-difference.scaled(low), difference.scaled(high)) <= most else "unknown"


def _failed(results: ResultFields) -> tuple[int, int] | None:
    completed, failed = results.get("completed"), results.get("failed", 0)
    if not isinstance(completed, int) or not isinstance(failed, int):
        return None
    return failed, completed + failed


def _wrong(results: ResultFields) -> tuple[int, int] | None:
    wrong, completed = results.get("wrong_length"), results.get("completed")
    if not isinstance(wrong, Mapping) or not isinstance(completed, int):
        return None
    return int(wrong.get("count") or 0), completed


#: Quantities that are shares of requests -> the count and what it is a part of.
_COUNTED: Mapping[str, Callable[[ResultFields], tuple[int, int] | None]] = {
    "error_rate": _failed,
    "wrong_length_rate": _wrong,
}


def _counts(
    runs: Iterable[RunResults], count: Callable[[ResultFields], tuple[int, int] | None]
) -> tuple[int, int] | None:
    """Counts of all runs together; `None` where one has none."""
    pairs = [count(run.results) for run in runs]
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    return sum(part for part, _ in known), sum(whole for _, whole in known)


def _ends_of(run: RunResults, quantity: str, statistic: str, band: float | None) -> Ends | None:
    figure = None if quantity in _COUNTED else run.figure(quantity, statistic, band)
    return None if figure is None or figure.ends == (None, None) else figure.ends


def _around(value: float, reach: float) -> Ends:
    return value * math.exp(-reach), value * math.exp(reach)
