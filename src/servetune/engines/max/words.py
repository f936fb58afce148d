"""MAX's names for a Plan's fields: `max serve`, 26.x."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import Settings, Words, expert_groups
from servetune.plan.plan import Plan


def _devices(plan: Plan) -> Settings:
    count = plan.tensor_parallel * plan.data_parallel
    if count == 1:
        return {}
    return {"devices": "gpu:" + ",".join(str(number) for number in range(count))}


def _copies(plan: Plan) -> Settings:
    return {"data_parallel_degree": plan.data_parallel, **_devices(plan)}


def _graphs(plan: Plan) -> Settings:
    return {"device_graph_capture": not plan.enforce_eager}


WORDS = Words(
    fields=MappingProxyType(
        {
            "max_batch_size": "max_num_seqs",
            "max_batch_input_tokens": "max_num_batched_tokens",
            "max_length": "max_model_len",
            "device_memory_utilization": "gpu_memory_fraction",
            "kv_cache_page_size": "block_tokens",
            "quantization_encoding": "quantization",
            "kv_cache_format": "kv_cache_dtype",
            "enable_prefix_caching": "prefix_caching",
            "enable_chunked_prefill": "chunked_prefill",
        }
    ),
    aliases=MappingProxyType({"model_path": "model"}),
    values=MappingProxyType({"quantization": {"fp8": "float8_e4m3fn"}}),
    otherwise=MappingProxyType(
        {
            "tensor_parallel": _devices,
            "data_parallel": _copies,
            "expert_parallel": expert_groups("ep_size"),
            "enforce_eager": _graphs,
        }
    ),
)
