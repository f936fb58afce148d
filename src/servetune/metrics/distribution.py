"""Statistics of a set of values: mean, spread, percentiles and confidence intervals.

`RunRecords` are the values of one run, with the masks and columns that its summary needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from servetune.metrics.columns import BoolArray, Columns, FloatArray, known
from servetune.metrics.intervals import (
    Interval,
    bootstrap_interval,
    gap_percentile_interval,
    ratio_interval,
    stretches_of,
)
from servetune.metrics.latency import Gaps
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.units import MS_PER_S

#: Percentiles with a result field of their own.
SHOWN = (50, 90, 95, 99)
#: Largest number of values for which the standard deviation gets an interval.
BOOTSTRAP_VALUES = 2000


def field_of_percentile(name: str, percent: float) -> str:
    """Result field of a percentile: `median_ttft_ms`, `p99_itl_ms`."""
    return f"median_{name}_ms" if percent == 50 else f"p{percent:g}_{name}_ms"


def statistics(
    name: str, values_ms: FloatArray, percentiles: Iterable[float]
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Statistics of one latency; reorders the values in place.

    Returns:
        Mean, standard deviation and usual percentiles by result field; these percentiles and those
        asked for by percent.
    """
    some = len(values_ms) > 0
    fields = {
        f"mean_{name}_ms": float(values_ms.mean()) if some else None,
        f"std_{name}_ms": float(values_ms.std()) if some else None,
    }
    by_percent = quantiles(values_ms, sorted({*SHOWN, *percentiles}))
    for percent in SHOWN:
        fields[field_of_percentile(name, percent)] = by_percent[f"{percent:g}"]
    return fields, by_percent


def quantiles(values_ms: FloatArray, percentiles: Sequence[float]) -> dict[str, float | None]:
    """Percentiles by percent; reorders the values in place."""
    if not len(values_ms):
        return {f"{percent:g}": None for percent in percentiles}
    values = np.percentile(values_ms, percentiles, overwrite_input=True)
    return {
        f"{percent:g}": float(value) for percent, value in zip(percentiles, values, strict=True)
    }


def described(values: FloatArray) -> dict[str, float | None]:
    """Statistics in the unit of the values; `None` each without values."""
    names = ("mean", "std", "min", "p1", "p5", "median", "p90", "p95", "p99", "max")
    if not len(values):
        return dict.fromkeys(names)
    numbers = np.percentile(values, (0, 1, 5, 50, 90, 95, 99, 100))
    return dict(zip(names, map(float, (values.mean(), values.std(), *numbers)), strict=True))


def intervals_ms(
    name: str, gaps: Gaps, percentiles: Sequence[float], stretches: float | None = None
) -> dict[str, list[float | None]]:
    """Confidence intervals of a latency's mean, percentiles and, for few values, deviation.

    Args:
        name: Latency metric, such as `ttft`.
        gaps: Values in seconds; one gap per request for a latency with one value each.
        percentiles: Percents to compute.
        stretches: Independent stretches of the latency, of `intervals.stretches_of`.

    Returns:
        `[low, high]` in milliseconds by result field; fields with too few values are absent.
    """
    values_s = gaps.seconds
    found: dict[str, Interval | None] = {
        f"mean_{name}_ms": ratio_interval(
            gaps.sums_s, gaps.counts.astype(np.float64), stretches=stretches
        )
    }
    if len(values_s) <= BOOTSTRAP_VALUES and len(values_s) == len(gaps.counts):
        found[f"std_{name}_ms"] = bootstrap_interval(values_s, lambda drawn: drawn.std(axis=-1))
    ordered = np.sort(values_s)
    for percent in percentiles:
        found[field_of_percentile(name, percent)] = gap_percentile_interval(
            gaps, percent, ordered=ordered, stretches=stretches
        )
    return {field: _scaled(interval) for field, interval in found.items() if interval is not None}


def latency_intervals(
    answered: Columns, gaps: Gaps, percentiles: Sequence[float]
) -> dict[str, list[float | None]]:
    """Confidence intervals of all latencies of complete answers, in order of time."""
    found: dict[str, list[float | None]] = {}
    stretches = stretches_of(answered)
    for name, values_s in (
        ("e2e_latency", answered.e2e_s),
        ("ttft", known(answered.ttft_s)),
        ("tpot", known(answered.tpot_s)),
    ):
        alone = np.ones(len(values_s), dtype=np.int64)
        found |= intervals_ms(name, Gaps(values_s, alone), percentiles, stretches.get(name))
    return found | intervals_ms("itl", gaps, percentiles, stretches.get("itl"))


def _scaled(interval: Interval) -> list[float | None]:
    return [None if end is None else end * MS_PER_S for end in (interval.low, interval.high)]


class RunRecords:
    """Records of a run, their columns, and a mask of the complete answers."""

    def __init__(
        self,
        records: Sequence[Record],
        columns: Columns,
        whole: BoolArray,
        duration_s: float,
        limits: tuple[Constraint, ...],
    ) -> None:
        self.records = records
        self.columns = columns
        self.whole = whole
        self.duration_s = duration_s
        self.limits = limits
        every = bool(whole.all())
        self.answered = columns if every else columns.only(whole)
        self.answered_records = (
            records if every else [record for record, ok in zip(records, whole, strict=True) if ok]
        )

    @property
    def cut_off(self) -> BoolArray:
        """Mask of the requests still in flight when the run ended."""
        return np.array([record.outcome == "cancelled" for record in self.records], dtype=np.bool_)

    def good(self) -> BoolArray | None:
        """Mask of the complete answers that met the limits; `None` without limits."""
        return meets_all(self.answered, self.limits) if self.limits else None


def meets_all(columns: Columns, limits: Iterable[Constraint]) -> BoolArray:
    """Mask of the requests that met every limit; failed requests meet none.

    A limit on `ttft` or `itl` applies to each request's own first token or mean gap; the
    limits' statistics are ignored. A missing value, such as the gap in an answer of one
    token, meets any limit.
    """
    met = columns.whole.copy()
    for limit in limits:
        values_s = {
            "ttft": columns.ttft_s,
            "tpot": columns.tpot_s,
            "itl": columns.tpot_s,  # the mean gap of one request is its time per output token
            "e2e_latency": columns.e2e_s,
        }[limit.metric]
        met &= np.isnan(values_s) | limit.holds_each(values_s * MS_PER_S)
    return met
