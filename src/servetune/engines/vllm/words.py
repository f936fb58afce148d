"""vLLM's names for a Plan's fields (0.10 and later)."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import Words

WORDS = Words(
    fields=MappingProxyType(
        {
            "tensor_parallel_size": "tensor_parallel",
            "pipeline_parallel_size": "pipeline_parallel",
            "data_parallel_size": "data_parallel",
            "enable_expert_parallel": "expert_parallel",
            "max_num_seqs": "max_num_seqs",
            "max_num_batched_tokens": "max_num_batched_tokens",
            "max_model_len": "max_model_len",
            "gpu_memory_utilization": "gpu_memory_fraction",
            "block_size": "block_tokens",
            "dtype": "dtype",
            "quantization": "quantization",
            "kv_cache_dtype": "kv_cache_dtype",
            "enable_prefix_caching": "prefix_caching",
            "enable_chunked_prefill": "chunked_prefill",
            "enforce_eager": "enforce_eager",
        }
    ),
    aliases=MappingProxyType(
        {
            "tp": "tensor_parallel_size",
            "pp": "pipeline_parallel_size",
            "dp": "data_parallel_size",
        }
    ),
    drafts="speculative_config",
)
