"""What the roofline promises of every step law, whatever its coefficients."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from servetune.hardware import node
from servetune.hardware.device import Device, Link, Node
from servetune.models import load_shape
from servetune.models.shape import Attention, DenseFeedForward, Layer, NetworkShape
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.operations import Step, operations
from servetune.perf.roofline.steady_state import SteadyState, length_moments
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.roofline.tables import COEFFICIENTS
from servetune.plan.plan import Plan
from servetune.workload.lengths import SHAREGPT, LengthLaws

QWEN3_4B = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
NODE = node(gpu="L4", count=4)
L4, PCIE4 = NODE.device, NODE.link


def law(
    device: Device = L4, *, link: Link = PCIE4, shape: NetworkShape = QWEN3_4B, **fields: object
) -> StepLaw:
    node = Node(name="n", device=device, device_count=8, link=link)
    plan = Plan(model="m", max_num_seqs=256, max_num_batched_tokens=8192, **fields)  # type: ignore[arg-type]
    return step_law(plan, shape, node)


def prompt(tokens: int) -> Step:
    return Step(prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) / 2, prefill_sequences=1)


def decode(sequences: int, context: int = 500) -> Step:
    return Step(decode_sequences=sequences, decode_context_tokens=sequences * context)


STEPS = [
    decode(1),
    decode(64),
    decode(256, 3000),
    prompt(32),
    prompt(8000),
    Step(2000, 2e6, 3, 60, 60_000.0),
]


def scaled(field: str, factor: float) -> Device:
    return msgspec.structs.replace(L4, **{field: getattr(L4, field) * factor})


@pytest.mark.parametrize("devices", [1, 4])
def test_decode_of_one_sequence_is_bound_by_memory_bandwidth(devices: int) -> None:
    step = decode(1)
    usual = law(tensor_parallel=devices)(step)
    assert law(scaled("bf16_flops", 2), tensor_parallel=devices)(step) == usual
    assert law(scaled("memory_bytes_per_s", 2), tensor_parallel=devices)(step) < 0.75 * usual


def test_a_long_prompt_is_bound_by_compute() -> None:
    step = prompt(8000)
    usual = law()(step)
    # The board's power binds: without more of it a faster unit gains nothing.
    faster = scaled("bf16_flops", 2)
    assert law(faster)(step) == pytest.approx(usual, rel=0.1)
    assert law(msgspec.structs.replace(faster, tdp_watts=2 * 72))(step) < 0.6 * usual
    assert law(scaled("memory_bytes_per_s", 2))(step) > 0.9 * usual


def test_intensity_of_decode_is_one_flop_per_byte_and_of_prefill_above_the_ridge() -> None:
    ops = operations(Plan(model="m"), QWEN3_4B)
    ridge = L4.bf16_flops / L4.memory_bytes_per_s
    one, many = decode(1, 1), prompt(2048)
    assert ops.flops(one) / ops.moved_bytes(one) == pytest.approx(1, rel=0.02)
    assert ops.flops(many) / ops.moved_bytes(many) > ridge


@pytest.mark.parametrize("field", ["memory_bytes_per_s", "bf16_flops"])
@pytest.mark.parametrize("step", STEPS)
def test_better_silicon_is_never_slower(field: str, step: Step) -> None:
    times = [law(scaled(field, factor), tensor_parallel=2)(step) for factor in (0.5, 1, 2, 8)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("step", STEPS)
def test_a_faster_link_is_never_slower(step: Step) -> None:
    times = []
    for rate in (8e9, 16e9, 64e9, 300e9, 900e9):
        link = Link(name="l", bytes_per_s=rate, peer_to_peer=True)
        times.append(law(link=link, tensor_parallel=2)(step))
    assert times == sorted(times, reverse=True)


def test_no_step_beats_the_roof_of_the_datasheet() -> None:
    ops = operations(Plan(model="m"), QWEN3_4B)
    for step in STEPS:
        roof_s = max(ops.flops(step) / L4.bf16_flops, ops.moved_bytes(step) / L4.memory_bytes_per_s)
        assert law()(step) > roof_s


@pytest.mark.parametrize("eager", [False, True])
def test_more_tokens_never_take_less_time(eager: bool) -> None:
    of = law(enforce_eager=eager, tensor_parallel=4)
    sizes = [1, 2, 7, 64, 255, 256, 257, 511, 512, 513, 2048, 8192]
    for steps in ([decode(n) for n in sizes], [prompt(n) for n in sizes]):
        times = [of(step) for step in steps]
        assert times == sorted(times)
    contexts = [of(decode(32, context)) for context in (1, 10, 100, 1000, 10_000)]
    assert contexts == sorted(contexts)


def test_a_larger_batch_takes_less_time_per_token() -> None:
    of = law()
    per_token = [of(decode(n)) / n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert per_token == sorted(per_token, reverse=True)


def test_a_run_of_decode_steps_equals_the_steps_one_by_one() -> None:
    windowed = msgspec.structs.replace(
        QWEN3_4B,
        layers=tuple(
            Layer(
                count=18,
                mixer=Attention(heads=32, kv_heads=8, head_dim=128, window=window),
                feed_forward=DenseFeedForward(inner=9728),
            )
            for window in (None, 600)
        ),
    )
    of = law(shape=windowed)
    run_s = of.decode_run_s(7, 4000, 50)
    single_s = [of(Step(decode_sequences=7, decode_context_tokens=4000 + 7 * i)) for i in range(50)]
    assert list(run_s) == pytest.approx(single_s, rel=1e-12)


def test_one_device_spends_nothing_on_agreement_and_four_do() -> None:
    assert law(tensor_parallel=1).agreement_s(decode(64)) == 0.0
    assert law(tensor_parallel=4).agreement_s(decode(64)) > 0.0


def test_the_link_does_not_matter_to_one_device() -> None:
    slow = Link(name="slow", bytes_per_s=1e9, peer_to_peer=False)
    for step in STEPS:
        assert law(link=slow)(step) == law()(step)


def test_eager_steps_are_never_faster_than_captured_ones() -> None:
    for step in STEPS:
        assert law(enforce_eager=True)(step) >= law(enforce_eager=False)(step)
    assert law(enforce_eager=True, tensor_parallel=4)(decode(1)) == pytest.approx(
        law(enforce_eager=False, tensor_parallel=4)(decode(1)), rel=0.7
    )


def test_an_empty_step_takes_no_time() -> None:
    assert law()(Step()) == 0.0


def test_fp8_weights_speed_up_decode_by_less_than_two() -> None:
    plain, narrow = law()(decode(1)), law(quantization="fp8")(decode(1))
    assert 1.2 < plain / narrow < 2.0


def test_coefficients_are_physical_and_unseen_silicon_has_some() -> None:
    for name, known in COEFFICIENTS.items():
        for field in msgspec.structs.fields(known):
            value = getattr(known, field.name)
            if field.name.endswith("_fraction") or "_fraction_" in field.name:
                assert 0 < value <= 1, (name, field.name)
    spelt = coefficients_for(msgspec.structs.replace(L4, architecture="Ada Lovelace"))
    assert spelt == coefficients_for(L4)
    unseen = coefficients_for(msgspec.structs.replace(L4, architecture="tsunami"))
    assert unseen.name.startswith("vllm/unseen/")


def steady(lengths: object, *, kv_tokens: float = 4e5, seqs: int = 256) -> SteadyState:
    plan = Plan(model="m", tensor_parallel=4, max_num_seqs=seqs, max_num_batched_tokens=8192)
    moments = length_moments(lengths)  # type: ignore[arg-type]
    return SteadyState(step_law(plan, QWEN3_4B, NODE), plan, kv_tokens, moments)


@pytest.mark.parametrize(
    "lengths",
    [SHAREGPT, LengthLaws.fixed(1024, 512), LengthLaws.fixed(64, 1), LengthLaws.fixed(6000, 20)],
)
def test_the_steady_state_obeys_littles_law(lengths: object) -> None:
    for concurrency in (1, 4, 32, 300, 2000):
        point = steady(lengths).at(concurrency)
        close = 0.02 if point.queued else 1e-6  # the balance is solved, not nearly so
        assert point.requests_per_s * point.e2e_ms / 1000 == pytest.approx(concurrency, rel=close)


def test_throughput_rises_to_a_plateau_and_latency_only_rises() -> None:
    points = [steady(SHAREGPT).at(1 << power) for power in range(11)]
    for before, after in itertools.pairwise(points):
        assert after.e2e_ms >= before.e2e_ms
        assert after.output_tokens_per_s >= before.output_tokens_per_s * 0.97
    assert points[-1].queued
    assert not points[0].queued


def test_a_smaller_cache_or_fewer_sequences_never_serve_more() -> None:
    for concurrency in (16, 128, 512):
        usual = steady(SHAREGPT).at(concurrency).output_tokens_per_s
        assert steady(SHAREGPT, kv_tokens=5000).at(concurrency).output_tokens_per_s <= usual
        assert steady(SHAREGPT, seqs=8).at(concurrency).output_tokens_per_s <= usual


def test_alone_a_request_takes_its_prompt_and_its_decode_steps() -> None:
    point = steady(LengthLaws.fixed(1000, 101)).at(1)
    of = law(tensor_parallel=4)
    coefficients = coefficients_for(L4)
    way_in_s = coefficients.host.request_s + 1000 * coefficients.host.prompt_token_s
    assert point.ttft_ms == pytest.approx(1e3 * (way_in_s + of(prompt(1000))))
    assert point.itl_ms == pytest.approx(1e3 * of(decode(1, 1051)))
    assert point.e2e_ms == pytest.approx(point.ttft_ms + 100 * point.itl_ms)
