"""How each engine spells a Plan's fields.

A sweep, a journal and a command line use the engine's own names
(`tensor_parallel_size`); a Plan uses neutral ones. The tables below are the only place
where the two meet, so a value that was swept cannot be lost on its way to a server or
to a deployment. Names that no table knows pass through as `Plan.extra`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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

#: `trtllm-serve`'s options, of TensorRT-LLM 1.x. Its share of memory counts what is free after
#: the weights, so it is no `gpu_memory_fraction`.
_TENSORRT_LLM: Mapping[str, str] = MappingProxyType(
    {
        "tp_size": "tensor_parallel",
        "pp_size": "pipeline_parallel",
        "max_batch_size": "max_num_seqs",
        "max_num_tokens": "max_num_batched_tokens",
        "max_seq_len": "max_model_len",
        "enable_chunked_prefill": "chunked_prefill",
    }
)

#: `llama-server`'s options. Its context is that of all slots together; see `_llama_otherwise`.
_LLAMA_CPP: Mapping[str, str] = MappingProxyType(
    {
        "parallel": "max_num_seqs",
        "batch_size": "max_num_batched_tokens",
        "cache_prompt": "prefix_caching",
    }
)

#: `lmdeploy serve api_server`, 0.10 and later. Its `cache_max_entry_count` is a share of what is
#: free after the weights, so it is no `gpu_memory_fraction`.
_LMDEPLOY: Mapping[str, str] = MappingProxyType(
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
)

#: `transformers serve`, 5.x, with continuous batching.
_TRANSFORMERS: Mapping[str, str] = MappingProxyType(
    {
        "cb_max_batch_tokens": "max_num_batched_tokens",
        "cb_block_size": "block_tokens",
        "dtype": "dtype",
        "quantization": "quantization",
    }
)

#: `max serve`, 26.x.
_MAX: Mapping[str, str] = MappingProxyType(
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
)

#: vLLM's setting for drafted tokens: JSON, where a Plan has fields.
DRAFTS = "speculative_config"

#: engine -> (its name -> the Plan's field). The simulated engine speaks vLLM's dialect.
DIALECTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": _VLLM,
        "simulated": _VLLM,
        "vllm-neuron": _VLLM,
        "sglang": _SGLANG,
        "tgi": _TGI,
        "tensorrt-llm": _TENSORRT_LLM,
        "llama.cpp": _LLAMA_CPP,
        "lmdeploy": _LMDEPLOY,
        "transformers": _TRANSFORMERS,
        "max": _MAX,
        "external": MappingProxyType({}),
        "command": MappingProxyType({}),
    }
)

_VLLM_ALIASES: Mapping[str, str] = MappingProxyType(
    {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
)
_ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": _VLLM_ALIASES,
        "simulated": _VLLM_ALIASES,
        "vllm-neuron": _VLLM_ALIASES,
        "tensorrt-llm": {
            "tensor_parallel_size": "tp_size",
            "pipeline_parallel_size": "pp_size",
            "tp": "tp_size",
            "pp": "pp_size",
        },
        "llama.cpp": {"np": "parallel", "b": "batch_size", "c": "ctx_size"},
        "max": {"model_path": "model"},
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

    The degree of tensor parallelism is always written where the engine has a name for it, other
    fields where they are not `None`. Order is the dialect's, then what the engine says
    otherwise, then `extra` by name, so that equal plans give equal commands.

    Raises:
        PlanError: The plan chose something that the engine has no words for, or has servers
            of several kinds.
    """
    spoken = engine or plan.engine
    if plan.prefill_replicas is not None:
        raise PlanError(
            "servers that only compute prompts are simulated, not started or deployed yet",
            hint="leave prefill_replicas out, or use servetune simulate",
        )
    settings: dict[str, Setting] = {}
    for name, field in _names_of(spoken).items():
        value = getattr(plan, field)
        if field == "tensor_parallel" or value not in (None, _SILENT.get(field)):
            settings[name] = _WORDS_FOR.get((spoken, field), {}).get(value, value)
    settings.update(_said_otherwise(plan, spoken))
    if plan.draft_tokens is not None:
        settings[DRAFTS] = _drafts_of(plan, spoken)
    settings.update(plan.extra)
    return settings


def _drafts_of(plan: Plan, engine: str) -> str:
    if _names_of(engine) is not _VLLM:
        raise PlanError(
            f"drafted tokens have no words in {engine}'s dialect here",
            hint="give its own settings for speculative decoding instead",
        )
    said: dict[str, Any] = {"num_speculative_tokens": plan.draft_tokens}
    if plan.draft_method is not None:
        said["method"] = plan.draft_method
    return json.dumps(said, sort_keys=True)


def _said_otherwise(plan: Plan, engine: str) -> dict[str, Setting]:
    """What the engine says with other settings than one of the same meaning.

    Raises:
        PlanError: A field was chosen that it has no words for.
    """
    otherwise = _OTHERWISE.get(engine, {})
    said: dict[str, Setting] = {}
    names = _names_of(engine).values()
    for field in FIELD_TYPES:
        value = getattr(plan, field)
        if field in names or value in (None, _SILENT.get(field)) or engine in _WORDLESS:
            continue
        if field in otherwise:
            said.update(otherwise[field](plan))
        elif field == "tensor_parallel" and value == 1:
            continue
        else:
            raise PlanError(
                f"{engine} has no setting for {field}",
                hint=_INSTEAD.get(
                    (engine, field), "leave it out, or give the engine's own setting"
                ),
            )
    return said


