"""Sampling error of one run's metrics by a bootstrap over blocks of neighbouring requests.

Neighbouring requests share the same batch and queue, so single requests are not resampled: a
bootstrap of those gives intervals that are far too narrow. The run is cut into `BLOCKS` stretches
of requests (half as many where neighbours are still correlated), and SciPy's bootstrap draws
stretches. Its standard error is widened for the few blocks, and Student's t gives the ends.

Rates are over equal slices of time between the ramp-up and the drain of the run: these are the same
in every run of a load, so they add nothing to what differs between two. In closed loop that of
Little's law is used where it is narrower (`intervals.closed_loop_reaches`).

A percentile with fewer than `LEAST_BEYOND` values beyond it has no interval. Where the requests are
alike for so long, as in a long queue, that the run holds fewer independent stretches of a latency
than blocks (`intervals.stretches_of`), the blocks are alike as well, and intervals of them called a
tenth of equal runs different (`benchmarks/metrics/regression_gate.py`). Its mean and median then
have the wide interval of so few independent values, of their logarithms, which leaves out only what
differs many times over; its other percentiles have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from servetune.metrics.columns import Columns, FloatArray, IntArray, columns_of, known
from servetune.metrics.differences import LEAST_REACH, LEVEL, scipy_part, t_quantile
from servetune.metrics.intervals import (
    BATCHES,
    MOST_CORRELATION,
    SHORTEST_S,
    UNSEEN,
    closed_loop_reaches,
    stretches_of,
)
from servetune.metrics.latency import gaps_of
from servetune.metrics.record import Record
from servetune.metrics.slo import field_of
from servetune.units import MS_PER_S

BLOCKS = 20
#: Values beyond a percentile, of which its interval is made.
LEAST_BEYOND = 5
#: Requests from which on a run is resampled.
LEAST_REQUESTS = 5 * BLOCKS
DRAWS = 400
#: Values of a metric that are kept: every so many-th of more, as gaps between tokens.
_MOST_VALUES = 5_000
_PERCENTILES = (50.0, 90.0, 95.0, 99.0)

#: Number of times that each block was drawn, shape (draws, blocks).
CountTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
#: Statistic of each draw.
_OfCounts = Callable[[CountTable], FloatArray]


def resampled_reaches(records: Sequence[Record], *, seed: int = 0) -> dict[str, float]:
    """Reach of the logarithm of each metric to the ends of its 95% sampling interval.

    Args:
        records: Requests of the run.
        seed: Random seed; equal seeds give equal reaches.

    Returns:
        Reach by result field: the interval of a value goes from `value * exp(-reach)` to
        `value * exp(reach)`. It is infinite of a percentile of a latency of which the run holds too
        few independent stretches. Metrics of too few requests are absent.

    Raises:
        InputError: SciPy is not installed.
    """
    answered = sorted((r for r in records if r.outcome == "ok"), key=lambda record: record.due_s)
    if len(answered) < LEAST_REQUESTS:
        return {}
    columns = columns_of(answered)
    few = _reaches_of_few(columns)
    reaches = {
        field: few[field] if field in few else _reach(blocks, statistic, seed)
        for field, blocks, statistic in _statistics(answered, columns)
    }
    for name, reach in closed_loop_reaches(columns, _rated(columns), LEVEL).items():
        reaches[name] = min(reach, reaches[name] or math.inf)
    return {field: reach for field, reach in reaches.items() if reach is not None}


def _rated(columns: Columns) -> dict[str, FloatArray | IntArray]:
    """Amount of each request of which the rate is compared."""
    return {
        "request_throughput": np.ones(len(columns)),
        "output_throughput": columns.output_tokens,
    }


def _reaches_of_few(columns: Columns) -> dict[str, float | None]:
    """Reaches of latencies of which the run holds fewer than `BATCHES` independent stretches.

    Values are spread as in the whole run, its start included.
    """
    values_s = {"ttft": columns.ttft_s, "tpot": columns.tpot_s, "e2e_latency": columns.e2e_s}
    values_s["itl"] = values_s["tpot"]  # gaps are alike as their requests are
    reaches: dict[str, float | None] = {}
    for metric, stretches in stretches_of(columns).items():
        if stretches < BATCHES:
            logarithms = np.log(np.maximum(known(values_s[metric]), SHORTEST_S))
            error = float(logarithms.std()) * math.sqrt((1 + UNSEEN / stretches) / stretches)
            reach = t_quantile(0.5 + LEVEL / 2, max(stretches - 1, 1)) * error
            central = dict.fromkeys(("mean", "median"), reach if error > LEAST_REACH else None)
            others = dict.fromkeys((f"p{percent:g}" for percent in _PERCENTILES), math.inf)
            for statistic, of_statistic in {**others, **central}.items():
                reaches[field_of(metric, statistic)] = of_statistic
    return reaches


def _statistics(
    answered: Sequence[Record], columns: Columns
) -> Iterator[tuple[str, int, _OfCounts]]:
    """Field, number of blocks and statistic of each metric."""
    for name, amounts in _rated(columns).items():
        slices = _slices(columns, amounts)
        yield name, len(slices), _mean_of(slices, np.ones(len(slices)))
    gaps = gaps_of(answered)
    owners = np.repeat(np.arange(len(answered)), gaps.counts)
    own = np.arange(len(answered))
    for metric, values_s, of in (
        ("ttft", columns.ttft_s, own),
        ("tpot", columns.tpot_s, own),
        ("e2e_latency", columns.e2e_s, own),
        ("itl", gaps.seconds, owners),
    ):
        timed = ~np.isnan(values_s)
        yield from _latency(metric, values_s[timed] * MS_PER_S, of[timed], len(answered))


def _latency(
    metric: str, values: FloatArray, owners: IntArray, requests: int
) -> Iterator[tuple[str, int, _OfCounts]]:
    """Mean and percentiles of the values, each of the request that `owners` says."""
    if len(values) < LEAST_REQUESTS:
        return
    blocks = _blocks(values, owners, requests)
    places = owners * blocks // requests
    sums = np.bincount(places, values, minlength=blocks).astype(np.float64)
    counts = np.bincount(places, minlength=blocks).astype(np.float64)
    yield field_of(metric), blocks, _mean_of(sums, counts)
    every = -(-len(values) // _MOST_VALUES)
    order = np.argsort(values[::every], kind="stable")
    ordered, homes = values[::every][order], places[::every][order]
    for percent in _PERCENTILES:
        if (1 - percent / 100) * len(values) >= LEAST_BEYOND:
            statistic = "median" if percent == 50 else f"p{percent:g}"
            quantile = _quantile_of(ordered, homes, percent / 100)
            yield field_of(metric, statistic), blocks, quantile


def _slices(columns: Columns, amounts: FloatArray | IntArray) -> FloatArray:
    """Amount of each slice of time; the ramp-up and the drain, a slice each, are left out."""
    slices = BLOCKS + 2
    from_s, until_s = float(columns.due_s.min()), float(columns.end_s.max())
    places = ((columns.end_s - from_s) * slices / max(until_s - from_s, 1e-9)).astype(np.int64)
    amount = np.bincount(np.minimum(places, slices - 1), amounts, minlength=slices)
    middle: FloatArray = amount[1:-1].astype(np.float64)
    return middle


def _blocks(values: FloatArray, owners: IntArray, requests: int) -> int:
    """Number of blocks: fewer where neighbouring ones are correlated."""
    places = owners * BLOCKS // requests
    counts = np.bincount(places, minlength=BLOCKS)
    means = np.bincount(places, values, minlength=BLOCKS) / np.maximum(counts, 1)
    centred = means - means.mean()
    power = float(centred @ centred)
    correlated = bool(power) and float(centred[1:] @ centred[:-1]) / power > MOST_CORRELATION
    return BLOCKS // 2 if correlated else BLOCKS


def _mean_of(sums: FloatArray, counts: FloatArray) -> _OfCounts:
    def statistic(drawn: CountTable) -> FloatArray:
        means: FloatArray = (drawn @ sums) / np.maximum(drawn @ counts, 1e-12)
        return means

    return statistic


def _quantile_of(ordered: FloatArray, homes: IntArray, share: float) -> _OfCounts:
    """Quantile of the drawn blocks' values, which are all sorted once."""

    def statistic(drawn: CountTable) -> FloatArray:
        below = np.cumsum(drawn[:, homes], axis=1)
        wanted = np.maximum(share * below[:, -1:], 1)
        found: FloatArray = ordered[(below < wanted).sum(axis=1).clip(max=len(ordered) - 1)]
        return found

    return statistic


def _reach(blocks: int, statistic: _OfCounts, seed: int) -> float | None:
    def of_draws(drawn: IntArray, axis: int = -1) -> FloatArray:
        drawn = np.moveaxis(np.atleast_2d(drawn), axis, -1)
        counts = np.zeros((len(drawn), blocks), dtype=np.int64)
        np.add.at(counts, (np.arange(len(drawn))[:, None], drawn), 1)
        return np.log(np.maximum(statistic(counts), 1e-12))

    found = scipy_part("stats").bootstrap(
        (np.arange(blocks),),
        of_draws,
        n_resamples=DRAWS,
        batch=50,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    error = float(found.standard_error) * math.sqrt(blocks / (blocks - 1))
    # Without any spread, as of values that are all the same, nothing is known of the doubt.
    known = math.isfinite(error) and error > LEAST_REACH
    return t_quantile(0.5 + LEVEL / 2, blocks - 1) * error if known else None
