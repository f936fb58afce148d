import copy
import json
import os
from pathlib import Path

import msgspec
import pytest

from servetune.errors import InputError, ServetuneError, UnknownName
from servetune.models import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    LinearAttention,
    NetworkShape,
    StateSpace,
    active_parameter_count,
    catalogue,
    kv_bytes_per_token,
    load_shape,
    parameter_count,
    shape_from_config,
    state_bytes_per_sequence,
    weight_bytes,
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
        ({"num_hidden_layers": 10**12}, "more than any network has"),
        ({"hidden_size": 10**12}, "more than any network has"),
        ({"num_attention_heads": -8}, "'num_attention_heads' must be"),
        ({"intermediate_size": "160"}, "'intermediate_size' must be"),
        ({"intermediate_size": 1.5}, "'intermediate_size' must be"),
        ({"hidden_size": True}, "'hidden_size' must be"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "no multiple of num_attention"),
        ({"model_type": ...}, "lacks 'model_type'"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "'layer_types' must list"),
        ({"model_type": "gemma2", "layer_types": ["mamba"] * 4}, "'mamba', which is not modelled"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 4},
            "are more than",
        ),
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
    [("jamba", "Mamba-1"), ("falcon_h1", "side by side"), ("brand_new", "not modelled")],
)
def test_an_architecture_beyond_the_nouns_is_named_and_refused(model_type, reason):
    with pytest.raises(InputError, match=f"model_type '{model_type}'.*not modelled yet") as caught:
        parse(model_type=model_type)
    assert reason in caught.value.message


def test_grouped_and_single_keys_of_mpt_are_read_and_biases_refused():
    def mpt(**changes):
        config = {"d_model": 64, "n_layers": 2, "n_heads": 8, "max_seq_len": 128, "vocab_size": 99}
        changed = {"model_type": "mpt", **config, **changes}
        return shape_from_config(changed, name="mpt", source="test").layers[0].mixer.kv_heads

    assert mpt() == 8
    assert mpt(attn_config={"kv_n_heads": 2}) == 2
    assert mpt(attn_config={"attn_type": "multiquery_attention"}) == 1
    with pytest.raises(InputError, match="no_bias"):
        mpt(no_bias=False)


def test_short_convolutions_stand_where_the_file_names_no_attention():
    def lfm2(**changes):
        config = {"num_hidden_layers": 3, "intermediate_size": 96, **changes}
        return parse(model_type="lfm2", **config)

    def kinds(shape):
        return [type(layer.mixer) for layer in shape.layers for _ in range(layer.count)]

    assert kinds(lfm2(full_attn_idxs=[1])) == [StateSpace, Attention, StateSpace]
    assert kinds(lfm2(layer_types=["conv", "conv", "full_attention"])).count(StateSpace) == 2
    assert kinds(lfm2()) == [Attention] * 3
    # Two thirds of the stated width, up to a multiple of 256; as stated where it says so.
    assert lfm2().layers[0].feed_forward.inner == 256
    assert lfm2(block_auto_adjust_ff_dim=False).layers[0].feed_forward.inner == 96


SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
}
GRANITE = {
    **SMALL,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "shared_intermediate_size": 384,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 8,
    "mamba_d_state": 64,
    "tie_word_embeddings": True,
}
TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
BIASED = {"attention_bias": True, "lm_head_bias": True}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "num_shared_experts": 1,
}
DOTS = {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1}
LAGUNA = {
    "shared_expert_intermediate_size": 64,
    "num_attention_heads_per_layer": [8, 4, 8, 4],
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": 64,
}
LAGUNA_EVEN = {"shared_expert_intermediate_size": 64, "gating": "per-element"}
HUNYUAN = {
    "num_experts": 4,
    "moe_topk": 2,
    "num_shared_expert": [1] * 4,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
}
COMMAND = {
    "num_experts": 4,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "prefix_dense_intermediate_size": 384,
}
NEO = {
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 8,
    "attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
}
DBRX = {
    "d_model": 256,
    "n_heads": 8,
    "n_layers": 4,
    "max_seq_len": 1024,
    "vocab_size": 1000,
    "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
}
LONGCAT = {
    "hidden_size": 256,
    "num_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "ffn_hidden_size": 512,
    "expert_ffn_hidden_size": 96,
    "n_routed_experts": 8,
    "zero_expert_num": 4,
    "moe_topk": 3,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}


