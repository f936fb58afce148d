"""FLOPs and bytes of a step, operation by operation."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from servetune.models import counting, load_shape
from servetune.models.shape import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    Layer,
    NetworkShape,
)
from servetune.perf.roofline.operations import Step, operations
from servetune.plan.plan import Plan

QWEN3_4B = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
EXPERTS = NetworkShape(
    name="experts",
    architecture="Qwen3MoeForCausalLM",
    hidden=2048,
    layers=(
        Layer(
            count=48,
            mixer=Attention(heads=32, kv_heads=4, head_dim=128),
            feed_forward=ExpertFeedForward(experts=128, active=8, inner=768),
        ),
    ),
    vocab=151936,
    tied_embeddings=False,
    max_context_tokens=40960,
)


def plan(**fields: object) -> Plan:
    return Plan(model="m", **fields)  # type: ignore[arg-type]


def test_a_token_costs_two_flops_per_weight_that_it_meets() -> None:
    ops = operations(plan(), QWEN3_4B)
    step = Step(decode_sequences=1, decode_context_tokens=0)
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    matrices = counting.parameter_count(QWEN3_4B) - norms  # tied: the head is the embedding
    assert ops.flops(step) == pytest.approx(2 * matrices, rel=1e-12)


def test_one_decode_step_reads_all_weights_once() -> None:
    ops = operations(plan(), QWEN3_4B)
    weights = sum(op.count * op.weight_bytes for op in ops.matrices)
    assert weights == pytest.approx(counting.weight_bytes(QWEN3_4B), rel=1e-3)  # but for norms


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("MiniMaxAI/MiniMax-M2.5", 62),
        ("allenai/OLMo-2-0325-32B-Instruct", 64),
        ("Qwen/Qwen3-32B", 0),  # a norm of each head
        ("CohereLabs/c4ai-command-r-plus", 0),  # likewise, with a weight for each
    ],
)
def test_devices_exchange_the_variance_of_a_norm_of_all_heads(model: str, layers: int) -> None:
    shape = load_shape(model, catalogue_first=True)
    assert operations(plan(), shape).norm_reduce_count == 0
    split = operations(plan(tensor_parallel=4), shape)
    assert split.norm_reduce_count == layers
    assert split.reduce_count == 1 + sum((1 if x.parallel else 2) * x.count for x in shape.layers)


def test_tensor_parallel_devices_share_flops_and_weights_evenly() -> None:
    step = Step(prefill_tokens=100, prefill_pairs=5050, prefill_sequences=1)
    whole, quarter = operations(plan(), QWEN3_4B), operations(plan(tensor_parallel=4), QWEN3_4B)
    assert quarter.flops(step) * 4 == pytest.approx(whole.flops(step), rel=1e-12)
    assert sum(op.weight_bytes for op in quarter.matrices) * 4 == pytest.approx(
        sum(op.weight_bytes for op in whole.matrices), rel=1e-12
    )


def test_key_value_heads_are_copied_when_there_are_more_devices_than_heads() -> None:
    eight = operations(plan(tensor_parallel=8), QWEN3_4B).attentions[0].cache_bytes_per_key
    sixteen = operations(plan(tensor_parallel=16), QWEN3_4B).attentions[0].cache_bytes_per_key
    assert eight == sixteen == 2 * 128 * 2


def test_the_cache_read_in_decode_is_what_counting_says_it_holds() -> None:
    ops = operations(plan(), QWEN3_4B)
    one = Step(decode_sequences=1, decode_context_tokens=1000)
    two = Step(decode_sequences=1, decode_context_tokens=2000)
    grown = ops.moved_bytes(two) - ops.moved_bytes(one)
    assert grown == pytest.approx(1000 * counting.kv_bytes_per_token(QWEN3_4B))


def test_an_fp8_cache_halves_what_decode_reads() -> None:
    wide = operations(plan(), QWEN3_4B).attentions[0].cache_bytes_per_key
    narrow = operations(plan(kv_cache_dtype="fp8"), QWEN3_4B).attentions[0].cache_bytes_per_key
    assert narrow * 2 == wide


def test_one_token_touches_its_active_experts_and_many_touch_all() -> None:
    experts = operations(plan(), EXPERTS).experts[0]
    assert experts.touched(1) == pytest.approx(8)
    assert experts.touched(16) < 16 * 8
    assert experts.touched(16) == pytest.approx(128 * 16 / (15 + 16))  # 8 of 128: x = 16 / 15
    assert experts.touched(10_000) == pytest.approx(128, rel=0.01)


def test_a_token_that_chooses_every_expert_touches_all() -> None:
    experts = msgspec.structs.replace(operations(plan(), EXPERTS).experts[0], active=128)
    assert experts.touched(1) == pytest.approx(128)
    assert experts.touched(0) == 0


def test_expert_parallelism_moves_whole_experts_and_keeps_the_flops() -> None:
    split = operations(plan(tensor_parallel=4), EXPERTS).experts[0]
    whole = operations(plan(tensor_parallel=4, expert_parallel=True), EXPERTS).experts[0]
    assert whole.local_experts * 4 == split.local_experts == 128
    assert whole.expert_weights == split.expert_weights * 4
    assert whole.flops_per_token == split.flops_per_token


def test_a_window_caps_the_pairs_of_prefill_and_the_keys_of_decode() -> None:
    windowed = NetworkShape(
        name="w",
        architecture="w",
        hidden=256,
        layers=(
            Layer(
                count=2,
                mixer=Attention(heads=4, kv_heads=4, head_dim=64, window=128),
                feed_forward=DenseFeedForward(inner=512),
            ),
        ),
        vocab=1000,
        tied_embeddings=True,
        max_context_tokens=4096,
    )
    attention = operations(plan(), windowed).attentions[0]
    assert attention.pairs(1000, 500_500) == 128_000
    assert attention.pairs(100, 5050) == 5050
    assert attention.keys(3, 3000) == 384


def test_latent_attention_keeps_one_vector_for_all_heads_on_every_device() -> None:
    latent = NetworkShape(
        name="l",
        architecture="DeepseekV3ForCausalLM",
        hidden=7168,
        layers=(
            Layer(
                count=61,
                mixer=LatentAttention(
                    heads=128, kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, q_rank=1536
                ),
                feed_forward=DenseFeedForward(inner=18432),
            ),
        ),
        vocab=129280,
        tied_embeddings=False,
        max_context_tokens=163840,
    )
    for devices in (1, 8):
        ops = operations(plan(tensor_parallel=devices), latent)
        assert ops.attentions[0].cache_bytes_per_key == (512 + 64) * 2
    weights = sum(op.count * op.weight_bytes for op in operations(plan(), latent).matrices)
    embedding = latent.vocab * latent.hidden * 2
    assert weights == pytest.approx(counting.weight_bytes(latent) - embedding, rel=1e-3)


def test_fp8_weights_halve_the_traffic_but_leave_the_head_as_it_was() -> None:
    plain = {op.name: op for op in operations(plan(), QWEN3_4B).matrices}
    narrow = {op.name: op for op in operations(plan(quantization="fp8"), QWEN3_4B).matrices}
    assert narrow["down"].weight_bytes * 2 == plain["down"].weight_bytes
    assert narrow["down"].math_dtype == "fp8"
    assert narrow["head"] == plain["head"]


def test_all_wait_for_the_device_of_whose_experts_most_are_read() -> None:
    (whole,) = operations(plan(tensor_parallel=4, expert_parallel=True), EXPERTS).experts
    (cut,) = operations(plan(tensor_parallel=4), EXPERTS).experts
    assert whole.local_experts == 32
    mean = cut.touched(16) / 4
    assert mean + 2 < whole.touched(16) < mean + 4  # 1.03 of a binomial deviation of 2.8
    assert whole.touched(1e6) == pytest.approx(32)
    assert whole.touched(0) == 0


@pytest.mark.parametrize(
    ("experts", "active", "devices", "tokens"),
    [(8, 2, 8, 1), (16, 1, 8, 1), (128, 8, 8, 1), (128, 8, 4, 2), (256, 8, 8, 4), (384, 8, 4, 4)],
)
def test_drawn_experts_have_as_many_on_the_busiest_device(
    experts: int, active: int, devices: int, tokens: int
) -> None:
    """Few tokens with different experts each, drawn evenly."""
    (layer,) = EXPERTS.layers
    assert isinstance(layer.feed_forward, ExpertFeedForward)
    part = msgspec.structs.replace(layer.feed_forward, experts=experts, active=active)
    shape = msgspec.structs.replace(
        EXPERTS, layers=(msgspec.structs.replace(layer, feed_forward=part),)
    )
    (op,) = operations(plan(tensor_parallel=devices, expert_parallel=True), shape).experts
    rng, most = np.random.default_rng(1), []
    for _ in range(2000):
        chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :active]
        on_device = np.unique(chosen) // (experts // devices)
        most.append(np.bincount(on_device, minlength=devices).max())
    assert op.touched(tokens) == pytest.approx(np.mean(most), rel=0.16)
