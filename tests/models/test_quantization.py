import doctest

import pytest

from servetune.errors import InputError, UnknownName
from servetune.models import (
    CheckpointStorage,
    cache_dtype_bytes,
    canonical_cache_dtype,
    canonical_dtype,
    effective_quantization,
    quantization_from_config,
    quantization_named,
)
from servetune.models import quantization as quantization_module
from servetune.models.quantization import join_parts


def from_config(config, layer_count=4):
    return quantization_from_config(config, layer_count=layer_count)


def compressed(bits, kind, *, activations=None, ignore=("lm_head",), **weights):
    group = {
        "weights": {"num_bits": bits, "type": kind, **weights},
        "input_activations": activations,
    }
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
    }


@pytest.mark.parametrize(
    ("name", "bytes_per_weight"),
    [
        ("fp8", 1.0),
        ("fp8_block", 1 + 4 / 16384),
        ("int8", 1.0),
        ("int8w", 1.0),
        ("mxfp8", 1 + 1 / 32),
        ("nf4", 0.5 + 4 / 64),
        ("nvfp4w", 0.5625),
        ("awq", 0.5 + 2.5 / 128),
        ("gptq", 0.5 + 2 / 128),
        ("int4_g32", 0.5 + 2 / 32),
        ("nvfp4", 0.5625),
        ("mxfp4", 0.53125),
    ],
)
def test_scales_count_in_the_width(name, bytes_per_weight):
    assert quantization_named(name).bytes_per_weight == bytes_per_weight


def test_only_schemes_with_narrow_activations_multiply_narrowly():
    assert quantization_named("fp8").math_dtype == "fp8"
    assert quantization_named("nvfp4").math_dtype == "fp4"
    assert quantization_named("int8").math_dtype == "int8"
    assert quantization_named("awq").math_dtype is None
    assert quantization_named("none").math_dtype is None


def test_a_canonical_name_names_itself():
    for name in ("none", "fp8_block", "int4_g32@experts", "mxfp4@feed_forward", "int4_g128z"):
        assert quantization_named(name).name == name


def test_unknown_names_offer_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        quantization_named("fp9")
    assert "fp8" in caught.value.hint
    with pytest.raises(UnknownName, match="scope"):
        quantization_named("fp8@moon")
    with pytest.raises(UnknownName):
        canonical_cache_dtype("fp3")
    with pytest.raises(UnknownName):
        canonical_dtype("int7")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "none"),
        ({}, "none"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "int4_g64z"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4_g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8w"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4"),
        (compressed(8, "float", activations={"num_bits": 8}), "fp8"),
        (compressed(8, "float", strategy="block"), "fp8_block"),
        (compressed(8, "int", activations={"num_bits": 8}), "int8"),
        (compressed(8, "int"), "int8w"),
        (compressed(4, "float", group_size=16), "nvfp4"),
        ({"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8"),
        ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}, "nvfp4"),
    ],
)
def test_published_configurations_are_read(config, name):
    assert from_config(config)[0] == name


def test_four_bit_weights_with_wide_activations_are_not_taken_for_eight_bit_ones():
    # llm-optimizer reads every compressed-tensors checkpoint as fp8.
    name, _ = from_config(compressed(4, "int", group_size=128, strategy="group", symmetric=True))
    assert name == "int4_g128"
    assert quantization_named(name).math_dtype is None


def test_attention_that_stays_wide_is_noticed_by_pattern_or_by_list():
    by_pattern = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    assert from_config(by_pattern)[0] == "mxfp4@feed_forward"
    listed = [f"model.layers.{i}.self_attn*" for i in range(4)]
    by_list = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": listed}}
    assert from_config(by_list)[0] == "nvfp4@feed_forward"
    one_layer = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": listed[:1]}}
    assert from_config(one_layer)[0] == "nvfp4"


