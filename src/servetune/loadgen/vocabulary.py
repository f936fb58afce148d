"""One vocabulary for what engines say of themselves in `/metrics`.

Names were read from the engines' own sources and from recorded scrapes (see
docs/reference/server-metrics.md, which has this table in words, with each engine's traps).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

__all__ = ["COUNTERS", "GAUGES", "NAMES", "EngineReading", "Samples", "read_engine"]

Samples = Mapping[str, float]
"""Values by name and labels, written as the server writes them: `name{label="value"}`."""


class EngineReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one scrape says, in servetune's words; `None` where the engine does not tell.

    Several ranks and engines behind one address are added up; of the fractions the largest
    counts.

    Attributes:
        engine: `vllm`, `sglang`, `tgi`, `lmdeploy` or `llama.cpp`; `None` for metrics of
            something else.
        running_count: Requests in the batch.
        waiting_count: Requests in the queue.
        kv_usage_fraction: Share of the KV cache that is taken.
        preemption_count: Requests that lost their cache and are computed again.
        prefix_queries_tokens: Prompt tokens that were looked up in the prefix cache.
        prefix_hits_tokens: Those that were found there.
        draft_tokens: Tokens that a draft proposed.
        accepted_draft_tokens: Those that were kept.
        draft_acceptance_fraction: As the engine itself computes it over its last steps.
    """

    engine: str | None = None
    running_count: float | None = None
    waiting_count: float | None = None
    kv_usage_fraction: float | None = None
    draft_acceptance_fraction: float | None = None
    preemption_count: float | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    draft_tokens: float | None = None
    accepted_draft_tokens: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None


#: What is at the moment; and what only grows until the server starts anew.
GAUGES = ("running_count", "waiting_count", "kv_usage_fraction", "draft_acceptance_fraction")
COUNTERS = tuple(
    name for name in EngineReading.__struct_fields__ if name not in {"engine", *GAUGES}
)

_FRACTIONS = frozenset({"kv_usage_fraction", "draft_acceptance_fraction"})


class _Of(NamedTuple):
    """Samples that make up one quantity: those of these names, and of these modes if any."""

    names: tuple[str, ...]
    modes: frozenset[str] = frozenset()


def _of(*names: str, modes: Iterable[str] = ()) -> _Of:
    return _Of(names, frozenset(modes))


