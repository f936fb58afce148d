import doctest
import re
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.engines import (
    WIDEST_FRACTION,
    check_fits,
    check_weights,
    concurrent_sequences,
    memory,
    rank_weights_bytes,
    resolved,
    with_useful_places,
    with_wider_share,
)
from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import detect_cpu, device
from servetune.models import kv_bytes_per_token, load_shape, parameter_count, weight_bytes
from servetune.plan import Plan
from servetune.units import GIB


def shape_of(name):
    return load_shape(name, catalogue_first=True)


QWEN = shape_of("Qwen/Qwen3-4B")
QWEN_8B = shape_of("Qwen/Qwen3-8B")
LLAMA_70B = shape_of("meta-llama/Llama-3.3-70B-Instruct")
MOE = shape_of("Qwen/Qwen3-30B-A3B")
DEEPSEEK = shape_of("deepseek-ai/DeepSeek-V3")


def plan(**fields):
    return Plan(model="m", **fields)


def test_memory_is_divided_without_rest():
    found = memory(plan(), QWEN, device("L4"))
    parts = found.weights_bytes + found.reserved_bytes + found.kv_cache_bytes
    assert parts == pytest.approx(found.usable_bytes)
    assert found.usable_bytes < 0.92 * found.device_bytes


def test_one_device_holds_all_weights_and_the_whole_cache():
    found = memory(plan(), QWEN, device("L4"))
    assert found.weights_bytes == weight_bytes(QWEN)
    assert found.kv_bytes_per_token == kv_bytes_per_token(QWEN)
    assert found.kv_tokens == found.kv_tokens_per_engine
    assert found.kv_tokens % 16 == 0


@pytest.mark.parametrize(
    ("gpu", "visible_gib"),
    [
        ("T4", 14.56),
        ("L4", 22.03),
        ("L40S", 44.5),
        ("H100", 79.1),
        ("H200", 139.8),
        ("B200", 178.35),
    ],
)
def test_cuda_hands_out_what_public_out_of_memory_messages_say(gpu, visible_gib):
    found = memory(plan(gpu_memory_fraction=1.0), QWEN, device(gpu))
    assert found.usable_bytes / GIB == pytest.approx(visible_gib, rel=0.005)


def test_activation_of_llama_3_8b_is_near_what_vllm_logged():
    # 1.23 GiB with 8,192 tokens and 256 sequences.
    shape = shape_of("meta-llama/Meta-Llama-3-8B")
    found = memory(plan(max_num_batched_tokens=8192, max_num_seqs=256), shape, device("A100-80GB"))
    assert found.activation_bytes / GIB == pytest.approx(1.23, rel=0.1)


def test_weights_are_conserved_over_the_ranks():
    for shape in (QWEN, LLAMA_70B, MOE, DEEPSEEK):
        for degrees in ({"tensor_parallel": 4}, {"pipeline_parallel": 3}, {"data_parallel": 2}):
            ranks = rank_weights_bytes(plan(**degrees), shape)
            assert sum(ranks) >= weight_bytes(shape) * (1 - 1e-12)


def test_weights_add_up_exactly_where_nothing_is_copied():
    # Pipeline stages of a network with a head of its own share nothing.
    ranks = rank_weights_bytes(plan(pipeline_parallel=4), LLAMA_70B)
    assert len(ranks) == 4
    assert sum(ranks) == weight_bytes(LLAMA_70B)
    # Tensor parallelism copies norms alone: two per layer, and the last one.
    ranks = rank_weights_bytes(plan(tensor_parallel=8), LLAMA_70B)
    copied = 7 * 2 * (2 * 80 + 1) * LLAMA_70B.hidden
    assert sum(ranks) == pytest.approx(weight_bytes(LLAMA_70B) + copied, rel=1e-12)


