import doctest

import msgspec
import pytest

from servetune.engines import defaults, plan_from_settings, resolved, settings_of
from servetune.errors import UnknownName
from servetune.hardware import detect_cpu, device
from servetune.models import load_shape
from servetune.plan import Plan

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)


def fill(gpu="L4", **fields):
    return resolved(Plan(model="Qwen/Qwen3-4B", **fields), SHAPE, device(gpu))


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [
        ("L4", 2048, 256),
        ("L40S", 2048, 256),
        ("A100-80GB", 2048, 256),  # large, but left out by name
        ("H100", 8192, 1024),
        ("H200", 8192, 1024),
        ("MI300X", 8192, 1024),
        ("RTX PRO 6000", 8192, 1024),
    ],
)
def test_vllms_step_depends_on_the_memory_class(gpu, tokens, sequences):
    plan = fill(gpu)
    assert (plan.max_num_batched_tokens, plan.max_num_seqs) == (tokens, sequences)


def test_vllm_fills_every_silent_field_but_the_checkpoints_storage():
    plan = fill()
    silent = [name for name in plan.__struct_fields__ if getattr(plan, name) is None]
    drafts = ["draft_tokens", "draft_method", "draft_acceptance_fraction"]
    around = ["prefill_replicas", "routing", "kv_link"]
    assert silent == ["engine_version", *around, "quantization", *drafts]
    assert plan.max_model_len == 40_960
    assert plan.block_tokens == 16
    assert plan.gpu_memory_fraction == 0.92
    assert (plan.prefix_caching, plan.chunked_prefill, plan.enforce_eager) == (True, True, False)


@pytest.mark.parametrize("engine", ["vllm", "simulated", "sglang"])
def test_what_was_chosen_stays_and_resolving_twice_changes_nothing(engine):
    chosen = {
        "max_num_seqs": 7,
        "max_num_batched_tokens": 999,
        "max_model_len": 1234,
        "gpu_memory_fraction": 0.5,
        "prefix_caching": False,
        "enforce_eager": True,
    }
    plan = fill(engine=engine, **chosen)
    assert {name: getattr(plan, name) for name in chosen} == chosen
    assert resolved(plan, SHAPE, device("L4")) == plan
    twice = fill(engine=engine)
    assert resolved(twice, SHAPE, device("L4")) == twice


def test_the_simulated_engine_behaves_as_vllm():
    simulated, vllm = fill(engine="simulated"), fill(engine="vllm")
    differing = [
        name for name in vllm.__struct_fields__ if getattr(simulated, name) != getattr(vllm, name)
    ]
    assert differing == ["engine"]


def test_a_step_never_holds_more_than_all_sequences_can_ask_for():
    plan = fill("H100", max_num_seqs=2, max_model_len=100)
    assert plan.max_num_batched_tokens == 200


def test_no_more_sequences_run_than_a_step_has_tokens():
    assert fill("H100", max_num_batched_tokens=64).max_num_seqs == 64


def test_without_chunks_a_step_holds_the_longest_prompt():
    assert fill(chunked_prefill=False).max_num_batched_tokens == 40_960


def test_a_processor_has_its_own_blocks_and_steps():
    cpu = detect_cpu().device
    plan = resolved(Plan(model="tiny"), SHAPE, cpu)
    assert (plan.block_tokens, plan.max_num_batched_tokens, plan.max_num_seqs) == (128, 2048, 128)


@pytest.mark.parametrize(
    ("gpu", "chunk_tokens"), [("T4", 2048), ("L4", 4096), ("L40S", 4096), ("H100", 8192)]
)
def test_sglangs_chunk_depends_on_the_memory_class(gpu, chunk_tokens):
    plan = fill(gpu, engine="sglang")
    assert plan.max_num_batched_tokens == chunk_tokens
    assert plan.block_tokens == 1


def test_sglangs_static_share_leaves_room_for_a_step():
    # H100: 512 + 1.5 * 8192 + 2 * 256 + 128 MiB = 13,440 of 81,559.
    assert fill("H100", engine="sglang").gpu_memory_fraction == 0.835
    assert fill("T4", engine="sglang", max_num_batched_tokens=100_000).gpu_memory_fraction >= 0.1


def test_an_engine_without_known_defaults_is_refused():
    with pytest.raises(UnknownName, match="engine"):
        fill(engine="vlllm")


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(defaults).failed == 0


def test_tgis_prompts_have_a_step_of_their_own_and_nothing_is_captured():
    plan = fill("A10G", engine="tgi")
    assert (plan.max_num_batched_tokens, plan.max_num_seqs, plan.max_model_len) == (4096, 128, 2048)
    assert plan.enforce_eager
    assert not plan.chunked_prefill


def test_tgi_3_works_out_on_its_machine_what_2_took_from_the_model():
    def of(version, **fields):
        plan = Plan(model="m", engine="tgi", **fields)
        return resolved(plan, SHAPE, device("L4"), version=version)

    third = of("3.3.6")
    assert third.max_num_batched_tokens is third.max_model_len is third.max_num_seqs is None
    assert (third.prefix_caching, third.chunked_prefill, third.enforce_eager) == (True, True, False)
    assert third.gpu_memory_fraction == 1.0
    second = of("2.4.0")
    assert (second.max_model_len, second.max_num_batched_tokens) == (4096, 4145)
    assert (second.prefix_caching, second.chunked_prefill) == (True, False)
    assert of("2.4.0", max_model_len=1024).max_num_batched_tokens == 1073
    assert of("v2.2").prefix_caching is False
    assert of("1.4.5") == of(None)


@pytest.mark.parametrize(
    ("gpu", "changed", "fields", "caching", "chunks"),
    [
        ("T4", {}, {}, None, None),
        ("MI300X", {}, {}, None, None),
        ("L4", {"vision_parameters": 1}, {}, None, None),
        ("L4", {}, {"extra": (("lora_adapters", "a"),)}, False, True),
        ("L4", {}, {"draft_tokens": 2, "draft_method": "ngram"}, True, False),
        ("L4", {"head_dim": 80}, {}, False, True),
    ],
)
def test_tgi_caches_and_cuts_where_its_kernels_do(gpu, changed, fields, caching, chunks):
    shape = SHAPE
    if "head_dim" in changed:
        layers = tuple(
            msgspec.structs.replace(x, mixer=msgspec.structs.replace(x.mixer, **changed))
            for x in shape.layers
        )
        shape = msgspec.structs.replace(shape, layers=layers)
    else:
        shape = msgspec.structs.replace(shape, **changed)
    filled = resolved(Plan(model="m", engine="tgi", **fields), shape, device(gpu), version="3.1.0")
    assert (filled.prefix_caching, filled.chunked_prefill) == (caching, chunks)


def test_tgi_captures_no_graphs_of_bitsandbytes():
    plan = Plan(model="m", engine="tgi", quantization="bitsandbytes-nf4")
    assert resolved(plan, SHAPE, device("L4"), version="3.3").enforce_eager is True


def test_a_tgi_plan_speaks_the_launchers_words_and_back():
    said = {"num_shard": 4, "max_total_tokens": 4096, "max_batch_prefill_tokens": 4096}
    plan = plan_from_settings("tgi", "m", {**said, "max_waiting_tokens": 20})
    assert (plan.tensor_parallel, plan.max_model_len) == (4, 4096)
    assert settings_of(plan) == {**said, "max_waiting_tokens": 20}
