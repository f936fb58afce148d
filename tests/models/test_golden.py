"""Numbers of every family, from outside: none of them was printed by the code under test.

Parameters are those of the model classes of transformers 5.19 (of 5.24 for Muse Glimmer,
CodeGen, Gemma 4 E4B and Nemotron 3 Nano 4B), instantiated without memory and counted tensor by
tensor, router corrections included (2026-11). Kimi K3 has no class there; its checkpoint's size
says whether its count holds. Caches and states follow vLLM 0.32's cache specifications, written
out per layer.
"""

import msgspec
import pytest

from servetune.models import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    StateSpace,
    active_parameter_count,
    catalogue,
    kv_bytes,
    kv_bytes_per_token,
    load_shape,
    parameter_count,
    quantization_named,
    state_bytes_per_sequence,
    vision_parameter_count,
    weight_bytes,
)

#: Of one layer: the state of a delta net of 64 heads of 128 x 128 in 32 bits, and the last
#: three inputs of its convolution in 16.
DELTA_397B = 64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2
DELTA_27B = 48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2
KDA_K3 = 96 * 128 * 128 * 4 + 3 * (3 * 96 * 128) * 2
MAMBA_NANO = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
MAMBA_4B = 96 * 80 * 128 * 4 + 3 * (96 * 80 + 2 * 8 * 128) * 2
MAMBA_ULTRA = 256 * 64 * 128 * 4 + 3 * (256 * 64 + 2 * 8 * 128) * 2
MAMBA_H_56B = 256 * 64 * 256 * 4 + 3 * (256 * 64 + 2 * 8 * 256) * 2
#: Open blocks of DeepSeek-V4's compressors, in 32 bits: 8 tokens of vector and score, both
#: twice as wide, for the fine ones and their index; 128 tokens for the coarse ones.
FINE = 8 * 2 * 2 * (512 + 128) * 4
COARSE = 128 * 2 * 512 * 4


