"""MLC LLM's names for a Plan's fields: `mlc_llm serve` and what its `--overrides` takes."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import Settings, Words
from servetune.plan.plan import Plan

#: Settings that are members of the one option `--overrides` (`EngineConfigOverride`).
OVERRIDES = frozenset(
    {
        "max_num_sequence",
        "max_total_seq_length",
        "prefill_chunk_size",
        "max_history_size",
        "gpu_memory_utilization",
        "spec_draft_length",
        "spec_tree_width",
        "prefix_cache_max_num_recycling_seqs",
        "context_window_size",
        "sliding_window_size",
        "attention_sink_size",
        "tensor_parallel_shards",
        "pipeline_parallel_stages",
        "opt",
    }
)

_CONVERTED = "the weights were converted to it: name another converted model"


def _prefix_caching(plan: Plan) -> Settings:
    return {"prefix_cache_mode": "radix" if plan.prefix_caching else "disable"}


WORDS = Words(
    fields=MappingProxyType(
        {
            "tensor_parallel_shards": "tensor_parallel",
            "pipeline_parallel_stages": "pipeline_parallel",
            "max_num_sequence": "max_num_seqs",
            "prefill_chunk_size": "max_num_batched_tokens",
            "context_window_size": "max_model_len",
            "gpu_memory_utilization": "gpu_memory_fraction",
        }
    ),
    otherwise=MappingProxyType({"prefix_caching": _prefix_caching}),
    instead=MappingProxyType(
        {
            "dtype": _CONVERTED,
            "quantization": _CONVERTED,
            "kv_cache_dtype": _CONVERTED,
            "block_tokens": "pages of its KV cache have 16 tokens: leave it out",
            "chunked_prefill": "prompts are always cut; prefill_mode says whether with answers",
            "enforce_eager": "opt is the level of its compiler: give opt=O0 to opt=O3",
        }
    ),
)
