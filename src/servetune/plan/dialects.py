"""How each engine spells a Plan's fields.

A sweep, a journal and a command line use the engine's own names
(`tensor_parallel_size`); a Plan uses neutral ones. The tables below are the only place
where the two meet, so a value that was swept cannot be lost on its way to a server or
to a deployment. Names that no table knows pass through as `Plan.extra`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from servetune.errors import PlanError, UnknownName
from servetune.plan.plan import Plan, Setting

__all__ = ["DIALECTS", "FIELD_TYPES", "plan_from_settings", "settings_of"]

_VLLM: Mapping[str, str] = MappingProxyType(
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
)

_SGLANG: Mapping[str, str] = MappingProxyType(
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
)

#: The launcher's arguments, of text-generation-inference 1.x and 2.x.
_TGI: Mapping[str, str] = MappingProxyType(
    {
        "num_shard": "tensor_parallel",
        "max_batch_size": "max_num_seqs",
        "max_batch_prefill_tokens": "max_num_batched_tokens",
        "max_total_tokens": "max_model_len",
        "cuda_memory_fraction": "gpu_memory_fraction",
        "dtype": "dtype",
        "quantize": "quantization",
        "kv_cache_dtype": "kv_cache_dtype",
    }
)

#: vLLM's setting for drafted tokens: JSON, where a Plan has fields.
DRAFTS = "speculative_config"

#: engine -> (its name -> the Plan's field). The simulated engine speaks vLLM's dialect.
DIALECTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"vllm": _VLLM, "simulated": _VLLM, "sglang": _SGLANG, "tgi": _TGI}
)

_VLLM_ALIASES: Mapping[str, str] = MappingProxyType(
    {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
)
_ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": _VLLM_ALIASES,
        "simulated": _VLLM_ALIASES,
        "sglang": {
            "tp": "tp_size",
            "tensor_parallel_size": "tp_size",
            "pp": "pp_size",
            "pipeline_parallel_size": "pp_size",
            "dp": "dp_size",
            "data_parallel_size": "dp_size",
        },
    }
)


def plan_from_settings(engine: str, model: str, settings: Mapping[str, Setting]) -> Plan:
    """The Plan that an engine's settings describe.

    Args:
        engine: A key of `DIALECTS`.
        model: Hub id or local folder.
        settings: The engine's names (dashes or underscores) to values.

    Raises:
        UnknownName: The engine has no dialect.
        PlanError: A value cannot be that field's.
    """
    fields: dict[str, Any] = {}
    extra: dict[str, Setting] = {}
    drafts = _drafts if DIALECTS.get(engine) is _VLLM else (lambda _: None)
    names = _names_of(engine)
    for raw_name, value in settings.items():
        name = raw_name.replace("-", "_")
        if name not in names:
            name = _ALIASES.get(engine, {}).get(name, name)
        if name == DRAFTS and (said := drafts(value)) is not None:
            fields.update(said)
        elif name in names:
            fields[names[name]] = _checked(names[name], name, value)
        else:
            extra[name] = value
    return Plan(model=model, engine=engine, extra=tuple(sorted(extra.items())), **fields)


def settings_of(plan: Plan, engine: str | None = None) -> dict[str, Setting]:
    """The engine's settings that say everything the Plan chose.

    Degrees of parallelism are always written, other fields where they are not `None`.
    Order is the dialect's, then `extra` by name, so that equal plans give equal commands.

    Raises:
        PlanError: The plan drafts tokens, or has servers of several kinds, and the engine's words
            for that are not known.
    """
    if plan.prefill_replicas is not None:
        raise PlanError(
            "servers that only compute prompts are simulated, not started or deployed yet",
            hint="leave prefill_replicas out, or use servetune simulate",
        )
    settings: dict[str, Setting] = {}
    for name, field in _names_of(engine or plan.engine).items():
        value = getattr(plan, field)
        if field == "tensor_parallel" or value not in (None, _SILENT.get(field)):
            settings[name] = value
    if plan.draft_tokens is not None:
        if _names_of(engine or plan.engine) is not _VLLM:
            raise PlanError(
                f"drafted tokens have no words in {engine or plan.engine}'s dialect here",
                hint="give its own settings for speculative decoding instead",
            )
        said: dict[str, Any] = {"num_speculative_tokens": plan.draft_tokens}
        if plan.draft_method is not None:
            said["method"] = plan.draft_method
        settings[DRAFTS] = json.dumps(said, sort_keys=True)
    settings.update(plan.extra)
    return settings


def _drafts(value: Setting) -> dict[str, Any] | None:
    """Fields that a vLLM `speculative_config` says; `None` where it says more than a Plan can.

    Such a setting passes through as it is, and no prediction knows of its drafts.
    """
    try:
        said = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if not isinstance(said, dict) or not said.keys() <= {"method", "num_speculative_tokens"}:
        return None
    tokens, method = said.get("num_speculative_tokens"), said.get("method")
    if type(tokens) is not int or not isinstance(method, str | None):
        return None
    return {"draft_tokens": tokens, "draft_method": method}


_SILENT: Mapping[str, Setting] = {
    "pipeline_parallel": 1,
    "data_parallel": 1,
    "expert_parallel": False,
}

#: What each field of a Plan that engines have words for takes.
FIELD_TYPES: Mapping[str, type] = {
    "tensor_parallel": int,
    "pipeline_parallel": int,
    "data_parallel": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "block_tokens": int,
    "gpu_memory_fraction": float,
    "expert_parallel": bool,
    "prefix_caching": bool,
    "chunked_prefill": bool,
    "enforce_eager": bool,
    "dtype": str,
    "quantization": str,
    "kv_cache_dtype": str,
}


def _names_of(engine: str) -> Mapping[str, str]:
    if engine not in DIALECTS:
        raise UnknownName("engine", engine, DIALECTS)
    return DIALECTS[engine]


def _checked(field: str, name: str, value: Setting) -> Setting:
    wanted = FIELD_TYPES[field]
    if wanted is float and type(value) is int:
        return float(value)
    if value is not None and type(value) is not wanted:
        raise PlanError(f"{name} must be {wanted.__name__}, got {value!r}")
    return value