def test_data_parallel_engines_each_hold_all_but_the_experts():
    ranks = rank_weights_bytes(plan(data_parallel=2), QWEN)
    assert ranks == (weight_bytes(QWEN),) * 2
    shared = rank_weights_bytes(plan(data_parallel=2), MOE)
    assert weight_bytes(MOE) < sum(shared) < 1.1 * weight_bytes(MOE)


def test_a_tied_head_is_stored_again_on_the_last_stage():
    ranks = rank_weights_bytes(plan(pipeline_parallel=2), QWEN)
    assert sum(ranks) == weight_bytes(QWEN) + 2 * QWEN.vocab * QWEN.hidden


def test_tensor_parallelism_splits_the_cache_by_head_and_no_further():
    sizes = {
        degree: memory(plan(tensor_parallel=degree), QWEN, device("L4")).kv_bytes_per_token
        for degree in (1, 2, 8, 16)
    }
    assert sizes[2] == sizes[1] / 2
    assert sizes[8] == sizes[16] == sizes[1] / 8


def test_a_latent_cache_is_whole_on_every_device():
    eight = memory(plan(tensor_parallel=8), DEEPSEEK, device("H200"))
    assert eight.kv_bytes_per_token == 70_272


def test_a_narrower_cache_holds_about_twice_the_tokens():
    wide = memory(plan(), QWEN, device("L4")).kv_tokens
    narrow = memory(plan(kv_cache_dtype="fp8"), QWEN, device("L4")).kv_tokens
    assert narrow == pytest.approx(2 * wide, abs=32)


def test_graphs_take_memory_unless_they_are_off():
    eager = memory(plan(enforce_eager=True), QWEN, device("L4"))
    assert eager.graph_bytes == 0
    assert eager.kv_tokens > memory(plan(), QWEN, device("L4")).kv_tokens


@settings(max_examples=60, deadline=None)
@given(
    fraction=st.floats(0.3, 0.98),
    more=st.floats(0.0, 0.02),
    tokens=st.integers(256, 16_384),
    degree=st.sampled_from([1, 2, 4, 8]),
)
def test_more_memory_never_holds_fewer_tokens(fraction, more, tokens, degree):
    def held(share: float, gpu: str = "L40S") -> int:
        asked = plan(
            tensor_parallel=degree, max_num_batched_tokens=tokens, gpu_memory_fraction=share
        )
        return memory(asked, QWEN, device(gpu)).kv_tokens

    assert held(fraction + more) >= held(fraction)
    assert held(fraction) >= held(fraction, "L4")


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(256, 8_192), extra=st.integers(0, 8_192))
def test_a_larger_step_never_leaves_more_cache(tokens, extra):
    def held(step_tokens: int) -> int:
        return memory(plan(max_num_batched_tokens=step_tokens), QWEN, device("L4")).kv_tokens

    assert held(tokens + extra) <= held(tokens)


def test_engines_together_hold_the_sum():
    two = memory(plan(data_parallel=2), QWEN, device("L4"))
    assert two.kv_tokens == 2 * two.kv_tokens_per_engine


def test_concurrency_is_capped_by_cache_and_by_the_scheduler():
    found = memory(plan(), QWEN, device("L4"))
    assert concurrent_sequences(plan(), QWEN, device("L4"), 4096) == found.kv_tokens // 4096
    assert concurrent_sequences(plan(max_num_seqs=5), QWEN, device("L4"), 4096) == 5
    assert concurrent_sequences(plan(), QWEN, device("L4"), 1) == 256


def test_sequences_take_whole_blocks():
    held = concurrent_sequences(plan(max_num_seqs=2048), QWEN, device("L4"), 4081)
    assert held == concurrent_sequences(plan(max_num_seqs=2048), QWEN, device("L4"), 4096)


def test_windows_let_more_long_sequences_in():
    shape = shape_of("google/gemma-3-27b-it")
    two = plan(tensor_parallel=2)
    held = concurrent_sequences(two, shape, device("L40S"), 32_768)
    assert held > memory(two, shape, device("L40S")).kv_tokens // 32_768