#: Engine and field -> a Plan's word -> the engine's; `None` where silence says it.
_WORDS_FOR: Mapping[tuple[str, str], Mapping[Setting, Setting]] = {
    ("sglang", "kv_cache_dtype"): {"fp8": "fp8_e4m3"},
    ("tgi", "kv_cache_dtype"): {"fp8": "fp8_e4m3fn", "auto": None},
    ("tgi", "dtype"): {"auto": None},
    ("max", "quantization"): {"fp8": "float8_e4m3fn"},
}

Words = Mapping[str, Setting]


def _sglang_caching(plan: Plan) -> Words:
    return {} if plan.prefix_caching else {"disable_radix_cache": True}


def _sglang_chunks(plan: Plan) -> Words:
    """The size of a chunk is the switch as well; whole prompts have a budget of another name."""
    if plan.chunked_prefill:
        return {}
    whole = plan.max_num_batched_tokens
    budget = {} if whole is None else {"max_prefill_tokens": whole}
    return {**budget, "chunked_prefill_size": -1}


def _sglang_eager(plan: Plan) -> Words:
    return {"disable_cuda_graph": True} if plan.enforce_eager else {}


def _experts(name: str) -> Callable[[Plan], Words]:
    """Experts whole on each device: as many groups as devices split a matrix."""

    def words(plan: Plan) -> Words:
        return {name: plan.tensor_parallel}

    return words


def _tgi_eager(plan: Plan) -> Words:
    return {"cuda_graphs": "0"} if plan.enforce_eager else {}


def _llama_context(plan: Plan) -> Words:
    """Without a number of slots they share one cache, and the context is that of each."""
    return {"ctx_size": (plan.max_model_len or 0) * (plan.max_num_seqs or 1)}


def _llama_cache(plan: Plan) -> Words:
    return {"cache_type_k": plan.kv_cache_dtype, "cache_type_v": plan.kv_cache_dtype}


def _llama_rows(plan: Plan) -> Words:
    return {"split_mode": "row"} if plan.tensor_parallel > 1 else {}


def _llama_layers(_plan: Plan) -> Words:
    return {"split_mode": "layer"}


def _lmdeploy_cache(plan: Plan) -> Words:
    """`--quant-policy` takes none, int4, int8, fp8 and fp8_e5m2 (0.16 to 0.18)."""
    return {"quant_policy": "none" if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype}


def _transformers_eager(plan: Plan) -> Words:
    return {"cb_use_cuda_graph": not plan.enforce_eager}


def _max_devices(plan: Plan) -> Words:
    count = plan.tensor_parallel * plan.data_parallel
    if count == 1:
        return {}
    return {"devices": "gpu:" + ",".join(str(number) for number in range(count))}


def _max_copies(plan: Plan) -> Words:
    return {"data_parallel_degree": plan.data_parallel, **_max_devices(plan)}


def _max_eager(plan: Plan) -> Words:
    return {"device_graph_capture": not plan.enforce_eager}


#: engine -> (field of the Plan -> the settings that say it).
_OTHERWISE: Mapping[str, Mapping[str, Callable[[Plan], Words]]] = MappingProxyType(
    {
        "sglang": {
            "expert_parallel": _experts("ep_size"),
            "prefix_caching": _sglang_caching,
            "chunked_prefill": _sglang_chunks,
            "enforce_eager": _sglang_eager,
        },
        # Of these two TGI is told by its environment; see engines/tgi.py.
        "tgi": {
            "enforce_eager": _tgi_eager,
            "prefix_caching": lambda _: {},
            "chunked_prefill": lambda _: {},
        },
        "tensorrt-llm": {"expert_parallel": _experts("ep_size")},
        "llama.cpp": {
            "tensor_parallel": _llama_rows,
            "pipeline_parallel": _llama_layers,
            "max_model_len": _llama_context,
            "kv_cache_dtype": _llama_cache,
        },
        "lmdeploy": {"expert_parallel": _experts("ep"), "kv_cache_dtype": _lmdeploy_cache},
        "transformers": {"enforce_eager": _transformers_eager},
        "max": {
            "tensor_parallel": _max_devices,
            "data_parallel": _max_copies,
            "expert_parallel": _experts("ep_size"),
            "enforce_eager": _max_eager,
        },
    }
)

#: Engines whose own words servetune does not know: everything that is said is `extra`.
_WORDLESS = frozenset({"external", "command"})

_FREE = "{} is a share of the memory that is free after the weights: give that instead"
_YAML = "write it in a file and give extra_llm_api_options=FILE"
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("tensorrt-llm", "gpu_memory_fraction"): _FREE.format("kv_cache_free_gpu_memory_fraction"),
    ("lmdeploy", "gpu_memory_fraction"): _FREE.format("cache_max_entry_count"),
    ("transformers", "gpu_memory_fraction"): _FREE.format("cb_max_memory_percent"),
    ("tensorrt-llm", "prefix_caching"): f"kv_cache_config.enable_block_reuse: {_YAML}",
    ("tensorrt-llm", "kv_cache_dtype"): f"kv_cache_config.dtype: {_YAML}",
    ("tensorrt-llm", "block_tokens"): f"kv_cache_config.tokens_per_block: {_YAML}",
    ("tensorrt-llm", "enforce_eager"): f"cuda_graph_config: null; {_YAML}",
    ("lmdeploy", "data_parallel"): "its dp is of attention and wants a proxy: give dp itself",
    ("llama.cpp", "dtype"): "the GGUF file decides it",
    ("llama.cpp", "quantization"): "the GGUF file decides it",
}


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
