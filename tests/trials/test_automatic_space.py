"""Spaces that `--space auto` chooses, in the words of each engine."""

import json

import pytest

from servetune.engines import check_parallel, engine, plan_from_settings
from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.trials.automatic_space import automatic_space

DENSE, EXPERTS = "Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B"


def chosen(given="", *, model=DENSE, name="vllm", gpu="L4", count=4, copies=True):
    found = engine(name)
    return automatic_space(
        parse_settings(given, types=found.argument_types()),
        model=model,
        served_by=found,
        shape=load_shape(model, catalogue_first=True),
        node=node(gpu=gpu, count=count),
        copies=copies,
    )


def servers(space):
    return list(Space(server=space.server).servers())


def values(space, *names):
    return {tuple(settings.get(name) for name in names) for settings in servers(space)}


DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def test_layouts_use_every_gpu_and_copies_are_data_parallel_or_servers_of_their_own():
    one_server = {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}
    assert values(chosen(copies=False), *DEGREES) == one_server
    assert values(chosen(), *DEGREES, "replicas") == {
        *((*degrees, 1) for degrees in one_server),
        *((1, 1, 1, 4), (1, 2, 1, 2), (2, 1, 1, 2)),
    }
    assert chosen().copies_left_out == chosen(copies=False).copies_left_out == 0


def test_copies_of_experts_are_servers_of_their_own_where_engines_of_one_share_them():
    place = {"model": EXPERTS, "gpu": "H100", "count": 8}
    names = ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel")
    one_server = {(1, 8, True), (2, 4, True), (4, 2, True), (8, 1, None)}
    without = chosen(**place, copies=False)
    assert values(without, *names) == one_server
    assert without.copies_left_out == 6
    space = chosen(**place)
    assert space.copies_left_out == 0
    found = values(space, *names, "replicas")
    assert {layout[:3] for layout in found if layout[3] == 1} == one_server
    assert {(1, 1, None, 8), (2, 1, None, 4), (4, 1, None, 2), (2, 2, True, 2)} <= found
    apart = chosen(model=EXPERTS, name="sglang", gpu="H100", count=8)
    assert (4, 2, None) in values(apart, "tp_size", "dp_size", "ep_size")
    assert apart.copies_left_out == 0


@pytest.mark.parametrize("name", ["vllm", pytest.param("sglang", marks=pytest.mark.slow), "tgi"])
@pytest.mark.parametrize("model", [DENSE, EXPERTS])
def test_each_server_is_one_plan_of_its_own_that_fills_the_machine(name, model):
    machine = node(gpu="L4", count=4)
    plans = []
    for settings in servers(chosen(model=model, name=name)):
        checkpoint, copies = settings.pop("model", model), settings.pop("replicas", None) or 1
        plans.append((plan_from_settings(name, checkpoint, settings), copies))
    commands = {(engine(name).command(each, host="h", port=1), n) for each, n in plans}
    assert len(commands) == len(plans)
    for plan, copies in plans:
        assert copies * plan.device_count == 4
        check_parallel(plan, load_shape(model, catalogue_first=True), machine)
        engine(name).check(plan)


def test_number_formats_are_those_that_the_device_computes_and_the_checkpoint_allows():
    formats = ("quantization", "kv_cache_dtype")
    alone = "Qwen/Qwen2.5-Math-7B"  # no quantised checkpoint of it is known
    assert values(chosen(model=alone, count=1), *formats) == {
        *((None, "auto"), (None, "fp8"), ("fp8", "auto"), ("fp8", "fp8")),
    }
    assert values(chosen(model=alone, gpu="A100", count=1), *formats) == {(None, None)}
    narrow = chosen(model="Qwen/Qwen3-4B-AWQ", count=1)
    assert values(narrow, *formats, "model") == {(None, "auto", None), (None, "fp8", None)}


def test_quantised_checkpoints_are_served_where_they_exist_and_fp8_is_not_made_twice():
    stored = {(DENSE,), ("Qwen/Qwen3-4B-AWQ",), ("Qwen/Qwen3-4B-FP8",)}
    assert values(chosen(count=1), "model") == stored
    assert values(chosen(count=1), "quantization") == {(None,)}
    assert values(chosen("quantization=fp8"), "model", "quantization") == {(None, "fp8")}
    assert values(chosen(f"model={DENSE}"), "model", "quantization") == {(DENSE, None)}


def test_batch_limits_have_the_engines_own_among_them():
    assert values(chosen(count=1), "max_num_seqs") == {(64,), (256,), (1024,)}
    assert values(chosen(gpu="cpu", count=1), "max_num_seqs") == {(64,), (128,), (256,), (1024,)}
    limits = values(chosen(name="tgi"), "max_batch_size")
    assert (None,) in limits  # TGI finds its own while it warms up


def test_drafts_are_those_that_need_no_further_weights(tmp_path):
    def drafts(model):
        return {
            (json.loads(text)["method"], json.loads(text)["num_speculative_tokens"])
            for (text,) in values(chosen(model=model, count=1), "speculative_config")
            if text
        }

    assert drafts(DENSE) == {("ngram", 4)}
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64}
    own |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    own |= {"intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(own | {"num_nextn_predict_layers": 1}))
    assert drafts(str(tmp_path)) == {("ngram", 4), ("mtp", 1), ("mtp", 3)}


def test_what_the_user_gives_stays():
    space = chosen("tp=2;max_num_seqs=[8,16];kv_cache_dtype=fp8 if tp=2;gpu_memory_utilization=0.8")
    assert values(space, *DEGREES) == {(2, 1, 1), (2, 1, 2), (2, 2, 1)}  # the first twice
    assert values(space, "max_num_seqs") == {(8,), (16,)}
    assert values(space, "kv_cache_dtype", "gpu_memory_utilization") == {("fp8", 0.8)}
    pairs = chosen("tensor_parallel_size*data_parallel_size=[(1,4),(4,None)]")
    assert values(pairs, "tensor_parallel_size", "data_parallel_size") == {(1, 4), (4, 1)}
    switches = values(chosen("disable_radix_cache=true", name="sglang"), "disable_radix_cache")
    assert switches == {(True,)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "tensor_parallel_size=3",
            "no layout of Qwen/Qwen3-4B over 4x L4 has tensor_parallel_size=3",
        ),
        ("enable_expert_parallel=true", "has enable_expert_parallel=True"),
        ("tensor_parallel_size*seed=[(1,1),(2,2)]", r"tensor_parallel_size\*seed depends on"),
        ("seed=[1,2];data_parallel_size=2 if seed=1", "data_parallel_size depends on"),
    ],
)
def test_settings_that_no_layout_has_are_refused(given, says):
    with pytest.raises(InputError, match=says):
        chosen(given)


def test_an_engine_of_which_no_defaults_are_known_is_refused():
    with pytest.raises(InputError, match="needs an engine whose defaults are known"):
        chosen(name="lmdeploy")


def test_the_settings_shown_are_the_space_itself():
    space = chosen("seed=[1,2];block_size=32 if seed=[1,5] and max_num_seqs>64")
    read = parse_settings(space.settings_text, types=engine("vllm").argument_types())
    assert list(Space(server=read).servers()) == servers(space)