def test_sglangs_share_is_weights_and_cache_alone():
    found = memory(plan(engine="sglang"), QWEN, device("H100"))
    assert found.reserved_bytes == 0
    assert found.weights_bytes + found.kv_cache_bytes == pytest.approx(found.usable_bytes)


def test_what_fits_is_returned():
    assert check_fits(plan(), QWEN, device("L4")) == memory(plan(), QWEN, device("L4"))


def test_a_resolved_plan_and_a_silent_one_are_the_same():
    filled = resolved(plan(), QWEN, device("L4"))
    assert memory(filled, QWEN, device("L4")) == memory(plan(), QWEN, device("L4"))


def test_weights_that_do_not_fit_say_how_much_and_what_would():
    with pytest.raises(DoesNotFit) as caught:
        check_fits(plan(max_model_len=4096), LLAMA_70B, device("H100"), device_limit=8)
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert caught.value.needed_bytes > weight_bytes(LLAMA_70B)
    assert caught.value.hint == "tensor_parallel 2 or quantization fp8 would fit"


def offered(hint):
    """Plan and network of each offer of a hint."""
    for offer in re.split(", | or ", hint.removesuffix(" would fit")):
        fields, model = {}, None
        for part in re.sub(r" on \d+ such devices", "", offer).split(" with "):
            name, value = part.removeprefix("the ").split()
            if name == "model":
                model = value
            else:
                fields[name] = int(value) if value.isdigit() else value
        yield fields, model


@pytest.mark.parametrize(
    ("model", "gpu", "fields"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", {"max_model_len": 8192}),
        ("meta-llama/Llama-3.3-70B-Instruct", "A10G", {"tensor_parallel": 4}),
        ("meta-llama/Llama-3.1-8B-Instruct", "L4", {"engine": "sglang"}),
        ("meta-llama/Llama-3.3-70B-Instruct", "L4", {"max_model_len": 4096}),
        ("Qwen/Qwen3-32B", "L4", {}),
        ("Qwen/Qwen3-32B", "L4", {"engine": "tgi", "max_model_len": 2048}),
        ("Qwen/Qwen3-8B", "T4", {}),
        ("Qwen/Qwen3-8B", "V100", {"max_model_len": 4096}),
    ],
)
def test_what_the_hint_offers_really_fits_and_nothing_milder_was_needed(model, gpu, fields):
    shape, asked = shape_of(model), Plan(model=model, **fields)
    with pytest.raises(DoesNotFit) as caught:
        check_fits(asked, shape, device(gpu))
    offers = list(offered(caught.value.hint))
    assert offers
    for change, checkpoint in offers:
        network = shape_of(checkpoint) if checkpoint else shape
        instead = msgspec.structs.replace(asked, model=network.name, **change)
        check_weights(instead, network)
        check_fits(instead, network, device(gpu))
        if "max_model_len" in change:
            longer = msgspec.structs.replace(instead, max_model_len=change["max_model_len"] + 16)
            with pytest.raises(DoesNotFit):
                check_fits(longer, network, device(gpu))


def test_a_hint_joins_narrower_weights_with_a_shorter_context():
    with pytest.raises(DoesNotFit) as caught:
        check_fits(
            Plan(model="Qwen/Qwen3-32B"), shape_of("Qwen/Qwen3-32B"), device("L4"), device_limit=1
        )
    assert caught.value.hint == (
        "tensor_parallel 4 on 4 such devices or the model Qwen/Qwen3-32B-AWQ with "
        "max_model_len 3168 would fit"
    )


