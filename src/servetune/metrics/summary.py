"""Results of one trial as pure functions of its records.

The field names are those of llm-optimizer's journals (`p99_e2e_latency_ms`, ...), which
users' scripts read; see `docs/reference/metrics.md` for the definition of each, and
`docs/reference/journal.md` for all fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.metrics.columns import BoolArray, Columns, FloatArray, IntArray, columns_of, known
from servetune.metrics.distribution import (
    SHOWN,
    described,
    field_of_percentile,
    intervals_ms,
    quantiles,
    statistics,
)
from servetune.metrics.faults import failures_of, token_check, without, wrong_lengths
from servetune.metrics.insystem import littles_law
from servetune.metrics.intervals import Interval, mean_interval
from servetune.metrics.latency import (
    Arrivals,
    Gaps,
    arrivals_of,
    gaps_between,
    gaps_of,
    tokens_between,
)
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.metrics.steady import steady_window
from servetune.units import MS_PER_S

__all__ = ["meets_all", "summarize"]

#: Percentiles that every record's quantile grid holds.
GRID = (*range(5, 95, 5), *range(95, 100), 99.5, 99.9)
#: Slices of a run's time whose rates are the values behind a throughput's interval.
SLICES = 20


def summarize(
    records: Sequence[Record],
    *,
    duration_s: float,
    per_request_limits: Iterable[Constraint] = (),
    further_percentiles: Iterable[float] = (),
    extras: bool = True,
    asked_output_tokens: Mapping[int, int] | None = None,
    wrong_length_fails: bool = False,
) -> dict[str, Any]:
    """What one trial's requests did, under the names that journals use.

    Latencies are over the requests that were answered whole; what was not is counted by
    reason. Throughputs are over the whole run, from its first due request to its last
    answer. Times in milliseconds; a value without data is `None`.

    Args:
        records: One per request, failures included.
        duration_s: From the start of the run to its last answer.
        per_request_limits: For `goodput`; without any it is `None`.
        further_percentiles: To hold exactly, beside the grid.
        extras: Also what takes longer: confidence intervals, the steady part of the run,
            Little's law, and the distributions of what has no field of its own.
        asked_output_tokens: By `Record.index`, of requests that forbade the server to stop
            by itself; an answer of another length is counted in `wrong_length`.
        wrong_length_fails: Whether such an answer is a failure.
    """
    columns = columns_of(records)
    if extras and (np.diff(columns.due_s) < 0).any():  # intervals need the order of time
        order: IntArray = np.argsort(columns.due_s, kind="stable")
        records = [records[place] for place in order.tolist()]
        columns = columns.only(order)
    wrong = wrong_lengths(records, asked_output_tokens or {})
    whole = without(columns.whole, wrong) if wrong_length_fails else columns.whole
    run = _Run(records, columns, whole, duration_s, tuple(per_request_limits))
    percentiles = sorted({*GRID, *further_percentiles})
    shown = sorted({*SHOWN, *further_percentiles})
    arrivals = arrivals_of(records) if extras else None
    # Intervals want the gaps in the order of time, which the percentiles then destroy.
    gaps, intervals = (
        (gaps_of(run.answered_records), {})
        if arrivals is None
        else _with_intervals(run, _only(gaps_between(arrivals), whole), shown)
    )
    results: dict[str, Any] = {
        "duration": duration_s,
        **_outcomes(run, wrong, wrong_length_fails),
        **_rates(run),
        **_latencies(run.answered, gaps.seconds, percentiles),
        **_from_sent(run.answered),
        "concurrency": _rate(float(run.answered.e2e_s.sum()), duration_s),
        "accept_length": None,
        "token_check": token_check(records),
        "wrong_length": _wrong_length(wrong, asked_output_tokens),
    }
    del gaps
    if arrivals is not None:
        results |= {**_distributions(run), "intervals": intervals}
        results["littles_law"] = _built(littles_law(columns, 0.0, duration_s))
        results["steady"] = _steady(run, arrivals, shown)
    return results


def meets_all(columns: Columns, limits: Iterable[Constraint]) -> BoolArray:
    """Which requests met every limit; failures meet none.

    A limit on `ttft` or `itl` speaks of that request's own first token or mean gap; the
    limits' statistics are of no account here. What a request has not got, such as a gap
    in an answer of one token, cannot be too long.
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


class _Run:
    """A run and what several parts of its summary ask of it."""

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

    def good(self) -> BoolArray | None:
        """Which of the answered met the limits; `None` without limits."""
        return meets_all(self.answered, self.limits) if self.limits else None


