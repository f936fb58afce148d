"""Results under the definitions and field names of other benchmark tools.

`docs/reference/metrics.md` lists the differences. Definitions are from the sources of
`vllm bench serve` 0.32, NVIDIA AIPerf 0.13 and guidellm 0.8.1. Two times are missing in our
records: that of the empty role chunk is taken to be that of the first content chunk (vLLM
sends both at once), and the end of a stream that of its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from servetune.errors import UnknownName
from servetune.json_value import JsonObject
from servetune.metrics.columns import BoolArray, Columns, FloatArray, columns_of, known
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.units import MS_PER_S


def compat_results(
    records: Sequence[Record],
    tool: str,
    *,
    limits: Iterable[Constraint] = (),
    role_chunk: bool = True,
) -> JsonObject:
    """Results of a run as another tool defines and names them.

    Args:
        records: All records of the run, failures included.
        tool: `vllm`, `aiperf` or `guidellm`.
        limits: Per-request limits, for goodput where the tool has it.
        role_chunk: Whether streams began with an empty role chunk, as on the chat route; it
            changes vLLM's ITL.

    Raises:
        UnknownName: No such tool.
    """
    if tool not in TOOLS:
        raise UnknownName("benchmark tool", tool, TOOLS)
    return TOOLS[tool](_CompatInput(records, tuple(limits), role_chunk))


class _CompatInput(NamedTuple):
    """Arguments of `compat_results`."""

    records: Sequence[Record]
    limits: tuple[Constraint, ...]
    role_chunk: bool


def _vllm(source: _CompatInput) -> JsonObject:
    """Results of `vllm bench serve --save-result`.

    Latencies count from before connecting. A stream that broke off after its first chunk is a
    success. ITL is the gap between chunks of any content, the role chunk included.
    """
    records, limits, role_chunk = source
    success = np.array([_succeeds_for_vllm(record) for record in records], dtype=np.bool_)
    columns = columns_of(records).only(success)
    chosen = [record for record, counts in zip(records, success, strict=True) if counts]
    start_s = _before_connecting(columns)
    ttft_s, e2e_s = columns.first_s - start_s, columns.end_s - start_s
    several = columns.output_tokens > 1
    tpot_s = np.where(several, (e2e_s - ttft_s) / np.maximum(columns.output_tokens - 1, 1), 0.0)
    duration_s = _span(_before_connecting(columns_of(records)), columns_of(records).end_s)
    input_tokens, output_tokens = int(columns.input_tokens.sum()), int(columns.output_tokens.sum())
    met = _within(limits, {"ttft": ttft_s, "tpot": tpot_s, "e2e_latency": e2e_s}, len(columns))
    return {
        "duration": duration_s,
        "completed": len(columns),
        "failed": len(records) - len(columns),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _per_s(len(columns), duration_s),
        "request_goodput": _per_s(int(met.sum()), duration_s) if limits else None,
        "output_throughput": _per_s(output_tokens, duration_s),
        "total_token_throughput": _per_s(input_tokens + output_tokens, duration_s),
        "max_output_tokens_per_s": _most_chunks_a_second(chosen, start_s, role_chunk),
        "max_concurrent_requests": _most_at_once(start_s, columns.end_s),
        **_vllm_statistics("ttft", known(ttft_s)),
        **_vllm_statistics("tpot", tpot_s[several & ~np.isnan(tpot_s)]),
        **_vllm_statistics("itl", _chunk_gaps_s(chosen, role_chunk)),
        **_vllm_statistics("e2el", e2e_s),
    }


def _aiperf(source: _CompatInput) -> JsonObject:
    """Results of `profile_export_aiperf.json`: one block per metric.

    Latencies count from before connecting to the last content. Tokens are counted by the
    client's tokenizer where available.
    """
    records, limits, _ = source
    every = columns_of(records)
    columns = every.only(every.whole)
    chosen = [record for record in records if record.outcome == "ok"]
    start_s = _before_connecting(columns)
    last_s = np.where(np.isnan(columns.last_s), columns.end_s, columns.last_s)
    osl = np.array(
        [
            r.output_tokens if r.counted_output_tokens is None else r.counted_output_tokens
            for r in chosen
        ],
        dtype=np.float64,
    )
    latency_s, ttft_s = last_s - start_s, columns.first_s - start_s
    itl_s = (latency_s - ttft_s) / np.where(osl > 1, osl - 1, np.nan)
    duration_s = _span(start_s, last_s)
    blocks = {
        "request_latency": _block("ms", latency_s * MS_PER_S),
        "time_to_first_token": _block("ms", known(ttft_s) * MS_PER_S),
        "time_to_second_token": _block("ms", _second_gaps_s(chosen) * MS_PER_S),
        "inter_token_latency": _block("ms", known(itl_s) * MS_PER_S),
        "inter_chunk_latency": _block("ms", _chunk_gaps_s(chosen, False) * MS_PER_S),
        "output_token_throughput_per_user": _block(
            "tokens/sec/user", 1 / itl_s[np.nan_to_num(itl_s) > 0]
        ),
        "output_sequence_length": _block("tokens", osl),
        "input_sequence_length": _block("tokens", columns.input_tokens),
        "output_token_throughput": _one("tokens/sec", _per_s(osl.sum(), duration_s)),
        "total_token_throughput": _one(
            "tokens/sec", _per_s(osl.sum() + columns.input_tokens.sum(), duration_s)
        ),
        "request_throughput": _one("requests/sec", _per_s(len(columns), duration_s)),
        "request_count": _one("requests", float(len(columns))),
        "error_request_count": _one("requests", float(len(records) - len(columns))),
        "benchmark_duration": _one("sec", duration_s),
    }
    if limits:
        values_s = {"ttft": ttft_s, "tpot": itl_s, "itl": itl_s, "e2e_latency": latency_s}
        good = int(_within(limits, values_s, len(columns)).sum())
        blocks["good_request_count"] = _one("requests", float(good))
        blocks["goodput"] = _one("requests/sec", _per_s(good, duration_s))
    return {name: block for name, block in blocks.items() if block.get("avg") is not None}


def _guidellm(source: _CompatInput) -> JsonObject:
    """Results of `benchmarks[].metrics` in guidellm's JSON, of successful requests.

    Latencies count from the sending of headers. TPOT includes the time to first token. Both
    token latencies are means over requests weighted by tokens; a request without a first
    token counts as zero. Rates have a mean only.
    """
    records = source.records
    every = columns_of(records)
    columns = every.only(every.whole)
    sent_s, end_s, tokens = columns.sent_s, columns.end_s, columns.output_tokens
    last_s = np.where(np.isnan(columns.last_s), end_s, columns.last_s)
    some = np.maximum(tokens, 1)
    tpot_s = np.where(tokens > 0, (last_s - sent_s) / some, 0.0)
    itl_s = np.where(tokens > 1, columns.streamed_s / np.maximum(tokens - 1, 1), 0.0)
    duration_s = _span(every.sent_s, every.end_s)
    cut_off = sum(record.outcome == "cancelled" for record in records)
    one_each = np.ones(len(columns))
    distributions = {
        "request_latency": (end_s - sent_s, one_each),
        "request_streaming_iterations_count": (columns.pieces, one_each),
        "prompt_token_count": (columns.input_tokens, one_each),
        "output_token_count": (tokens, one_each),
        "total_token_count": (columns.input_tokens + tokens, one_each),
        "time_to_first_token_ms": (
            np.nan_to_num(columns.first_s - sent_s) * MS_PER_S,
            one_each,
        ),
        "time_per_output_token_ms": (tpot_s * MS_PER_S, tokens),
        "inter_token_latency_ms": (np.nan_to_num(itl_s) * MS_PER_S, some - 1),
    }
    rates = {
        "requests_per_second": float(len(columns)),
        "prompt_tokens_per_second": float(columns.input_tokens.sum()),
        "output_tokens_per_second": float(tokens.sum()),
        "tokens_per_second": float(columns.input_tokens.sum() + tokens.sum()),
        "request_concurrency": float((end_s - sent_s).sum()),
    }
    return {
        "request_totals": {
            "successful": len(columns),
            "incomplete": cut_off,
            "errored": len(records) - len(columns) - cut_off,
            "total": len(records),
        },
        **{
            name: {"successful": _summary(values, weights)}
            for name, (values, weights) in distributions.items()
        },
        **{
            name: {"successful": {"mean": _per_s(amount, duration_s)}}
            for name, amount in rates.items()
        },
    }


TOOLS: Mapping[str, Callable[[_CompatInput], JsonObject]] = {
    "vllm": _vllm,
    "aiperf": _aiperf,
    "guidellm": _guidellm,
}


def _succeeds_for_vllm(record: Record) -> bool:
    begun = len(record.chunk_times_s) > 0
    return record.outcome == "ok" or (record.outcome == "truncated" and begun)


def _before_connecting(columns: Columns) -> FloatArray:
    return columns.sent_s - np.nan_to_num(columns.connect_s)


def _span(from_s: FloatArray, until_s: FloatArray) -> float:
    return float(until_s.max() - from_s.min()) if len(from_s) else 0.0


def _per_s(amount: float, duration_s: float) -> float | None:
    return float(amount) / duration_s if duration_s > 0 else None


def _within(
    limits: tuple[Constraint, ...], values_s: Mapping[str, FloatArray], count: int
) -> BoolArray:
    met = np.ones(count, dtype=np.bool_)
    for limit in limits:
        if limit.metric in values_s:
            met &= limit.holds_each(values_s[limit.metric] * MS_PER_S)
    return met


def _chunk_gaps_s(records: Sequence[Record], role_chunk: bool) -> FloatArray:
    """Gaps between chunks; the role chunk arrives together with the first."""
    gaps = [np.diff(np.asarray(record.chunk_times_s)) for record in records]
    if role_chunk:
        gaps.append(np.zeros(sum(len(record.chunk_times_s) > 0 for record in records)))
    return np.concatenate(gaps) if gaps else np.empty(0)


def _second_gaps_s(records: Sequence[Record]) -> FloatArray:
    return np.array(
        [
            record.chunk_times_s[1] - record.chunk_times_s[0]
            for record in records
            if len(record.chunk_times_s) > 1
        ]
    )


def _most_chunks_a_second(
    records: Sequence[Record], start_s: FloatArray, role_chunk: bool
) -> float:
    """Most chunks within one second, seconds counted from the first start."""
    if not records:
        return 0.0
    times_s = [np.asarray(record.chunk_times_s) for record in records]
    if role_chunk:
        times_s += [at_s[:1] for at_s in times_s]
    seconds = (np.concatenate(times_s) - start_s.min()).astype(np.int64)
    return float(np.bincount(seconds).max()) if len(seconds) else 0.0


def _most_at_once(start_s: FloatArray, end_s: FloatArray) -> int:
    if not len(start_s):
        return 0
    starts_s = np.sort(start_s)
    ended = np.searchsorted(np.sort(end_s), starts_s, side="right")
    return int((np.arange(1, len(starts_s) + 1) - ended).max())


def _vllm_statistics(name: str, values_s: FloatArray) -> dict[str, float]:
    """Statistics of one latency; zero without data, as vLLM writes it."""
    values_ms = values_s * MS_PER_S if len(values_s) else np.zeros(1)
    return {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
        f"p99_{name}_ms": float(np.percentile(values_ms, 99)),
    }


def _one(unit: str, value: float | None) -> JsonObject:
    return {"unit": unit, "avg": value}


def _block(unit: str, values: FloatArray) -> JsonObject:
    if not len(values):
        return {}
    percents = (1, 5, 10, 25, 50, 75, 90, 95, 99)
    percentiles = np.percentile(values, percents)
    return {
        "unit": unit,
        "avg": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        **{f"p{p}": float(value) for p, value in zip(percents, percentiles, strict=True)},
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "count": len(values),
        "sum": float(values.sum()),
    }


def _summary(values: FloatArray, weights: FloatArray) -> JsonObject:
    """Weighted statistics; percentiles are observed values, without interpolation."""
    names = ("p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999")
    shares = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
    kept = weights > 0
    values, weights = values[kept], weights[kept]
    if not len(values):
        return {"mean": 0.0, "median": 0.0, "count": 0}
    order = np.argsort(values)
    ordered, share = values[order], np.cumsum(weights[order]) / weights.sum()
    places = np.minimum(np.searchsorted(share, shares), len(ordered) - 1)
    mean = float(np.average(values, weights=weights))
    variance = float(np.average((values - mean) ** 2, weights=weights))
    return {
        "mean": mean,
        "median": float(ordered[places[5]]),
        "variance": variance,
        "std_dev": variance**0.5,
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "count": round(float(weights.sum())),
        "total_sum": mean * round(float(weights.sum())),
        "percentiles": dict(zip(names, map(float, ordered[places]), strict=True)),
    }
