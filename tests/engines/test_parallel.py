import msgspec
import pytest

from servetune.engines import (
    check_parallel,
    layer_share,
    possible_tensor_parallel,
    stage_layers,
    with_whole_experts,
)
from servetune.engines.parallel import distinct_layers
from servetune.errors import PlanError
from servetune.hardware import instance, node
from servetune.models import Attention, ExpertFeedForward, layer_parameters, load_shape
from servetune.plan import Plan


def shape_of(name):
    return load_shape(name, catalogue_first=True)


QWEN = shape_of("Qwen/Qwen3-4B")  # 32 heads, 8 KV heads, 36 layers
MOE = shape_of("Qwen/Qwen3-30B-A3B")  # 32 heads, 4 KV heads, 128 experts of 768 columns


def plan(**fields):
    return Plan(model="m", **fields)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_plan_that_divides_and_has_its_devices_passes(degree):
    check_parallel(plan(tensor_parallel=degree), QWEN, instance("ml.g6.12xlarge"))


def test_kv_heads_are_copied_where_there_are_fewer_than_devices():
    check_parallel(plan(tensor_parallel=8), MOE, node(gpu="H100", count=8))
    check_parallel(plan(tensor_parallel=16), QWEN)


def test_heads_that_do_not_divide_are_refused_with_what_would():
    with pytest.raises(PlanError, match="32 attention heads do not divide by tensor_parallel 3"):
        check_parallel(plan(tensor_parallel=3), QWEN)
    with pytest.raises(PlanError) as caught:
        check_parallel(plan(tensor_parallel=3), QWEN, node(gpu="L4", count=4))
    assert "tensor_parallel may be 1, 2, 4 on 4 devices" in caught.value.hint


def test_kv_heads_that_neither_divide_nor_are_divided_are_refused():
    mixer = Attention(heads=24, kv_heads=8, head_dim=128)
    layer = msgspec.structs.replace(QWEN.layers[0], mixer=mixer)
    shape = msgspec.structs.replace(QWEN, layers=(layer,))
    with pytest.raises(PlanError, match="8 KV heads neither divide by nor divide"):
        check_parallel(plan(tensor_parallel=12), shape)
    check_parallel(plan(tensor_parallel=2), shape)


def test_columns_that_do_not_divide_are_refused():
    part = msgspec.structs.replace(QWEN.layers[0].feed_forward, inner=9729)
    layer = msgspec.structs.replace(QWEN.layers[0], feed_forward=part)
    shape = msgspec.structs.replace(QWEN, layers=(layer,))
    with pytest.raises(PlanError, match="9729 feed-forward columns do not divide by 2"):
        check_parallel(plan(tensor_parallel=2), shape)


def test_blocks_of_fp8_weights_may_not_be_cut():
    # Known to users of Qwen3-235B-A22B-FP8: 1,536 columns over 8 are 192, no multiple of 128.
    plain = shape_of("Qwen/Qwen3-235B-A22B")
    blocked = msgspec.structs.replace(plain, quantization="fp8_block")
    check_parallel(plan(tensor_parallel=8), plain)
    with pytest.raises(PlanError, match="128-column blocks"):
        check_parallel(plan(tensor_parallel=8), blocked)
    check_parallel(plan(tensor_parallel=4), blocked)
    check_parallel(plan(tensor_parallel=8, expert_parallel=True), blocked)


def test_columns_of_an_expert_must_divide_over_the_devices_of_all_copies():
    check_parallel(plan(tensor_parallel=4, data_parallel=2), MOE)
    part = msgspec.structs.replace(MOE.layers[0].feed_forward, inner=764)
    layer = msgspec.structs.replace(MOE.layers[0], feed_forward=part)
    shape = msgspec.structs.replace(MOE, layers=(layer,))
    check_parallel(plan(tensor_parallel=4), shape)
    with pytest.raises(PlanError, match="764 columns of an expert do not divide by 8"):
        check_parallel(plan(tensor_parallel=4, data_parallel=2), shape)


def test_whole_experts_must_divide_over_their_devices():
    check_parallel(plan(tensor_parallel=8, expert_parallel=True), MOE)
    part = msgspec.structs.replace(MOE.layers[0].feed_forward, experts=60)
    layer = msgspec.structs.replace(MOE.layers[0], feed_forward=part)
    shape = msgspec.structs.replace(MOE, layers=(layer,))
    with pytest.raises(PlanError, match="60 experts do not divide by 8 devices"):
        check_parallel(plan(tensor_parallel=8, expert_parallel=True), shape)


def test_experts_in_a_network_without_any_are_refused():
    with pytest.raises(PlanError, match="no experts"):
        check_parallel(plan(expert_parallel=True), QWEN)


def test_more_stages_than_layers_are_refused_and_an_uneven_split_is_not():
    with pytest.raises(PlanError, match="37 pipeline stages are more than the 36 layers"):
        check_parallel(plan(pipeline_parallel=37), QWEN)
    check_parallel(plan(pipeline_parallel=5), QWEN)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tensor_parallel": 8}, "needs 8 devices (tensor_parallel 8)"),
        ({"tensor_parallel": 2, "replicas": 4}, "needs 8 devices (tensor_parallel 2 x replicas 4)"),
        ({"pipeline_parallel": 5}, "needs 5 devices (pipeline_parallel 5)"),
        ({"data_parallel": 8}, "needs 8 devices (data_parallel 8)"),
    ],
)
def test_a_plan_for_more_devices_than_there_are_says_which(fields, said):
    with pytest.raises(PlanError) as caught:
        check_parallel(plan(**fields), QWEN, instance("ml.g6.12xlarge"))
    assert said in caught.value.message
    assert "4x L4 (ml.g6.12xlarge) has 4" in caught.value.message
    assert "tensor_parallel" in caught.value.hint


