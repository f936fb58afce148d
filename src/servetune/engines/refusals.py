"""What an engine refuses to start with, whatever the memory.

A simulated engine has no code of its own that would stop, so it asks here. The reasons are
vLLM 0.32's, in its words: `SchedulerConfig.verify_max_model_len` for the budgets of a step, the
attention backends' `supports_block_size` for the size of a block (read in November 2026; a real
one on a CPU said the same of a block on 2026-11-22).
"""

from __future__ import annotations

from servetune.engines.defaults import resolved
from servetune.errors import PlanError
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan

__all__ = ["check_starts"]

#: FlashAttention, FlashInfer and Triton attention, the three that a CUDA device is offered.
_GPU_BLOCK_TOKENS = 16
_CPU_BLOCK_TOKENS = 32


def check_starts(plan: Plan, shape: NetworkShape, device: Device) -> None:
    """Refuse settings that the plan's engine ends with at start.

    Other engines than vLLM are taken at their word: their checks were not read.

    Raises:
        PlanError: In the engine's words.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B", max_num_seqs=64, max_num_batched_tokens=32)
        >>> check_starts(plan, load_shape(plan.model, catalogue_first=True), named("L4"))
        Traceback (most recent call last):
        ...
        servetune.errors.PlanError: vLLM refuses to start: max_num_batched_tokens (32) must be \
greater than or equal to max_num_seqs (64)
    """
    if plan.engine not in ("vllm", "simulated"):
        return
    filled = resolved(plan, shape, device)
    tokens, sequences, longest = (
        filled.max_num_batched_tokens,
        filled.max_num_seqs,
        filled.max_model_len,
    )
    assert tokens is not None
    assert sequences is not None
    assert longest is not None
    if tokens < longest and filled.chunked_prefill is False:
        raise _refused(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({longest}), "
            "and without chunked prefill a prompt is computed in one step",
            f"raise max_num_batched_tokens to {longest}, lower max_model_len, or turn "
            "enable_chunked_prefill on",
        )
    if tokens < sequences:
        raise _refused(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to "
            f"max_num_seqs ({sequences})",
            f"raise max_num_batched_tokens to {sequences}, or lower max_num_seqs to {tokens}",
        )
    size = filled.block_tokens
    step = _CPU_BLOCK_TOKENS if device.architecture == "cpu" else _GPU_BLOCK_TOKENS
    if size is not None and size % step:
        raise _refused(
            f"No common block size for {size} (CPU_ATTN: [MultipleOf({step})])."
            if device.architecture == "cpu"
            else f"no valid attention backend found, block_size {size} is not supported",
            f"take a multiple of {step}, or leave block_size out",
        )


def _refused(reason: str, hint: str) -> PlanError:
    return PlanError(f"vLLM refuses to start: {reason}", hint=hint)