def test_wide_shared_experts_leave_only_the_routed_ones_narrow():
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]
    config = compressed(4, "int", group_size=32, symmetric=True, ignore=ignored)
    assert from_config(config)[0] == "int4_g32@experts"


def test_norms_after_attention_are_no_attention():
    config = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["model.layers.0.post_attention_layernorm", "lm_head"],
    }
    assert from_config(config, layer_count=1)[0] == "fp8"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "magic"}, "'magic' is not modelled"),
        ({"quant_algo": "MIXED_PRECISION"}, "'MIXED_PRECISION' is not modelled"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits is not modelled"),
        ({"quant_method": "compressed-tensors"}, "'config_groups' is missing"),
    ],
)
def test_schemes_that_are_not_known_are_refused(config, said):
    with pytest.raises(InputError, match=said):
        from_config(config)


def test_a_mixed_checkpoint_names_its_parts_narrowest_first():
    mixed = quantization_named("nvfp4@experts+fp8_block")
    assert mixed.name == "nvfp4@experts+fp8_block"
    assert (mixed.scheme, mixed.scope, mixed.math_dtype) == ("nvfp4", "experts", "fp4")
    assert mixed.width_of("experts") == 0.5625
    assert mixed.width_of("shared") == mixed.width_of("input") == 1 + 4 / 16384
    assert mixed.width_of("head") is None
    assert mixed.covering(("linear",)).scheme == "fp8_block"
    assert mixed.covering(("linear", "feed_forward", "experts")).scheme == "nvfp4"
    with pytest.raises(UnknownName):
        quantization_named("nvfp4@experts+fp9")


@pytest.mark.parametrize(
    "stored",
    [
        {"input": "fp8", "output": "fp8", "dense": "fp8"},
        {"input": "none", "output": "nvfp4", "dense": "nvfp4"},
        {"input": "none", "output": "none", "experts": "nvfp4", "shared": "none"},
        {"input": "fp8", "output": "fp8", "experts": "mxfp4", "shared": "none"},
        {"input": "fp8", "output": "none", "experts": "fp8", "shared": "mxfp4"},
        {"input": "none", "output": "none", "experts": "none", "shared": "nvfp4"},
        {"input": "fp8", "output": "fp8", "experts": "fp8", "shared": "nvfp4", "dense": "nvfp4"},
        {"input": "fp8", "output": "fp8", "experts": "fp8", "shared": "none", "dense": "none"},
        {"experts": "nvfp4", "shared": "nvfp4"},
        {"input": "none", "output": "none", "dense": "none", "head": "nvfp4"},
    ],
)
def test_a_joined_name_says_of_every_part_how_it_is_stored(stored):
    joined = quantization_named(join_parts(stored))
    for part, scheme in stored.items():
        assert joined.width_of(part) == quantization_named(scheme).bytes_per_weight, part


def modelopt_mixed(**modules):
    layers = {name.replace("__", "."): {"quant_algo": how} for name, how in modules.items()}
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def test_a_mixed_list_becomes_the_most_frequent_scheme_of_each_part():
    config = modelopt_mixed(
        model__layers__0__mlp__down_proj="NVFP4",
        model__layers__1__mlp__down_proj="NVFP4",
        model__layers__2__mlp__down_proj="FP8",
        model__layers__0__self_attn__q_proj="FP8",
        lm_head="W4A16_NVFP4",
    )
    assert from_config(config)[0] == "nvfp4@feed_forward+fp8+nvfp4w@head"
    storage = CheckpointStorage(config)
    assert storage.scheme(1, ["mlp.down_proj"]) == "nvfp4"
    assert storage.scheme(2, ["mlp.down_proj"]) == "fp8"
    assert storage.scheme(3, ["mlp.down_proj"]) == "none"


