"""Plans that vLLM refuses to start with, whatever the memory.

A simulated engine has no code of its own that would stop, so it asks here. The reasons are
vLLM 0.32's, in its words: `SchedulerConfig.verify_max_model_len` for the budgets of a step, the
attention backends' `supports_block_size` for the size of a block (read in November 2026; a real
one on a CPU said the same of a block on 2026-11-22).
"""

from __future__ import annotations

from servetune.errors import PlanError
from servetune.hardware.device import Device
from servetune.plan.plan import Plan

#: FlashAttention, FlashInfer and Triton attention, the three that a CUDA device is offered.
_GPU_BLOCK_TOKENS = 16
_CPU_BLOCK_TOKENS = 32


def check_starts(filled: Plan, device: Device) -> None:
    """Refuse a resolved Plan whose settings vLLM ends with at start.

    Raises:
        PlanError: In vLLM's words.
    """
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
