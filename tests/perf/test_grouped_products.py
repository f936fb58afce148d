"""What grouped products of experts reach depends on how weights are stored and how they are cut."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import device, node
from servetune.models import load_shape
from servetune.perf.roofline import (
    PlannedRun,
    Step,
    coefficients_for,
    operations,
    predict_runs,
)
from servetune.perf.roofline.coefficients import Coefficients, changed, value_at
from servetune.perf.roofline.step import StepLaw
from servetune.perf.roofline.tables import table_for
from servetune.plan import Plan
from servetune.workload import LengthLaws

PROMPTS = Step(prefill_tokens=8192, prefill_pairs=8192 * 4096, prefill_sequences=1)


def experts_s(
    model: str, gpu: str, step: Step = PROMPTS, c: Coefficients | None = None, **fields: object
) -> float:
    """Seconds of all layers of experts on one device."""
    shape = load_shape(model, catalogue_first=True)
    plan = Plan(model=model, **fields)  # type: ignore[arg-type]
    machine = node(gpu=gpu, count=plan.device_count)
    law = StepLaw(
        operations(plan, shape), machine, plan, c or coefficients_for(machine.device, plan.engine)
    )
    return sum(s for part, s in law.device_parts_s(step) if part in law.ops.experts)


def test_narrow_slices_of_experts_reach_less_of_the_peak() -> None:
    """Eight devices are less than eight times as fast, as each holds few columns."""
    c = table_for(device("H200"))
    c = changed(c, {"experts.layer_s": 0.0, "experts.layer_blocks_s": 0.0})
    one, eight = (
        experts_s("deepseek-ai/DeepSeek-V3", "H200", c=c, tensor_parallel=ways) for ways in (1, 8)
    )
    columns = 2048
    assert one / eight == pytest.approx(
        8 * (1 + 128 / columns) / (1 + 128 / (columns / 8)), rel=1e-6
    )


def test_experts_kept_whole_keep_their_columns() -> None:
    shape = load_shape("deepseek-ai/DeepSeek-V3", catalogue_first=True)
    (split,), (whole,) = (
        operations(Plan(model=shape.name, tensor_parallel=8, expert_parallel=spread), shape).experts
        for spread in (False, True)
    )
    assert (split.columns, whole.columns) == (256, 2048)


@pytest.mark.parametrize(
    ("model", "gpu", "storage", "kind"),
    [
        ("Qwen/Qwen3-30B-A3B", "B200", None, ""),
        ("Qwen/Qwen3-30B-A3B", "B200", "fp8", "_8bit"),
        ("Qwen/Qwen3-30B-A3B", "B200", "fp8_block", "_blocks"),
        ("Qwen/Qwen3-30B-A3B", "B200", "nvfp4", "_4bit"),
        ("Qwen/Qwen3-30B-A3B", "B200", "awq", "_packed"),
        ("openai/gpt-oss-120b", "B200", None, "_mxfp4"),
        ("Qwen/Qwen3-30B-A3B", "A100", "nvfp4", "_packed"),  # no such unit: widened first
        ("Qwen/Qwen3-30B-A3B", "H100", "nvfp4", "_packed"),
        ("Qwen/Qwen3-30B-A3B", "MI355X", "nvfp4", "_packed"),  # its fp4 unit takes MXFP4
        ("openai/gpt-oss-120b", "MI355X", None, "_mxfp4"),
        ("Qwen/Qwen3-30B-A3B", "Gaudi 3", "fp8", ""),  # a unit, no faster than that for 16 bits
    ],
)
def test_each_storage_has_kernels_of_its_own(
    model: str, gpu: str, storage: str | None, kind: str
) -> None:
    base = coefficients_for(device(gpu))
    slowed = []
    for each in ("", "_packed", "_mxfp4", "_8bit", "_blocks", "_4bit"):
        path = f"experts.compute_fraction{each}"
        slow = changed(base, {path: value_at(base, path) / 2})
        took = [experts_s(model, gpu, c=c, quantization=storage) for c in (base, slow)]
        if took[1] > took[0]:
            slowed.append(each)
    assert slowed == [kind]


def test_rows_that_fill_tiles_cost_more_than_their_share() -> None:
    """512 rows in eight bits take more than a sixteenth of the time of 8,192."""
    shape, machine = load_shape("Qwen/Qwen3-32B", catalogue_first=True), node(gpu="H100", count=1)
    plan = Plan(model=shape.name, quantization="fp8")
    law = StepLaw(operations(plan, shape), machine, plan, coefficients_for(machine.device))

    def matrices_s(tokens: int) -> float:
        parts = law.device_parts_s(Step(prefill_tokens=tokens, prefill_sequences=1))
        return sum(s for part, s in parts if part in law.ops.matrices)

    each = [matrices_s(tokens) / tokens for tokens in (512, 1024, 2048, 8192)]
    assert each == sorted(each, reverse=True)
    assert 1.15 < each[0] / each[3] < 1.45  # 0.43 and 0.57 of the peak in tables


def test_fp8_caches_are_read_more_slowly_on_hopper_alone() -> None:
    shape = load_shape("Qwen/Qwen3-32B", catalogue_first=True)
    gained = {}
    for gpu in ("H200", "B200", "A100", "L40S"):
        machine = node(gpu=gpu, count=1)
        took = []
        for cache in (None, "fp8"):
            plan = Plan(model=shape.name, kv_cache_dtype=cache)
            law = StepLaw(operations(plan, shape), machine, plan, coefficients_for(machine.device))
            read = Step(decode_sequences=64, decode_context_tokens=64 * 20_000)
            none = Step(decode_sequences=64)
            took.append(law(read) - law(none))
        gained[gpu] = took[0] / took[1]
    for gpu in ("B200", "A100", "L40S"):
        assert gained[gpu] == pytest.approx(2, rel=1e-3)
    assert 1.2 < gained["H200"] < 1.6


def test_four_bits_of_b300_reach_what_those_of_b200_do() -> None:
    rates = {}
    for gpu in ("B200", "B300"):
        part = device(gpu)
        assert part.fp4_flops is not None
        rates[gpu] = part.fp4_flops * coefficients_for(part).gemm.compute_fraction_4bit
    assert 1.0 < rates["B300"] / rates["B200"] < 1.15
    ultra, usual, consumer = (coefficients_for(device(n)) for n in ("B300", "B200", "RTX 5090"))
    assert ultra.experts.compute_fraction_8bit == usual.experts.compute_fraction_8bit
    # RTX PRO 6000's tables: padded no more than on a B200, read at more of the memory's rate.
    assert consumer.experts.extra_rows < usual.experts.extra_rows
    assert consumer.experts.memory_fraction > usual.experts.memory_fraction


def test_an_earlier_release_has_what_is_known_of_it() -> None:
    """TensorRT-LLM 1.0 launched every layer from the host, vLLM before 0.18 had slower blocks."""
    hopper = device("H200")
    present = coefficients_for(hopper, "trtllm")
    earlier = coefficients_for(hopper, "trtllm", "1.0.0rc3")
    assert earlier.launch.layer_s > 2 * present.launch.layer_s
    ours = coefficients_for(hopper)
    for version in ("0.16.0", "v0.9.2"):
        then = coefficients_for(hopper, "vllm", version)
        assert then.experts.layer_blocks_s > ours.experts.layer_blocks_s
    for engine, version in (
        ("trtllm", "1.1.0rc2.post2"),
        ("vllm", "0.18.0"),
        ("vllm", "0.32.0"),
        ("vllm", "nightly-5b8c30d62b754b57"),
        ("vllm", "0.1.dev17893+g5b8c30d"),
        ("sglang", "0.5.11"),
    ):
        assert coefficients_for(hopper, engine, version) == coefficients_for(hopper, engine)


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "apart"),
    [
        ("vllm", "0.10.1", "H200", "DeepSeek-V3 GLM-4.5-Air GLM-4.6 Kimi-K2-Instruct"),
        ("vllm", "0.10.2", "H200", ""),
        ("vllm", "", "MI300X", "DeepSeek-V3 GLM-4.5-Air GLM-4.6 Kimi-K2-Instruct"),
        ("sglang", "0.4.5", "H200", "DeepSeek-V3 GLM-4.5-Air GLM-4.6 Kimi-K2-Instruct"),
        ("sglang", "0.4.7", "MI300X", "DeepSeek-V3 GLM-4.5-Air GLM-4.6 Kimi-K2-Instruct"),
        ("sglang", "0.5.10", "H200", "GLM-4.5-Air GLM-4.6"),
        ("sglang", "", "H200", "GLM-4.6"),
        ("sglang", "0.5.7", "MI300X", ""),
        ("trtllm", "", "H200", ""),
    ],
)
def test_routers_without_a_kernel_of_their_own_take_longer(
    engine: str, version: str, gpu: str, apart: str
) -> None:
    """256 experts in eight groups, 128, 160 and 384 in one; Qwen3's choose without a bias."""
    one_user = Step(decode_context_tokens=1000, decode_sequences=1)
    c = coefficients_for(device(gpu), engine, version)
    plain = changed(c, {"experts.router_s": 0.0})
    further_s = {
        name.rpartition("/")[2]: experts_s(name, gpu, one_user, c, tensor_parallel=8)
        - experts_s(name, gpu, one_user, plain, tensor_parallel=8)
        for name in (
            "deepseek-ai/DeepSeek-V3",
            "zai-org/GLM-4.5-Air",
            "zai-org/GLM-4.6",
            "moonshotai/Kimi-K2-Instruct",
            "Qwen/Qwen3-30B-A3B",
        )
    }
    assert [name for name, seconds in further_s.items() if seconds] == apart.split()
    assert further_s["GLM-4.6"] == pytest.approx(89 * 40e-6 * bool(apart), abs=1e-9)


