"""TensorRT-LLM's names for a Plan's fields: `trtllm-serve`'s options, 1.x."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import FREE_MEMORY_HINT, Words, expert_groups

_YAML = "write it in a file and give extra_llm_api_options=FILE"

WORDS = Words(
    fields=MappingProxyType(
        {
            "tp_size": "tensor_parallel",
            "pp_size": "pipeline_parallel",
            "max_batch_size": "max_num_seqs",
            "max_num_tokens": "max_num_batched_tokens",
            "max_seq_len": "max_model_len",
            "enable_chunked_prefill": "chunked_prefill",
        }
    ),
    aliases=MappingProxyType(
        {
            "tensor_parallel_size": "tp_size",
            "pipeline_parallel_size": "pp_size",
            "tp": "tp_size",
            "pp": "pp_size",
        }
    ),
    otherwise=MappingProxyType({"expert_parallel": expert_groups("ep_size")}),
    instead=MappingProxyType(
        {
            "gpu_memory_fraction": FREE_MEMORY_HINT.format("kv_cache_free_gpu_memory_fraction"),
            "prefix_caching": f"kv_cache_config.enable_block_reuse: {_YAML}",
            "kv_cache_dtype": f"kv_cache_config.dtype: {_YAML}",
            "block_tokens": f"kv_cache_config.tokens_per_block: {_YAML}",
            "enforce_eager": f"cuda_graph_config: null; {_YAML}",
        }
    ),
)