#: Engine to quantity to alternatives, newest first: the first that a server has is taken.
_TABLE: Mapping[str, Mapping[str, tuple[_Of, ...]]] = {
    # vllm/engine/metrics.py (0.6) to vllm/v1/metrics/loggers.py (0.31), and a scrape of 0.32.
    "vllm": {
        "running_count": (_of("vllm:num_requests_running"),),
        "waiting_count": (_of("vllm:num_requests_waiting"),),
        "kv_usage_fraction": (
            _of("vllm:kv_cache_usage_perc"),
            _of("vllm:gpu_cache_usage_perc"),
        ),
        "draft_acceptance_fraction": (_of("vllm:spec_decode_draft_acceptance_rate"),),
        "preemption_count": (_of("vllm:num_preemptions_total"),),
        "prefix_queries_tokens": (
            _of("vllm:prefix_cache_queries_total"),
            _of("vllm:gpu_prefix_cache_queries_total"),
        ),
        "prefix_hits_tokens": (
            _of("vllm:prefix_cache_hits_total"),
            _of("vllm:gpu_prefix_cache_hits_total"),
        ),
        "draft_tokens": (_of("vllm:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (_of("vllm:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (_of("vllm:prompt_tokens_total"),),
        "output_tokens": (_of("vllm:generation_tokens_total"),),
    },
    # python/sglang/srt/observability/metrics_collector.py (0.5); needs --enable-metrics.
    "sglang": {
        "running_count": (_of("sglang:num_running_reqs"),),
        "waiting_count": (_of("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs"),),
        "kv_usage_fraction": (_of("sglang:token_usage"),),
        "draft_acceptance_fraction": (_of("sglang:spec_accept_rate"),),
        "preemption_count": (_of("sglang:num_retracted_requests_total"),),
        "prefix_queries_tokens": (
            _of("sglang:prefill_effective_tokens_total"),
            _of("sglang:prompt_tokens_total"),
        ),
        "prefix_hits_tokens": (
            _of(
                "sglang:prefill_effective_tokens_total",
                modes=("device_hit", "host_hit", "storage_hit"),
            ),
            _of("sglang:cached_tokens_total"),
        ),
        "prompt_tokens": (_of("sglang:prompt_tokens_total"),),
        "output_tokens": (_of("sglang:generation_tokens_total"),),
    },
    # https://huggingface.co/docs/text-generation-inference/reference/metrics (3.x)
    "tgi": {
        "running_count": (_of("tgi_batch_current_size"),),
        "waiting_count": (_of("tgi_queue_size"),),
        "accepted_draft_tokens": (_of("tgi_request_skipped_tokens_sum"),),
        "prompt_tokens": (_of("tgi_request_input_length_sum"),),
        "output_tokens": (_of("tgi_request_generated_tokens_sum"),),
    },
    # lmdeploy/metrics/loggers.py (0.18); its rate of prefix hits is a gauge over all time.
    "lmdeploy": {
        "running_count": (_of("lmdeploy:num_requests_running"),),
        "waiting_count": (_of("lmdeploy:num_requests_waiting"),),
        "kv_usage_fraction": (_of("lmdeploy:gpu_cache_usage_perc"),),
        "draft_tokens": (_of("lmdeploy:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (_of("lmdeploy:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (_of("lmdeploy:prompt_tokens_total"),),
        "output_tokens": (_of("lmdeploy:generation_tokens_total"),),
    },
    # tools/server/server-task.cpp (0.5) and a scrape of it; needs --metrics. Its prompt tokens
    # are without those found in the cache.
    "llama.cpp": {
        "running_count": (_of("llamacpp:requests_processing"),),
        "waiting_count": (_of("llamacpp:requests_deferred"),),
        "prefix_queries_tokens": (
            _of("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ),
        "prefix_hits_tokens": (_of("llamacpp:prompt_tokens_cached_total"),),
        "draft_tokens": (_of("llamacpp:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (_of("llamacpp:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (
            _of("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ),
        "output_tokens": (_of("llamacpp:tokens_predicted_total"),),
    },
}

#: Relays that allow no colon write `vllm_`; Ray Serve puts its own name before it.
_PREFIX = re.compile(r"^(?:ray_)?(vllm|sglang|lmdeploy|llamacpp)[:_]")

_OWN_NAMES = frozenset(
    name
    for quantities in _TABLE.values()
    for alternatives in quantities.values()
    for of in alternatives
    for name in of.names
)

#: Every name that is looked at, in each of its spellings.
NAMES = frozenset(
    spelling
    for name in _OWN_NAMES
    for spelling in (name, name.replace(":", "_"), "ray_" + name.replace(":", "_"))
)

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')

#: SGLang lets every rank of a copy tell the same; copies themselves differ in `dp_rank`.
_SAME_ON_EVERY = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})


def read_engine(samples: Samples) -> EngineReading:
    """A scrape in servetune's words.

    Example:
        >>> read_engine({"tgi_queue_size": 3.0}).waiting_count
        3.0
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for key, value in samples.items():
        name, _, labels = key.partition("{")
        name = _PREFIX.sub(r"\1:", name)
        if name in _OWN_NAMES and not math.isnan(value):
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), value))
    for engine, quantities in _TABLE.items():
        read = {
            quantity: _first(alternatives, found, largest=quantity in _FRACTIONS)
            for quantity, alternatives in quantities.items()
        }
        if any(value is not None for value in read.values()):
            return EngineReading(engine=engine, **read)
    return EngineReading()


_Found = Mapping[str, list[tuple[dict[str, str], float]]]


def _first(alternatives: Iterable[_Of], found: _Found, *, largest: bool) -> float | None:
    for of in alternatives:
        values = [
            value
            for name in of.names
            if name in found
            for value in _one_per_copy(found[name], of.modes)
        ]
        if values:
            return max(values) if largest else sum(values)
    return None


def _one_per_copy(rows: list[tuple[dict[str, str], float]], modes: frozenset[str]) -> list[float]:
    """Values without those that say again what others say.

    SGLang's totals stand under an empty `priority` where requests have priorities, and a
    draft model's worker is an engine of its own.
    """
    totals = [row for row in rows if not row[0].get("priority")] or rows
    seen: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in totals:
        if labels.get("engine_type") == "draft" or (modes and labels.get("mode") not in modes):
            continue
        key = frozenset((k, v) for k, v in labels.items() if k not in _SAME_ON_EVERY)
        seen[key] = max(value, seen.get(key, value))
    return list(seen.values())