@pytest.mark.parametrize(
    ("model", "parameters", "cache_bytes", "state_bytes"),
    [
        # Plain: 2 n_kv d numbers of two bytes per layer.
        ("Qwen/Qwen3-8B", 8_190_735_360, 36 * 2 * 8 * 128 * 2, 0),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704, 32 * 2 * 8 * 128 * 2, 0),
        ("tiiuae/falcon-7b", 6_921_720_704, 32 * 2 * 1 * 64 * 2, 0),
        ("tiiuae/falcon-40b", 41_303_293_952, 60 * 2 * 8 * 64 * 2, 0),
        ("Salesforce/codegen2-16B", 16_032_155_648, 34 * 2 * 24 * 256 * 2, 0),
        ("meta-models/Muse-Glimmer-30B", 27_854_780_928, 52 * 2 * 2 * 128 * 2, 0),
        # Four KV heads in every layer, as vLLM holds them: 63,963,136 more than are stored.
        ("Deci/DeciLM-7B", 7_043_551_232 + 63_963_136, 32 * 2 * 4 * 128 * 2, 0),
        # Latent: 512 + 64 numbers per layer.
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200, 61 * 576 * 2, 0),
        # With an index: 128 bytes and a scale of four per layer that has one.
        ("deepseek-ai/DeepSeek-V3.2", 671_877_929_216 + 14_848, 61 * (576 * 2 + 132), 0),
        ("zai-org/GLM-5", 743_911_199_232 + 19_200, 78 * (576 * 2 + 132), 0),
        ("zai-org/GLM-5.2", 743_377_000_704 + 19_200, 78 * 576 * 2 + 21 * 132, 0),
        # Compressed, in 584 bytes per entry: everywhere a window, 21 or 30 fine layers with
        # an index, 20 or 31 coarse ones.
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            284_332_230_231 + 10_240,
            43 * 584 + 21 * (584 + 132) / 4 + 20 * 584 / 128,
            21 * FINE + 20 * COARSE,
        ),
        (
            "deepseek-ai/DeepSeek-V4-Pro",
            1_572_997_179_491 + 22_272,
            61 * 584 + 30 * (584 + 132) / 4 + 31 * 584 / 128,
            30 * FINE + 31 * COARSE,
        ),
        # Delta nets in three of four layers.
        ("Qwen/Qwen3.5-27B", 26_895_998_464, 16 * 2 * 4 * 256 * 2, 48 * DELTA_27B),
        ("Qwen/Qwen3.5-397B-A17B", 396_346_350_336, 15 * 2 * 2 * 256 * 2, 45 * DELTA_397B),
        ("Qwen/Qwen3.5-35B-A3B", 34_660_610_688, 10 * 2 * 2 * 256 * 2, None),
        ("Qwen/Qwen3.5-122B-A10B", 122_111_526_912, 12 * 2 * 2 * 256 * 2, None),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296, 12 * 2 * 2 * 256 * 2, None),
        # KDA in 69 of 93 layers, latent attention in the rest.
        ("moonshotai/Kimi-K3", None, 24 * 576 * 2, 69 * KDA_K3),
        # Lightning attention in seven of eight layers, its state in the model's dtype.
        ("MiniMaxAI/MiniMax-Text-01", None, 10 * 2 * 8 * 128 * 2, 70 * 64 * 128 * 128 * 2),
        # A block-sparse index with a key of 128 numbers in 16 bits in 57 of 60 layers.
        (
            "MiniMaxAI/MiniMax-M3",
            426_174_565_632 + 7_296,
            60 * 2 * 4 * 128 * 2 + 57 * 256,
            0,
        ),
        # One part per layer: Mamba, attention, experts or dense.
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            31_577_937_344 + 2_944,
            6 * 2 * 2 * 128 * 2,
            23 * MAMBA_NANO,
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",
            3_973_556_832,
            4 * 2 * 8 * 128 * 2,
            21 * MAMBA_4B,
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
            120_668_687_360 + 20_480,
            8 * 2 * 2 * 128 * 1,
            None,
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            549_308_968_960 + 24_576,
            12 * 2 * 2 * 128 * 2,
            48 * MAMBA_ULTRA,
        ),
        ("nvidia/Nemotron-H-56B-Base-8K", 56_324_350_464, 10 * 2 * 8 * 128 * 2, 54 * MAMBA_H_56B),
        # 49 of 80 layers kept their attention.
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", None, 49 * 2 * 8 * 128 * 2, 0),
        # Keys of 192, values of 128; 4 KV heads in 9 layers, 8 inside the windows of 39.
        (
            "XiaomiMiMo/MiMo-V2-Flash",
            308_778_768_832 + 12_032,
            (9 * 4 + 39 * 8) * (192 + 128) * 2,
            0,
        ),
        ("stepfun-ai/Step-3.7-Flash", None, 45 * 2 * 8 * 128 * 2, 0),
        # Keys that are values are kept twice; 25 windowed layers, 5 without.
        (
            "google/gemma-4-26B-A4B",
            25_233_141_760,
            (25 * 8 * 256 + 5 * 2 * 512) * 2 * 2,
            0,
        ),
        # The last 18 of 42 layers have no keys and values of their own.
        ("google/gemma-4-E4B-it", 7_463_013_376, (20 * 2 * 256 + 4 * 2 * 512) * 2 * 2, 0),
        ("google/gemma-4-31B-it", 30_697_345_280, (50 * 16 * 256 + 10 * 4 * 512) * 2 * 2, 0),
        # Six layers with keys and values; ten keep two inputs of a convolution.
        ("LiquidAI/LFM2-1.2B", 1_170_340_608, 6 * 2 * 8 * 64 * 2, 10 * 2_048 * 2 * 2),
        # Four of forty layers with keys and values; 36 keep a state in the model's dtype.
        (
            "ibm-granite/granite-4.0-h-small",
            32_207_337_984,
            4 * 2 * 8 * 128 * 2,
            36 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 128)) * 2,
        ),
        # Parallel parts under one norm, windows in three of four layers.
        ("CohereLabs/c4ai-command-r7b-12-2024", 8_028_033_024, 32 * 2 * 8 * 128 * 2, 0),
        ("openai/gpt-oss-120b", 116_829_156_672, 36 * 2 * 8 * 64 * 2, 0),
    ],
)
def test_every_familys_count_cache_and_state(model, parameters, cache_bytes, state_bytes):
    shape = load_shape(model, catalogue_first=True)
    if parameters is not None:
        assert parameter_count(shape) == parameters
    assert kv_bytes_per_token(shape) == pytest.approx(cache_bytes, rel=1e-12)
    if state_bytes is not None:
        assert state_bytes_per_sequence(shape) == state_bytes


@pytest.mark.parametrize(
    ("model", "billions", "within"),
    [
        # What publishers call active, to their own digits; some leave the embedding out.
        ("deepseek-ai/DeepSeek-V4-Flash", 13.0, 0.07),
        ("deepseek-ai/DeepSeek-V4-Pro", 49.0, 0.03),
        ("moonshotai/Kimi-K3", 104.0, 0.02),
        ("zai-org/GLM-5", 40.0, 0.05),
        ("Qwen/Qwen3.5-397B-A17B", 17.0, 0.03),
        ("Qwen/Qwen3.5-122B-A10B", 10.0, 0.03),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 12.7, 0.01),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 55.0, 0.03),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 3.6, 0.01),
        ("XiaomiMiMo/MiMo-V2-Flash", 15.0, 0.04),
        ("google/gemma-4-26B-A4B", 3.8, 0.02),
    ],
)
def test_active_parameters_are_what_the_publisher_calls_active(model, billions, within):
    shape = load_shape(model, catalogue_first=True)
    assert active_parameter_count(shape) / 1e9 == pytest.approx(billions, rel=within)


