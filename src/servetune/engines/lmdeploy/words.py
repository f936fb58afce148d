"""LMDeploy's names for a Plan's fields: `lmdeploy serve api_server`, 0.10 and later."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import FREE_MEMORY_HINT, Settings, Words, expert_groups
from servetune.plan.plan import Plan


def _cache_type(plan: Plan) -> Settings:
    """`--quant-policy` takes none, int4, int8, fp8 and fp8_e5m2 (0.16 to 0.18)."""
    return {"quant_policy": "none" if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype}


WORDS = Words(
    fields=MappingProxyType(
        {
            "tp": "tensor_parallel",
            "max_batch_size": "max_num_seqs",
            "max_prefill_token_num": "max_num_batched_tokens",
            "session_len": "max_model_len",
            "cache_block_seq_len": "block_tokens",
            "dtype": "dtype",
            "enable_prefix_caching": "prefix_caching",
            "eager_mode": "enforce_eager",
        }
    ),
    otherwise=MappingProxyType(
        {"expert_parallel": expert_groups("ep"), "kv_cache_dtype": _cache_type}
    ),
    instead=MappingProxyType(
        {
            "gpu_memory_fraction": FREE_MEMORY_HINT.format("cache_max_entry_count"),
            "data_parallel": "its dp is of attention and wants a proxy: give dp itself",
        }
    ),
)
