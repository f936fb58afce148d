"""What SGLang's and TGI's schedulers have beside the limits of a step."""

from __future__ import annotations

import msgspec

__all__ = ["SchedulerVariant", "SglangVariant", "TgiVariant"]


class SglangVariant(msgspec.Struct, frozen=True, kw_only=True, tag="Sglang"):
    """SGLang 0.5.23: `PrefillAdder` and `SchedulePolicy` of `srt/managers/schedule_policy.py`.

    Attributes:
        max_prefill_tokens: Of one step, beside `chunked_prefill_size`; its first may be longer.
        conservativeness: Factor on the share of an answer's tokens that admission keeps room for.
        longest_prefix_first: `schedule_policy=lpm` instead of `fcfs`.
        mixed_chunk: Whether those that decode take part in steps with prompts.
        ignore_eos: Whether every answer is known to have its whole length; then admission keeps
            room for all of it.
    """

    max_prefill_tokens: int = 16_384
    conservativeness: float = 1.0
    longest_prefix_first: bool = False
    mixed_chunk: bool = False
    ignore_eos: bool = False


class TgiVariant(msgspec.Struct, frozen=True, kw_only=True, tag="Tgi"):
    """Text-generation-inference 1.x: `batching_task` of its router and `State::next_batch`.

    Attributes:
        waiting_served_ratio: Prompts wait until there are so many per sequence that decodes.
        max_waiting_tokens: Or until so many steps have passed since some were taken in.
        max_batch_total_tokens: Prompts and whole answers of all that run; `None` for the cache.
    """

    waiting_served_ratio: float = 1.2
    max_waiting_tokens: int = 20
    max_batch_total_tokens: int | None = None


SchedulerVariant = SglangVariant | TgiVariant
