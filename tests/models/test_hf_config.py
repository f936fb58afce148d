import json
import os
from pathlib import Path

import pytest

from servetune.errors import InputError
from servetune.models import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    kv_bytes_per_token,
    parameter_count,
    shape_from_config,
)

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def parse(**changes):
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    return shape_from_config(config, name="tiny", source="test")


def test_a_plain_configuration_becomes_one_group_of_layers():
    shape = parse()
    (layer,) = shape.layers
    assert layer.count == 4
    assert layer.mixer == Attention(heads=8, kv_heads=2, head_dim=8)
    assert layer.feed_forward == DenseFeedForward(inner=160)
    assert (shape.architecture, shape.vocab, shape.dtype) == ("LlamaForCausalLM", 1000, "bf16")


def test_head_dim_is_what_the_file_says_and_not_hidden_over_heads():
    assert parse(head_dim=32).layers[0].mixer.head_dim == 32
    qwen = parse(model_type="qwen3")
    assert qwen.layers[0].mixer.head_dim == 128  # the class's default
    assert qwen.layers[0].mixer.qk_norm


def test_a_tiny_qwen_counts_and_caches_what_vllm_reported_for_it():
    # Made with transformers and served by vLLM 0.32 on CPU: 1,508,736 parameters, and 1 GiB
    # of cache held 524,288 tokens.
    shape = parse(
        model_type="qwen3",
        hidden_size=128,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=384,
        vocab_size=4096,
        tie_word_embeddings=True,
    )
    assert parameter_count(shape) == 1_508_736
    assert 2**30 / kv_bytes_per_token(shape) == 524_288


def test_embeddings_are_tied_where_the_file_or_else_the_class_says_so():
    assert not parse().tied_embeddings
    assert parse(tie_word_embeddings=True).tied_embeddings
    gemma = parse(model_type="gemma2", sliding_window=64)
    assert gemma.tied_embeddings
    assert not parse(model_type="gemma2", tie_word_embeddings=False).tied_embeddings


def test_a_nested_language_model_is_found_and_completed_by_the_outer_file():
    text = {**LLAMA, "model_type": "qwen3_vl_text"}
    outer = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 7},
    }
    shape = shape_from_config(outer, name="vl", source="test")
    assert shape.hidden == 64
    assert shape.tied_embeddings
    assert shape.architecture == "Qwen3VLForConditionalGeneration"


def test_sparse_multimodal_gemma_files_take_the_classes_defaults():
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    shape = shape_from_config({"model_type": "gemma3", "text_config": text}, name="g", source="t")
    assert shape.vocab == 262_208
    assert parameter_count(shape) == 3_880_263_168
    windows = [layer.mixer.window for layer in shape.layers for _ in range(layer.count)]
    assert windows[:6] == [1024] * 5 + [None]
    assert windows.count(None) == 34 // 6


def test_qwen_has_windows_only_where_they_are_switched_on():
    windowed = {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 3}
    assert all(layer.mixer.window is None for layer in parse(**windowed).layers)
    shape = parse(**windowed, use_sliding_window=True)
    assert [(layer.count, layer.mixer.window) for layer in shape.layers] == [(3, None), (1, 128)]
    assert shape.layers[0].mixer.qkv_bias
    assert not shape.layers[0].mixer.output_bias


def test_mistral_without_the_key_has_its_classes_window_and_with_null_none():
    long = {"model_type": "mistral", "max_position_embeddings": 32768}
    assert parse(**long).layers[0].mixer.window == 4096
    assert parse(**long, sliding_window=None).layers[0].mixer.window is None


def test_a_window_longer_than_the_context_is_no_window():
    shape = parse(model_type="phi3", sliding_window=512)
    assert shape.layers[0].mixer.window is None


def test_first_layers_of_deepseek_are_dense_and_attention_is_latent():
    shape = parse(
        model_type="deepseek_v3",
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1,
        n_routed_experts=16,
        n_shared_experts=2,
        num_experts_per_tok=4,
        moe_intermediate_size=24,
    )
    dense, experts = shape.layers
    assert dense.count == 1
    assert isinstance(dense.feed_forward, DenseFeedForward)
    assert experts.count == 3
    assert experts.feed_forward == ExpertFeedForward(
        experts=16, active=4, inner=24, shared_inner=48, router_bias=True
    )
    assert experts.mixer == LatentAttention(
        heads=8, kv_rank=32, rope_dim=8, nope_dim=16, value_dim=16, q_rank=48
    )


