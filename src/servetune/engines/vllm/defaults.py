"""Defaults of vLLM for what a Plan leaves open.

Sources, read in November 2026: vLLM 0.32 `vllm serve --help` and
`EngineArgs.get_batch_defaults` (its values stand since 0.9).
"""

from __future__ import annotations

from servetune.engines.behaviour import FieldValues, ReleaseDefaults
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.units import GIB


def _vllm(plan: Plan, shape: NetworkShape, device: Device) -> FieldValues:
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


DEFAULTS = (ReleaseDefaults(since=(0, 0), fill=_vllm),)
