"""Where a step's time goes adds up to the step, whatever the network."""

from __future__ import annotations

import pytest

from servetune.engines import resolved
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline import Step, breakdown, step_law
from servetune.plan import Plan

PREFILL = Step(prefill_tokens=2048, prefill_pairs=2048 * 2049 / 2, prefill_sequences=1)
DECODE = Step(decode_sequences=32, decode_context_tokens=32 * 1500.0)
NETWORKS = (
    ("Qwen/Qwen3-8B", 1, {}),
    ("Qwen/Qwen3-30B-A3B", 2, {}),
    ("deepseek-ai/DeepSeek-V3", 8, {"expert_parallel": True}),
    ("zai-org/GLM-5", 8, {}),
    ("google/gemma-3-12b-it", 2, {"enforce_eager": True}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, {}),
)


def parts_of(model, ways, chosen, step, gpu="H100"):
    shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=ways)
    plan = resolved(Plan(model=model, tensor_parallel=ways, **chosen), shape, machine.device)
    law = step_law(plan, shape, machine)
    return law, breakdown(law, step, machine.device)


@pytest.mark.parametrize(("model", "ways", "chosen"), NETWORKS)
@pytest.mark.parametrize("step", [PREFILL, DECODE])
def test_parts_sum_to_the_step(model, ways, chosen, step):
    law, parts = parts_of(model, ways, chosen, step)
    assert sum(part.time_ms for part in parts) == pytest.approx(1000 * law(step), rel=1e-9)
    assert sum(part.share_fraction for part in parts) == pytest.approx(1, rel=1e-9)
    assert sum(part.flops for part in parts) == pytest.approx(law.ops.flops(step), rel=1e-9)


@pytest.mark.parametrize(("model", "ways", "chosen"), NETWORKS[:4])
def test_what_is_left_beside_the_device_is_the_engine(model, ways, chosen):
    law, parts = parts_of(model, ways, chosen, DECODE)
    engine = next(part for part in parts if part.kind == "engine")
    c = law.coefficients
    captured = DECODE.tokens <= c.launch.captured_tokens
    assert captured
    assert engine.time_ms / 1000 == pytest.approx(c.host.step_s + 32 * c.host.sequence_s, rel=1e-6)


def test_prefill_multiplies_and_decode_reads():
    _, prefill = parts_of("Qwen/Qwen3-8B", 1, {}, PREFILL)
    _, decode = parts_of("Qwen/Qwen3-8B", 1, {}, DECODE)
    largest = {
        name: next(p for p in ps if p.kind == "matrices")
        for name, ps in (("prefill", prefill), ("decode", decode))
    }
    assert largest["prefill"].side == "compute"
    assert largest["decode"].side == "memory"
    assert all(p.side == "memory" for p in decode if p.kind == "attention")


def test_no_operation_is_above_the_roof():
    for step in (PREFILL, DECODE):
        _, parts = parts_of("Qwen/Qwen3-30B-A3B", 2, {}, step)
        device = node(gpu="H100", count=2).device
        for part in parts:
            if part.flops_per_byte is None or part.flops_per_s is None:
                continue
            roof = min(
                device.peak_flops(part.math_dtype),
                device.memory_bytes_per_s * part.flops_per_byte,
            )
            assert part.flops_per_s <= 1.001 * roof, part.name


def test_agreement_is_a_part_only_where_devices_share_matrices():
    _, alone = parts_of("Qwen/Qwen3-8B", 1, {}, DECODE)
    _, shared = parts_of("Qwen/Qwen3-8B", 4, {}, DECODE, gpu="L4")
    assert not [p for p in alone if p.kind == "agreement"]
    assert next(p for p in shared if p.kind == "agreement").side == "link"