@pytest.mark.parametrize(
    ("model_type", "config", "parameters"),
    [
        ("cohere", SMALL, 2_485_504),
        ("cohere", {**SMALL, "use_qk_norm": True}, 2_486_784),
        ("cohere2", {**SMALL, "sliding_window": 128}, 2_485_504),
        ("stablelm", {**SMALL, "use_qkv_bias": True}, 2_746_368),
        ("stablelm", {**SMALL, "use_parallel_residual": True, "qk_layernorm": True}, 2_744_064),
        ("granitemoehybrid", {**GRANITE, "num_local_experts": 4}, 9_192_648),
        ("granitemoehybrid", {**GRANITE, "num_local_experts": 0}, 2_897_096),
        ("phimoe", {**SMALL, **TWO_OF_FOUR, **BIASED}, 7_471_080),
        ("phimoe", {**SMALL, **TWO_OF_FOUR}, 7_467_520),
        ("persimmon", {**SMALL, "num_key_value_heads": None}, 2_621_440),
        ("nemotron", SMALL, 2_220_544),
        ("arcee", SMALL, 2_218_240),
        ("afmoe", {**SMALL, **EXPERTS, "num_dense_layers": 2}, 6_305_040),
        ("laguna", {**SMALL, **EXPERTS, **LAGUNA}, 4_934_936),
        ("laguna", {**SMALL, **EXPERTS, **LAGUNA_EVEN}, 6_501_656),
        ("hunyuan_v1_moe", {**SMALL, **HUNYUAN}, 9_038_336),
        ("cohere2_moe", {**SMALL, **TWO_OF_FOUR, **COMMAND}, 9_074_944),
        ("gpt_neo", {**NEO, "attention_types": [[["global", "local"], 2]]}, 3_674_624),
        ("xglm", {**NEO, "ffn_dim": 512, "max_position_embeddings": 512}, 2_364_928),
    ],
)
def test_small_networks_count_as_their_classes_in_transformers_do(model_type, config, parameters):
    """Counts are of transformers 5.23's and 5.24's classes built from these configurations."""
    shape = shape_from_config({**config, "model_type": model_type}, name="small", source="test")
    assert parameter_count(shape) == parameters


@pytest.mark.parametrize(
    ("model_type", "config", "parameters", "scores"),
    [
        ("dots1", {**EXPERTS, **DOTS}, 3_781_120, 3),
        ("exaone_moe", EXPERTS, 3_559_936, 3),
        ("solar_open", {**EXPERTS, "n_routed_experts": 8}, 5_798_144, 4),
        ("sarvam_moe", EXPERTS, 4_215_552, 3),
        ("sarvam_mla", {**EXPERTS, **LONGCAT, "q_lora_rank": None}, 3_674_496, 3),
    ],
)
def test_corrections_of_scores_are_buffers_of_the_classes_in_transformers(
    model_type, config, parameters, scores
):
    """Counts are of transformers 5.24's classes; each layer with experts has 8 buffers more."""
    shape = shape_from_config(
        {**SMALL, **config, "model_type": model_type}, name="small", source="test"
    )
    assert parameter_count(shape) == parameters + 8 * scores


def small(model_type, **changes):
    config = {**SMALL, "model_type": model_type, **changes}
    return shape_from_config(config, name="small", source="test")


def singles(shape):
    return [layer for layer in shape.layers for _ in range(layer.count)]


def test_two_layers_of_longcat_are_one_of_its_file_and_some_chosen_experts_do_nothing():
    shape = small("longcat_flash", **LONGCAT)
    assert shape.layer_count == 2 * LONGCAT["num_layers"]
    experts, dense = (layer.feed_forward for layer in shape.layers[:2])
    assert experts == ExpertFeedForward(
        experts=8, active=2, inner=96, shared_inner=512, router_bias=True
    )
    assert dense == DenseFeedForward(inner=512)
    # transformers 5.24 also holds up-projections of the idle experts, and their router.
    idle = 4 * (2 * 96 * 256 + 256)
    assert parameter_count(shape) == 4_207_232 - 2 * idle + 2 * 8


def test_layers_for_images_lie_in_memory_and_do_not_run():
    shape = small("mllama_text_model", cross_attention_layers=[1, 3])
    assert shape.layer_count == 2
    assert kv_bytes_per_token(shape) == 2 * 2 * 2 * 32 * 2
    # MllamaForCausalLM of transformers 5.24 with this configuration.
    assert parameter_count(shape) == 2_744_708
    for wrong in ([9], ["1"], [0, 1, 2, 3], [1, 1]):
        with pytest.raises(InputError, match="'cross_attention_layers' must list"):
            small("mllama_text_model", cross_attention_layers=wrong)


def test_dbrx_has_its_heads_and_experts_in_tables_of_their_own():
    shape = shape_from_config({**DBRX, "model_type": "dbrx"}, name="dbrx", source="test")
    (layer,) = shape.layers
    assert layer.mixer == Attention(heads=8, kv_heads=2, head_dim=32)
    assert layer.feed_forward == ExpertFeedForward(experts=4, active=2, inner=96)
    with pytest.raises(InputError, match="'kv_n_heads' must divide"):
        small("dbrx", **{**DBRX, "attn_config": {"kv_n_heads": 3}})


