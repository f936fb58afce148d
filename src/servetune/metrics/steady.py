"""Steady-state window: the part of a run between its ramp-up and its drain.

A run begins and ends with an empty system. The ramp-up is found by
MSER-5 (White, Cobb and Spratt, Winter Simulation Conference 2000):
of all points at which to cut a series of numbers, in means of five, it picks the one after
which the mean is known best: sum((x - mean)^2) / n^2 of the remainder is smallest, n being its
length. A cut counts only when the part before it differs from the rest by more than chance and
by more than 2 %. Three series are cut: requests in the system and arriving tokens, in equal
time bins, and times to first token in order of due; the latest cut is used.

The window ends when the last request is sent, or earlier, when the requests in the system
drop for good (conversations run out, say): the same cut on the reversed series. If the end of
the run cancelled requests, the window ends before the first of them was due, because only the
short requests due at that time have ended.

Requests in the system follow Little's law; a request is in the system from its due time to its
end, whatever its outcome. `steady_results` has the main metrics of a run within the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.json_value import JsonObject
from servetune.metrics.columns import BoolArray, Columns, FloatArray, IntArray, columns_of, known
from servetune.metrics.distribution import (
    RunRecords,
    field_of_percentile,
    latency_intervals,
    statistics,
)
from servetune.metrics.intervals import rate_interval, student_t
from servetune.metrics.latency import Arrivals, Gaps, arrivals_of, gaps_between
from servetune.metrics.record import Record
from servetune.units import MS_PER_S, format_seconds

#: Smallest number of requests in a steady-state window.
LEAST_REQUESTS = 50
#: Smallest step that counts as a ramp-up, as a share of the level after it.
STEP_FRACTION = 0.02
#: Equal time bins of a run.
TIME_BINS = 500
#: A step in the requests in the system, as a share of their level, that ends the window.
DRAIN_FRACTION = 0.1
#: Drift: a fitted straight line that changes by this share of the mean over the window, and
#: would do so by chance once in a thousand runs.
DRIFT_FRACTION = 0.25
DRIFT_CHANCE = 0.001
#: Batch means through which the drift line is fitted.
DRIFT_BATCHES = 20


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Steady-state window of a run, in seconds since it began.

    Attributes:
        start_s: Start of the window, inclusive.
        end_s: End of the window, exclusive.
        reason: Reason for its bounds, or for its absence.
        settled: Whether the run had a steady state; if not, the times are those of the whole
            run.
    """

    start_s: float
    end_s: float
    reason: str
    settled: bool = True

    def holds(self, at_s: FloatArray) -> BoolArray:
        """Mask of the times within the window."""
        return (at_s >= self.start_s) & (at_s < self.end_s)


def steady_window(
    records: Sequence[Record],
    columns: Columns | None = None,
    arrivals: Arrivals | None = None,
) -> Window:
    """Steady-state window of a run.

    Args:
        records: All records of the run, failures included.
        columns: Columns of the records, if already made.
        arrivals: Chunk arrivals of the records, if already made.
    """
    columns = columns_of(records) if columns is None else columns
    arrivals = arrivals_of(records) if arrivals is None else arrivals
    if not len(columns):
        return _none(columns, "no request")
    first_s, last_s = float(columns.due_s.min()), float(columns.sent_s.max())
    end_s, ended = _uncensored(records, columns, last_s)
    if _within(columns, first_s, end_s) < LEAST_REQUESTS:
        return _none(columns, f"fewer than {LEAST_REQUESTS} requests were due before {ended}")
    edges_s = np.linspace(first_s, end_s, TIME_BINS + 1)
    in_system = in_system_means(columns.due_s, columns.end_s, edges_s)
    cuts_s, unsettled = _beginnings(columns, arrivals, edges_s, in_system)
    if unsettled:
        return _none(columns, f"{unsettled} had not settled by half of the run")
    begun, start_s = max(cuts_s.items(), key=lambda cut: cut[1])
    kept = edges_s[:-1] >= start_s
    drained = _drain(in_system[kept])
    if drained:
        end_s = float(edges_s[-1 - drained])
        ended = "requests in the system fell below their level"
        kept[-drained:] = False
    if _within(columns, start_s, end_s) < LEAST_REQUESTS:
        return _none(columns, f"fewer than {LEAST_REQUESTS} requests were due while it was steady")
    drifting = _drifting(columns, in_system[kept], start_s, end_s)
    if drifting:
        return _none(columns, drifting)
    head = (
        f"the first {format_seconds(start_s - first_s)} are left out, until {begun} settled"
        if start_s > first_s
        else "steady from the start"
    )
    return Window(start_s=start_s, end_s=end_s, reason=f"{head}; it ends when {ended}")