@pytest.mark.parametrize(
    ("model", "checkpoint_bytes", "left_out_bytes"),
    [
        # Size of the files on the hub, as users of them report it, and the part of it that is
        # not the decoder: a layer for speculation alone, or towers for images and sound.
        ("moonshotai/Kimi-K3", 1.56e12, 0),
        ("deepseek-ai/DeepSeek-V4-Flash", 160e9, 3.6e9),
        ("deepseek-ai/DeepSeek-V4-Pro", 865e9, 13.9e9),
        ("openai/gpt-oss-120b", 65.2e9, 0),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-FP8", 5.3e9, 0.02e9),
        # Omni's towers: what its files in 16 bits, 66.03e9, have beyond the decoder.
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-FP8", 35.2e9, 2.87e9),
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4", 22_409_034_192, 2.87e9),
    ],
)
def test_mixed_checkpoints_weigh_what_their_files_weigh(model, checkpoint_bytes, left_out_bytes):
    weighed = weight_bytes(load_shape(model, catalogue_first=True)) + left_out_bytes
    assert weighed == pytest.approx(checkpoint_bytes, rel=0.005)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # Safetensors totals of hub pages without their layers for drafts, which KerasHub's presets
        # repeat for Qwen3.5 (2026); the others are the sums of their cards' and reports' parts.
        ("Qwen/Qwen3.5-0.8B", 852_985_920),
        ("Qwen/Qwen3.5-2B", 2_213_241_664),
        ("Qwen/Qwen3.5-4B", 4_539_265_536),
        ("Qwen/Qwen3.5-9B", 9_409_813_744),
        ("Qwen/Qwen3.5-27B", 27_356_728_560),
        ("google/gemma-3-4b-it", 4_300_079_472),
        ("google/gemma-3-12b-it", 12_187_325_040),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24_011_361_280),
        ("mistralai/Ministral-3-3B-Instruct-2512-BF16", 3.85e9),
        ("mistralai/Ministral-3-8B-Instruct-2512-BF16", 8.92e9),
        ("mistralai/Ministral-3-14B-Instruct-2512-BF16", 13.95e9),
    ],
)
def test_a_tower_for_images_is_part_of_the_weights(model, parameters):
    shape = load_shape(model, catalogue_first=True)
    assert weight_bytes(shape) == pytest.approx(2 * parameters, rel=1e-3)


def test_text_models_of_the_same_decoder_have_no_tower():
    for model in ("moonshotai/Kimi-K2-Thinking", "Kwaipilot/KAT-Coder-V2.5-Dev"):
        assert load_shape(model, catalogue_first=True).vision_parameters == 0


def test_a_state_does_not_grow_and_a_full_window_stops():
    shape = load_shape("Qwen/Qwen3.5-27B", catalogue_first=True)
    assert kv_bytes(shape, 20_000) == 20_000 * kv_bytes_per_token(shape)
    compressed = load_shape("deepseek-ai/DeepSeek-V4-Flash", catalogue_first=True)
    grown = kv_bytes(compressed, 100_128) - kv_bytes(compressed, 128)
    # Beyond the window of 128 only the compressed entries grow.
    assert grown == pytest.approx(100_000 * (21 * (584 + 132) / 4 + 20 * 584 / 128))


def test_eight_bit_caches_of_sparse_attention_keep_the_rotated_part_wide():
    shape = load_shape("deepseek-ai/DeepSeek-V3.2", catalogue_first=True)
    assert kv_bytes_per_token(shape, "fp8") == 61 * (656 + 132)
    dense = load_shape("deepseek-ai/DeepSeek-V3", catalogue_first=True)
    assert kv_bytes_per_token(dense, "fp8") == 61 * 576


def test_layers_that_borrow_a_cache_have_neither_keys_nor_entries():
    own = Attention(heads=4, kv_heads=2, head_dim=32)
    borrowed = Attention(heads=4, kv_heads=2, head_dim=32, reuses_kv_cache=True)
    shape = load_shape("Qwen/Qwen3-0.6B", catalogue_first=True)
    layer = shape.layers[0]

    def with_mixer(mixer):
        layers = (msgspec.structs.replace(layer, count=1, mixer=mixer),)
        return msgspec.structs.replace(shape, layers=layers)

    assert kv_bytes_per_token(with_mixer(borrowed)) == 0
    missing = parameter_count(with_mixer(own)) - parameter_count(with_mixer(borrowed))
    assert missing == 2 * shape.hidden * 2 * 32


def test_every_catalogue_model_has_a_cache_or_a_state_and_survives_json(every_catalogue_model):
    def check(name):
        shape = load_shape(name, catalogue_first=True)
        assert kv_bytes_per_token(shape) + state_bytes_per_sequence(shape) > 0
        # Windows may end the growth; nothing makes a longer context smaller.
        cached = [kv_bytes(shape, tokens) for tokens in (1, 2, 4_096, 131_072)]
        assert cached == sorted(cached)
        assert cached[1] <= 2 * cached[0]
        assert 0 < active_parameter_count(shape) <= parameter_count(shape)
        assert vision_parameter_count(shape) >= 0
        assert quantization_named(shape.quantization).name == shape.quantization
        assert msgspec.json.decode(msgspec.json.encode(shape), type=type(shape)) == shape

    every_catalogue_model(check)


def test_every_mixer_is_in_the_catalogue():
    kinds = {
        type(layer.mixer)
        for name in catalogue()
        for layer in load_shape(name, catalogue_first=True).layers
    }
    assert kinds >= {Attention, LatentAttention, CompressedAttention, LinearAttention, StateSpace}
    assert type(None) in kinds
