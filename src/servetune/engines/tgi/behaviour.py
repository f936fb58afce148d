"""Scheduler of TGI 1.x of 2023, and the differences of its steps from the operator tables.

No graphs are captured, and Python walks over each sequence: every step launches each layer from
the host and then walks twice over the batch, moving one number to the device and detokenising for
each sequence (`flash_causal_lm.py`, `generate_token`): the three times of `OVERHEADS`. Its router
takes in prompts every `max_waiting_tokens` = 20 steps, as many as `max_batch_prefill_tokens`
hold, and only where whole answers have room (`queue.rs` and the launcher's arguments). Its experts
are MegaBlocks', whose products reach what plain ones do (its paper of 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines.behaviour import Behaviour, StepLawFacts

#: Fitted by `benchmarks/prediction/seed_tables.py --fit` to the eight published figures of
#: Llama 2 7B (JumpStart study, January 2024: A10G and A100, one to eight devices).
OVERHEADS: Mapping[str, float] = MappingProxyType(
    {"host.step_s": 2.93e-3, "host.sequence_s": 0.188e-3, "launch.layer_s": 0.45e-3}
)

BEHAVIOUR = Behaviour(
    scheduler="interrupting",
    comparison="text-generation-inference 1.x and 2.x schedules: read from its router's source, "
    "not compared step by step",
    budget_covers_answers=False,  # its budget is of prompts alone
    step_law=StepLawFacts(
        name="tgi",
        coefficients={
            "launch.captured_tokens": 0,
            "scheduling.prefill_first": True,
            "scheduling.separate_prefill": True,
            "scheduling.admission_steps": 20.0,
            "scheduling.whole_answers": True,
            "host.prompt_s": 0.0,
            "launch.experts_s": 0.0,
            "experts.half_columns": 0.0,
            "experts.layer_s": 18e-6,
            "experts.extra_rows": 32.0,
            **OVERHEADS,
        },
        plain_experts=True,
        own_fit="jumpstart-2024-01",
    ),
)
