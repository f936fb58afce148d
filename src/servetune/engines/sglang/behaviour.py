"""Scheduler and memory of SGLang 0.5, and the differences of its steps from the tables."""

from __future__ import annotations

from servetune.engines.behaviour import Behaviour, StepLawFacts

BEHAVIOUR = Behaviour(
    scheduler="prefill_first",
    comparison="SGLang 0.5.23 schedules without overlap: 723,595 random steps beside its own "
    "classes, 98.2% identical",
    routing="round_robin",
    transfers_cache=True,
    budget_covers_answers=False,  # its budget is of a chunk of prompts alone
    fraction_covers_activation=False,  # `mem_fraction_static` is of weights and cache
    experts_span_copies=False,
    step_law=StepLawFacts(
        name="sglang",
        table_names=("sglang",),
        coefficients={"scheduling.prefill_first": True},  # unless it is told to mix
        experts={
            "blackwell": {
                "experts.compute_fraction": 0.35,
                "experts.compute_fraction_packed": 0.21,
                "experts.compute_fraction_mxfp4": 0.64,
                "experts.compute_fraction_8bit": 0.28,
                "experts.compute_fraction_blocks": 0.165,
                "experts.compute_fraction_4bit": 0.21,
            },
            "hopper": {
                "experts.compute_fraction": 0.29,
                "experts.compute_fraction_packed": 0.20,
                "experts.compute_fraction_mxfp4": 0.26,
                "experts.compute_fraction_8bit": 0.34,
                "experts.compute_fraction_blocks": 0.215,
                "experts.compute_fraction_4bit": 0.20,
            },
        },
    ),
)
