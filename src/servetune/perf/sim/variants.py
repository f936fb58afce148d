"""Settings of schedulers besides the limits of a step."""

from __future__ import annotations

import msgspec


class PrefillFirstVariant(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_first"):
    """SGLang 0.5.23: `PrefillAdder` and `SchedulePolicy` of `srt/managers/schedule_policy.py`.

    Attributes:
        max_prefill_tokens: Prompt tokens of one step, besides `chunked_prefill_size`; the first
            prompt may be longer.
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


class InterruptingVariant(msgspec.Struct, frozen=True, kw_only=True, tag="interrupting"):
    """Text-generation-inference 1.x: `batching_task` of its router and `State::next_batch`.

    Attributes:
        waiting_served_ratio: Waiting prompts per decoding sequence from which they are admitted.
        max_waiting_tokens: Steps since the last admission after which they are admitted anyway.
        max_batch_total_tokens: Tokens of prompts and whole answers of all that run; `None` for the
            cache.
    """

    waiting_served_ratio: float = 1.2
    max_waiting_tokens: int = 20
    max_batch_total_tokens: int | None = None


SchedulerVariant = PrefillFirstVariant | InterruptingVariant