def test_chatglms_switches_add_biases_and_share_keys():
    def chatglm(**changes):
        config = {"num_layers": 4, "ffn_hidden_size": 512, "padded_vocab_size": 1000}
        return small("chatglm", multi_query_group_num=2, **config, **changes).layers[0]

    alone = chatglm()
    assert alone.mixer == Attention(heads=8, kv_heads=8, head_dim=32)
    grouped = chatglm(multi_query_attention=True, add_qkv_bias=True).mixer
    assert grouped == Attention(heads=8, kv_heads=2, head_dim=32, qkv_bias=True)
    biased = chatglm(add_bias_linear=True)
    assert (biased.mixer.qkv_bias, biased.mixer.output_bias) == (True, True)
    assert biased.feed_forward.bias


def test_the_first_chatglm_is_refused():
    # It has the same model_type and other keys: no gate, positions in two dimensions.
    first = {"hidden_size": 4096, "inner_hidden_size": 16384, "num_layers": 28}
    first = {**first, "num_attention_heads": 32, "vocab_size": 130528, "model_type": "chatglm"}
    with pytest.raises(InputError, match="lacks 'intermediate_size'"):
        shape_from_config(first, name="THUDM/chatglm-6b", source="test")


def test_the_first_qwen_is_half_as_wide_as_stated_and_as_long_as_its_training():
    shape = small("qwen", intermediate_size=1024, seq_length=512, kv_channels=32)
    assert shape.max_context_tokens == 512
    assert shape.layers[0].feed_forward == DenseFeedForward(inner=512)
    mixer = shape.layers[0].mixer
    assert (mixer.qkv_bias, mixer.output_bias) == (True, False)
    with pytest.raises(InputError, match="must be even"):
        small("qwen", intermediate_size=1023)


def test_baichuans_length_may_stand_under_another_name():
    config = {**SMALL, "max_position_embeddings": None, "model_max_length": 4096}
    shape = shape_from_config({**config, "model_type": "baichuan"}, name="13B", source="test")
    assert shape.max_context_tokens == 4096


def test_internlms_first_version_has_biases_unless_its_file_says_otherwise():
    assert small("internlm").layers[0].mixer.output_bias
    assert not small("internlm", bias=False).layers[0].mixer.qkv_bias
    assert not small("internlm2", bias=True).layers[0].mixer.qkv_bias


def test_groks_experts_stand_alone_or_beside_a_dense_part():
    first = small("grok-1", num_experts=8, num_experts_per_tok=2).layers[0]
    assert first.feed_forward == ExpertFeedForward(experts=8, active=2, inner=512)
    second = small("grok-1", num_local_experts=8, residual_moe=True, moe_intermediate_size=96)
    assert second.layers[0].feed_forward == ExpertFeedForward(
        experts=8, active=2, inner=96, shared_inner=512
    )
    assert first.norms == second.layers[0].norms == 4


def test_lings_first_layers_are_dense_and_its_biases_switched():
    switches = {"use_qk_norm": True, "moe_router_enable_expert_bias": True}
    shape = small("bailing_moe_v2", **EXPERTS, **switches, first_k_dense_replace=1)
    assert [layer.count for layer in shape.layers] == [1, 3]
    assert shape.layers[0].feed_forward == DenseFeedForward(inner=512)
    assert shape.layers[1].feed_forward == ExpertFeedForward(
        experts=8, active=2, inner=96, shared_inner=96, router_bias=True
    )
    assert shape.layers[1].mixer.qk_norm
    biased = small("bailing_moe", **EXPERTS, use_qkv_bias=True).layers[0]
    assert (biased.mixer.qkv_bias, biased.mixer.output_bias) == (True, False)
    assert not biased.feed_forward.router_bias


def test_every_sixth_layer_of_ling_3_has_latent_attention_and_the_others_kda():
    # Ling 3.0 Flash: the defaults of BailingHybridConfig, in transformers 5.24.
    shape = shape_from_config(
        {
            "model_type": "bailing_hybrid",
            "vocab_size": 157184,
            "hidden_size": 2560,
            "intermediate_size": 6144,
            "num_hidden_layers": 42,
            "num_attention_heads": 32,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "num_local_experts": 512,
            "num_experts_per_token": 8,
            "moe_intermediate_size": 768,
        },
        name="Ling",
        source="test",
    )
    mixers = [type(layer.mixer) for layer in singles(shape)]
    assert mixers == ([LinearAttention] * 5 + [LatentAttention]) * 7
    kinds = [type(layer.feed_forward) for layer in singles(shape)]
    assert kinds == [DenseFeedForward] * 2 + [ExpertFeedForward] * 40
    # Gates of the latent layers are left out, and the decay's matrix has a whole rank.
    assert parameter_count(shape) == pytest.approx(124_414_191_072, rel=1e-5)
    with pytest.raises(InputError, match="layers of type 'conv'"):
        small("bailing_hybrid", layer_types=["conv"] * 4)


