"""Confidence intervals of one run's metrics, for correlated observations.

Neighbouring requests share the same batch and the same queue, so they are not independent,
and an interval that treats them as such is too narrow. Values come in the order in which they
were due, and every method works on batches of neighbours:

- means (and rates, as means over time slices or by Little's law) by batch means: the means of 20
  batches (10 where 20 are still correlated) are nearly independent, so Student's t applies;
- percentiles by order statistics: batch means give the standard error of the share of values
  below the percentile, and the values at the ends of that share's interval are the ends of
  the percentile's. A block bootstrap was tried instead: it covered the true percentile no
  more often, and far less often in the tail of few requests
  (`docs/concepts/measuring.md`);
- any other statistic, such as a standard deviation, by that bootstrap.

Where a queue lasts longer than a batch, batches are alike as well. The error is therefore at least
that of the independent stretches which a run holds (`independent_stretches`), and is widened for
what few of them have not seen; a latency of which a run holds fewer than `BATCHES` has no
interval, since nothing tells how far it is off (`docs/concepts/measuring.md`, "At the knee").

An end that the values do not determine is `None`: a hundred requests have no upper end for
a 99th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

import msgspec
import numpy as np

from servetune.metrics.columns import Columns, FloatArray, IntArray, known
from servetune.metrics.latency import Gaps

LEVEL = 0.95
#: Smallest number of values with an interval.
LEAST_VALUES = 10
#: Batches: few, so that each is long; 10 to 30 lose next to nothing against more (Schmeiser,
#: Operations Research 30, 1982).
BATCHES = 20
#: Largest correlation of neighbouring batches; above it batches are too short.
MOST_CORRELATION = 0.2
BOOTSTRAP_DRAWS = 200
#: Stretches by which an error is doubled in its square: few of them have not seen all that happens.
#: Chosen on simulated loads apart from those that judge it (`benchmarks/metrics/trust.py knee`).
UNSEEN = 20
#: Fewest degrees of freedom.
_LEAST_FREEDOM = 4
#: Requests from which on it is known how long they are alike.
_LEAST_CORRELATED = 5 * BATCHES
#: Time as which 0 counts where logarithms are taken.
SHORTEST_S = 1e-9
#: Factor up to which values count as equal.
_EQUAL = 1 + 1e-9
#: Variance up to which values are all the same.
_NO_SPREAD = 1e-18
#: Standard deviation of what is evenly distributed, over its width.
_EVEN = 1 / math.sqrt(12)
#: Requests in flight on average, over the most at any time, from which on a load is a closed loop.
_CLOSED = 0.9
#: Time slices whose rates are the values of a throughput's interval.
SLICES = 20


class Interval(msgspec.Struct, frozen=True):
    """Confidence interval: it contains the true value in `level` of all runs.

    Attributes:
        low: Lower end; `None` where the values do not determine it.
        high: Upper end; `None` where the values do not determine it.
        level: Share of runs whose interval contains the true value.
        method: `batch means`, `block bootstrap` or `order statistics`.
    """

    low: float | None
    high: float | None
    level: float
    method: str

    @property
    def ends(self) -> list[float | None]:
        """Low and high end, as in a trial's results."""
        return [self.low, self.high]

    @property
    def half_width(self) -> float:
        """Half of the width; infinite where an end is unknown."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2


def mean_interval(
    values: FloatArray, level: float = LEVEL, *, stretches: float | None = None
) -> Interval | None:
    """Interval of the mean by batch means; `None` for fewer than `LEAST_VALUES` values."""
    return ratio_interval(values, np.ones(len(values)), level, stretches=stretches)


def ratio_interval(
    sums: FloatArray, counts: FloatArray, level: float = LEVEL, *, stretches: float | None = None
) -> Interval | None:
    """Interval of sum(sums) / sum(counts) by batch means, such as the mean of all gaps.

    Args:
        sums: Sum of each request's gaps, in order of time.
        counts: Number of each request's gaps.
        level: Share of runs whose interval should contain the true value.
        stretches: Independent stretches of the latency, of `stretches_of`; `None` where only the
            values themselves tell. Fewer than `BATCHES` leave both ends open.
    """
    if len(sums) < LEAST_VALUES or not counts.sum():
        return None
    if _too_few(stretches):
        return Interval(None, None, level, "batch means")
    ratio = float(sums.sum() / counts.sum())
    error, freedom = _honest_error(sums - ratio * counts, counts, stretches)
    reach = student_t(0.5 + level / 2, freedom) * error
    return Interval(ratio - reach, ratio + reach, level, "batch means")


def rate_interval(
    at_s: FloatArray,
    amounts: FloatArray | IntArray | None,
    from_s: float,
    until_s: float,
    level: float = LEVEL,
) -> Interval | None:
    """Interval of an amount per second, as the mean over equal slices of time.

    Slices of users who go in step may hold the same amount each. A part at the start or the end may
    still fall just inside the time or just outside, so the error is at least that of a part's size
    at both ends, evenly distributed: size / sqrt(6).

    Args:
        at_s: Time of each part, all between `from_s` and `until_s`.
        amounts: Size of each part; `None` where each counts as one.
        from_s: Start of the first slice.
        until_s: End of the last slice.
        level: Share of runs whose interval should contain the true value.
    """
    if len(at_s) < SLICES or not until_s > from_s:
        return None
    slice_s = (until_s - from_s) / SLICES
    places = np.clip(((at_s - from_s) / slice_s).astype(np.int64), 0, SLICES - 1)
    rates = np.bincount(places, amounts, minlength=SLICES) / slice_s
    error, batches = _ratio_error(rates - rates.mean(), np.ones(SLICES))
    largest = 1.0 if amounts is None else float(amounts.max())
    error = max(error, largest / math.sqrt(6) / (until_s - from_s))
    reach = student_t(0.5 + level / 2, batches - 1) * error
    return Interval(float(rates.mean()) - reach, float(rates.mean()) + reach, level, "batch means")


def throughput_intervals(
    answered: Columns,
    amounts: Mapping[str, FloatArray | IntArray],
    from_s: float,
    until_s: float,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """Intervals of amounts per second of answered requests, the narrower one of two ways.

    Slices of time (`rate_interval`) are far too wide where the requests of a batch end together;
    the way of a closed loop (`closed_loop_reaches`) is not for other loads.

    Args:
        answered: Answered requests in order of time.
        amounts: Amount of each request by name, such as its output tokens; all count at its end.
        from_s: Start of the time.
        until_s: End of the time.
        level: Share of runs whose interval should contain the true value.
    """
    reaches = closed_loop_reaches(answered, amounts, level)
    found = {}
    for name, amount in amounts.items():
        interval = rate_interval(answered.end_s, amount, from_s, until_s, level)
        if interval is not None and name in reaches:
            rate = float(amount.sum()) / (until_s - from_s)
            reach = min(reaches[name] * rate, interval.half_width)
            interval = Interval(rate - reach, rate + reach, level, interval.method)
        if interval is not None:
            found[name] = interval
    return found


def closed_loop_reaches(
    answered: Columns, amounts: Mapping[str, FloatArray | IntArray], level: float = LEVEL
) -> dict[str, float]:
    """Half width of the interval of each throughput over the throughput, of a closed loop.

    By Little's law a rate is the requests in flight times an amount per second of a request's time,
    so its error is that of this ratio, by batch means, however the ends of requests coincide.
    Requests that were due before the first answer had ended are left out: they begin together in
    every run of the load. What share of the users' time goes unused as the run ends is chance as
    well, and differs by as much of it as end-to-end latencies do of their mean, or as so many
    users' mean. Nothing is found where, up to the last start, fewer requests are in flight on
    average than 90% of the most.

    Args:
        answered: Answered requests in order of time.
        amounts: Amount of each request by name.
        level: Share of runs whose interval should contain the true value.
    """
    if len(answered) < LEAST_VALUES:
        return {}
    starts_s, ends_s = np.sort(answered.due_s), np.sort(answered.end_s)
    ended = np.searchsorted(ends_s, starts_s, side="right")
    users = int((np.arange(1, len(starts_s) + 1) - ended).max())
    if users < 1 or not starts_s[-1] > starts_s[0]:
        return {}
    before_last_s = np.minimum(answered.end_s, starts_s[-1]) - answered.due_s
    if before_last_s.sum() < _CLOSED * users * (starts_s[-1] - starts_s[0]):
        return {}
    unused = 1 - float(answered.e2e_s.sum()) / (users * float(ends_s[-1] - starts_s[0]))
    varying = min(float(answered.e2e_s.std() / answered.e2e_s.mean()), 1.0)
    # Of one user, what goes unused is the time between requests, which is alike in every run.
    differs = max(_EVEN, 1 / math.sqrt(users), varying) if users > 1 else _EVEN
    at_end = NormalDist().inv_cdf(0.5 + level / 2) * differs * unused
    later = answered.due_s >= ends_s[0]
    reaches = {}
    for name, amount in amounts.items():
        counts = amount[later].astype(np.float64)
        each = ratio_interval(answered.e2e_s[later], counts, level)
        taken_s = float(answered.e2e_s[later].sum())
        if each is not None and taken_s > 0:
            ratio = taken_s / float(counts.sum())
            reaches[name] = math.hypot(each.half_width / ratio, at_end)
    return reaches


def percentile_interval(
    values: FloatArray,
    percent: float,
    level: float = LEVEL,
    *,
    ordered: FloatArray | None = None,
    stretches: float | None = None,
) -> Interval | None:
    """Interval of a percentile by order statistics; `None` for too few values.

    Args:
        values: Values in order of time.
        percent: Percentile, 0 to 100.
        level: Share of runs whose interval should contain the true value.
        ordered: Sorted values, if already made.
        stretches: Independent stretches of the latency, as of `ratio_interval`.
    """
    alone = Gaps(values, np.ones(len(values), dtype=np.int64))
    return gap_percentile_interval(alone, percent, level, ordered=ordered, stretches=stretches)


def gap_percentile_interval(
    gaps: Gaps,
    percent: float,
    level: float = LEVEL,
    *,
    ordered: FloatArray | None = None,
    stretches: float | None = None,
) -> Interval | None:
    """Interval of a percentile of all gaps, by order statistics.

    The gaps of one request are correlated, so batch means are taken over each request's
    number of gaps below the percentile. An end beyond the last of as many independent values as
    that share's error is worth is open: ten values of one stretch are one. Values beyond a high
    percentile seem more independent than they are in a run that has not met the long queue: they
    count as the geometric mean of their own stretches and the latency's.

    Args:
        gaps: Gaps of the requests in order of time.
        percent: Percentile, 0 to 100.
        level: Share of runs whose interval should contain the true value.
        ordered: Sorted gaps, if already made.
        stretches: Independent stretches of the latency, as of `ratio_interval`.
    """
    counts = gaps.counts.astype(np.float64)
    total = len(gaps.seconds)
    if len(counts) < LEAST_VALUES or total < LEAST_VALUES:
        return None
    if _too_few(stretches):
        return Interval(None, None, level, "order statistics")
    ordered = np.sort(gaps.seconds) if ordered is None else ordered
    share = percent / 100
    edge = _order_statistic(ordered, share)
    some = gaps.counts > 0
    below = np.zeros(len(counts))
    starts = (np.cumsum(gaps.counts) - gaps.counts)[some]
    below[some] = np.add.reduceat(gaps.seconds <= edge * _EQUAL, starts, dtype=np.int64)
    observed = below.sum() / total
    error, freedom = _honest_error(below - observed * counts, counts, stretches, tail=percent > 50)
    low, high, count = _share_interval(share, error, total, level, freedom)
    if len(counts) < _LEAST_CORRELATED:
        count = total
    return Interval(
        _order_statistic(ordered, low) if low * (count + 1) >= 1 else None,
        _order_statistic(ordered, high) if high * (count + 1) <= count else None,
        level,
        "order statistics",
    )


def independent_stretches(values: FloatArray) -> float:
    """Number of independent values that tell as much of the mean as these, which are in order.

    It is their number over the sum of the correlations of all distances, both directions counted.
    Sums of two neighbouring correlations are added up to the first that is not positive (Geyer,
    Statistical Science 7, 1992), as the rest are of chance.
    """
    count = len(values)
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * count)
    products = np.fft.irfft(spectrum * np.conj(spectrum))[: count - count % 2]
    if not products[0] > _NO_SPREAD * count:
        return float(count)
    pairs = products.reshape(-1, 2).sum(axis=1) / products[0]
    end = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    return count / max(2 * float(pairs[:end].sum()) - 1, 1.0)


def stretches_of(answered: Columns) -> dict[str, float]:
    """Independent stretches that a run holds of each latency; infinite of fewer than 100 requests.

    Gaps between tokens are judged by the mean gap of each request. Lengths hide what is alike in
    end-to-end latencies: where a part of them has fewer than `BATCHES`, so have they. Requests that
    were due before the first answer had ended are left out: as the server fills, they are alike by
    the load's design, and so in every run of it.

    Args:
        answered: Answered requests in order of time.
    """
    if not len(answered):
        return {}
    later = answered.only(answered.due_s >= answered.end_s.min())
    ttft, tpot, e2e = (
        _log_stretches(known(values_s)) for values_s in (later.ttft_s, later.tpot_s, later.e2e_s)
    )
    parts = min(ttft, tpot)
    e2e = min(parts, e2e) if _too_few(parts) else e2e
    return {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2e_latency": e2e}


def correlated_latencies(answered: Columns) -> list[str]:
    """Latencies of which a run's requests hold fewer independent stretches than `BATCHES`.

    They have no interval.

    Args:
        answered: Answered requests in order of time.
    """
    return [name for name, count in stretches_of(answered).items() if _too_few(count)]


def _too_few(stretches: float | None) -> bool:
    return stretches is not None and stretches < BATCHES


def _log_stretches(values_s: FloatArray) -> float:
    if len(values_s) < _LEAST_CORRELATED:
        return math.inf
    return independent_stretches(np.log(np.maximum(values_s, SHORTEST_S)))


def bootstrap_interval(
    values: FloatArray,
    statistic: Callable[[np.ndarray[tuple[int, ...], np.dtype[np.float64]]], FloatArray],
    level: float = LEVEL,
    *,
    seed: int = 0,
    draws: int = BOOTSTRAP_DRAWS,
) -> Interval | None:
    """Interval of any statistic by a circular block bootstrap; `None` for too few values.

    Each draw consists of blocks of n^(1/2) neighbours; the series is treated as a circle, so
    that all values are equally likely. The interval lies between quantiles of the statistic
    over all draws.

    Args:
        values: Values in order of time.
        statistic: Function over the last axis of an array of shape (draws, values).
        level: Share of runs whose interval should contain the true value.
        seed: Random seed; equal seeds give equal intervals.
        draws: Number of bootstrap samples.
    """
    count = len(values)
    if count < LEAST_VALUES:
        return None
    block = round(math.sqrt(count))
    rng = np.random.default_rng(seed)
    starts = rng.integers(count, size=(draws, -(-count // block)))
    places = (starts[:, :, None] + np.arange(block)).reshape(draws, -1)[:, :count] % count
    drawn = statistic(values[places])
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high), level, "block bootstrap")


def student_t(share: float, freedom: float) -> float:
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


def _honest_error(
    deviations: FloatArray, counts: FloatArray, stretches: float | None, *, tail: bool = False
) -> tuple[float, float]:
    """Standard error of a ratio, and its degrees of freedom.

    It is that of batch means or that of independent stretches, whichever is larger, widened for
    what few stretches have not seen.

    Args:
        deviations: Deviation of each request from the ratio, times its count.
        counts: Count of each request.
        stretches: Independent stretches of the latency; `None` where they are not known.
        tail: Whether the ratio is the share of values below a high percentile.
    """
    error, batches = _ratio_error(deviations, counts)
    if len(counts) < _LEAST_CORRELATED:
        return error, batches - 1
    own = independent_stretches(deviations)
    all_of = own if stretches is None else min(own, stretches)
    used = math.sqrt(own * all_of) if tail else own
    alone = float(deviations.std()) * len(deviations) / float(counts.sum())
    error = max(error, alone / math.sqrt(used)) * math.sqrt(1 + UNSEEN / all_of)
    return error, max(min(batches, used) - 1, _LEAST_FREEDOM)


def _ratio_error(deviations: FloatArray, counts: FloatArray) -> tuple[float, int]:
    """Standard error of a ratio by batch means of its deviations, and the number of batches."""
    most = min(BATCHES, max(len(counts) // 5, LEAST_VALUES // 2))
    sums = _batch_sums(deviations, most)
    if most == BATCHES and _lag_one_correlation(sums) > MOST_CORRELATION:
        sums = _batch_sums(deviations, BATCHES // 2)
    batches = len(sums)
    return float(np.std(sums, ddof=1) * math.sqrt(batches) / counts.sum()), batches


def _batch_sums(values: FloatArray, batches: int) -> FloatArray:
    edges = np.linspace(0, len(values), batches + 1).astype(np.int64)[:-1]
    return np.add.reduceat(values, edges)


def _lag_one_correlation(sums: FloatArray) -> float:
    """Correlation of neighbouring values."""
    centred = sums - sums.mean()
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power else 0.0


def _share_interval(
    share: float, error: float, total: int, level: float, freedom: float
) -> tuple[float, float, float]:
    """Wilson's interval of a share, and the number of independent values that `error` implies."""
    independent = math.sqrt(share * (1 - share) / total)
    error = max(error, independent)  # batches that vary less than chance allows
    count = share * (1 - share) / error**2
    return *wilson_interval(share, count, student_t(0.5 + level / 2, freedom)), count


def wilson_interval(share: float, count: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` values, at a quantile such as 1.96."""
    middle = (share + quantile**2 / (2 * count)) / (1 + quantile**2 / count)
    half = quantile * math.sqrt(share * (1 - share) / count + quantile**2 / (4 * count**2))
    half /= 1 + quantile**2 / count
    return middle - half, middle + half


def _order_statistic(ordered: FloatArray, share: float) -> float:
    """Value with this share of all values at or below it."""
    return float(ordered[min(max(math.ceil(share * len(ordered)) - 1, 0), len(ordered) - 1)])
