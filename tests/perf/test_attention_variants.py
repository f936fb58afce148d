"""Mixers beyond plain attention: what a token costs, and what a step reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servetune.models import (
    active_parameter_count,
    embedding_parameter_count,
    kv_bytes,
    layer_parameters,
    load_shape,
    state_bytes_per_sequence,
)
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.operations import AttentionOp, Operations, Step, operations
from servetune.plan.plan import Plan

#: The fixture `every_catalogue_model`: runs a check on each.
Walk = Callable[[Callable[[str], None]], None]


def shape_of(name: str) -> NetworkShape:
    return load_shape(name, catalogue_first=True)


def ops_of(name: str, **fields: object) -> Operations:
    return operations(Plan(model=name, **fields), shape_of(name))  # type: ignore[arg-type]


def read_bytes(ops: Operations, sequences: int, context_tokens: int) -> float:
    """What decode reads of caches, indexes and states."""
    total = sequences * context_tokens
    return sum(
        op.count * op.cache_bytes_per_key * op.keys(sequences, total) for op in ops.attentions
    )


def test_a_token_costs_two_flops_per_weight_that_it_meets(every_catalogue_model: Walk) -> None:
    def check(name: str) -> None:
        shape = shape_of(name)
        ops = ops_of(name)
        products = sum(op.count * op.flops_per_row for op in ops.matrices)
        products += sum(op.count * op.flops_per_token for op in ops.experts)
        vectors = sum(
            layer.count * layer_parameters(layer, shape.hidden).vectors for layer in shape.layers
        )
        met = active_parameter_count(shape) - vectors - shape.extra_parameters - shape.hidden
        if not shape.tied_embeddings:
            met -= embedding_parameter_count(shape)
        # Narrow gates of a column or one per head are not products of their own.
        assert products == pytest.approx(2 * met, rel=0.004)

    every_catalogue_model(check)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3.5-27B",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        "MiniMaxAI/MiniMax-Text-01",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "XiaomiMiMo/MiMo-V2-Flash",
        "google/gemma-4-26B-A4B",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    ],
)
def test_decode_reads_the_cache_once_and_reads_and_writes_the_state(name: str) -> None:
    shape = shape_of(name)
    expected = kv_bytes(shape, 10_000) + 2 * state_bytes_per_sequence(shape)
    assert read_bytes(ops_of(name), 1, 10_000) == pytest.approx(expected)
    assert read_bytes(ops_of(name), 7, 10_000) == pytest.approx(7 * expected)


def test_a_states_cost_does_not_grow_with_the_context() -> None:
    ops = ops_of("nvidia/Nemotron-H-56B-Base-8K")
    states = [op for op in ops.attentions if op.window is not None]
    assert states
    for op in states:
        assert op.keys(3, 3 * 1_000) == op.keys(3, 3 * 100_000)
        # Twice the prompt, twice the work: no pair of distant tokens is computed.
        assert op.pairs(2_000, 2_000**2 / 2) == 2 * op.pairs(1_000, 1_000**2 / 2)


def test_a_delta_nets_prompt_costs_seven_flops_per_number_of_its_state_and_token() -> None:
    ops = ops_of("Qwen/Qwen3.5-27B")
    (op,) = {op for op in ops.attentions if op.window is not None}
    tokens = 4_096
    per_token = op.prefill_flops_per_pair * op.pairs(tokens, tokens**2 / 2) / tokens
    convolution = 2 * 4 * (2 * 16 * 128 + 48 * 128)
    assert per_token == pytest.approx(7 * 48 * 128 * 128 + convolution)


def test_sparse_attention_reads_what_its_index_picks_and_all_of_the_index() -> None:
    ops = ops_of("deepseek-ai/DeepSeek-V3.2")
    assert read_bytes(ops, 1, 1_000) == pytest.approx(61 * 1_000 * (1_152 + 132))
    assert read_bytes(ops, 1, 100_000) == pytest.approx(61 * (2_048 * 1_152 + 100_000 * 132))


def test_an_index_is_a_kernel_beside_latent_attention() -> None:
    dense, sparse = ops_of("deepseek-ai/DeepSeek-V3"), ops_of("deepseek-ai/DeepSeek-V3.2")
    assert [(op.count, op.latent) for op in sparse.attentions if op.latent] == [
        (op.count, True) for op in dense.attentions
    ]
    assert sum(op.count for op in sparse.attentions) == 2 * sum(op.count for op in dense.attentions)


def test_compressed_attention_reads_a_window_and_picked_blocks() -> None:
    ops = ops_of("deepseek-ai/DeepSeek-V4-Flash")
    far = 100_000
    fine = 512 * 584 + far / 4 * 132
    coarse = far / 128 * 584
    expected = 43 * 128 * 584 + 21 * fine + 20 * coarse
    assert read_bytes(ops, 1, far) == pytest.approx(expected)


def test_layers_without_a_mixer_read_nothing_and_those_without_experts_have_none() -> None:
    ops = ops_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert sum(op.count for op in ops.attentions) == 23 + 6
    assert sum(op.count for op in ops.experts) == 23


def test_experts_of_another_width_pay_for_that_width() -> None:
    (op,) = {op.expert_weights for op in ops_of("moonshotai/Kimi-K3").experts}
    assert op == 3 * 3_584 * 3_072


def test_the_price_of_every_catalogue_model_grows_as_its_tokens_do(
    every_catalogue_model: Walk,
) -> None:
    def check(name: str) -> None:
        ops = ops_of(name, tensor_parallel=1)
        prompt = Step(prefill_tokens=512, prefill_pairs=512 * 513 / 2, prefill_sequences=1)
        one = Step(decode_sequences=1, decode_context_tokens=512)
        four = Step(decode_sequences=4, decode_context_tokens=4 * 512)
        assert ops.flops(four) == pytest.approx(4 * ops.flops(one))
        assert 0 < ops.flops(four) < ops.flops(prompt)
        # Weights are read once for all four, caches and states once for each.
        assert ops.moved_bytes(one) < ops.moved_bytes(four) < 4 * ops.moved_bytes(one)
        assert ops.moved_bytes(prompt) > 0
        assert all(
            isinstance(op, AttentionOp) and op.cache_bytes_per_key >= 0 for op in ops.attentions
        )

    every_catalogue_model(check)


def test_parts_of_a_mixed_checkpoint_are_multiplied_in_their_own_width() -> None:
    ops = ops_of("deepseek-ai/DeepSeek-V4-Flash")
    by_name = {op.name: op for op in ops.matrices}
    assert by_name["query"].math_dtype == "fp8"
    assert by_name["compressor"].weight_width_bytes == 2
    assert {op.weight_width_bytes for op in ops.experts} == {0.53125}