def test_every_second_layer_of_hunyuan_large_reads_the_cache_of_the_one_before():
    shared = small("hunyuan", **HUNYUAN, use_cla=True, cla_share_factor=2)
    assert [layer.mixer.reuses_kv_cache for layer in singles(shared)] == [False, True] * 2
    own = small("hunyuan", **HUNYUAN, use_cla=False, cla_share_factor=2)
    assert kv_bytes_per_token(own) == 2 * kv_bytes_per_token(shared)


def test_hunyuans_numbers_may_be_listed_by_layer():
    listed = {"moe_topk": [1, 2, 2, 1], "moe_intermediate_size": [96] * 4}
    shape = small("hunyuan_v1_moe", **{**HUNYUAN, **listed})
    assert [layer.feed_forward.active for layer in singles(shape)] == [1, 2, 2, 1]
    assert shape.layers[0].feed_forward.inner == 96
    assert shape.layers[0].feed_forward.shared_inner == 512
    with pytest.raises(InputError, match="'moe_topk' must list every layer"):
        small("hunyuan_v1_moe", **{**HUNYUAN, "moe_topk": [1, 2]})


def test_arctics_experts_stand_beside_a_dense_part_as_wide_as_the_network():
    shape = small("arctic", **TWO_OF_FOUR, moe_layer_frequency=2, use_residual=True)
    dense, experts = singles(shape)[:2]
    assert (dense.feed_forward, dense.norms) == (DenseFeedForward(inner=512), 2)
    assert experts.feed_forward == ExpertFeedForward(
        experts=4, active=2, inner=512, shared_inner=256
    )
    assert experts.norms == 3


def test_layers_of_laguna_differ_in_heads_windows_and_feed_forward_part():
    layers = singles(small("laguna", **EXPERTS, **LAGUNA))
    assert [layer.mixer.heads for layer in layers] == [8, 4, 8, 4]
    assert [layer.mixer.window for layer in layers] == [None, 64] * 2
    assert [layer.mixer.gate_columns for layer in layers] == [8, 4, 8, 4]
    assert isinstance(layers[0].feed_forward, DenseFeedForward)
    assert isinstance(layers[1].feed_forward, ExpertFeedForward)


def test_command_as_first_layers_are_dense_and_see_all():
    changes = {**COMMAND, "num_experts_per_tok": 2, "sliding_window": 64}
    layers = singles(small("cohere2_moe", **changes, num_hidden_layers=6))
    assert [layer.mixer.window for layer in layers] == [None, 64, 64, 64, None, 64]
    assert layers[0].feed_forward == DenseFeedForward(inner=384)
    assert all(layer.parallel and layer.norms == 1 for layer in layers)


def test_local_layers_of_gpt_neo_have_windows():
    def windows(kinds):
        shape = small("gpt_neo", **NEO, attention_types=kinds)
        return [layer.mixer.window for layer in singles(shape)]

    assert windows([[["global", "local"], 2]]) == [None, 256, None, 256]
    assert windows([[["global"], 1], [["local"], 3]]) == [None, 256, 256, 256]
    with pytest.raises(InputError, match="must cover every layer"):
        windows([[["global", "local"], 1]])
    with pytest.raises(InputError, match="must list kinds"):
        windows([["global", "local"]])
    with pytest.raises(InputError, match="layers of type 'sparse'"):
        windows([[["sparse"], 4]])


def test_a_swiglu_of_jais_has_a_gate_and_biases_and_alibi_needs_no_table():
    gpt2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_inner": 512, "n_positions": 1024}
    plain = small("jais", **gpt2)
    gated = small("jais", **gpt2, activation_function="swiglu", position_embedding_type="alibi")
    part, table = 256 * 512 + 512, 1024 * 256
    assert parameter_count(gated) - parameter_count(plain) == 4 * part - table


def test_minicpm_is_tied_and_may_have_experts():
    assert small("minicpm").tied_embeddings
    experts = small("minicpm", num_experts=4, num_experts_per_tok=2).layers[0].feed_forward
    assert experts == ExpertFeedForward(experts=4, active=2, inner=512)


@pytest.mark.parametrize("model_type", ["minicpm3", "phi3small", "step3_text"])
def test_what_no_part_expresses_is_refused_with_its_reason(model_type):
    with pytest.raises(InputError, match=r"which is not modelled yet \("):
        small(model_type)