def _outcomes(run: _Run, wrong: Mapping[int, str], wrong_length_fails: bool) -> dict[str, Any]:
    count, completed = len(run.records), len(run.answered)
    return {
        "completed": completed,
        "failed": count - completed,
        "failures": failures_of(run.records, wrong if wrong_length_fails else None),
        "error_rate": (count - completed) / count if count else None,
    }


def _wrong_length(
    wrong: Mapping[int, str], asked: Mapping[int, int] | None
) -> dict[str, Any] | None:
    if asked is None:
        return None
    return {"count": len(wrong), "samples": list(wrong.values())[:3]}


def _rates(run: _Run) -> dict[str, Any]:
    answered, duration_s = run.answered, run.duration_s
    input_tokens = int(answered.input_tokens.sum())
    output_tokens = int(answered.output_tokens.sum())
    good = run.good()
    return {
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _rate(len(answered), duration_s),
        "input_throughput": _rate(input_tokens, duration_s),
        "output_throughput": _rate(output_tokens, duration_s),
        "total_throughput": _rate(input_tokens + output_tokens, duration_s),
        "goodput": None if good is None else _rate(int(good.sum()), duration_s),
        "goodput_fraction": (
            None if good is None or not run.records else int(good.sum()) / len(run.records)
        ),
    }


