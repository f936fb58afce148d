"""Steps of engines that launch every layer by itself, and products whose weights are widened."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.factors import coefficients_for, plan_coefficients
from servetune.perf.roofline.run_formulas import RunPoint
from servetune.perf.roofline.step import step_law
from servetune.plan import Plan
from servetune.workload import LengthLaws


def served(
    model: str, gpu: str, count: int, users: int, prompt: int, answer: int, **plan: object
) -> RunPoint:
    run = PlannedRun(
        shape=load_shape(model, catalogue_first=True),
        node=node(gpu=gpu, count=count),
        plan=Plan(model=model, tensor_parallel=count, **plan),
        lengths=LengthLaws.fixed(prompt, answer),
        concurrency=users,
        request_count=4 * users,
    )
    return predict_runs([run])[0].point


@pytest.mark.parametrize(
    ("model", "gpu", "count", "users", "prompt", "measured_ms"),
    [
        ("deepseek-ai/DeepSeek-V2-Lite", "RTX 5090", 2, 1, 64, 40.3),
        ("deepseek-ai/DeepSeek-V2-Lite", "RTX 5090", 2, 8, 64, 42.4),
        ("Qwen/Qwen3-14B-AWQ", "A100", 1, 1, 16000, 20.6),
    ],
)
def test_eager_vllm_is_as_slow_as_was_published(
    model: str, gpu: str, count: int, users: int, prompt: int, measured_ms: float
) -> None:
    """Published in openinfer's issue 279 and Qwen3's 1536; compiled layers take half as long."""
    eager = served(model, gpu, count, users, prompt, 64, enforce_eager=True)
    assert eager.tpot_ms == pytest.approx(measured_ms, rel=0.12)
    compiled = served(model, gpu, count, users, prompt, 64)
    assert compiled.tpot_ms < 0.65 * eager.tpot_ms


def test_large_networks_hide_their_launches_behind_the_products() -> None:
    """Qwen3-32B on one A100, four users: 79 tokens/s were published of eager vLLM (0.19)."""
    eager = served("Qwen/Qwen3-32B", "A100", 1, 4, 512, 256, enforce_eager=True)
    compiled = served("Qwen/Qwen3-32B", "A100", 1, 4, 512, 256)
    assert eager.tpot_ms == pytest.approx(compiled.tpot_ms, rel=0.03)


def test_a_processor_launches_nothing() -> None:
    cpu = node(gpu="CPU").device
    plan = Plan(model="m", enforce_eager=True)
    assert plan_coefficients(cpu, plan) == coefficients_for(cpu)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-14B-FP8", "Qwen/Qwen3-14B-AWQ"])
def test_weights_of_few_bits_serve_long_batches_no_faster_on_a100(model: str) -> None:
    """Published: 0.85 and 0.95 of 16 bits' rate with a thousand requests at once (vLLM 0.11)."""
    plain = served("Qwen/Qwen3-14B", "A100", 1, 256, 1024, 128)
    narrow = served(model, "A100", 1, 256, 1024, 128)
    assert narrow.output_tokens_per_s < plain.output_tokens_per_s
    few = served(model, "A100", 1, 1, 1024, 128)
    assert few.tpot_ms < 0.75 * served("Qwen/Qwen3-14B", "A100", 1, 1, 1024, 128).tpot_ms


def test_boards_that_multiply_more_slowly_widen_beside_it() -> None:
    plain = served("Qwen/Qwen3-8B", "RTX 3090", 1, 32, 2048, 8)
    narrow = served("Qwen/Qwen3-8B-AWQ", "RTX 3090", 1, 32, 2048, 8)
    assert narrow.ttft_ms == pytest.approx(plain.ttft_ms, rel=0.1)


def test_text_generation_inference_captures_graphs_from_2_0_on_unless_told_not_to() -> None:
    """Its launcher's `--cuda-graphs` is 1,2,4,8,16,32 by default, and 0 captures none."""

    def tpot_ms(users: int, release: str | None, **plan: object) -> float:
        told = {"engine": "tgi", "engine_version": release, "max_num_seqs": 128, **plan}
        name = "meta-llama/Llama-3.1-8B-Instruct"
        return served(name, "H100", 1, users, 512, 128, max_model_len=2048, **told).tpot_ms

    eager = tpot_ms(8, "1.4")
    assert tpot_ms(8, "2.0") == tpot_ms(8, "3.3") < 0.75 * eager
    assert tpot_ms(8, "3.3", enforce_eager=True) == tpot_ms(8, None) == eager
    assert coefficients_for(node(gpu="H100").device, "tgi", "3.3").launch.captured_sequences == 32
    # "Bitsandbytes doesn't work with cuda graphs"
    stored = tpot_ms(8, "3.3", quantization="bitsandbytes")
    assert stored == tpot_ms(8, "1.4", quantization="bitsandbytes")