def test_three_of_four_layers_have_windows_in_cohere2_olmo3_and_exaone4():
    for model_type in ("cohere2", "olmo3", "exaone4"):
        shape = shape_from_config(
            {**SMALL, "model_type": model_type, "sliding_window": 128}, name="small", source="test"
        )
        assert [(each.count, each.mixer.window) for each in shape.layers] == [(3, 128), (1, None)]


def test_columns_of_muse_glimmers_output_are_gated_and_every_fourth_layer_sees_all():
    shape = parse(model_type="muse_glimmer_text", head_dim=16, sliding_window=32)
    assert [(each.count, each.mixer.window) for each in shape.layers] == [(3, 32), (1, None)]
    mixers = [each.mixer for each in shape.layers]
    assert all(mixer.gate_columns == 8 * 16 and not mixer.qk_norm for mixer in mixers)


def test_decilms_layers_have_the_kv_heads_of_the_widest():
    def deci(listed):
        shape = parse(model_type="deci", num_key_value_heads_per_layer=listed)
        return [(each.count, each.mixer.kv_heads) for each in shape.layers]

    assert deci([2, 4, 1, 1]) == [(4, 4)]
    with pytest.raises(InputError, match="num_key_value_heads_per_layer"):
        deci([2, "four", 1, 1])
    with pytest.raises(InputError, match="no multiple"):
        deci([2, 3, 1, 1])
    with pytest.raises(InputError, match="must list every layer"):
        deci([2, 4, 1])
    plain = parse(model_type="deci", num_key_value_heads=2)
    assert [each.mixer.kv_heads for each in plain.layers] == [2]


def test_an_embedding_narrower_than_the_layers_is_refused():
    opt = {**SMALL, "model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 128}
    with pytest.raises(InputError, match="embedding narrower than its layers"):
        shape_from_config(opt, name="facebook/opt-350m", source="test")


def nemotron(**changes):
    return parse(
        **{
            "model_type": "nemotron_h",
            "num_hidden_layers": 5,
            "hybrid_override_pattern": "ME*-M",
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "head_dim": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            **changes,
        }
    )


def test_nemotrons_layers_are_one_part_each():
    shape = nemotron()
    mixers = [type(layer.mixer) for layer in shape.layers]
    assert mixers == [StateSpace, type(None), Attention, type(None), StateSpace]
    parts = [type(layer.feed_forward) for layer in shape.layers]
    assert parts == [type(None), ExpertFeedForward, type(None), DenseFeedForward, type(None)]
    assert all(layer.norms == 1 for layer in shape.layers)
    assert not shape.layers[1].feed_forward.gated


def test_nemotrons_newer_files_list_their_layers_and_leave_out_how_many():
    listed = ["mamba", "moe", "attention", "mlp", "mamba"]
    newer = nemotron(hybrid_override_pattern=None, layers_block_type=listed, num_hidden_layers=None)
    assert newer.layers == nemotron().layers


def delta(**changes):
    return parse(
        **{
            "model_type": "qwen3_5_text",
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "head_dim": 16,
            **changes,
        }
    )


def test_three_of_four_layers_are_linear_where_the_file_does_not_list_them():
    shape = delta()
    assert [(type(layer.mixer), layer.count) for layer in shape.layers] == [
        (LinearAttention, 3),
        (Attention, 1),
    ]
    assert shape.layers[1].mixer.gate_columns == 8 * 16
    ungated = delta(attn_output_gate=False)
    assert parameter_count(shape) - parameter_count(ungated) == 64 * 8 * 16


def test_the_states_dtype_is_the_files():
    wide, narrow = delta(mamba_ssm_dtype="float32"), delta()
    assert wide.layers[0].mixer.state_dtype == "fp32"
    assert state_bytes_per_sequence(wide) - state_bytes_per_sequence(narrow) == 3 * 4 * 8 * 8 * 2


SPARSE = {
    "model_type": "glm_moe_dsa",
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 4,
    "index_head_dim": 128,
    "index_n_heads": 4,
    "index_topk": 64,
}


def test_layers_without_an_index_read_what_an_earlier_one_chose():
    everywhere = parse(**SPARSE)
    assert [layer.count for layer in everywhere.layers] == [4]
    shared = parse(**SPARSE, indexer_types=["full", "shared", "shared", "full"])
    assert [layer.mixer.index is None for layer in shared.layers] == [False, True, False]
    assert all(layer.mixer.top_k == 64 for layer in shared.layers)
    assert kv_bytes_per_token(everywhere) - kv_bytes_per_token(shared) == 2 * 132


def test_glm_5_3_flash_has_three_linear_layers_before_each_that_searches():
    file = SPARSE | {
        "model_type": "glm5_next_text",
        "layer_types": ["linear_attention"] * 3 + ["deepseek_sparse_attention"],
        "linear_attn_config": {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4},
        "qk_rope_head_dim": 0,
        "index_kpool": 4,
    }
    shape = parse(**file)
    linear, sparse = shape.layers
    assert (type(linear.mixer), linear.count) == (LinearAttention, 3)
    assert (linear.mixer.value_heads, linear.mixer.key_dim, linear.mixer.decay) == (4, 8, "channel")
    assert (sparse.mixer.rope_dim, sparse.mixer.top_k) == (0, 64)
    # One key of the index for four tokens: 128 bytes and a scale.
    assert kv_bytes_per_token(shape) == 32 * 2 + 132 / 4
    assert sparse.mixer.index.key_tokens == 4
    streams = 4 * 2 * ((2 + 4) * 4 * (4 * 64 + 1) + 3)
    assert parameter_count(parse(**file, hc_mult=1)) < parameter_count(shape) - streams // 2
    with pytest.raises(InputError, match="layers of type 'full_attention'"):
        parse(**{**file, "layer_types": ["full_attention"] * 4})


def test_gemma_4_of_one_tower_is_read_as_gemma_4():
    written = {"num_hidden_layers": 6, "global_head_dim": 16, "hidden_size_per_layer_input": 0}
    one, other = (parse(model_type=f"gemma4{kind}_text", **written) for kind in ("", "_unified"))
    assert one.layers == other.layers


def searched(blocks):
    return parse(
        model_type="nemotron-nas",
        num_key_value_heads=None,
        intermediate_size=None,
        num_hidden_layers=len(blocks),
        block_configs=blocks,
    )


def test_searched_layers_may_lack_a_part_and_differ_in_width():
    shape = searched(
        [
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 5.25}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        ]
    )
    first, second, third = shape.layers
    assert first.mixer.kv_heads == 2
    assert first.feed_forward.inner == 256  # 2/3 of 5.25 * 64, to the next 256
    assert second.mixer is None
    assert third.feed_forward is None
    assert [layer.norms for layer in shape.layers] == [2, 1, 1]