def mser_cut(values: FloatArray) -> tuple[int, bool]:
    """Number of initial values to drop, by MSER-5.

    Returns:
        That number, and whether the optimum was found: not if it is the largest cut
        considered, half of the values.
    """
    means = _means(values, len(values) // 5)
    count = len(means)
    if count < 10:
        return 0, True
    left = np.arange(count, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    spread = np.maximum(squares - sums**2 / left, 0) / left**2
    most = count // 2
    # Differences below a thousandth of the mean do not count: the first such cut will do.
    enough = spread[: most + 1].min() + (0.001 * float(means.mean())) ** 2 / count
    cut = int(np.argmax(spread[: most + 1] <= enough))
    if not cut or not _differs(means[:cut], means[cut:]):
        return 0, True
    return cut * 5, cut < most


def _beginnings(
    columns: Columns, arrivals: Arrivals, edges_s: FloatArray, in_system: FloatArray
) -> tuple[dict[str, float], str]:
    """End of the ramp-up of each series, and the name of a series that did not settle."""
    end_s = float(edges_s[-1])
    order = np.argsort(columns.due_s, kind="stable")
    timed = order[(~np.isnan(columns.ttft_s) & columns.whole & (columns.due_s < end_s))[order]]
    series = {
        "requests in the system": (in_system, edges_s),
        "tokens per second": (_token_counts(arrivals, edges_s), edges_s),
        "time to first token": (columns.ttft_s[timed], columns.due_s[timed]),
    }
    cuts_s: dict[str, float] = {}
    for name, (values, at_s) in series.items():
        cut, found = mser_cut(values)
        if not found:
            return {}, name
        cuts_s[name] = float(at_s[cut]) if cut else float(edges_s[0])
    return cuts_s, ""


def _token_counts(arrivals: Arrivals, edges_s: FloatArray) -> FloatArray:
    """Tokens that arrived in each time bin."""
    inside = (arrivals.times_s >= edges_s[0]) & (arrivals.times_s < edges_s[-1])
    per_s = (len(edges_s) - 1) / (edges_s[-1] - edges_s[0])
    places = ((arrivals.times_s[inside] - edges_s[0]) * per_s).astype(np.int64)
    tokens = None if arrivals.tokens is None else arrivals.tokens[inside]
    counts = np.bincount(places, tokens, minlength=len(edges_s))[: len(edges_s) - 1]
    return counts.astype(np.float64)


def _uncensored(records: Sequence[Record], columns: Columns, last_s: float) -> tuple[float, str]:
    """Latest possible end of the window, and the event that ends it."""
    cut_off = np.array([record.outcome == "cancelled" for record in records])
    sent = "the last request was sent"
    if not cut_off.any():
        return last_s, sent
    first_cut_s = float(columns.due_s[cut_off].min())
    if first_cut_s < (float(columns.due_s.min()) + last_s) / 2:
        return last_s, sent  # a request that hung: counted as unfinished instead
    return min(first_cut_s, last_s), "the first request was due that the end of the run cut off"


def _drain(in_system: FloatArray) -> int:
    """Number of final time bins that belong to the drain."""
    cut, _ = mser_cut(in_system[::-1])
    if not cut:
        return 0
    level = float(in_system[:-cut].mean())
    return cut if float(in_system[-cut:].mean()) < (1 - DRAIN_FRACTION) * level else 0


def _drifting(columns: Columns, in_system: FloatArray, start_s: float, end_s: float) -> str:
    """Description of a drift within the window; empty without one."""
    due = (columns.due_s >= start_s) & (columns.due_s < end_s) & ~np.isnan(columns.ttft_s)
    ttfts_s = columns.ttft_s[due][np.argsort(columns.due_s[due], kind="stable")]
    for name, values in (("requests in the system", in_system), ("time to first token", ttfts_s)):
        share = _drift(values)
        if share:
            word = "grew" if share > 0 else "fell"
            return f"{name} {word} by {abs(share):.0%} of the mean all along"
    return ""


def _drift(values: FloatArray) -> float:
    """Relative change of a fitted straight line over the values; 0 where it may be chance."""
    means = _means(values, DRIFT_BATCHES)
    if len(means) < DRIFT_BATCHES or not means.mean():
        return 0.0
    along = np.linspace(-0.5, 0.5, len(means))
    slope = float(along @ means / (along @ along))
    rest = means - means.mean() - slope * along
    freedom = len(means) - 2
    error = math.sqrt(float(rest @ rest) / freedom / float(along @ along))
    climb = slope / float(means.mean())
    certain = abs(slope) > student_t(1 - DRIFT_CHANCE / 2, freedom) * error
    return climb if certain and abs(climb) > DRIFT_FRACTION else 0.0


def _differs(cut: FloatArray, left: FloatArray) -> bool:
    """Whether two neighbouring parts of a series differ by more than chance and noticeably."""
    means = _means(left, DRIFT_BATCHES)
    spread = float(np.std(means, ddof=1)) * math.sqrt(len(left) / len(means))
    error = spread * math.sqrt(1 / len(cut) + 1 / len(left))
    step = abs(float(cut.mean() - left.mean()))
    return step > 3 * error and step > STEP_FRACTION * abs(float(left.mean()))


def _means(values: FloatArray, count: int) -> FloatArray:
    """Batch means of neighbouring values, in at most `count` batches of nearly equal size."""
    count = min(count, len(values))
    if count < 1:
        return values[:0]
    edges = np.linspace(0, len(values), count + 1).astype(np.int64)
    return np.add.reduceat(values, edges[:-1]) / np.diff(edges)


def _within(columns: Columns, from_s: float, until_s: float) -> int:
    return int(((columns.due_s >= from_s) & (columns.due_s < until_s)).sum())


def _none(columns: Columns, reason: str) -> Window:
    first_s = float(columns.due_s.min()) if len(columns) else 0.0
    last_s = float(columns.end_s.max()) if len(columns) else 0.0
    return Window(start_s=first_s, end_s=last_s, reason=reason, settled=False)


class LittlesLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Little's law over one interval of time, each side measured independently.

    Attributes:
        in_system: Mean number of requests in the system over the interval.
        rate_per_s: Requests due in the interval, per second.
        mean_time_s: Mean time in the system of those requests, up to their end.
        residual: Relative difference (in_system - rate_per_s * mean_time_s) / in_system. Near zero
            over a steady interval that is much longer than one request; zero over a whole run that
            began and ended empty, apart from requests outside the run.
    """

    in_system: float
    rate_per_s: float
    mean_time_s: float | None
    residual: float | None


def littles_law(columns: Columns, from_s: float, until_s: float) -> LittlesLaw | None:
    """Little's law between two times; `None` for an empty interval."""
    if not until_s > from_s:
        return None
    in_system = mean_in_system(columns.due_s, columns.end_s, from_s, until_s)
    due = (columns.due_s >= from_s) & (columns.due_s < until_s)
    rate_per_s = float(due.sum()) / (until_s - from_s)
    mean_time_s = float(columns.e2e_s[due].mean()) if due.any() else None
    residual = None
    if in_system > 0 and mean_time_s is not None:
        residual = (in_system - rate_per_s * mean_time_s) / in_system
    return LittlesLaw(
        in_system=in_system, rate_per_s=rate_per_s, mean_time_s=mean_time_s, residual=residual
    )


def mean_in_system(due_s: FloatArray, end_s: FloatArray, from_s: float, until_s: float) -> float:
    """Mean number of requests in the system between two times."""
    spent_s = np.minimum(end_s, until_s) - np.maximum(due_s, from_s)
    return float(np.maximum(spent_s, 0).sum()) / (until_s - from_s)


def in_system_means(due_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Mean number of requests in the system in each interval between neighbouring edges.

    Returns:
        Shape (edges - 1,).
    """
    spent_s = _spent_s(np.sort(due_s), edges_s) - _spent_s(np.sort(end_s), edges_s)
    return np.diff(spent_s) / np.diff(edges_s)


def _spent_s(since_s: FloatArray, at_s: FloatArray) -> FloatArray:
    """Sum of the elapsed times since each moment of `since_s` (sorted), at each of `at_s`."""
    before = np.searchsorted(since_s, at_s)
    sums_s = np.concatenate(([0.0], np.cumsum(since_s)))
    return before * at_s - sums_s[before]


def steady_results(run: RunRecords, arrivals: Arrivals, percentiles: Sequence[float]) -> JsonObject:
    """Steady-state window and, where there is one, the metrics within it.

    Latencies are of the requests due within the window, wherever they ended: dropping those
    that ended later would drop the long ones. Inter-token gaps are those that ended within
    the window. Throughputs count tokens by arrival, prompts by first token and requests by
    end, of any request.
    """
    window = steady_window(run.records, run.columns, arrivals)
    results: JsonObject = msgspec.to_builtins(window)
    if not window.settled:
        return results
    law = littles_law(run.columns, window.start_s, window.end_s)
    rates, rate_intervals = _rates(run, arrivals, window)
    gaps = gaps_between(arrivals, window.start_s, window.end_s).only(run.whole)
    inside = run.answered.only(window.holds(run.answered.due_s))
    intervals = latency_intervals(inside, gaps, percentiles)
    return {
        **results,
        **_counts(run, window),
        **rates,
        "littles_law": msgspec.to_builtins(law),
        "intervals": {**rate_intervals, **intervals},
        **_latency("e2e_latency", inside.e2e_s * MS_PER_S, percentiles),
        **_latency("ttft", known(inside.ttft_s) * MS_PER_S, percentiles),
        **_latency("tpot", known(inside.tpot_s) * MS_PER_S, percentiles),
        **_latency("itl", _in_ms(gaps), percentiles),
    }


def _counts(run: RunRecords, window: Window) -> JsonObject:
    due = window.holds(run.columns.due_s)
    return {
        "requests": int(due.sum()),
        "request_fraction": float(due.mean()),
        "unfinished": int((due & run.cut_off).sum()),
    }


def _rates(
    run: RunRecords, arrivals: Arrivals, window: Window
) -> tuple[dict[str, float | None], dict[str, list[float | None]]]:
    """Throughputs within the window and their confidence intervals."""
    answered, good = run.answered, run.good()
    firsts_s = np.where(np.isnan(answered.first_s), answered.end_s, answered.first_s)
    arrivals = arrivals.only(run.whole | run.cut_off)
    amounts: dict[str, tuple[FloatArray, FloatArray | IntArray | None]] = {
        "request_throughput": (answered.end_s, None),
        "input_throughput": (firsts_s, answered.input_tokens),
        "output_throughput": (arrivals.times_s, arrivals.tokens),
    }
    if good is not None:
        amounts["goodput"] = (answered.end_s[good], None)
    rates: dict[str, float | None] = {"goodput": None}
    intervals: dict[str, list[float | None]] = {}
    for name, (at_s, amount) in amounts.items():
        within = window.holds(at_s)
        weights = None if amount is None else amount[within]
        total = float(within.sum() if weights is None else weights.sum())
        rates[name] = total / (window.end_s - window.start_s)
        interval = rate_interval(at_s[within], weights, window.start_s, window.end_s)
        if interval is not None:
            intervals[name] = interval.ends
    rates["total_throughput"] = (rates["input_throughput"] or 0) + (rates["output_throughput"] or 0)
    return rates, intervals


def _latency(
    name: str, values_ms: FloatArray, percentiles: Sequence[float]
) -> dict[str, float | None]:
    fields, by_percent = statistics(name, values_ms, percentiles)
    for percent, value in by_percent.items():
        fields[field_of_percentile(name, float(percent))] = value
    return fields


def _in_ms(gaps: Gaps) -> FloatArray:
    """Gaps in milliseconds, converted in place: a long run has gigabytes of them."""
    return np.multiply(gaps.seconds, MS_PER_S, out=gaps.seconds)
