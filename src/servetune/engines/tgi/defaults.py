"""Defaults of TGI for what a Plan leaves open; they have changed with every major version."""

from __future__ import annotations

import functools

from servetune.engines.behaviour import FieldValues, ReleaseDefaults, behaviour_of
from servetune.hardware.device import Device
from servetune.models.shape import Attention, NetworkShape
from servetune.plan.plan import Plan


def _release_1(plan: Plan, shape: NetworkShape, _device: Device) -> FieldValues:
    """Text-generation-inference 1.x: steps run eagerly, prompts apart from decoding.

    Predictions of later releases have its scheduler, and the graphs that 2.0 brought.

    Sources: `text-generation-launcher` 1.x arguments (2023-24) for the two token limits;
    `flash_causal_lm.py` of the same for blocks of 16 tokens. The scheduler has no limit of
    sequences but memory; the router refuses more than 128 requests unless told.
    """
    return {
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 128,
        "max_model_len": min(2048, shape.max_context_tokens),
        "gpu_memory_fraction": 1.0,
        "block_tokens": 16,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
        "chunked_prefill": False,
        "enforce_eager": not _captures(plan.engine_version or "") or _never_captured(plan, shape),
    }


@functools.lru_cache(maxsize=1024)
def _captures(version: str) -> bool:
    """Whether a release runs steps as captured graphs, by its era in `behaviour.toml`."""
    era = behaviour_of("tgi").step_law.era_of(version)
    return era is not None and era.coefficients.get("launch.captured_sequences", 0) > 0


#: TGI caches prefixes and cuts prompts only with kernels that are made for these heads.
_HEAD_DIMS = frozenset({64, 128, 256})

#: NVIDIA's before compute capability 8, on which TGI takes other kernels.
_BEFORE_AMPERE = frozenset({"pascal", "volta", "turing"})


def _release_2_3(plan: Plan, shape: NetworkShape, device: Device) -> FieldValues:
    """Text-generation-inference 2.x: 4,096 tokens or the model's context, whichever is less.

    Sources: `launcher/src/main.rs` of 2.0 and of 2.4 (`main`, `resolve_attention`): a prompt may
    have one token less than the whole, a step of prompts 50 more than a prompt; prefixes are
    cached since 2.3. `models/globals.py` of 2.4: prompts are cut only where PREFILL_CHUNKING=1.
    """
    context = plan.max_model_len or min(4096, shape.max_context_tokens)
    return {
        **_release_3(plan, shape, device),
        "max_num_batched_tokens": context - 1 + 50,
        "max_model_len": context,
        "chunked_prefill": False,
    }


def _release_2_0(plan: Plan, shape: NetworkShape, device: Device) -> FieldValues:
    return {**_release_2_3(plan, shape, device), "prefix_caching": False}


def _release_3(plan: Plan, shape: NetworkShape, device: Device) -> FieldValues:
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
    caching = _caching(plan, shape, device)
    return {
        "gpu_memory_fraction": 1.0,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": caching,
        "chunked_prefill": _chunks(plan, shape, device),
        "enforce_eager": _never_captured(plan, shape),
    }


def _never_captured(plan: Plan, shape: NetworkShape) -> bool:
    """Whether weights are stored in a way of which TGI captures no graphs.

    "Bitsandbytes doesn't work with cuda graphs, deactivating them"; likewise exl2. A checkpoint
    stored by bitsandbytes is called nf4 here.
    """
    quantization = plan.quantization or shape.quantization
    return quantization.startswith(("bitsandbytes", "nf4", "exl2"))


def _caching(plan: Plan, shape: NetworkShape, device: Device) -> bool | None:
    """Prefix caching by `resolve_attention`; `None` where versions differ or it is not known."""
    if any(name.replace("-", "_") == "lora_adapters" for name, _ in plan.extra):
        return False
    if not _kernels_known(shape, device):
        return None
    dims = {layer.mixer.head_dim for layer in shape.layers if isinstance(layer.mixer, Attention)}
    return dims <= _HEAD_DIMS


def _chunks(plan: Plan, shape: NetworkShape, device: Device) -> bool | None:
    """Whether long prompts are computed in chunks; never with drafted tokens, `None` if unknown."""
    if plan.draft_tokens:
        return False
    return True if _kernels_known(shape, device) else None


def _kernels_known(shape: NetworkShape, device: Device) -> bool:
    plain = all(isinstance(layer.mixer, Attention) for layer in shape.layers)
    nvidia = device.vendor.lower() == "nvidia" and device.architecture not in _BEFORE_AMPERE
    return plain and nvidia and not shape.vision_parameters


DEFAULTS = (
    ReleaseDefaults(since=(3, 0), fill=_release_3),
    ReleaseDefaults(since=(2, 3), fill=_release_2_3),
    ReleaseDefaults(since=(2, 0), fill=_release_2_0),
    ReleaseDefaults(since=(1, 0), fill=_release_1),
)