def test_a_searched_layer_of_one_matrix_is_refused():
    block = {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}}
    with pytest.raises(InputError, match="one matrix, which is not modelled yet"):
        searched([block])


def test_gemma_4s_wide_layers_project_once_and_its_last_layers_borrow():
    shape = parse(
        model_type="gemma4_text",
        num_hidden_layers=6,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_kv_shared_layers=2,
        sliding_window=32,
        hidden_size_per_layer_input=0,
    )
    singles = [layer.mixer for layer in shape.layers for _ in range(layer.count)]
    assert [mixer.window for mixer in singles] == [32] * 5 + [None]
    assert [mixer.reuses_kv_cache for mixer in singles] == [False] * 4 + [True] * 2
    assert singles[-1].key_is_value
    assert (singles[-1].kv_heads, singles[-1].head_dim) == (1, 16)
    assert not singles[0].key_is_value


def test_gemma_4s_small_models_count_as_their_class_does():
    # Gemma4ForCausalLM of transformers 5.19 with this configuration.
    shape = parse(
        model_type="gemma4_text",
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        global_head_dim=64,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=1000,
        num_kv_shared_layers=4,
        use_double_wide_mlp=True,
        sliding_window=64,
        layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 2,
    )
    assert parameter_count(shape) == 7_073_392


def test_lightning_attention_counts_as_its_class_does():
    # MiniMaxForCausalLM of transformers 5.19 with this configuration.
    shape = parse(
        model_type="minimax",
        vocab_size=1000,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"] * 2,
    )
    assert parameter_count(shape) == 3_074_816


def test_heads_inside_and_outside_windows_may_differ():
    shape = parse(
        model_type="mimo_v2_flash",
        head_dim=12,
        v_head_dim=8,
        swa_num_attention_heads=16,
        swa_num_key_value_heads=4,
        swa_head_dim=12,
        swa_v_head_dim=8,
        sliding_window=32,
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        add_swa_attention_sink_bias=True,
    )
    outer, inner, last = (layer.mixer for layer in shape.layers)
    assert (outer.heads, outer.window, outer.sinks) == (8, None, False)
    assert (inner.heads, inner.kv_heads, inner.window, inner.sinks) == (16, 4, 32, True)
    assert (last.head_dim, last.value_dim) == (12, 8)


