"""What an engine does where a Plan is silent.

Sources, read in November 2026: vLLM 0.32 `vllm serve --help` and
`EngineArgs.get_batch_defaults` (its values stand since 0.9); SGLang 0.5
`handle_gpu_memory_settings`. The simulated engine behaves as vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.errors import UnknownName
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.units import GIB, MIB

__all__ = ["DEFAULTS", "resolved"]

Defaults = Mapping[str, Any]


def resolved(plan: Plan, shape: NetworkShape, device: Device) -> Plan:
    """The Plan with every silent field filled as its engine would fill it.

    `quantization` may stay None: it then means the checkpoint's own storage, which engines
    take from the checkpoint and have no option for. So may drafts and servers that only compute
    prompts, which no engine has unasked. Resolving twice changes nothing.

    Raises:
        UnknownName: The engine's defaults are not known.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B")
        >>> filled = resolved(plan, load_shape(plan.model, catalogue_first=True), named("L4"))
        >>> filled.max_num_seqs, filled.max_num_batched_tokens, filled.max_model_len
        (256, 2048, 40960)
    """
    if plan.engine not in DEFAULTS:
        raise UnknownName("engine", plan.engine, DEFAULTS)
    filled = DEFAULTS[plan.engine](plan, shape, device)
    silent = {name: value for name, value in filled.items() if getattr(plan, name) is None}
    return msgspec.structs.replace(plan, **silent) if silent else plan


def _vllm(plan: Plan, shape: NetworkShape, device: Device) -> Defaults:
    on_cpu = device.architecture == "cpu"
    tokens, sequences = _vllm_batch(plan, device)
    max_model_len = plan.max_model_len or shape.max_context_tokens
    if plan.chunked_prefill is False:
        tokens = max(tokens, max_model_len)  # a prompt must fit in one step
    tokens = min(tokens, (plan.max_num_seqs or sequences) * max_model_len)
    return {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(sequences, plan.max_num_batched_tokens or tokens),
        "max_model_len": max_model_len,
        "gpu_memory_fraction": 0.92,  # 0.9 before graphs were counted inside it
        "block_tokens": 128 if on_cpu else 16,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": True,
        "chunked_prefill": True,
        "enforce_eager": False,
    }


def _vllm_batch(plan: Plan, device: Device) -> tuple[int, int]:
    """Tokens and sequences of one step for the API server, before the model's limits.

    Large defaults lowered an A100's throughput, so it is left out by name
    (vllm-project/vllm pull request 17885, 2025).
    """
    if device.architecture == "cpu":
        workers = plan.tensor_parallel * plan.pipeline_parallel
        return 2048 * workers, 128 * workers
    if device.memory_bytes >= 70 * GIB and "a100" not in device.name.lower():
        return 8192, 1024
    return 2048, 256


#: Below so many MiB: chunk in tokens, largest graph batch on few devices, and on four or more.
_SGLANG_CLASSES = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)


def _sglang(plan: Plan, shape: NetworkShape, device: Device) -> Defaults:
    memory_mib = device.memory_bytes / MIB
    _, chunk_tokens, few, many = next(row for row in _SGLANG_CLASSES if memory_mib < row[0])
    graph_batch = few if plan.tensor_parallel < 4 else many
    chunk_tokens = plan.max_num_batched_tokens or chunk_tokens
    return {
        "max_num_batched_tokens": chunk_tokens,
        # The pool's tokens over the context, times 512, kept within 2,048 and 4,096: the
        # lower end, as a pool that small is the one where it matters.
        "max_num_seqs": 2048,
        "max_model_len": shape.max_context_tokens,
        "gpu_memory_fraction": _sglang_static_fraction(
            plan, memory_mib, max(chunk_tokens, 2048), graph_batch
        ),
        "block_tokens": 1,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": True,
        "chunked_prefill": True,
        "enforce_eager": False,
    }


def _sglang_static_fraction(
    plan: Plan, memory_mib: float, chunk_tokens: int, graph_batch: int
) -> float:
    """`mem_fraction_static`: the share for weights and cache, activations not included.

    Reserved are 512 MiB, 1.5 MiB per token of a chunk, 2 MiB per sequence of the largest
    decode graph and 128 MiB per device; at least 10 GiB on cards above 60 GiB. The few MiB
    of each captured prefill graph are left out.
    """
    devices = plan.tensor_parallel * plan.pipeline_parallel
    reserved_mib = 512 + 1.5 * chunk_tokens + 2 * graph_batch + devices / 8 * 1024
    if memory_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return max(0.1, round((memory_mib - reserved_mib) / memory_mib, 3))


def _tgi(_plan: Plan, shape: NetworkShape, _device: Device) -> Defaults:
    """Text-generation-inference 1.x: steps run eagerly, prompts apart from decoding.

    Sources: `text-generation-launcher` 1.x arguments (2023-24) for the two token limits;
    `flash_causal_lm.py` of the same for blocks of 16 tokens and the 5% that its warm-up leaves
    free. The scheduler has no limit of sequences but memory; the router refuses more than
    128 requests unless told.
    """
    return {
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 128,
        "max_model_len": min(2048, shape.max_context_tokens),
        "gpu_memory_fraction": 0.95,
        "block_tokens": 16,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
        "chunked_prefill": False,
        "enforce_eager": True,
    }


DEFAULTS: Mapping[str, Callable[[Plan, NetworkShape, Device], Defaults]] = MappingProxyType(
    {"vllm": _vllm, "simulated": _vllm, "sglang": _sglang, "tgi": _tgi}
)
