"""Main metrics of a run within its steady-state window."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.metrics.columns import FloatArray, IntArray, known
from servetune.metrics.distribution import (
    SHOWN,
    field_of_percentile,
    latency_intervals,
    quantiles,
    statistics,
)
from servetune.metrics.intervals import rate_interval
from servetune.metrics.latency import Arrivals, Gaps, gaps_between
from servetune.metrics.littles_law import littles_law
from servetune.metrics.results import JsonObject
from servetune.metrics.run_records import RunRecords
from servetune.metrics.steady import Window, steady_window
from servetune.units import MS_PER_S


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
    results = statistics(name, values_ms)
    further = [percent for percent in percentiles if percent not in SHOWN]
    for percent, value in quantiles(values_ms, further).items():
        results[field_of_percentile(name, float(percent))] = value
    return results


def _in_ms(gaps: Gaps) -> FloatArray:
    """Gaps in milliseconds, converted in place: a long run has gigabytes of them."""
    return np.multiply(gaps.seconds, MS_PER_S, out=gaps.seconds)