def test_a_vision_tower_is_weight_and_not_parameters_of_the_decoder():
    tower = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "in_channels": 3,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 9,
        "out_hidden_size": 64,
        "num_heads": 2,
    }
    outer = {"model_type": "qwen3_vl", "text_config": {**LLAMA, "model_type": "qwen3_vl_text"}}
    blind = shape_from_config(outer, name="vl", source="test")
    seeing = shape_from_config({**outer, "vision_config": tower}, name="vl", source="test")
    patches, positions = 3 * 2 * 16 * 16 + 16, 9 * 16
    block = 4 * 16 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16)
    merger = 2 * 16 + (64 * 64 + 64) + (64 * 64 + 64)
    assert seeing.vision_parameters == patches + positions + 2 * block + merger
    assert parameter_count(seeing) == parameter_count(blind)
    assert weight_bytes(seeing) - weight_bytes(blind) == 2 * seeing.vision_parameters


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hybrid_override_pattern": "ME*"}, "must name every layer"),
        ({"hybrid_override_pattern": "ME*-X"}, "layers of type 'X'"),
        ({"mamba_num_heads": None}, "lacks 'mamba_num_heads'"),
        ({"ssm_state_size": 0}, "'ssm_state_size' must be"),
        ({"num_experts_per_tok": 9}, "9 experts per token are more than"),
        ({"mamba_ssm_cache_dtype": "int7"}, "int7"),
    ],
)
def test_a_malformed_hybrid_is_refused_by_what_is_wrong(changes, said):
    with pytest.raises((InputError, UnknownName)) as caught:
        nemotron(**changes)
    assert said in caught.value.message


def test_malformed_tables_inside_are_refused_by_the_key():
    with pytest.raises(InputError, match="linear_num_value_heads 3 is no multiple"):
        delta(linear_num_value_heads=3)
    with pytest.raises(InputError, match="layers of type 'mamba', which is not modelled"):
        delta(layer_types=["mamba"] * 4)
    for ratios in (None, [], ["4"], [-1], [True]):
        with pytest.raises(InputError, match="'compress_ratios' must list"):
            parse(model_type="deepseek_v4", compress_ratios=ratios)
    with pytest.raises(InputError, match="'block_configs' must have 'attention'"):
        searched([{"ffn": {"ffn_mult": 1.0}}])
    with pytest.raises(InputError, match="'ffn_mult' must be above zero"):
        searched([{"attention": {"no_op": True}, "ffn": {"ffn_mult": -1}}])


def tables(config, path=()):
    """Every table inside a configuration, with the way to it."""
    yield path, config
    for key, value in config.items():
        if isinstance(value, dict):
            yield from tables(value, (*path, key))


#: Configurations of families of which the catalogue has no model.
UNCATALOGUED = {
    "laguna": {**SMALL, **EXPERTS, **LAGUNA},
    "cohere2_moe": {**SMALL, **TWO_OF_FOUR, **COMMAND},
    "hunyuan": {**SMALL, **HUNYUAN, "use_cla": True, "cla_share_factor": 2},
}


def one_of_each_family():
    small_ones = {
        model_type: {**config, "model_type": model_type}
        for model_type, config in UNCATALOGUED.items()
    }
    published = {entry.config["model_type"]: entry.config for entry in catalogue().values()}
    return {**small_ones, **published}


