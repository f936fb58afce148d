"""What an engine does where a Plan is silent.

Sources, read in November 2026: vLLM 0.32 `vllm serve --help` and
`EngineArgs.get_batch_defaults` (its values stand since 0.9); SGLang 0.5
`handle_gpu_memory_settings`. The simulated engine behaves as vLLM. TGI's have changed with
every major version, so they go by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.errors import UnknownName
from servetune.hardware.device import Device
from servetune.models.shape import Attention, NetworkShape
from servetune.plan.plan import Plan
from servetune.units import GIB, MIB

__all__ = ["DEFAULTS", "STARTED_VERSIONS", "resolved"]

Defaults = Mapping[str, Any]


def resolved(
    plan: Plan, shape: NetworkShape, device: Device, *, version: str | None = None
) -> Plan:
    """The Plan with every silent field filled as its engine would fill it.

    `quantization` may stay None: it then means the checkpoint's own storage, which engines
    take from the checkpoint and have no option for. So may drafts and servers that only compute
    prompts, which no engine has unasked; and what TGI 2 and 3 work out when they start, from the
    machine and what a warm-up leaves of its memory. Resolving twice changes nothing.

    Args:
        plan: Whose fields stay as they are where they are set.
        shape: The network.
        device: That it runs on.
        version: Of the engine; counts for TGI alone, whose estimates and simulations are of 1.x,
            which is meant where it is `None`.

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
    defaults = _tgi_of(version) if plan.engine == "tgi" and version else DEFAULTS[plan.engine]
    filled = defaults(plan, shape, device)
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


#: TGI caches prefixes and cuts prompts only with kernels that are made for these heads.
_TGI_HEAD_DIMS = frozenset({64, 128, 256})

#: NVIDIA's before compute capability 8, on which TGI takes other kernels.
_BEFORE_AMPERE = frozenset({"volta", "turing"})


def _tgi_2(plan: Plan, shape: NetworkShape, device: Device) -> Defaults:
    """Text-generation-inference 2.x: 4,096 tokens or the model's context, whichever is less.

    Sources: `launcher/src/main.rs` of 2.0 and of 2.4 (`main`, `resolve_attention`): a prompt may
    have one token less than the whole, a step of prompts 50 more than a prompt; prefixes are
    cached since 2.3. `models/globals.py` of 2.4: prompts are cut only where PREFILL_CHUNKING=1.
    """
    context = plan.max_model_len or min(4096, shape.max_context_tokens)
    return {
        **_tgi_3(plan, shape, device),
        "max_num_batched_tokens": context - 1 + 50,
        "max_model_len": context,
        "chunked_prefill": False,
    }


def _tgi_2_before_caching(plan: Plan, shape: NetworkShape, device: Device) -> Defaults:
    return {**_tgi_2(plan, shape, device), "prefix_caching": False}


def _tgi_3(plan: Plan, shape: NetworkShape, device: Device) -> Defaults:
    """Text-generation-inference 3.x, which sizes itself when it starts.

    Open stay what it works out on its machine: the tokens of a step of prompts (in 3.0 what the
    device computes in a second over the work of a token, at most the model's context, and 4,096 on
    a device that it does not know, where 3.3 took 8,000); the longest sequence (what fits after a
    warm-up, and no more than the context); the blocks of its cache. No number limits the sequences
    of a batch.

    Sources: `launcher/src/main.rs` (`compute_optimal`, `resolve_attention`, `main`) and
    `models/globals.py` and `models/model.py` (PREFILL_CHUNKING) of 3.x; the log of a start on
    2025-07-04 for what a warm-up settles (tests/engines/logs/tgi-3.3-published.log).
    """
    quantization = plan.quantization or shape.quantization
    caching = _tgi_caching(plan, shape, device)
    return {
        "gpu_memory_fraction": 1.0,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": caching,
        "chunked_prefill": _tgi_chunks(plan, shape, device),
        # "Bitsandbytes doesn't work with cuda graphs, deactivating them"; likewise exl2. A
        # checkpoint stored by bitsandbytes is called nf4 here.
        "enforce_eager": quantization.startswith(("bitsandbytes", "nf4", "exl2")),
    }


def _tgi_caching(plan: Plan, shape: NetworkShape, device: Device) -> bool | None:
    """What `resolve_attention` decides; `None` where its versions differ or it is not known."""
    if any(name.replace("-", "_") == "lora_adapters" for name, _ in plan.extra):
        return False
    if not _tgi_kernels_known(shape, device):
        return None
    dims = {layer.mixer.head_dim for layer in shape.layers if isinstance(layer.mixer, Attention)}
    return dims <= _TGI_HEAD_DIMS


def _tgi_chunks(plan: Plan, shape: NetworkShape, device: Device) -> bool | None:
    """Prompts are cut, but not with drafts; the kernels for other heads can do it as well."""
    if plan.draft_tokens or dict(plan.extra).get("speculate"):
        return False
    return True if _tgi_kernels_known(shape, device) else None


def _tgi_kernels_known(shape: NetworkShape, device: Device) -> bool:
    plain = all(isinstance(layer.mixer, Attention) for layer in shape.layers)
    nvidia = device.vendor.lower() == "nvidia" and device.architecture not in _BEFORE_AMPERE
    return plain and nvidia and not shape.vision_parameters


#: First version of each set of defaults, newest first.
_TGI_SINCE: tuple[tuple[tuple[int, int], Callable[[Plan, NetworkShape, Device], Defaults]], ...] = (
    ((3, 0), _tgi_3),
    ((2, 3), _tgi_2),
    ((2, 0), _tgi_2_before_caching),
)


def _tgi_of(version: str) -> Callable[[Plan, NetworkShape, Device], Defaults]:
    major, minor, *_ = (*(int(number) for number in re.findall(r"\d+", version)), 0, 0)
    return next((defaults for since, defaults in _TGI_SINCE if (major, minor) >= since), _tgi)


#: What a server that is really started is taken to be where its own version is not known;
#: others have one set of defaults.
STARTED_VERSIONS: Mapping[str, str] = MappingProxyType({"tgi": "3.3"})

DEFAULTS: Mapping[str, Callable[[Plan, NetworkShape, Device], Defaults]] = MappingProxyType(
    {"vllm": _vllm, "simulated": _vllm, "sglang": _sglang, "tgi": _tgi}
)
