"""SGLang's names for a Plan's fields (0.5), and the switches that it has only one way round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines.words import Settings, Words, expert_groups
from servetune.plan.plan import Plan, Setting


def _prefix_caching(plan: Plan) -> Settings:
    return {} if plan.prefix_caching else {"disable_radix_cache": True}


def _chunked_prefill(plan: Plan) -> Settings:
    """The size of a chunk is the switch as well; whole prompts have a budget of another name."""
    if plan.chunked_prefill:
        return {}
    whole = plan.max_num_batched_tokens
    budget: Settings = {} if whole is None else {"max_prefill_tokens": whole}
    return {**budget, "chunked_prefill_size": -1}


def _enforce_eager(plan: Plan) -> Settings:
    return {"disable_cuda_graph": True} if plan.enforce_eager else {}


def _read(settings: Mapping[str, Setting]) -> Settings:
    """Fields that SGLang's settings say the other way round."""
    found: Settings = {}
    if isinstance(settings.get("disable_radix_cache"), bool):
        found["prefix_caching"] = not settings["disable_radix_cache"]
    if isinstance(settings.get("disable_cuda_graph"), bool):
        found["enforce_eager"] = settings["disable_cuda_graph"]
    return found


WORDS = Words(
    fields=MappingProxyType(
        {
            "tp_size": "tensor_parallel",
            "pp_size": "pipeline_parallel",
            "dp_size": "data_parallel",
            "max_running_requests": "max_num_seqs",
            "chunked_prefill_size": "max_num_batched_tokens",
            "context_length": "max_model_len",
            "mem_fraction_static": "gpu_memory_fraction",
            "page_size": "block_tokens",
            "dtype": "dtype",
            "quantization": "quantization",
            "kv_cache_dtype": "kv_cache_dtype",
        }
    ),
    aliases=MappingProxyType(
        {
            "tp": "tp_size",
            "tensor_parallel_size": "tp_size",
            "pp": "pp_size",
            "pipeline_parallel_size": "pp_size",
            "dp": "dp_size",
            "data_parallel_size": "dp_size",
        }
    ),
    values=MappingProxyType({"kv_cache_dtype": {"fp8": "fp8_e4m3"}}),
    otherwise=MappingProxyType(
        {
            "expert_parallel": expert_groups("ep_size"),
            "prefix_caching": _prefix_caching,
            "chunked_prefill": _chunked_prefill,
            "enforce_eager": _enforce_eager,
        }
    ),
    read=_read,
)