def test_qwen_experts_skip_the_layers_that_are_named_dense():
    shape = parse(
        model_type="qwen3_moe",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        mlp_only_layers=[0],
    )
    assert [type(layer.feed_forward) for layer in shape.layers] == [
        DenseFeedForward,
        ExpertFeedForward,
    ]


def test_llama_4_alternates_dense_and_expert_layers_and_chunks_three_of_four():
    shape = parse(
        model_type="llama4_text",
        head_dim=8,
        intermediate_size_mlp=320,
        interleave_moe_layer_step=2,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=64,
        num_hidden_layers=4,
    )
    kinds = [type(layer.feed_forward) for layer in shape.layers for _ in range(layer.count)]
    assert kinds == [DenseFeedForward, ExpertFeedForward] * 2
    windows = [layer.mixer.window for layer in shape.layers for _ in range(layer.count)]
    assert windows == [64, 64, 64, None]


def test_32_bit_checkpoints_are_served_in_16():
    assert parse(torch_dtype="float32").dtype == "fp16"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": ...}, "lacks 'hidden_size'"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a whole number above zero"),
        ({"num_attention_heads": -8}, "'num_attention_heads' must be"),
        ({"intermediate_size": "160"}, "'intermediate_size' must be"),
        ({"intermediate_size": 1.5}, "'intermediate_size' must be"),
        ({"hidden_size": True}, "'hidden_size' must be"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "no multiple of num_attention"),
        ({"model_type": ...}, "lacks 'model_type'"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "'layer_types' must list"),
        ({"model_type": "gemma2", "layer_types": ["mamba"] * 4}, "'mamba', which is not modelled"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 4}, "is more"),
    ],
)
def test_a_malformed_configuration_is_refused_by_the_key(changes, said):
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert said in caught.value.message
    assert "tiny" in caught.value.message


@pytest.mark.parametrize("config", [[], "llama", None, 3])
def test_what_is_no_table_is_refused(config):
    with pytest.raises(InputError, match="must be a table of keys"):
        shape_from_config(config, name="tiny", source="test")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("nemotron_h", "Mamba"), ("glm_moe_dsa", "sparse attention"), ("brand_new", "not modelled")],
)
def test_an_architecture_beyond_the_nouns_is_named_and_refused(model_type, reason):
    with pytest.raises(InputError, match=f"model_type '{model_type}'.*not modelled yet") as caught:
        parse(model_type=model_type)
    assert reason in caught.value.message


def shared_configs() -> list[Path]:
    default = Path(__file__).parents[3] / "shared"
    folder = Path(os.environ.get("SERVETUNE_SHARED", default)) / "data" / "model_configs"
    return sorted(folder.glob("*_config.json"))


@pytest.mark.skipif(not shared_configs(), reason="the shared set of published configs is not here")
def test_published_configs_parse_or_say_in_one_line_why_not():
    parsed = {}
    for path in shared_configs():
        if "hf_quant_config" in path.name:
            continue
        name = path.name.removesuffix("_config.json").replace("--", "/")
        try:
            parsed[name] = shape_from_config(json.loads(path.read_text()), name=name, source="")
        except InputError as error:
            assert "not modelled yet" in error.message  # noqa: PT017
            assert "\n" not in error.message  # noqa: PT017
    assert len(parsed) >= 40
    assert parameter_count(parsed["Qwen/Qwen3-235B-A22B"]) == 235_093_634_560
    assert parameter_count(parsed["mistralai/Mixtral-8x22B-v0.1"]) == 140_620_634_112
    assert parsed["moonshotai/Kimi-K2.5"].quantization == "int4_g32@experts"
    assert parsed["Qwen/Qwen3-30B-A3B-FP8"].quantization == "fp8_block"
    assert parsed["nvidia/Kimi-K2.6-NVFP4"].quantization == "nvfp4@experts"
    assert parsed["nvidia/Kimi-K2.6-NVFP4"].kv_cache_dtype == "fp8"