def test_many_plans_at_once_have_the_same_routers() -> None:
    """Bulk predictions beside single ones, where routers have kernels and where not."""
    networks = ("deepseek-ai/DeepSeek-V3", "zai-org/GLM-4.6", "Qwen/Qwen3-30B-A3B")
    runs = [
        PlannedRun(
            shape=load_shape(name, catalogue_first=True),
            node=node(gpu="H200", count=8),
            plan=Plan(model=name, engine="vllm", tensor_parallel=ways),
            lengths=LengthLaws.fixed(512, 64),
            concurrency=1,
            request_count=1,
            engine_version=version,
        )
        for name in networks
        for ways in (4, 8)
        for version in ("0.10.1", "0.11.0")
    ]
    for run, found in zip(runs, predict_runs(runs), strict=True):
        (alone,) = predict_runs([run])
        assert found.point.tpot_ms == pytest.approx(alone.point.tpot_ms, rel=1e-12)
        law = coefficients_for(run.node.device, "vllm", run.engine_version)
        further = 1e3 * sum(
            op.count * law.experts.router_s
            for op in operations(run.plan, run.shape).experts
            if op.router_group_experts > law.experts.fused_group_experts
        )
        plain = msgspec.structs.replace(run, engine_version="0.11.0")
        (fused,) = predict_runs([plain])
        assert found.point.tpot_ms - fused.point.tpot_ms == pytest.approx(further, abs=1e-6)


def test_blocks_take_longer_on_mi300x_under_sglang_alone() -> None:
    sglang, vllm = (coefficients_for(device("MI300X"), name) for name in ("sglang", "vllm"))
    assert sglang.gemm.kernel_blocks_s > 2 * vllm.gemm.kernel_blocks_s
    assert sglang.experts.layer_blocks_s > 2 * vllm.experts.layer_blocks_s
    other = coefficients_for(device("MI355X"), "sglang")
    assert other.experts.layer_blocks_s < 0.5 * sglang.experts.layer_blocks_s
