"""Results of one trial, failures by kind included, as a pure function of its records.

The field names are those of llm-optimizer's journals (`p99_e2e_latency_ms`, ...), which
users' scripts read; see `docs/reference/metrics.md` for the definition of each, and
`docs/reference/journal.md` for all fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from servetune.json_value import JsonObject
from servetune.metrics.columns import BoolArray, Columns, FloatArray, IntArray, columns_of, known
from servetune.metrics.distribution import (
    SHOWN,
    RunRecords,
    described,
    latency_intervals,
    statistics,
)
from servetune.metrics.intervals import correlated_latencies, throughput_intervals
from servetune.metrics.latency import arrivals_of, gaps_between, gaps_of
from servetune.metrics.lengths import RequestedLengths, arrived, token_check, wrong_lengths
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.metrics.steady import littles_law, steady_results
from servetune.units import MS_PER_S

#: Percentiles of the quantile grid in every trial record.
GRID = (*range(5, 95, 5), *range(95, 100), 99.5, 99.9)


def summarize(
    records: Sequence[Record],
    *,
    duration_s: float,
    per_request_limits: Iterable[Constraint] = (),
    further_percentiles: Iterable[float] = (),
    extras: bool = True,
    requested: RequestedLengths | None = None,
    wrong_length_fails: bool = False,
) -> JsonObject:
    """Results of one trial under the journal's field names.

    Latencies are over complete answers; other requests are counted by reason. Throughputs are
    over the whole run, from its first due request to its last answer. Times are in
    milliseconds; a value without data is `None`.

    Args:
        records: One record per request, failures included.
        duration_s: Time from the start of the run to its last answer.
        per_request_limits: Limits for `goodput`, which is `None` without any.
        further_percentiles: Percents to compute exactly, in addition to the grid.
        extras: Whether to compute the slower parts: confidence intervals, steady state,
            Little's law, and the distributions without a field of their own.
        requested: Requested lengths; answers of another one are counted in `wrong_length`.
        wrong_length_fails: Whether an answer of the wrong length is a failure.
    """
    columns = columns_of(records)
    if extras and (np.diff(columns.due_s) < 0).any():  # intervals need the order of time
        order: IntArray = np.argsort(columns.due_s, kind="stable")
        records = [records[place] for place in order.tolist()]
        columns = columns.only(order)
    wrong = wrong_lengths(records, requested) if requested else {}
    whole = without(columns.whole, wrong) if wrong_length_fails else columns.whole
    run = RunRecords(records, columns, whole, duration_s, tuple(per_request_limits))
    percentiles = sorted({*GRID, *further_percentiles})
    shown = sorted({*SHOWN, *further_percentiles})
    arrivals = arrivals_of(records) if extras else None
    if arrivals is None:
        gaps, intervals = gaps_of(run.answered_records), {}
    else:  # intervals first: percentiles reorder the gaps
        gaps = gaps_between(arrivals).only(whole)
        intervals = {**_rate_intervals(run), **latency_intervals(run.answered, gaps, shown)}
    results: JsonObject = {
        "duration": duration_s,
        **_outcomes(run, wrong, wrong_length_fails),
        **_rates(run),
        **_latencies(run.answered, gaps.seconds, percentiles),
        **_from_sent(run.answered),
        "concurrency": _rate(float(run.answered.e2e_s.sum()), duration_s),
        "accept_length": None,
        "token_check": token_check(records),
        "arrived": arrived(records),
        **_wrong_length(wrong, columns, requested),
    }
    del gaps  # frees memory before those of the steady state are made
    if arrivals is not None:
        results |= {**_distributions(run), "intervals": intervals}
        alike = correlated_latencies(run.answered)
        if alike:
            results["correlated"] = alike
        law = littles_law(columns, 0.0, duration_s)
        results["littles_law"] = None if law is None else msgspec.to_builtins(law)
        results["steady"] = steady_results(run, arrivals, shown)
    return results


def _outcomes(run: RunRecords, wrong: Mapping[int, str], wrong_length_fails: bool) -> JsonObject:
    count, completed = len(run.records), len(run.answered)
    return {
        "completed": completed,
        "failed": count - completed,
        "failures": failures_of(run.records, wrong if wrong_length_fails else None),
        "error_rate": (count - completed) / count if count else None,
    }


def _wrong_length(
    wrong: Mapping[int, str], columns: Columns, requested: RequestedLengths | None
) -> JsonObject:
    if requested is None:
        return {"wrong_length": None, "wrong_length_rate": None}
    answered = int(columns.whole.sum())
    return {
        "wrong_length": {"count": len(wrong), "samples": list(wrong.values())[:SAMPLES]},
        "wrong_length_rate": len(wrong) / answered if answered else None,
    }


def _rates(run: RunRecords) -> JsonObject:
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


def _latencies(answered: Columns, gaps_s: FloatArray, percentiles: Sequence[float]) -> JsonObject:
    results: JsonObject = {}
    grids: dict[str, dict[str, float | None]] = {}
    distributions = {
        "e2e_latency": answered.e2e_s.copy(),
        "ttft": known(answered.ttft_s),
        "tpot": known(answered.tpot_s),
        "itl": gaps_s,
    }
    for name, values_s in distributions.items():
        # In place: a million requests have gigabytes of gaps, which are not used again.
        values_ms = np.multiply(values_s, MS_PER_S, out=values_s)
        fields, grids[f"{name}_ms"] = statistics(name, values_ms, percentiles)
        results |= fields
    return {**results, "quantiles": grids}


def _from_sent(answered: Columns) -> dict[str, float | None]:
    """Latencies from sent, and the time from due to sent."""
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


def _distributions(run: RunRecords) -> JsonObject:
    """Distributions of quantities without fields of their own."""
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


def _rate_intervals(run: RunRecords) -> dict[str, list[float | None]]:
    """Confidence intervals of rates over the whole run.

    An answer counts at its end, with all its tokens, so the ramp-up and the drain of the run
    widen those by slices of time.
    """
    answered, good = run.answered, run.good()
    amounts: dict[str, FloatArray | IntArray] = {
        "request_throughput": np.ones(len(answered)),
        "input_throughput": answered.input_tokens,
        "output_throughput": answered.output_tokens,
        "total_throughput": answered.input_tokens + answered.output_tokens,
    }
    if good is not None:
        amounts["goodput"] = good.astype(np.float64)
    found = throughput_intervals(answered, amounts, 0.0, run.duration_s)
    return {name: interval.ends for name, interval in found.items()}


def _rate(amount: float, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None


WRONG_LENGTH = "wrong_length"
#: Kept samples of each kind.
SAMPLES = 3


def failures_of(
    records: Sequence[Record], wrong: Mapping[int, str] | None = None
) -> list[JsonObject]:
    """Failures by kind and HTTP status, most frequent first, with up to three distinct samples.

    Args:
        records: All records of a run.
        wrong: Descriptions of answers that fail by their length, by index in `records`.
    """
    kinds: dict[tuple[str, int | None], tuple[int, list[str]]] = {}
    failed = [
        (record.outcome, record.status if record.outcome == "http_status" else None, record.detail)
        for record in records
        if record.outcome != "ok"
    ]
    lengths = [(WRONG_LENGTH, None, text) for text in (wrong or {}).values()]
    for kind, status, detail in [*failed, *lengths]:
        count, samples = kinds.get((kind, status), (0, []))
        if len(samples) < SAMPLES and detail not in samples:
            samples.append(detail)
        kinds[kind, status] = (count + 1, samples)
    return [
        {
            "outcome": kind,
            **({} if status is None else {"status": status}),
            "count": count,
            "sample": samples[0],
            "samples": samples,
        }
        for (kind, status), (count, samples) in sorted(kinds.items(), key=lambda each: -each[1][0])
    ]


def without(whole: BoolArray, places: Mapping[int, str]) -> BoolArray:
    """Mask of complete answers with some indexes removed."""
    kept = whole.copy()
    kept[list(places)] = False
    return kept
