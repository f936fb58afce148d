"""Confidence intervals of what one run measured, from the order in which it happened.

Neighbouring requests share the same batch and the same queue, so they are no independent
draws, and an interval that takes them for such is too narrow. Values come here in the order
in which they were due, and every method looks at stretches of neighbours:

- means (and rates, as means over slices of time) by batch means: the mean of each of 20
  stretches (10 where 20 are still alike their neighbours) is nearly independent of the
  others, and Student's t does the rest;
- percentiles by order statistics: batch means say how uncertain the share of values below
  the percentile is, and the values at the ends of that share's interval are the ends of the
  percentile's. A bootstrap of stretches was tried beside it: it held the true percentile
  no more often, and in the tail of few requests far less (`docs/concepts/measuring.md`);
- anything else, such as a standard deviation, by that bootstrap.

An end that the values cannot tell is `None`: a hundred requests have no upper end for a
99th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import msgspec
import numpy as np

from servetune.metrics.columns import FloatArray, IntArray
from servetune.metrics.latency import Gaps

__all__ = [
    "Interval",
    "bootstrap_interval",
    "gap_percentile_interval",
    "mean_interval",
    "percentile_interval",
    "rate_interval",
    "ratio_interval",
]

LEVEL = 0.95
#: Below this many values there is no interval.
LEAST_VALUES = 10
#: Stretches: few, so that each is long; 10 to 30 lose next to nothing against more (Schmeiser,
#: Operations Research 30, 1982).
BATCHES = 20
#: Neighbouring stretches that go together more than this are too short.
ALIKE = 0.2
BOOTSTRAP_DRAWS = 200
#: Slices of time whose rates are the values behind a throughput's interval.
SLICES = 20


class Interval(msgspec.Struct, frozen=True):
    """Where the true value is, in `level` of all runs.

    Attributes:
        low: `None` where the values cannot tell.
        high: Likewise.
        level: Share of runs whose interval holds the true value.
        method: `batch means`, `block bootstrap` or `order statistics`.
    """

    low: float | None
    high: float | None
    level: float
    method: str

    @property
    def ends(self) -> list[float | None]:
        """As results hold it."""
        return [self.low, self.high]

    @property
    def half_width(self) -> float:
        """Half of its width; infinite where an end is not known."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2


def mean_interval(values: FloatArray, level: float = LEVEL) -> Interval | None:
    """Interval of the mean by batch means; `None` for fewer than `LEAST_VALUES` values."""
    return ratio_interval(values, np.ones(len(values)), level)


def ratio_interval(sums: FloatArray, counts: FloatArray, level: float = LEVEL) -> Interval | None:
    """Interval of sum(sums) / sum(counts) by batch means, such as the mean of all gaps.

    Args:
        sums: One a request, in the order of time: what its gaps add up to.
        counts: How many they are.
        level: Share of runs whose interval shall hold the true value.
    """
    if len(sums) < LEAST_VALUES or not counts.sum():
        return None
    ratio = float(sums.sum() / counts.sum())
    error, batches = _ratio_error(sums - ratio * counts, counts)
    reach = student_t(0.5 + level / 2, batches - 1) * error
    return Interval(ratio - reach, ratio + reach, level, "batch means")


