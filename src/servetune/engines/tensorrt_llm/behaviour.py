"""Differences of TensorRT-LLM's scheduler and steps from the operator tables."""

from __future__ import annotations

from servetune.engines.behaviour import Behaviour, EarlierSteps, StepLawFacts

BEHAVIOUR = Behaviour(
    step_law=StepLawFacts(
        name="trtllm",
        table_names=("trtllm", "trt_llm", "trt", "tensorrt_llm", "tensorrt"),
        # It never puts a sequence back: its scheduler policy is GUARANTEED_NO_EVICT unless told
        # otherwise (its documentation of `CapacitySchedulerPolicy`).
        coefficients={"scheduling.whole_answers": True},
        experts={
            "blackwell": {
                "experts.compute_fraction": 0.36,
                "experts.compute_fraction_packed": 0.14,
                "experts.compute_fraction_mxfp4": 0.54,
                "experts.compute_fraction_8bit": 0.25,
                "experts.compute_fraction_blocks": 0.245,
                "experts.compute_fraction_4bit": 0.21,
            },
            "hopper": {
                "experts.compute_fraction": 0.41,
                "experts.compute_fraction_packed": 0.20,
                "experts.compute_fraction_mxfp4": 0.28,
                "experts.compute_fraction_8bit": 0.34,
                "experts.compute_fraction_blocks": 0.195,
                "experts.compute_fraction_4bit": 0.20,
            },
        },
        # 1.0 launches every layer of a step with prompts from the host: it takes 40 ms on four
        # and on eight devices alike, whatever is computed (Qwen3-32B on H100, 64 layers, prompts
        # of 1,024 tokens), some 8 of them outside the layers.
        earlier=(EarlierSteps(before=(1, 1), coefficients={"launch.layer_s": 0.5e-3}),),
    ),
)