def test_possible_degrees_leave_room_for_the_rest_of_the_plan():
    assert possible_tensor_parallel(plan(), QWEN, 8) == (1, 2, 4, 8)
    assert possible_tensor_parallel(plan(replicas=2), QWEN, 8) == (1, 2, 4)
    assert possible_tensor_parallel(plan(), shape_of("Qwen/Qwen2.5-7B-Instruct"), 8) == (1, 2, 4)


def test_every_layer_is_on_exactly_one_stage_and_in_order():
    shape = shape_of("deepseek-ai/DeepSeek-V3")  # 3 dense layers, then 58 with experts
    for stages in (1, 2, 3, 4, 7, 61):
        split = stage_layers(plan(pipeline_parallel=stages), shape)
        assert len(split) == stages
        flat = [
            (layer.mixer, layer.feed_forward)
            for s in split
            for layer in s
            for _ in range(layer.count)
        ]
        whole = [
            (layer.mixer, layer.feed_forward) for layer in shape.layers for _ in range(layer.count)
        ]
        assert flat == whole
        counts = [sum(layer.count for layer in layers) for layers in split]
        assert max(counts) - min(counts) <= 1


def test_the_last_stage_gets_no_remainder():
    counts = [
        sum(layer.count for layer in layers)
        for layers in stage_layers(plan(pipeline_parallel=5), QWEN)
    ]
    assert counts == [7, 7, 7, 8, 7]


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"])
def test_one_device_holds_the_whole_layer(name):
    shape = shape_of(name)
    for layer in shape.layers:
        assert layer_share(plan(), layer, shape.hidden) == layer_parameters(layer, shape.hidden)


def test_copied_kv_heads_are_one_per_device():
    layer = MOE.layers[0]
    whole = layer_parameters(layer, MOE.hidden)
    at_four = layer_share(plan(tensor_parallel=4), layer, MOE.hidden).kv_heads
    at_eight = layer_share(plan(tensor_parallel=8), layer, MOE.hidden).kv_heads
    assert at_four == at_eight == whole.kv_heads / 4


def test_vllm_spreads_experts_over_data_parallel_engines_and_sglang_does_not():
    layer = MOE.layers[0]
    assert isinstance(layer.feed_forward, ExpertFeedForward)
    whole = layer_parameters(layer, MOE.hidden).experts
    wide = plan(tensor_parallel=2, data_parallel=4)
    assert layer_share(wide, layer, MOE.hidden).experts == whole / 8
    copies = msgspec.structs.replace(wide, engine="sglang")
    assert layer_share(copies, layer, MOE.hidden).experts == whole / 2


def test_experts_are_placed_whole_only_where_nothing_else_runs():
    shape = load_shape("MiniMaxAI/MiniMax-M2.5", catalogue_first=True)

    def read(**fields):
        return with_whole_experts(Plan(model="m", **fields), shape)

    assert read(tensor_parallel=8).expert_parallel
    assert not read(tensor_parallel=4).expert_parallel  # divides as it is
    assert not read(tensor_parallel=7).expert_parallel  # its heads do not divide either way
    dense = load_shape("Qwen/Qwen3-8B", catalogue_first=True)
    odd = Plan(model="m", tensor_parallel=3)
    assert with_whole_experts(odd, dense) == odd


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "Qwen/Qwen3.5-397B-A17B"])
def test_kinds_of_layer_that_take_turns_are_counted_once_and_none_is_lost(name):
    layers = shape_of(name).layers
    kinds = distinct_layers(layers)
    assert len(kinds) < len(layers)
    assert sum(kind.count for kind in kinds) == sum(layer.count for layer in layers)
    hidden = shape_of(name).hidden
    for part in ("dense", "experts", "kv_heads"):
        assert parameters_of(kinds, hidden, part) == parameters_of(layers, hidden, part)


def parameters_of(layers, hidden, part):
    return sum(layer.count * getattr(layer_parameters(layer, hidden), part) for layer in layers)


@pytest.mark.parametrize(
    "name",
    ["tensor_parallel", "pipeline_parallel", "data_parallel", "replicas", "max_num_seqs",
     "max_num_batched_tokens", "max_model_len", "block_tokens"],
)  # fmt: skip
def test_a_plan_without_devices_or_places_is_refused_and_one_of_each_is_not(name):
    assert getattr(plan(**{name: 1}), name) == 1
    with pytest.raises(PlanError, match=f"{name}.* 0"):
        plan(**{name: 0})


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("gpu_memory_fraction", 0.001, 1.0), ("draft_acceptance_fraction", 0.0, 1.0)],
)
def test_fractions_of_a_plan_are_between_their_edges(name, least, most):
    drafts = {"draft_tokens": 2}
    assert getattr(plan(**{name: least}, **drafts), name) == least
    assert getattr(plan(**{name: most}, **drafts), name) == most
    for beyond in (-0.001, 1.001):
        with pytest.raises(PlanError, match=name):
            plan(**{name: beyond}, **drafts)
    with pytest.raises(PlanError, match="gpu_memory_fraction"):
        plan(gpu_memory_fraction=0.0)