def rate_interval(
    at_s: FloatArray,
    amounts: FloatArray | IntArray | None,
    from_s: float,
    until_s: float,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of an amount per second, as the mean over equal slices of time.

    Args:
        at_s: When each part of it came; all between the two times.
        amounts: How much; `None` where each counts as one.
        from_s: Begin of the first slice.
        until_s: End of the last slice.
        level: Share of runs whose interval shall hold the true value.
    """
    if len(at_s) < SLICES or not until_s > from_s:
        return None
    slice_s = (until_s - from_s) / SLICES
    places = np.clip(((at_s - from_s) / slice_s).astype(np.int64), 0, SLICES - 1)
    return mean_interval(np.bincount(places, amounts, minlength=SLICES) / slice_s, level)


def percentile_interval(
    values: FloatArray, percent: float, level: float = LEVEL, *, ordered: FloatArray | None = None
) -> Interval | None:
    """Interval of a percentile by order statistics; `None` for too few values.

    Args:
        values: In the order of time.
        percent: 0 to 100.
        level: Share of runs whose interval shall hold the true value.
        ordered: The values in order of size, where a caller has them.
    """
    alone = np.ones(len(values), dtype=np.int64)
    return gap_percentile_interval(Gaps(values, alone), percent, level, ordered=ordered)


def gap_percentile_interval(
    gaps: Gaps, percent: float, level: float = LEVEL, *, ordered: FloatArray | None = None
) -> Interval | None:
    """Interval of a percentile of all gaps, by order statistics.

    The gaps of one request belong together: what is averaged over stretches of requests
    is each request's number of gaps below the percentile.

    Args:
        gaps: Of the requests in the order of time.
        percent: 0 to 100.
        level: Share of runs whose interval shall hold the true value.
        ordered: The gaps in order of size, where a caller has them.
    """
    counts = gaps.counts.astype(np.float64)
    total = len(gaps.seconds)
    if len(counts) < LEAST_VALUES or total < LEAST_VALUES:
        return None
    ordered = np.sort(gaps.seconds) if ordered is None else ordered
    share = percent / 100
    edge = _order_statistic(ordered, share)
    some = gaps.counts > 0
    below = np.zeros(len(counts))
    starts = (np.cumsum(gaps.counts) - gaps.counts)[some]
    below[some] = np.add.reduceat(gaps.seconds <= edge, starts, dtype=np.int64)
    seen = below.sum() / total
    error, batches = _ratio_error(below - seen * counts, counts)
    low, high = _share_interval(share, error, total, level, batches - 1)
    return Interval(
        _order_statistic(ordered, low) if low * (total + 1) >= 1 else None,
        _order_statistic(ordered, high) if high * (total + 1) <= total else None,
        level,
        "order statistics",
    )


def bootstrap_interval(
    values: FloatArray,
    statistic: Callable[[np.ndarray[tuple[int, ...], np.dtype[np.float64]]], FloatArray],
    level: float = LEVEL,
    *,
    seed: int = 0,
    draws: int = BOOTSTRAP_DRAWS,
) -> Interval | None:
    """Interval of any statistic by a circular block bootstrap; `None` for too few values.

    Each draw is made of stretches of n^(1/2) neighbours; the end follows the beginning, so
    that every value is as likely as any other. The interval lies between the quantiles of
    the statistic over all draws.

    Args:
        values: In the order of time.
        statistic: Over the last axis of an array of shape (draws, values).
        level: Share of runs whose interval shall hold the true value.
        seed: Equal seeds give equal intervals.
        draws: How many.
    """
    count = len(values)
    if count < LEAST_VALUES:
        return None
    stretch = round(math.sqrt(count))
    rng = np.random.default_rng(seed)
    starts = rng.integers(count, size=(draws, -(-count // stretch)))
    places = (starts[:, :, None] + np.arange(stretch)).reshape(draws, -1)[:, :count] % count
    drawn = statistic(values[places])
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high), level, "block bootstrap")


def student_t(share: float, freedom: int) -> float:
    """Quantile of Student's t-distribution, to three digits from 4 degrees of freedom on.

    Cornish and Fisher's expansion about the normal quantile (Abramowitz and Stegun 26.7.5).
    """
    z = NormalDist().inv_cdf(share)
    further: float = sum(
        term / freedom**power
        for power, term in enumerate(
            (
                (z**3 + z) / 4,
                (5 * z**5 + 16 * z**3 + 3 * z) / 96,
                (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
                (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
            ),
            start=1,
        )
    )
    return z + further


def _ratio_error(deviations: FloatArray, counts: FloatArray) -> tuple[float, int]:
    """Standard error of a ratio from the sums of its deviations over stretches, and how many."""
    most = min(BATCHES, max(len(counts) // 5, LEAST_VALUES // 2))
    sums = _stretches(deviations, most)
    if most == BATCHES and _likeness(sums) > ALIKE:
        sums = _stretches(deviations, BATCHES // 2)
    batches = len(sums)
    return float(np.std(sums, ddof=1) * math.sqrt(batches) / counts.sum()), batches


def _stretches(values: FloatArray, batches: int) -> FloatArray:
    edges = np.linspace(0, len(values), batches + 1).astype(np.int64)[:-1]
    return np.add.reduceat(values, edges)


def _likeness(sums: FloatArray) -> float:
    """Correlation of neighbours."""
    centred = sums - sums.mean()
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power else 0.0


def _share_interval(
    share: float, error: float, total: int, level: float, freedom: int
) -> tuple[float, float]:
    """Wilson's interval of a share, as if it were of as many values as `error` speaks of."""
    alone = math.sqrt(share * (1 - share) / total)
    error = max(error, alone)  # stretches that look more even than chance say little
    count = share * (1 - share) / error**2
    reach = student_t(0.5 + level / 2, freedom)
    middle = (share + reach**2 / (2 * count)) / (1 + reach**2 / count)
    half = (
        reach
        * math.sqrt(share * (1 - share) / count + reach**2 / (4 * count**2))
        / (1 + reach**2 / count)
    )
    return middle - half, middle + half


def _order_statistic(ordered: FloatArray, share: float) -> float:
    """The value with this share of all at or below it."""
    return float(ordered[min(max(math.ceil(share * len(ordered)) - 1, 0), len(ordered) - 1)])
