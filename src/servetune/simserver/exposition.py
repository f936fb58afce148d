"""`/metrics` in Prometheus' text format, under vLLM's names.

Seconds under `vllm:` are the engine's own, as a real engine would have told them: at a
speed-up a client measures that much less. What belongs to the simulation alone is under
`servetune_simulated_`, in real seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from servetune.simserver.account import FINISH_REASONS, Account, Histogram
from servetune.simserver.service import Service

__all__ = ["Clockwork", "exposition"]


class Clockwork(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulation keeps up with its own clock.

    Attributes:
        behind_s: Real seconds by which the last tokens left too late.
        most_behind_s: The worst since the start.
    """

    speed: float
    behind_s: float
    most_behind_s: float


def exposition(service: Service, accounts: Sequence[Account], clockwork: Clockwork) -> str:
    """All samples, one rank of the engine after another."""
    lines = list(_own_lines(clockwork, accounts))
    lines += _cache_config(service, len(accounts))
    model = _quoted(service.serving.names[0])
    caching = service.rules.prefix_caching
    for name, kind, said in _FAMILIES:
        suffix = "_total" if kind == "counter" else ""  # prometheus_client adds it everywhere
        lines += (f"# HELP vllm:{name}{suffix} {said}", f"# TYPE vllm:{name}{suffix} {kind}")
        for number, account in enumerate(accounts):
            label = f'engine="{number}",model_name={model}'
            if name == "request_success":
                lines += (
                    f'vllm:request_success_total{{engine="{number}",finished_reason="{reason}",'
                    f"model_name={model}}} {account.finished[reason]:.1f}"
                    for reason in FINISH_REASONS
                )
            else:
                value = _value(account, name, caching=caching)
                lines.append(f"vllm:{name}{suffix}{{{label}}} {value!r}")
    for name in accounts[0].histograms:
        lines.append(f"# TYPE vllm:{name} histogram")
        for number, account in enumerate(accounts):
            label = f'engine="{number}",model_name={model}'
            lines += _histogram_lines(name, label, account.histograms[name])
    return "\n".join(lines) + "\n"


_FAMILIES = (
    ("num_requests_running", "gauge", "Requests in the batch."),
    ("num_requests_waiting", "gauge", "Requests in the queue."),
    ("kv_cache_usage_perc", "gauge", "Share of KV blocks in use; 1 is all of them."),
    ("num_preemptions", "counter", "Sequences that lost their cache."),
    ("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "counter", "Of these, tokens found there."),
    ("prompt_tokens", "counter", "Prompt tokens computed."),
    ("generation_tokens", "counter", "Tokens generated."),
    ("request_success", "counter", "Requests that ended, by reason."),
)


def _value(account: Account, name: str, *, caching: bool) -> float:
    return float(
        {
            "num_requests_running": account.running,
            "num_requests_waiting": account.waiting,
            "kv_cache_usage_perc": account.kv_usage_fraction,
            "num_preemptions": account.preemptions,
            "prefix_cache_queries": account.prefix_queries_tokens if caching else 0,
            "prefix_cache_hits": account.prefix_hits_tokens,
            "prompt_tokens": account.prompt_tokens,
            "generation_tokens": account.generation_tokens,
        }[name]
    )


def _histogram_lines(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    ends = [*(f"{float(bound)!r}" for bound in histogram.bounds), "+Inf"]
    total = 0
    for end, total in zip(ends, accumulate(histogram.counts), strict=True):
        yield f'vllm:{name}_bucket{{{label},le="{end}"}} {total:.1f}'
    yield f"vllm:{name}_count{{{label}}} {total:.1f}"
    yield f"vllm:{name}_sum{{{label}}} {histogram.sum!r}"


def _cache_config(service: Service, ranks: int) -> Iterator[str]:
    rules = service.rules
    told = {
        "block_size": rules.block_tokens,
        "num_gpu_blocks": rules.capacity_blocks,
        "enable_prefix_caching": bool(service.plan.prefix_caching),
        "cache_dtype": service.plan.kv_cache_dtype,
    }
    labels = ",".join(f"{name}={_quoted(str(value))}" for name, value in told.items())
    yield "# TYPE vllm:cache_config_info gauge"
    for number in range(ranks):
        yield f'vllm:cache_config_info{{engine="{number}",{labels}}} 1.0'


def _own_lines(clockwork: Clockwork, accounts: Sequence[Account]) -> Iterator[str]:
    own = {
        ("speed", "gauge", "How many of the engine's seconds pass in one."): clockwork.speed,
        ("behind_seconds", "gauge", "How late the last tokens left."): clockwork.behind_s,
        ("most_behind_seconds", "gauge", "The worst of that."): clockwork.most_behind_s,
        ("steps_total", "counter", "Forward passes."): float(sum(a.steps for a in accounts)),
    }
    for (name, kind, said), value in own.items():
        full = f"servetune_simulated_{name}"
        yield from (f"# HELP {full} {said}", f"# TYPE {full} {kind}", f"{full} {value!r}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