def test_hosts_of_hopper_are_quicker_than_those_that_the_engine_was_measured_on() -> None:
    old, new = (coefficients_for(node(gpu=gpu).device, "tgi", "1.4") for gpu in ("A100", "H100"))
    assert new.host.sequence_s == pytest.approx(0.7 * old.host.sequence_s)
    assert new.launch.layer_s == pytest.approx(0.7 * old.launch.layer_s)


@pytest.mark.parametrize("release", ["2.0", "2.3", "3.0.0"])
def test_experts_of_text_generation_inference_are_grouped_from_2_0_on(release: str) -> None:
    """Its releases of 1.x multiply all tokens by every expert in steps of up to 256 of them."""

    def step_s(tokens: int, version: str) -> float:
        plan = Plan(model="m", engine="tgi", engine_version=version, tensor_parallel=8)
        law = step_law(
            plan,
            load_shape("deepseek-ai/DeepSeek-V3", catalogue_first=True),
            node(gpu="H200", count=8),
        )
        return law.seconds(tokens, tokens**2 / 2, 1, 0, 0)

    assert step_s(257, release) == pytest.approx(step_s(256, release), rel=0.01)
    assert step_s(257, "1.4") < 0.7 * step_s(256, "1.4")
    own = coefficients_for(node(gpu="H200").device, "tgi", release).experts
    assert own.every_expert_tokens == 0
    assert (
        own.compute_fraction
        < 0.7 * coefficients_for(node(gpu="H200").device, "tgi").experts.compute_fraction
    )


def test_a_prompt_costs_the_host_the_same_on_any_silicon() -> None:
    """Many short prompts are the host's work, which a smaller device does not make less."""
    small, large = (served("Qwen/Qwen3-0.6B", gpu, 1, 64, 16, 1) for gpu in ("L40S", "H100"))
    assert large.ttft_ms < small.ttft_ms
    hosts = [coefficients_for(node(gpu=gpu).device).host for gpu in ("L40S", "H100", "A100")]
    assert len({(host.prompt_s, host.prompt_token_s) for host in hosts}) == 1


def warmed(model: str, gpu: str, prompt: int, **plan: object) -> RunPoint:
    """One user's run after others have compiled what it needs."""
    run = PlannedRun(
        shape=load_shape(model, catalogue_first=True),
        node=node(gpu=gpu),
        plan=Plan(model=model, **plan),
        lengths=LengthLaws.fixed(prompt, 64),
        concurrency=1,
        request_count=10,
        warmed=True,
    )
    return predict_runs([run])[0].point


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_layers_that_go_through_prompts_in_chunks_are_launched_one_after_another(
    engine: str,
) -> None:
    """Eighteen of Qwen3.5-0.8B's layers, whatever the length of a short prompt."""
    short, longer = (
        warmed("Qwen/Qwen3.5-0.8B", "H100", tokens, engine=engine) for tokens in (64, 512)
    )
    assert short.ttft_ms > 18 * 1.5
    assert longer.ttft_ms < 1.1 * short.ttft_ms
    assert short.tpot_ms < 5
    dense = warmed("Qwen/Qwen3-0.6B", "H100", 64, engine=engine)
    assert dense.ttft_ms < short.ttft_ms - 10


def test_a_short_prompt_of_a_hybrid_comes_as_was_measured() -> None:
    """GB10 under vLLM 0.26."""
    point = warmed("Qwen/Qwen3.5-0.8B", "GB10", 232, engine_version="0.26.0")
    assert point.ttft_ms == pytest.approx(36.4, rel=0.15)


def test_long_prompts_hide_the_launches_of_their_chunks() -> None:
    """The device takes longer than eighteen layers to launch."""
    shape = load_shape("Qwen/Qwen3.5-0.8B", catalogue_first=True)
    law = step_law(Plan(model=shape.name), shape, node(gpu="GB10"))
    launch = msgspec.structs.replace(law.coefficients.launch, chunked_s=0.0)
    silent = msgspec.structs.replace(law.coefficients, launch=launch)
    without = step_law(Plan(model=shape.name), shape, node(gpu="GB10"), silent)
    whole, short = ((tokens, tokens**2 / 2, 1, 0, 0) for tokens in (8000, 64))
    assert law.seconds(*whole) == without.seconds(*whole)
    assert law.seconds(*short) > without.seconds(*short) + 5e-3


def test_convolutions_of_a_few_taps_are_no_chunks() -> None:
    """LFM2.5's first tokens come after 19 ms on H100 (SGLang's cookbook), sixteen layers."""
    point = warmed("LiquidAI/LFM2.5-1.2B-Instruct", "H100", 1024, engine="sglang")
    assert point.ttft_ms < 25