def _latencies(
    answered: Columns, gaps_s: FloatArray, percentiles: Sequence[float]
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    grids: dict[str, dict[str, float | None]] = {}
    distributions = {
        "e2e_latency": answered.e2e_s.copy(),
        "ttft": known(answered.ttft_s),
        "tpot": known(answered.tpot_s),
        "itl": gaps_s,
    }
    for name, values_s in distributions.items():
        # In place: a million requests have gaps by the gigabyte. No one else reads them.
        values_ms = np.multiply(values_s, MS_PER_S, out=values_s)
        results |= statistics(name, values_ms)
        grids[f"{name}_ms"] = quantiles(values_ms, percentiles)
    return {**results, "quantiles": grids}


def _from_sent(answered: Columns) -> dict[str, float | None]:
    """The same latencies from when requests left, and how long they waited to leave."""
    firsts_s = known(answered.ttft_from_sent_s)
    some = len(answered) > 0
    return {
        "mean_ttft_from_sent_ms": float(firsts_s.mean()) * MS_PER_S if len(firsts_s) else None,
        "mean_e2e_from_sent_ms": float(answered.e2e_from_sent_s.mean()) * MS_PER_S
        if some
        else None,
        "mean_wait_before_send_ms": float(answered.wait_s.mean()) * MS_PER_S if some else None,
        "max_wait_before_send_ms": float(answered.wait_s.max()) * MS_PER_S if some else None,
    }


def _with_intervals(
    run: _Run, gaps: Gaps, percentiles: Sequence[float]
) -> tuple[Gaps, dict[str, list[float | None]]]:
    return gaps, {**_rate_intervals(run), **_latency_intervals(run.answered, gaps, percentiles)}


def _distributions(run: _Run) -> dict[str, Any]:
    """Of what has no fields of its own."""
    answered = run.answered
    return {
        "from_sent": {
            "ttft_ms": described(known(answered.ttft_from_sent_s) * MS_PER_S),
            "e2e_latency_ms": described(answered.e2e_from_sent_s * MS_PER_S),
        },
        "wait_before_send_ms": described(answered.wait_s * MS_PER_S),
        "connect_ms": {
            "connections": int((~np.isnan(run.columns.connect_s)).sum()),
            **described(known(run.columns.connect_s) * MS_PER_S),
        },
        "normalized_latency_ms": described(known(answered.normalized_s) * MS_PER_S),
        "output_rate_per_user": described(known(answered.output_rate_per_s)),
    }


def _latency_intervals(
    answered: Columns, gaps: Gaps, percentiles: Sequence[float]
) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for name, values_s in (
        ("e2e_latency", answered.e2e_s),
        ("ttft", known(answered.ttft_s)),
        ("tpot", known(answered.tpot_s)),
    ):
        alone = np.ones(len(values_s), dtype=np.int64)
        found |= intervals_ms(name, Gaps(values_s, alone), percentiles)
    return found | intervals_ms("itl", gaps, percentiles)


def _rate_intervals(run: _Run) -> dict[str, list[float | None]]:
    """Of rates over the whole run: batch means of equal slices of its time.

    An answer counts where it ended, with all its tokens; so the beginning and the end of
    the run widen these intervals.
    """
    answered, good = run.answered, run.good()
    if len(answered) < SLICES or run.duration_s <= 0:
        return {}
    amounts: dict[str, FloatArray] = {
        "request_throughput": np.ones(len(answered)),
        "input_throughput": answered.input_tokens,
        "output_throughput": answered.output_tokens,
        "total_throughput": answered.input_tokens + answered.output_tokens,
    }
    if good is not None:
        amounts["goodput"] = good.astype(np.float64)
    found = {
        name: _slice_interval(answered.end_s, amount, 0.0, run.duration_s)
        for name, amount in amounts.items()
    }
    return {name: _ends(interval) for name, interval in found.items() if interval is not None}


def _slice_interval(
    at_s: FloatArray, amount: FloatArray, from_s: float, until_s: float
) -> Interval | None:
    slice_s = (until_s - from_s) / SLICES
    places = np.clip(((at_s - from_s) / slice_s).astype(np.int64), 0, SLICES - 1)
    return mean_interval(np.bincount(places, amount, minlength=SLICES) / slice_s)


def _ends(interval: Interval) -> list[float | None]:
    return [interval.low, interval.high]


def _steady(run: _Run, arrivals: Arrivals, percentiles: Sequence[float]) -> dict[str, Any]:
    """The main metrics within the window; all but the window is left out where there is none.

    Latencies are of the requests that were due within, wherever they ended: to leave out
    those that ended after it would leave out the long ones. Gaps between tokens are those
    that ended within, and throughputs count what arrived within, of any request: tokens
    when they came, prompts at their first token, requests when they ended.
    """
    window = steady_window(run.records, run.columns, arrivals)
    told: dict[str, Any] = _built(window)
    if not window.settled:
        return told
    from_s, until_s = window.start_s, window.end_s
    length_s = until_s - from_s
    columns, answered = run.columns, run.answered
    due = (answered.due_s >= from_s) & (answered.due_s < until_s)
    inside = answered.only(due)
    all_due = (columns.due_s >= from_s) & (columns.due_s < until_s)
    cut_off = np.array([record.outcome == "cancelled" for record in run.records])
    ended = (answered.end_s >= from_s) & (answered.end_s < until_s)
    firsts_s = np.where(np.isnan(answered.first_s), answered.end_s, answered.first_s)
    begun = (firsts_s >= from_s) & (firsts_s < until_s)
    good = run.good()
    input_tokens = float(answered.input_tokens[begun].sum())
    output_tokens = tokens_between(arrivals, run.whole | cut_off, from_s, until_s)
    gaps = _only(gaps_between(arrivals, from_s, until_s), run.whole)
    values_s = {
        "e2e_latency": inside.e2e_s,
        "ttft": known(inside.ttft_s),
        "tpot": known(inside.tpot_s),
        "itl": gaps.seconds,
    }
    told |= {
        "requests": int(all_due.sum()),
        "request_fraction": float(all_due.mean()),
        "unfinished": int((all_due & cut_off).sum()),
        "request_throughput": int(ended.sum()) / length_s,
        "input_throughput": input_tokens / length_s,
        "output_throughput": output_tokens / length_s,
        "total_throughput": (input_tokens + output_tokens) / length_s,
        "goodput": None if good is None else int((good & ended).sum()) / length_s,
        "littles_law": _built(littles_law(columns, from_s, until_s)),
        "intervals": _latency_intervals(inside, gaps, percentiles),
    }
    interval = _slice_interval(answered.end_s[ended], np.ones(int(ended.sum())), from_s, until_s)
    if interval is not None:
        told["intervals"]["request_throughput"] = _ends(interval)
    further = [percent for percent in percentiles if percent not in SHOWN]
    for name, seconds in values_s.items():
        values_ms = np.multiply(seconds, MS_PER_S, out=seconds if name == "itl" else None)
        told |= statistics(name, values_ms)
        for percent, value in quantiles(values_ms, further).items():
            told[field_of_percentile(name, float(percent))] = value
    return told


def _only(gaps: Gaps, chosen: BoolArray) -> Gaps:
    """The gaps of the chosen requests."""
    if chosen.all():
        return gaps
    return Gaps(gaps.seconds[np.repeat(chosen, gaps.counts)], gaps.counts[chosen])


def _built(value: msgspec.Struct | None) -> Any:
    return None if value is None else msgspec.to_builtins(value)


def _rate(amount: float, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None