@pytest.mark.parametrize(
    ("name", "ways", "numbers"),
    [
        # Queries and output of 32 heads, keys and values of 8 KV heads, 128 numbers each.
        ("meta-llama/Llama-3.1-8B", 1, (2 * 32 + 2 * 8) * 128),
        ("meta-llama/Llama-3.1-8B", 2, (2 * 32 + 2 * 8) * 128 / 2),
        # Queries and keys of 128 + 64 numbers, values of 128, for 16 heads.
        ("deepseek-ai/DeepSeek-V2-Lite", 1, 16 * (2 * (128 + 64) + 128)),
        # 256 heads of 64 with their gate, and 8 groups of 256 in and out of the state.
        ("nvidia/Nemotron-H-56B-Base-8K", 4, (3 * 256 * 64 + 2 * 8 * 256) / 4),
        # 16 key heads and 32 value heads of 128 into the convolution; gate and output beside.
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1, (2 * 16 + 32) * 128 + 2 * 32 * 128),
    ],
)
def test_what_mixes_tokens_is_live_in_a_step_where_it_is_wider(name, ways, numbers):
    shape = shape_of(name)
    mixer = msgspec.structs.replace(shape.layers[0], count=1, feed_forward=None)
    shape = msgspec.structs.replace(shape, layers=(mixer,))
    asked = plan(
        tensor_parallel=ways, max_num_batched_tokens=1000, max_num_seqs=1, max_model_len=1000
    )
    live = 1000 * (4 * shape.hidden + numbers) * 2 + shape.vocab * 8
    assert memory(asked, shape, device("H200")).activation_bytes == live


def test_weights_without_kernels_on_the_device_are_refused():
    with pytest.raises(PlanError, match=r"no kernels for fp8 weights on V100.*7\.5, it has 7\.0"):
        check_fits(plan(quantization="fp8", max_model_len=4096), QWEN, device("V100"))
    check_fits(plan(quantization="fp8", max_model_len=4096), QWEN, device("T4"))
    with pytest.raises(PlanError, match="compute capability 8"):
        check_fits(plan(engine="sglang", quantization="fp8"), QWEN, device("T4"))


def test_a_context_that_does_not_fit_says_which_would():
    shape = shape_of("meta-llama/Llama-3.1-8B")
    with pytest.raises(DoesNotFit, match=r"131072 tokens needs 16\.00 GiB") as caught:
        check_fits(plan(), shape, device("L4"))
    longest = int(caught.value.hint.split(" or max_model_len ")[1].split()[0])
    check_fits(plan(max_model_len=longest), shape, device("L4"))
    with pytest.raises(DoesNotFit):
        check_fits(plan(max_model_len=longest + 16), shape, device("L4"))


def test_nothing_that_would_fit_is_reported_too():
    with pytest.raises(DoesNotFit) as caught:
        check_fits(plan(), shape_of("moonshotai/Kimi-K2-Instruct"), device("T4"))
    assert "nothing up to 8 devices" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_model_len": 50_000}, "max_model_len 50000 is more than"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "is less than max_num_seqs 16"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 512}, "chunked prefill is off"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_as_the_engine_would(fields, said):
    with pytest.raises(PlanError) as caught:
        check_fits(plan(**fields), QWEN, device("L4"))
    assert said in caught.value.message


def test_a_processor_has_neither_driver_nor_graphs():
    cpu = msgspec.structs.replace(detect_cpu().device, memory_bytes=64 * GIB)
    found = memory(plan(), QWEN, cpu)
    assert found.usable_bytes == pytest.approx(0.92 * 64 * GIB)
    assert found.graph_bytes == found.runtime_bytes == 0


def test_a_32_bit_plan_doubles_weights_and_cache():
    wide = memory(plan(dtype="float32"), QWEN, device("H100"))
    assert wide.weights_bytes == 4 * parameter_count(QWEN)
    assert wide.kv_bytes_per_token == 2 * kv_bytes_per_token(QWEN)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(sys.modules["servetune.engines.memory"]).failed == 0


