"""Defaults of SGLang for what a Plan leaves open.

Source: `handle_gpu_memory_settings` and `_handle_eagle_family` of SGLang 0.5.14 to 0.5.23, read in
November 2026.
"""

from __future__ import annotations

from servetune.engines.behaviour import FieldValues, ReleaseDefaults, behaviour_of, release_numbers
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.units import MIB

#: Below so many MiB: chunk in tokens, largest graph batch on few devices, and on four or more.
_MEMORY_CLASSES = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
#: The second class before the release that took it up to that of larger cards, for RTX 5090.
_EARLIER_SECOND, _SECOND_SINCE = (35 * 1024, 2048, 24, 80), (0, 5, 20)


def _sglang(plan: Plan, shape: NetworkShape, device: Device) -> FieldValues:
    memory_mib = device.memory_bytes / MIB
    found = next(row for row in _MEMORY_CLASSES if memory_mib < row[0])
    release = release_numbers(plan.engine_version or "")
    if found == _MEMORY_CLASSES[1] and release is not None and release < _SECOND_SINCE:
        found = _EARLIER_SECOND
    _, chunk_tokens, few, many = found
    graph_batch = few if plan.tensor_parallel < 4 else many
    chunk_tokens = plan.max_num_batched_tokens or chunk_tokens
    return {
        "max_num_batched_tokens": chunk_tokens,
        "max_num_seqs": _sequences(plan, shape),
        "max_model_len": shape.max_context_tokens,
        "gpu_memory_fraction": _static_fraction(
            plan, memory_mib, max(chunk_tokens, 2048), graph_batch
        ),
        "block_tokens": 1,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "prefix_caching": True,
        "chunked_prefill": True,
        "enforce_eager": False,
    }


def _sequences(plan: Plan, shape: NetworkShape) -> int:
    """`max_running_requests`: few with drafted tokens; else what the pool of the cache allows.

    That is its tokens over the context, times 512, kept within 2,048 and 4,096: the lower end, as a
    pool that small is the one where it matters.
    """
    return behaviour_of("sglang").default_max_seqs(plan, shape) or 2048


def _static_fraction(plan: Plan, memory_mib: float, chunk_tokens: int, graph_batch: int) -> float:
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


DEFAULTS = (ReleaseDefaults(since=(0, 0), fill=_sglang),)
