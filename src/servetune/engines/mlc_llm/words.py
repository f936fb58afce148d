"""MLC LLM's names for a Plan's fields: `mlc_llm serve` and what its `--overrides` takes."""

from __future__ import annotations

from servetune.engines.words import Settings, words_of
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


def _prefix_caching(plan: Plan) -> Settings:
    return {"prefix_cache_mode": "radix" if plan.prefix_caching else "disable"}


WORDS = words_of("mlc-llm", otherwise={"prefix_caching": _prefix_caching})