def test_a_share_is_widened_only_where_that_lets_the_plan_run():
    shape, b200 = DEEPSEEK, device("B200")

    def read(**fields):
        plan = Plan(model="m", engine="sglang", max_model_len=9216, **fields)
        return with_wider_share(plan, shape, b200)

    assert read(tensor_parallel=4).gpu_memory_fraction == WIDEST_FRACTION
    check_fits(read(tensor_parallel=4), shape, b200)
    assert read(tensor_parallel=8).gpu_memory_fraction is None  # fits as it is
    assert read(tensor_parallel=2).gpu_memory_fraction is None  # fits in no share
    assert read(tensor_parallel=4, gpu_memory_fraction=0.8).gpu_memory_fraction == 0.8


def test_sglang_reserves_memory_by_release_on_cards_of_24_gb():
    """0.5.20 took chunks and graphs of larger cards; until then the share was 0.837."""

    def read(version):
        asked = Plan(model="m", engine="sglang", engine_version=version)
        filled = resolved(asked, QWEN, device("L4"))
        return filled.max_num_batched_tokens, filled.gpu_memory_fraction

    assert read("0.5.14") == read("0.5.19") == (2048, pytest.approx(0.837, abs=0.002))
    assert read("0.5.20") == read(None) == (4096, pytest.approx(0.701, abs=0.002))


def test_a_share_rises_to_what_a_few_users_need():
    l4 = device("L4")

    def read(tokens, users=32):
        plan = Plan(model="m", engine="sglang", max_model_len=tokens, max_num_seqs=users)
        widened = with_wider_share(
            plan, QWEN_8B, l4, sequence_tokens=tokens, users=users, useful_places=True
        )
        few = msgspec.structs.replace(widened, max_num_seqs=3)
        return widened.gpu_memory_fraction, concurrent_sequences(few, QWEN_8B, l4, tokens)

    assert read(200) == (None, 3)
    shares, sequences = zip(*(read(tokens) for tokens in (800, 1600, 4000)), strict=True)
    assert sequences == (3, 3, 3)
    assert 0.7 < shares[0] < shares[1] < shares[2] < WIDEST_FRACTION
    assert read(800, users=1)[0] is None  # which it holds by default


def test_places_that_no_sequence_can_fill_are_given_up():
    l4, context_tokens = device("L4"), 2000.0

    def places(count, **fields):
        asked = plan(max_num_seqs=count, **fields)
        return with_useful_places(asked, QWEN, l4, context_tokens).max_num_seqs

    few, many, very_many = places(8), places(1000), places(100_000)
    assert few == 8
    assert few < many == very_many < 1000
    held = memory(plan(max_num_seqs=many), QWEN, l4).kv_tokens
    assert many * context_tokens <= held
    assert memory(plan(max_num_seqs=many + 1), QWEN, l4).kv_tokens < (many + 1) * context_tokens
    assert with_useful_places(plan(), QWEN, l4, context_tokens) == plan()


@pytest.mark.parametrize("tensor_parallel", [1, 8])
def test_a_device_holds_its_share_of_each_sequence(tensor_parallel):
    shape, card = load_shape("Qwen/Qwen3-8B", catalogue_first=True), device("B200")
    plan = Plan(
        model=shape.name,
        tensor_parallel=tensor_parallel,
        max_model_len=40_960,
        max_num_seqs=100_000,
        max_num_batched_tokens=100_000,
    )
    found = memory(plan, shape, card)
    per_sequence = 40_960 * kv_bytes_per_token(shape) / tensor_parallel
    assert concurrent_sequences(plan, shape, card, 40_960) == found.kv_cache_bytes // per_sequence


def test_a_plan_that_does_not_fit_is_named_by_all_its_degrees():
    shape, card = load_shape("meta-llama/Llama-3.1-405B", catalogue_first=True), device("L4")
    for fields, named in (
        ({"tensor_parallel": 2}, "as TP2 on"),
        ({"tensor_parallel": 2, "pipeline_parallel": 3}, "as TP2 PP3 on"),
        ({"tensor_parallel": 2, "data_parallel": 4}, "as TP2 DP4 on"),
    ):
        with pytest.raises(DoesNotFit, match=named):
            check_fits(Plan(model=shape.name, **fields), shape, card)
