"""Scheduler and memory of vLLM 0.32, and the differences of its steps from the tables."""

from __future__ import annotations

from servetune.engines.behaviour import Behaviour, EarlierSteps, StepLawFacts

BEHAVIOUR = Behaviour(
    comparison="vLLM 0.32 schedules: 752,319 random steps beside its own class, all identical",
    composes_ahead=True,  # `VllmConfig` turns asynchronous scheduling on
    transfers_cache=True,
    must_hold_longest=True,
    step_law=StepLawFacts(
        name="vllm",
        table_names=("vllm",),
        experts={
            "blackwell": {
                "experts.compute_fraction": 0.37,
                "experts.compute_fraction_packed": 0.15,
                "experts.compute_fraction_mxfp4": 0.37,
                "experts.compute_fraction_8bit": 0.32,
                "experts.compute_fraction_blocks": 0.19,
                "experts.compute_fraction_4bit": 0.22,
            },
            "hopper": {
                "experts.compute_fraction": 0.42,
                "experts.compute_fraction_packed": 0.22,
                "experts.compute_fraction_mxfp4": 0.30,
                "experts.compute_fraction_8bit": 0.34,
                "experts.compute_fraction_blocks": 0.23,
                "experts.compute_fraction_4bit": 0.20,
            },
        },
        # Experts in eight-bit blocks took longer before 0.18, whatever they computed
        # (MiniMax-M2.5, 62 layers: 4 ms a step on H200 by 0.16, 2.5 ms on B200 by 0.17).
        earlier=(EarlierSteps(before=(0, 18), added_s={"experts.layer_blocks_s": 35e-6}),),
    ),
)
