"""Results of one trial as pure functions of its records.

The field names are those of llm-optimizer's journals (`p99_e2e_latency_ms`, ...), which
users' scripts read; see `docs/reference/journal.md` for each one's meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from servetune.metrics.latency import (
    FloatArray,
    e2e_latencies_s,
    itl_gaps_s,
    tpots_s,
    ttfts_s,
)
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.units import MS_PER_S

__all__ = ["goodput_per_s", "summarize"]

#: Percentiles that every record's quantile grid holds.
GRID = (*range(5, 95, 5), *range(95, 100), 99.5, 99.9)


def summarize(
    records: Sequence[Record],
    *,
    duration_s: float,
    per_request_limits: Iterable[Constraint] = (),
    further_percentiles: Iterable[float] = (),
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
    """
    answered = [record for record in records if record.outcome == "ok"]
    input_tokens = sum(record.input_tokens for record in answered)
    output_tokens = sum(record.output_tokens for record in answered)
    e2e_s = e2e_latencies_s(answered)
    in_system_s = float(e2e_s.sum())
    limits = tuple(per_request_limits)
    percentiles = sorted({*GRID, *further_percentiles})
    results: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(answered),
        "failed": len(records) - len(answered),
        "failures": _failures(records),
        "error_rate": (len(records) - len(answered)) / len(records) if records else None,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _rate(len(answered), duration_s),
        "input_throughput": _rate(input_tokens, duration_s),
        "output_throughput": _rate(output_tokens, duration_s),
        "goodput": goodput_per_s(answered, limits, duration_s) if limits else None,
    }
    distributions = {
        "e2e_latency": e2e_s,
        "ttft": ttfts_s(answered),
        "tpot": tpots_s(answered),
        "itl": itl_gaps_s(answered),
    }
    quantiles: dict[str, dict[str, float | None]] = {}
    for name, values_s in distributions.items():
        # In place: a million requests have gaps by the gigabyte. No one else reads them.
        values_ms = np.multiply(values_s, MS_PER_S, out=values_s)
        results |= _statistics(name, values_ms)
        quantiles[f"{name}_ms"] = _quantiles(values_ms, percentiles)
    results |= _from_sent(answered)
    results["quantiles"] = quantiles
    # Little's law: requests in the system on average = arrivals per second x time in it.
    results["concurrency"] = in_system_s / duration_s if duration_s > 0 else None
    results["accept_length"] = None
    return results


def goodput_per_s(
    answered: Sequence[Record], limits: tuple[Constraint, ...], duration_s: float
) -> float | None:
    """Requests per second that met every limit, each request judged by itself.

    A limit on `ttft` or `itl` speaks of that request's own first token or mean gap; the
    limits' statistics are of no account here.
    """
    good = sum(all(_meets(record, limit) for limit in limits) for record in answered)
    return _rate(good, duration_s)


def _meets(record: Record, limit: Constraint) -> bool:
    value_s = {
        "ttft": record.ttft_s,
        "tpot": record.tpot_s,
        "itl": record.tpot_s,  # the mean gap of one request is its time per output token
        "e2e_latency": record.e2e_s,
    }[limit.metric]
    if value_s is None:  # a one-token answer has no gap that could be too long
        return True
    alone = {f"mean_{limit.metric}_ms": value_s * MS_PER_S}
    return bool(Constraint(limit.metric, "mean", limit.op, limit.value).holds(alone))


def _statistics(name: str, values_ms: FloatArray) -> dict[str, float | None]:
    """Mean and the usual percentiles; the order of the values is lost."""
    if not len(values_ms):
        return {
            f"{stat}_{name}_ms": None for stat in ("mean", "median", "std", "p90", "p95", "p99")
        }
    mean, std = float(values_ms.mean()), float(values_ms.std())
    median, p90, p95, p99 = np.percentile(values_ms, (50, 90, 95, 99), overwrite_input=True)
    return {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": float(median),
        f"std_{name}_ms": std,
        f"p90_{name}_ms": float(p90),
        f"p95_{name}_ms": float(p95),
        f"p99_{name}_ms": float(p99),
    }


def _quantiles(values_ms: FloatArray, percentiles: Sequence[float]) -> dict[str, float | None]:
    if not len(values_ms):
        return {f"{percent:g}": None for percent in percentiles}
    values = np.percentile(values_ms, percentiles, overwrite_input=True)
    return {
        f"{percent:g}": float(value) for percent, value in zip(percentiles, values, strict=True)
    }


def _from_sent(answered: Sequence[Record]) -> dict[str, float | None]:
    """The same latencies from when requests left, and how long they waited to leave."""
    waits_s = np.array([record.sent_s - record.due_s for record in answered])
    if not len(waits_s):
        return {
            "mean_ttft_from_sent_ms": None,
            "mean_e2e_from_sent_ms": None,
            "mean_wait_before_send_ms": None,
            "max_wait_before_send_ms": None,
        }
    wait_ms = float(waits_s.mean()) * MS_PER_S
    e2e_ms = float(e2e_latencies_s(answered).mean()) * MS_PER_S
    from_sent = [r.chunk_times_s[0] - r.sent_s for r in answered if r.chunk_times_s]
    return {
        "mean_ttft_from_sent_ms": float(np.mean(from_sent)) * MS_PER_S if from_sent else None,
        "mean_e2e_from_sent_ms": e2e_ms - wait_ms,
        "mean_wait_before_send_ms": wait_ms,
        "max_wait_before_send_ms": float(waits_s.max()) * MS_PER_S,
    }


def _failures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each kind of failure with its count and one sample of what was seen."""
    failed = [record for record in records if record.outcome != "ok"]
    samples = {record.outcome: record.detail for record in reversed(failed)}
    counts = Counter(record.outcome for record in failed)
    return [
        {"outcome": outcome, "count": count, "sample": samples[outcome]}
        for outcome, count in counts.most_common()
    ]


def _rate(amount: float, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None
