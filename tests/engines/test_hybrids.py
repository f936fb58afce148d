"""Plans for networks that keep a state, or nothing, in some of their layers."""

import msgspec
import pytest

from servetune.engines import (
    check_fits,
    check_parallel,
    concurrent_sequences,
    memory,
    rank_weights_bytes,
    resolved,
)
from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import device, node
from servetune.models import (
    kv_bytes_per_token,
    load_shape,
    state_bytes_per_sequence,
    weight_bytes,
)
from servetune.perf import estimate, performance_at
from servetune.perf.sim.scheduler_config import scheduler_config_of
from servetune.perf.sweep import sweep
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload


def shape_of(name):
    return load_shape(name, catalogue_first=True)


QWEN = "Qwen/Qwen3.5-27B"
NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def test_a_sequence_takes_its_state_before_its_first_token():
    shape, card = shape_of(QWEN), device("B200")
    plan = Plan(model=QWEN, max_num_seqs=4_096, max_num_batched_tokens=4_096)
    found = memory(plan, shape, card)
    assert found.state_bytes_per_sequence == state_bytes_per_sequence(shape)
    short = concurrent_sequences(plan, shape, card, 16)
    # In whole blocks a sequence of 16 tokens has one, or little more than a state.
    per_sequence = state_bytes_per_sequence(shape) + 16 * kv_bytes_per_token(shape)
    assert short == int(found.kv_cache_bytes // per_sequence) > 100
    without = msgspec.structs.replace(
        shape, layers=tuple(layer for layer in shape.layers if hasattr(layer.mixer, "window"))
    )
    assert concurrent_sequences(plan, without, card, 16) > short


def test_short_sequences_leave_their_states_less_room_for_tokens():
    shape, card = shape_of(NANO), device("H100")
    found = memory(Plan(model=NANO), shape, card)
    counts = [found.kv_tokens_at(tokens) for tokens in (16, 1_536, 100_000)]
    assert counts == sorted(counts)
    assert counts[-1] < found.kv_tokens_per_engine
    per_sequence = 1_536 * kv_bytes_per_token(shape) + state_bytes_per_sequence(shape)
    held = counts[1] / 1_536
    assert held == pytest.approx(found.kv_cache_bytes / per_sequence, rel=0.001)
    plain = memory(Plan(model="Qwen/Qwen3-8B"), shape_of("Qwen/Qwen3-8B"), card)
    assert plain.kv_tokens_at(16) == plain.kv_tokens_per_engine


def test_sglang_keeps_states_in_memory_of_their_own():
    """A ratio of 0.9 to keys and values, five states for each that runs, three before 0.5.14."""
    shape, card = shape_of(QWEN), device("B200")

    def divided(**fields):
        return memory(Plan(model=QWEN, engine="sglang", **fields), shape, card)

    found = divided()
    assert found.state_pool_bytes == pytest.approx(0.9 * found.kv_cache_bytes)
    state = found.state_bytes_per_sequence
    assert found.most_sequences == found.state_pool_bytes // (5 * state)
    assert divided(engine_version="0.5.13").most_sequences == found.state_pool_bytes // (3 * state)
    for unkept in ({"prefix_caching": False}, {"extra": (("disable_radix_cache", True),)}):
        assert divided(**unkept).most_sequences == found.state_pool_bytes // state
    lazy = divided(extra=(("mamba_radix_cache_strategy", "extra_buffer_lazy"),))
    assert lazy.most_sequences == found.state_pool_bytes // (4 * state)
    even = divided(extra=(("mamba_full_memory_ratio", 1),))
    assert even.state_pool_bytes == pytest.approx(even.kv_cache_bytes)
    assert found.kv_tokens_at(16) == found.kv_tokens_per_engine
    for other in (
        memory(Plan(model=QWEN), shape, card),
        memory(Plan(model="", engine="sglang"), shape_of("Qwen/Qwen3-8B"), card),
    ):
        assert (other.state_pool_bytes, other.most_sequences) == (0.0, None)


def test_no_room_for_the_states_of_one_sequence_is_refused_before_anything_is_priced():
    name = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    shape, machine = shape_of(name), node(gpu="L40S", count=4)
    plan = Plan(model=name, engine="sglang", tensor_parallel=4, max_model_len=2_048)
    assert memory(plan, shape, machine.device).most_sequences == 0
    with pytest.raises(DoesNotFit, match="each state of a sequence, of which it keeps several"):
        check_fits(plan, shape, machine.device)
    load = Workload.of(LengthLaws.fixed(500, 100), request_count=10)
    assert "each state" in estimate(shape, machine, plan, load).misfit
    assert list(sweep([plan], shape, machine, load)) == []


@pytest.mark.parametrize("ratio", [-1, 0, True, float("nan"), float("inf"), "half"])
def test_a_ratio_that_is_none_is_refused(ratio):
    plan = Plan(model=QWEN, engine="sglang", extra=(("mamba_full_memory_ratio", ratio),))
    with pytest.raises(PlanError, match="mamba_full_memory_ratio must be a number above 0"):
        memory(plan, shape_of(QWEN), device("H200"))


def test_each_stage_has_its_part_of_the_states():
    shape, card = shape_of(QWEN), device("H200")
    plan = Plan(model=QWEN, engine="sglang", pipeline_parallel=4)
    found = memory(plan, shape, card)
    assert found.state_pool_bytes == pytest.approx(0.9 * found.kv_cache_bytes)
    assert (
        found.most_sequences > memory(Plan(model=QWEN, engine="sglang"), shape, card).most_sequences
    )


def test_no_more_run_than_have_room_for_their_states():
    shape, card = shape_of(QWEN), device("H200")
    plan = Plan(model=QWEN, engine="sglang", max_num_seqs=4_096)
    most = memory(plan, shape, card).most_sequences
    assert concurrent_sequences(plan, shape, card, 16) == most < 1_000
    workload = Workload.of(LengthLaws.fixed(16, 512), request_count=100)
    machine = node(gpu="H200", count=1)
    crowd, few = (
        performance_at(shape, machine, plan, workload, users).running
        for users in (1_024, most // 2)
    )
    assert crowd == pytest.approx(most, rel=0.03)  # but for those whose prompts are computed
    assert few < most // 2
    config = scheduler_config_of(resolved(plan, shape, card), memory(plan, shape, card))
    assert (config.max_num_seqs, config.state_blocks) == (most, 0)


def test_states_are_split_by_head():
    shape, card = shape_of(QWEN), device("H100")
    whole = memory(Plan(model=QWEN), shape, card).state_bytes_per_sequence
    split = memory(Plan(model=QWEN, tensor_parallel=4), shape, card).state_bytes_per_sequence
    assert split == whole / 4


@pytest.mark.parametrize("name", [QWEN, NANO, "moonshotai/Kimi-Linear-48B-A3B-Instruct"])
def test_stages_share_out_the_state(name):
    shape, card = shape_of(name), device("H200")
    one = memory(Plan(model=name), shape, card)
    two = memory(Plan(model=name, pipeline_parallel=2), shape, card)
    assert two.state_bytes_per_sequence < one.state_bytes_per_sequence
    assert two.state_bytes_per_sequence >= one.state_bytes_per_sequence / 2
    assert two.kv_tokens > one.kv_tokens


def test_a_stage_that_keeps_nothing_per_token_sets_no_limit():
    shape, card = shape_of(NANO), device("H200")
    # So many stages that some have Mamba and experts alone.
    plan = Plan(model=NANO, pipeline_parallel=26, max_model_len=4096)
    found = memory(plan, shape, card)
    assert found.kv_tokens > 0
    assert found.kv_bytes_per_token > 0
    assert concurrent_sequences(plan, shape, card, 4096) > 0


@pytest.mark.parametrize(
    ("name", "degree", "said"),
    [
        (QWEN, 5, "key heads of linear attention do not divide"),
        (NANO, 3, "64 Mamba heads do not divide"),
        ("moonshotai/Kimi-K3", 5, "96 key heads of linear attention"),
        ("deepseek-ai/DeepSeek-V4-Pro", 32, "16 groups of heads do not divide"),
    ],
)
def test_heads_of_every_mixer_must_divide(name, degree, said):
    with pytest.raises(PlanError, match=said):
        check_parallel(Plan(model=name, tensor_parallel=degree), shape_of(name))


def test_one_device_holds_all_weights_of_every_catalogue_model(every_catalogue_model):
    def check(name):
        shape = shape_of(name)
        per_rank = rank_weights_bytes(Plan(model=name), shape)
        assert per_rank[0] == pytest.approx(weight_bytes(shape))

    every_catalogue_model(check)


def test_eight_devices_split_the_weights_of_every_catalogue_model(every_catalogue_model):
    def check(name):
        shape = shape_of(name)
        found = memory(Plan(model=name, tensor_parallel=8), shape, device("B200"))
        # What is not split (norms, narrow gates, shared latents) is held eight times: 16% of the
        # smallest, whose four or one heads are fewer than the devices.
        assert 0.999 < found.weights_bytes * 8 / weight_bytes(shape) < 1.16
        whole = kv_bytes_per_token(shape)
        assert found.kv_bytes_per_token / whole * 1.0001 >= 1 / 8
        assert found.kv_bytes_per_token <= whole
        assert found.activation_bytes > 0

    every_catalogue_model(check)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        # Eight heads over eight devices, four, two or one: each device keeps at least one head.
        ("Qwen/Qwen3-8B", 1 / 8),
        ("Qwen/Qwen3-30B-A3B", 1 / 4),
        ("Qwen/Qwen3.6-35B-A3B", 1 / 2),
        ("tiiuae/falcon-7b", 1),
        # A latent vector is every head's, so every device keeps all of it.
        ("deepseek-ai/DeepSeek-V3", 1),
    ],
)
def test_a_device_of_eight_keeps_its_heads_share_of_the_cache(name, share):
    shape = shape_of(name)
    found = memory(Plan(model=name, tensor_parallel=8), shape, device("B200"))
    assert found.kv_bytes_per_token == pytest.approx(share * kv_bytes_per_token(shape))
