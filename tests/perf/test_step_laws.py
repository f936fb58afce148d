"""Many laws side by side say what each of them says alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline.coefficients import changed
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.operations import Step, operations
from servetune.perf.roofline.step import StepLaw
from servetune.perf.roofline.step_laws import PlanBatch, StepLaws, columns_of
from servetune.plan.plan import Plan

PLANS = (
    ("Qwen/Qwen3-4B", "L4", {"tensor_parallel": 4}),
    ("Qwen/Qwen3-4B", "H100", {"enforce_eager": True}),
    ("Qwen/Qwen3-4B", "A100", {"tensor_parallel": 2, "pipeline_parallel": 2}),
    ("Qwen/Qwen3-32B", "H200", {"tensor_parallel": 2, "quantization": "fp8"}),
    ("Qwen/Qwen3-32B", "B200", {"quantization": "nvfp4", "engine": "sglang"}),
    ("openai/gpt-oss-120b", "H200", {"tensor_parallel": 4}),
    ("deepseek-ai/DeepSeek-V3", "B200", {"data_parallel": 8, "expert_parallel": True}),
    ("deepseek-ai/DeepSeek-V3", "H200", {"tensor_parallel": 8, "kv_cache_dtype": "fp8"}),
    ("deepseek-ai/DeepSeek-V3", "A100", {"tensor_parallel": 8}),
    ("Qwen/Qwen3-4B", "A100", {"kv_cache_dtype": "fp8"}),
    ("Qwen/Qwen3-4B", "MI250", {"max_model_len": 5000}),
    ("Qwen/Qwen3-30B-A3B", "H100", {"quantization": "nvfp4"}),
    ("Qwen/Qwen3-30B-A3B", "Gaudi 3", {"quantization": "fp8"}),
    ("deepseek-ai/DeepSeek-V3", "B300", {"tensor_parallel": 4, "quantization": "nvfp4"}),
    ("Qwen/Qwen3-30B-A3B", "B200", {"quantization": "fp8"}),
    ("Qwen/Qwen3-30B-A3B", "L40S", {"quantization": "awq"}),
    ("openai/gpt-oss-120b", "B200", {"engine": "sglang"}),
    ("zai-org/GLM-5", "B200", {"tensor_parallel": 8, "engine": "sglang"}),
    ("Qwen/Qwen3.5-27B", "H100", {"tensor_parallel": 2}),
    ("MiniMaxAI/MiniMax-M2.5", "H200", {"tensor_parallel": 4}),
    ("Qwen/Qwen3-32B", "H100", {"tensor_parallel": 2, "draft_tokens": 3}),
    ("Qwen/Qwen3-4B", "H100", {"draft_tokens": 2, "draft_method": "ngram"}),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "H200", {}),
    ("Qwen/Qwen3-4B", "B200", {"engine": "sglang", "draft_tokens": 2, "draft_method": "ngram"}),
    ("Qwen/Qwen3-4B", "B200", {"extra": (("api_server_count", 2),), "data_parallel": 4}),
)
STEPS = (
    Step(decode_sequences=1, decode_context_tokens=700),
    Step(decode_sequences=200, decode_context_tokens=200 * 3000),
    Step(prefill_tokens=100, prefill_pairs=5050, prefill_sequences=1),
    Step(8000, 3.2e7, 1, 60, 60_000.0),
    Step(decode_sequences=600, decode_context_tokens=600 * 1000),
)


#: What only some engines and past releases have.
RARE = {
    "attention.repeated_reads": 0.4,
    "attention.read_once_group": 4,
    "attention.one_pass_heads": 512,
    "attention.one_pass_memory_fraction": 0.2,
    "attention.small_cache_repeated_reads": 0.5,
    "attention.widened_number_s": 7e-12,
    "collective_latency_s": 2e-5,
    "link_factor": 1.3,
}


@pytest.mark.parametrize("changes", [{}, RARE], ids=["present", "rare"])
@pytest.mark.parametrize("step", STEPS)
def test_laws_side_by_side_equal_each_law_alone(
    step: Step, changes: Mapping[str, int | float]
) -> None:
    priced, coefficients, alone = [], [], []
    for model, gpu, fields in PLANS:
        shape = load_shape(model, catalogue_first=True)
        plan = Plan(model=model, **fields)  # type: ignore[arg-type]
        machine = node(gpu=gpu, count=plan.device_count)
        ops = operations(plan, shape)
        chosen = changed(coefficients_for(machine.device, plan.engine), changes)
        priced.append((ops, machine, plan))
        coefficients.append(chosen)
        alone.append(StepLaw(ops, machine, plan, chosen)(step))
    laws = StepLaws(PlanBatch(priced), columns_of(coefficients))
    fields = (
        step.prefill_tokens,
        step.prefill_pairs,
        step.prefill_sequences,
        step.decode_sequences,
        step.decode_context_tokens,
    )
    together = laws.seconds(*(np.full(len(PLANS), float(value)) for value in fields))
    assert list(together) == pytest.approx(alone, rel=1e-9)


def test_a_step_beyond_captured_graphs_waits_for_its_experts_to_be_launched() -> None:
    shape = load_shape("deepseek-ai/DeepSeek-V3", catalogue_first=True)
    machine = node(gpu="B200", count=8)
    plan = Plan(model=shape.name, tensor_parallel=8)
    ops = operations(plan, shape)
    chosen = coefficients_for(machine.device)
    slow = changed(chosen, {"launch.experts_s": chosen.launch.experts_s + 1e-3})
    captured = Step(decode_sequences=256, decode_context_tokens=256 * 1000)
    eager = Step(prefill_tokens=600, prefill_pairs=600 * 300, prefill_sequences=1)
    added = [
        StepLaw(ops, machine, plan, slow)(step) - StepLaw(ops, machine, plan, chosen)(step)
        for step in (captured, eager)
    ]
    assert added[0] == 0
    assert 0 < added[1] <= 58e-3 * 1.001  # 58 of its 61 layers have experts


def test_verifying_drafts_keeps_the_host_busy_for_each_sequence() -> None:
    shape, machine = load_shape("Qwen/Qwen3-32B", catalogue_first=True), node(gpu="H100", count=2)
    chosen = coefficients_for(machine.device)
    busier = changed(chosen, {"host.draft_sequence_s": chosen.host.draft_sequence_s + 1e-4})
    step = Step(decode_sequences=50, decode_context_tokens=50_000)
    added = []
    for drafted in (None, 3):
        plan = Plan(model=shape.name, tensor_parallel=2, draft_tokens=drafted)
        ops = operations(plan, shape)
        laws = [StepLaw(ops, machine, plan, each)(step) for each in (chosen, busier)]
        added.append(laws[1] - laws[0])
    assert added == pytest.approx([0, 50e-4])


@pytest.mark.parametrize("devices", [1, 8])
def test_experts_of_prompts_are_launched_on_top_whatever_the_devices(devices: int) -> None:
    """Hidden where sequences decode alone, and nothing where a graph is captured."""
    shape = load_shape("openai/gpt-oss-120b", catalogue_first=True)
    machine = node(gpu="H200", count=devices)
    plan = Plan(model=shape.name, tensor_parallel=devices)
    ops = operations(plan, shape)
    chosen = coefficients_for(machine.device)
    more = changed(chosen, {"launch.experts_s": chosen.launch.experts_s + 1e-5})

    def added_s(step: Step) -> float:
        slow, plain = (StepLaw(ops, machine, plan, each) for each in (more, chosen))
        return slow(step) - plain(step)

    layers = sum(op.count for op in ops.experts)
    assert added_s(Step(8000, 3.2e7, 1, 60, 60_000.0)) == pytest.approx(layers * 1e-5)
    assert added_s(Step(decode_sequences=60, decode_context_tokens=60_000)) == 0
    long = Step(decode_sequences=600, decode_context_tokens=600 * 500_000)
    assert added_s(long) == 0


def test_slices_of_experts_read_and_write_whole_vectors() -> None:
    """Split over devices a product of experts has its width divided, not its rows."""
    shape = load_shape("openai/gpt-oss-120b", catalogue_first=True)
    (one,), (split,), (whole,) = (
        operations(Plan(model=shape.name, **fields), shape).experts  # type: ignore[arg-type]
        for fields in (
            {},
            {"tensor_parallel": 8},
            {"tensor_parallel": 8, "expert_parallel": True},
        )
    )
    vectors = 2 * one.active * shape.hidden
    inner = one.traffic_per_token - vectors
    assert split.traffic_per_token == pytest.approx(vectors + inner / 8)
    assert whole.traffic_per_token == pytest.approx((vectors + inner) / 8)