def test_patterns_of_a_mixed_list_cover_the_modules_that_it_does_not_name():
    listed = {
        "*.mixer.experts": "NVFP4",
        "re:.*layers.(0|2).mixer.in_proj": "FP8",
        "backbone.layers.1.mixer.experts.0.down_proj": "FP8",
    }
    storage = CheckpointStorage(modelopt_mixed(**listed))
    experts, inputs = ["mixer.experts.0.down_proj"], ["mixer.in_proj", "mixer.q_proj"]
    assert [storage.scheme(layer, experts) for layer in (0, 1)] == ["nvfp4", "fp8"]
    assert [storage.scheme(layer, inputs) for layer in (0, 1, 2)] == ["fp8", "none", "fp8"]
    assert storage.scheme(0, ["mixer.shared_experts.down_proj"]) == "none"


@pytest.mark.parametrize(
    ("pattern", "layer", "module", "left_out"),
    [
        ("model.layers.3.self_attn*", 3, "self_attn.q_proj", True),
        ("model.layers.3.self_attn*", 4, "self_attn.q_proj", False),
        ("model.layers.1*", 1, "mlp.down_proj", True),
        ("model.layers.1*", 11, "mlp.down_proj", False),
        ("model.layers.*.self_attn", 7, "self_attn.o_proj", True),
        ("re:.*self_attn.*", 7, "self_attn.o_proj", True),
        (r"re:.*mlp\.(gate|up|down)_proj.*", 0, "mlp.down_proj", True),
        (r"re:.*mlp\.(gate|up|down)_proj.*", 0, "mlp.experts.0.down_proj", False),
        ("*.mlp.shared_expert.*", 0, "mlp.shared_expert.down_proj", True),
        ("backbone.layers.4.mixer.in_proj", 4, "mixer.in_proj", True),
        ("backbone.layers.4.mixer.in_proj", 4, "mixer.out_proj", False),
        ("gate", 4, "mlp.gate", True),
        ("gate", 4, "mlp.gate_proj", False),
        ("mtp.layers.0*", 0, "mlp.down_proj", False),
        ("vision_tower.encoder.layers.0*", 0, "mlp.down_proj", False),
        ("re:.*(", 0, "mlp.down_proj", False),
    ],
)
def test_patterns_leave_out_what_they_name_and_no_more(pattern, layer, module, left_out):
    storage = CheckpointStorage({"quant_algo": "NVFP4", "exclude_modules": [pattern]})
    assert storage.scheme(layer, [module]) == ("none" if left_out else "nvfp4")


def test_a_plain_checkpoint_stores_everything_plainly():
    assert CheckpointStorage(None).scheme(0, ["mlp.down_proj"]) == "none"


def test_the_caches_own_dtype_is_read():
    assert from_config({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})[1] == "fp8"
    assert from_config({**compressed(8, "float"), "kv_cache_scheme": {"num_bits": 8}})[1] == "fp8"
    assert from_config({**compressed(8, "float"), "kv_cache_scheme": None})[1] == "auto"


def test_a_quantised_checkpoint_stays_as_it_is_whatever_is_asked():
    assert effective_quantization("mxfp4@feed_forward", "fp8").name == "mxfp4@feed_forward"
    assert effective_quantization("none", "fp8").name == "fp8"
    assert effective_quantization("none", None).name == "none"
    assert effective_quantization("none", "auto").name == "none"


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("bf16", 2), ("bfloat16", 2), ("float16", 2), ("half", 2), ("float32", 4), ("fp32", 4),
        ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("fp8_inc", 1), ("int8", 1), ("int4", 0.5),
        ("nvfp4", 0.5625),
    ],
)  # fmt: skip
def test_cache_names_of_the_engines_mean_their_width(name, width):
    assert cache_dtype_bytes(name) == width


@pytest.mark.parametrize(("dtype", "width"), [("fp16", 2), ("bf16", 2), ("fp32", 4)])
def test_an_automatic_cache_is_as_wide_as_the_model(dtype, width):
    assert cache_dtype_bytes("auto", model_dtype=dtype) == width


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(quantization_module).failed == 0
