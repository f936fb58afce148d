import doctest

import msgspec
import pytest

from servetune.models import (
    Attention,
    DenseFeedForward,
    Layer,
    NetworkShape,
    active_parameter_count,
    catalogue,
    counting,
    kv_bytes,
    kv_bytes_per_token,
    load_shape,
    parameter_count,
    shape_from_config,
    weight_bytes,
)
from servetune.units import GB


def shape_of(name: str) -> NetworkShape:
    return load_shape(name, catalogue_first=True)


def catalogue_shape(name: str) -> NetworkShape:
    entry = catalogue()[name]
    return shape_from_config(entry.config, name=name, source=entry.source)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("google/gemma-2-9b", 9_241_705_984),
        ("google/gemma-3-1b-it", 999_885_952),
        ("microsoft/phi-4", 14_659_507_200),
        ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("openai/gpt-oss-120b", 116_829_156_672),
        ("zai-org/GLM-4-9B-0414", 9_400_279_040),
        ("bigscience/bloom-560m", 559_214_592),
        ("bigscience/bloom-7b1", 7_069_016_064),
        ("EleutherAI/gpt-j-6b", 6_050_882_784),
        ("mosaicml/mpt-7b", 6_649_286_656),
        ("BAAI/Aquila-7B", 7_295_537_152),
        ("LiquidAI/LFM2-350M", 354_483_968),
        ("LiquidAI/LFM2-700M", 742_489_344),
        ("LiquidAI/LFM2-1.2B", 1_170_340_608),
        # One bias of each of 32 experts in 22 layers is a buffer of the checkpoint.
        ("LiquidAI/LFM2-8B-A1B", 8_339_929_856 + 22 * 32),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8_888_227_328),
    ],
)
def test_parameters_equal_the_published_checkpoint(model, parameters):
    assert parameter_count(shape_of(model)) == parameters


def test_every_catalogue_model_counts_what_its_publisher_says_within_half_a_percent(
    every_catalogue_model,
):
    def check(name):
        entry = catalogue()[name]
        apart = entry.tower_parameters + entry.other_parameters
        counted = parameter_count(catalogue_shape(name)) + apart
        assert counted == pytest.approx(entry.published_parameters, rel=entry.published_within)
        # Half a percent, but for what is published to two digits alone.
        assert entry.published_within <= 0.005 or name == "moonshotai/Kimi-K3"
        assert entry.source

    every_catalogue_model(check)
    assert len(catalogue()) >= 154


@pytest.mark.parametrize(
    ("model", "active_billions"),
    [
        ("Qwen/Qwen3-30B-A3B", 3.3),
        ("Qwen/Qwen3-235B-A22B", 22.0),
        ("deepseek-ai/DeepSeek-V3", 37.0),
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),
        ("moonshotai/Kimi-K2-Instruct", 32.0),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 17.0),
    ],
)
def test_active_parameters_are_what_the_publisher_calls_active(model, active_billions):
    # Publishers round to two digits.
    assert active_parameter_count(shape_of(model)) / 1e9 == pytest.approx(active_billions, rel=0.03)


def test_a_dense_network_is_active_as_a_whole():
    shape = shape_of("Qwen/Qwen3-8B")
    assert active_parameter_count(shape) == parameter_count(shape)


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("meta-llama/Meta-Llama-3-8B", 131_072),
        ("Qwen/Qwen3-0.6B", 114_688),
        ("Qwen/Qwen3-4B", 147_456),
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("meta-llama/Llama-2-7b-hf", 524_288),
        ("openai/gpt-oss-120b", 73_728),
    ],
)
def test_cache_per_token_is_the_golden_value(model, bytes_per_token):
    assert kv_bytes_per_token(shape_of(model)) == bytes_per_token


def test_an_eight_bit_cache_is_half_the_size():
    shape = shape_of("Qwen/Qwen3-4B")
    assert kv_bytes_per_token(shape, "fp8") * 2 == kv_bytes_per_token(shape, "bfloat16")


def test_a_checkpoint_that_asks_for_an_eight_bit_cache_gets_it_unless_told_otherwise():
    shape = msgspec.structs.replace(shape_of("Qwen/Qwen3-4B"), kv_cache_dtype="fp8")
    assert kv_bytes_per_token(shape) == 147_456 / 2
    assert kv_bytes_per_token(shape, "bf16") == 147_456


def test_llama_2_7b_on_a_24_gb_card_holds_four_sequences_of_4096_tokens():
    # The sizing method's published check: about 10 GB of cache, batch 4, on one A10G.
    shape = shape_of("meta-llama/Llama-2-7b-hf")
    free_bytes = 24 * GB - weight_bytes(shape)
    assert 10 * GB < free_bytes < 11 * GB
    assert free_bytes // kv_bytes(shape, 4096, "fp16") == 4


def test_a_window_caps_its_layers_cache_and_no_other():
    shape = shape_of("mistralai/Mistral-7B-v0.1")  # a window of 4,096 everywhere
    assert kv_bytes(shape, 4096) == 4096 * kv_bytes_per_token(shape)
    assert kv_bytes(shape, 30_000) == kv_bytes(shape, 4096)
    half = shape_of("google/gemma-2-9b")  # a window in every second layer
    grown = kv_bytes(half, 8192) - kv_bytes(half, 4096)
    assert grown == 4096 * kv_bytes_per_token(half) / 2


def test_weights_in_the_models_dtype_take_two_bytes_each():
    shape = shape_of("Qwen/Qwen3-8B")
    assert weight_bytes(shape) == 2 * parameter_count(shape)
    assert weight_bytes(shape, dtype="fp32") == 4 * parameter_count(shape)


def test_embeddings_and_head_stay_wide_when_the_rest_is_quantised():
    shape = shape_of("Qwen/Qwen3-8B")
    wide = 2 * shape.vocab * shape.hidden
    packed = parameter_count(shape) - wide
    assert weight_bytes(shape, "fp8") == pytest.approx(2 * wide + packed, rel=1e-3)
    awq = 2 * wide + packed * 0.51953125
    assert weight_bytes(shape, "awq") == pytest.approx(awq, rel=1e-3)


def test_gpt_oss_weighs_what_its_checkpoint_weighs():
    # 13.76 GB and 65.2 GB of safetensors on the hub.
    assert weight_bytes(shape_of("openai/gpt-oss-20b")) == pytest.approx(13.76e9, rel=0.01)
    assert weight_bytes(shape_of("openai/gpt-oss-120b")) == pytest.approx(65.2e9, rel=0.01)


def test_more_layers_heads_or_context_never_cost_less():
    def build(layers: int, kv_heads: int) -> NetworkShape:
        layer = Layer(
            count=layers,
            mixer=Attention(heads=8, kv_heads=kv_heads, head_dim=16),
            feed_forward=DenseFeedForward(inner=64),
        )
        return NetworkShape(
            name="tiny",
            architecture="tiny",
            hidden=32,
            layers=(layer,),
            vocab=128,
            tied_embeddings=True,
            max_context_tokens=64,
        )

    assert parameter_count(build(3, 2)) > parameter_count(build(2, 2))
    assert kv_bytes_per_token(build(2, 4)) == 2 * kv_bytes_per_token(build(2, 2))
    sizes = [kv_bytes(build(2, 2), tokens) for tokens in range(0, 64, 8)]
    assert sizes == sorted(sizes)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(counting).failed == 0