def every_third(cases):
    """The cases, two of three as slow ones."""
    return [
        case if number % 3 == 0 else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("model_type", every_third(sorted(one_of_each_family())))
def test_no_wrong_value_of_any_key_ends_in_another_error_than_ours(model_type):
    config = one_of_each_family()[model_type]
    for path, table in tables(config):
        for key in table:
            for wrong in (None, "x", -1, 0, [], {}, True, 1.5, [1], ["x"], {"a": 1}):
                broken = copy.deepcopy(config)
                inner = broken
                for step in path:
                    inner = inner[step]
                inner[key] = wrong
                try:
                    shape = shape_from_config(broken, name="broken", source="test")
                    assert parameter_count(shape) > 0
                    assert kv_bytes_per_token(shape) >= 0
                except ServetuneError as error:
                    assert "\n" not in error.message  # noqa: PT017


def shared_configs() -> list[Path]:
    default = Path(__file__).parents[3] / "shared"
    folder = Path(os.environ.get("SERVETUNE_SHARED", default)) / "data" / "model_configs"
    found = sorted(folder.glob("*_config.json"))
    return [path for path in found if not path.name.endswith("_hf_quant_config.json")]


def shared_shape(path: Path) -> NetworkShape:
    """As `load_shape` reads a folder: the quantisation's own file where config.json is silent."""
    config = json.loads(path.read_text())
    beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
    if not config.get("quantization_config") and beside.is_file():
        config["quantization_config"] = json.loads(beside.read_text())
    return shape_from_config(config, name=path.name, source="")


#: Files that cannot be read, with the reason; none is left.
UNREADABLE: dict[str, str] = {}


@pytest.mark.skipif(not shared_configs(), reason="the shared set of published configs is not here")
@pytest.mark.parametrize("path", shared_configs(), ids=lambda path: path.name)
def test_every_published_config_parses(path):
    if path.name in UNREADABLE:
        pytest.xfail(UNREADABLE[path.name])
    shape = shared_shape(path)
    parameters, active = parameter_count(shape), active_parameter_count(shape)
    assert 0 < active <= parameters
    plain = 2 * (parameters + shape.vision_parameters)
    assert 0.25 * plain < weight_bytes(shape) <= plain
    assert kv_bytes_per_token(shape) > 0
    assert shape.layer_count > 10


#: File that states no storage beside its name, with its `hf_quant_config.json` not in the set.
SILENT = ("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",)

#: File with less context than that of the model whose copy it is.
SHORTER = ("nvidia/MiniMax-M2.7-NVFP4",)


@pytest.mark.skipif(not shared_configs(), reason="the shared set of published configs is not here")
@pytest.mark.parametrize("path", shared_configs(), ids=lambda path: path.name)
def test_a_checkpoint_read_by_its_name_is_what_its_published_file_says(path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = path.name.removesuffix("_config.json").replace("--", "/", 1)
    named, read = load_shape(name, catalogue_first=True), shared_shape(path)
    assert named.layer_count == read.layer_count
    if name not in SHORTER:
        assert named.max_context_tokens == read.max_context_tokens
    if name in SILENT:
        return
    assert named.quantization == read.quantization
    assert named.kv_cache_dtype == read.kv_cache_dtype
    # Towers of some layouts are not counted from a file, and stated in the catalogue.
    tower = read.vision_parameters or named.vision_parameters
    assert named.vision_parameters == tower
    weighed = weight_bytes(msgspec.structs.replace(read, vision_parameters=tower))
    assert weight_bytes(named) == pytest.approx(weighed, rel=1e-3)


@pytest.mark.skipif(not shared_configs(), reason="the shared set of published configs is not here")
@pytest.mark.parametrize(
    ("name", "quantization", "cache"),
    [
        ("moonshotai--Kimi-K2.5", "int4_g32@experts", "auto"),
        ("Qwen--Qwen3-30B-A3B-FP8", "fp8_block", "auto"),
        ("zai-org--GLM-5-FP8", "fp8_block", "auto"),
        ("nvidia--Kimi-K2.6-NVFP4", "nvfp4@experts", "fp8"),
        ("nvidia--DeepSeek-V3.1-NVFP4", "nvfp4@feed_forward+nvfp4@output", "fp8"),
        ("nvidia--DeepSeek-V4-Flash-NVFP4", "nvfp4@experts+fp8_block", "fp8"),
        ("deepseek-ai--DeepSeek-V4-Flash", "mxfp4@experts+fp8_block", "fp8"),
        ("sgl-project--DeepSeek-V4-Flash-FP8", "fp8_block", "fp8"),
        ("moonshotai--Kimi-K3", "mxfp4@experts", "auto"),
        ("nvidia--Qwen3.6-27B-NVFP4", "nvfp4w@feed_forward+fp8+nvfp4w@head", "fp8"),
        ("nvidia--Qwen3.5-122B-A10B-NVFP4", "nvfp4@experts", "fp8"),
        ("nvidia--Gemma-4-26B-A4B-NVFP4", "nvfp4@experts", "fp8"),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nvfp4", "fp8"),
        ("openai--gpt-oss-120b", "mxfp4@feed_forward", "auto"),
    ],
)
def test_published_quantisations_are_read(name, quantization, cache):
    folder = shared_configs()[0].parent
    shape = shared_shape(folder / f"{name}_config.json")
    assert (shape.quantization, shape.kv_cache_dtype) == (quantization, cache)


@pytest.mark.skipif(not shared_configs(), reason="the shared set of published configs is not here")
def test_layers_that_a_checkpoint_leaves_wide_are_wide_alone():
    folder = shared_configs()[0].parent
    shape = shared_shape(folder / "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4_config.json")
    wide = [layer for layer in shape.layers if layer.quantization is not None]
    # Its file names six attention layers and the Mamba layer before each.
    assert sum(layer.count for layer in wide) == 12
    assert {layer.quantization for layer in wide} == {"none"}
    assert {type(layer.mixer) for layer in wide} == {Attention, StateSpace}


@pytest.mark.parametrize("family", ["xverse", "orion"])
def test_experts_under_the_name_of_a_dense_family_are_refused(family):
    config = {
        "model_type": family,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    assert shape_from_config(config, name="m", source="test").layer_count == 2
    with pytest.raises(InputError, match="has experts, which is not modelled"):
        shape_from_config({**config, "num_experts": 64}, name="m", source="test")
