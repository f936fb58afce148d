"""SGLang's and TGI's schedulers, rule by rule.

SGLang 0.5.23: `sglang/srt/managers/schedule_policy.py` (`PrefillAdder`, `SchedulePolicy`),
`schedule_batch.py` (`retract_decode`), `scheduler.py` (`get_next_batch_to_run`) and
`environ.py` of the published package.
TGI: `router/src/infer.rs` (`batching_task`) and `queue.rs` (`State::next_batch`) of
huggingface/text-generation-inference, 1.x; `backends/v3/src/queue.rs` at 120d577 has the same
config for budgets.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from one_second import OneSecond
from servetune.errors import PlanError, UnknownName
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import SimulatedRun, simulate
from servetune.perf.sim.prefill_first import (
    InterruptingScheduler,
    PrefillFirstScheduler,
    PromptStepScheduler,
)
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.scheduler_choice import scheduler_for, variant_of
from servetune.perf.sim.scheduler_config import routing_of
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.simulation import ClientLoad, RunOptions, run_requests
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant, SchedulerVariant
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload
from servetune.workload.request import Request

SHAPE, MACHINE = load_shape("Qwen/Qwen3-8B", catalogue_first=True), node(gpu="H100")


def config(variant: SchedulerVariant | None, **fields: object) -> SchedulerConfig:
    usual = {
        "max_num_seqs": 100,
        "max_num_batched_tokens": 64,
        "block_tokens": 1 if isinstance(variant, PrefillFirstVariant) else 4,
        "capacity_blocks": 10_000,
        "chunked_prefill": isinstance(variant, PrefillFirstVariant),
        "variant": variant,
    }
    return SchedulerConfig(**(usual | fields))  # type: ignore[arg-type]


def served(
    asked: list[tuple[float, int, int]], variant: SchedulerVariant | None, **fields: object
) -> SimulatedRun:
    requests = tuple(
        Request(index=i, due_s=due_s, input_tokens=tokens_in, output_tokens=tokens_out)
        for i, (due_s, tokens_in, tokens_out) in enumerate(asked)
    )
    of = config(variant, **fields)
    return run_requests(requests, of, OneSecond())  # type: ignore[arg-type]


def first_s(result: SimulatedRun) -> list[float]:
    return [record.chunk_times_s[0] for record in result.records]


def random_load(seed: int) -> list[tuple[float, int, int]]:
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(1.5, 60)).tolist()
    return [(due, int(rng.integers(1, 60)), int(rng.integers(1, 25))) for due in due_s]


# What both have in common


@pytest.mark.parametrize("variant", [PrefillFirstVariant(), InterruptingVariant()])
def test_nobody_decodes_while_prompts_are_computed(variant: SchedulerVariant) -> None:
    """The second arrives at 2.5 s: the step after is its prompt's, and the first waits."""
    late = served([(0.0, 10, 6), (2.5, 10, 2)], variant, max_num_batched_tokens=10)
    if isinstance(
        variant, InterruptingVariant
    ):  # one per sequence is fewer than 1.2, rounded down, is not
        assert late.records[1].chunk_times_s == (4.0, 5.0)
    assert late.records[0].chunk_times_s == (1.0, 2.0, 3.0, 5.0, 6.0, 7.0)
    assert late.records[1].chunk_times_s == (4.0, 5.0)
    assert late.steps == 7
    assert late.busy_s == 7.0


@pytest.mark.parametrize("capacity_blocks", [130, 10_000])
@pytest.mark.parametrize(
    "variant",
    [
        PrefillFirstVariant(),
        PrefillFirstVariant(longest_prefix_first=True),
        PrefillFirstVariant(mixed_chunk=True),
        InterruptingVariant(),
    ],
    ids=["sglang", "lpm", "mixed", "tgi"],
)
@pytest.mark.parametrize("seed", range(6))
def test_every_token_comes_once_in_order_and_all_blocks_come_back(
    seed: int, variant: SchedulerVariant, capacity_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers: list[Scheduler] = []

    def kept(of: SchedulerConfig, law: object, _: object) -> Scheduler:
        schedulers.append(scheduler_for(of, law))  # type: ignore[arg-type]
        return schedulers[-1]

    monkeypatch.setattr("servetune.perf.sim.serving.scheduler_for", kept)
    asked = random_load(seed)
    fields = (
        {"capacity_blocks": capacity_blocks} if isinstance(variant, PrefillFirstVariant) else {}
    )
    result = served(asked, variant, **fields)
    for record, (due_s, _, tokens) in zip(result.records, asked, strict=True):
        assert record.outcome == "ok"
        assert record.output_tokens == len(record.chunk_times_s) == tokens
        assert record.chunk_times_s[0] > due_s
        assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))
        assert record.end_s == record.chunk_times_s[-1]
    (scheduler,) = schedulers
    assert isinstance(scheduler, PromptStepScheduler)
    assert scheduler.cache.free_blocks == scheduler.cache.capacity_blocks
    assert not scheduler._firsts_s


@pytest.mark.parametrize("variant", [PrefillFirstVariant(), InterruptingVariant()])
def test_two_pieces_tell_the_same_times_as_all_tokens(variant: SchedulerVariant) -> None:
    asked = random_load(3)
    requests = tuple(
        Request(index=i, due_s=due_s, input_tokens=tokens_in, output_tokens=tokens_out)
        for i, (due_s, tokens_in, tokens_out) in enumerate(asked)
    )
    whole, ends = (
        run_requests(
            requests,
            config(variant),
            OneSecond(),  # type: ignore[arg-type]
            ClientLoad(options=RunOptions(each_token=each_token)),
        )
        for each_token in (True, False)
    )
    for one, other in zip(whole.records, ends.records, strict=True):
        assert one.chunk_times_s[0] == other.chunk_times_s[0]
        assert one.chunk_times_s[-1] == other.chunk_times_s[-1]
        assert other.output_tokens == one.output_tokens


# SGLang


def test_sglang_computes_all_that_waits_before_it_decodes_again() -> None:
    """`get_next_batch_to_run`: run prefill first if possible."""
    asked = [(0.0, 40, 4), (0.5, 40, 2), (0.5, 40, 2)]
    assert first_s(served(asked, PrefillFirstVariant())) == [1.0, 2.0, 3.0]
    assert served(asked, PrefillFirstVariant()).records[0].chunk_times_s == (1.0, 4.0, 5.0, 6.0)


def test_sglang_cuts_a_prompt_at_its_chunk_and_goes_on_with_it_first() -> None:
    """`add_one_req`: what exceeds `rem_chunk_tokens` is cut, `add_chunked_req` comes first."""
    result = served([(0.0, 150, 1), (0.0, 20, 1), (0.0, 30, 1)], PrefillFirstVariant())
    assert first_s(result) == [3.0, 3.0, 4.0]  # 64, 64, 22 + 20 + 22 of 30, 8


def test_sglang_lets_decoding_ride_along_only_with_mixed_chunks() -> None:
    """`enable_mixed_chunk`: the running batch joins the step and takes its tokens from it."""
    asked = [(0.0, 10, 6), (2.5, 64, 2)]
    apart, mixed = (
        served(asked, PrefillFirstVariant()),
        served(asked, PrefillFirstVariant(mixed_chunk=True)),
    )
    assert apart.records[0].chunk_times_s == (1.0, 2.0, 3.0, 5.0, 6.0, 7.0)
    assert mixed.records[0].chunk_times_s == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert first_s(apart)[1] == 4.0
    assert first_s(mixed)[1] == 5.0  # 63 tokens beside the one that decodes, then one


def test_sglang_stops_a_step_at_max_prefill_tokens_but_never_before_the_first_prompt() -> None:
    """`_select_prefill_admission`: `input_tokens >= rem_input_tokens`, where nothing is cut."""
    asked = [(0.0, 50, 1), (0.0, 10, 1)]
    for most, together in ((20, False), (60, False), (61, True)):
        result = served(asked, PrefillFirstVariant(max_prefill_tokens=most), chunked_prefill=False)
        assert (first_s(result)[1] == 1.0) == together
    # Where prompts may be cut, the chunk is the limit, and this one only ends the step.
    assert first_s(served(asked, PrefillFirstVariant(max_prefill_tokens=50))) == [1.0, 2.0]
    assert first_s(served(asked, PrefillFirstVariant(max_prefill_tokens=51))) == [1.0, 1.0]


def test_sglang_keeps_room_for_a_share_of_the_answers_that_run() -> None:
    """`rem_total_tokens`: free tokens less `new_token_ratio` times what running ones may get.

    Of 100 tokens the first has 10 and may get 39 more: 90 - 0.7 * 39 = 62.7 are left, for a
    prompt, a page and the whole answer.
    """
    for output_tokens, together in ((41, True), (42, False)):
        asked = [(0.0, 10, 40), (0.5, 20, output_tokens)]
        result = served(asked, PrefillFirstVariant(), capacity_blocks=100)
        assert (first_s(result)[1] == 2.0) == together
    bold = served(
        [(0.0, 10, 40), (0.5, 20, 60)],
        PrefillFirstVariant(conservativeness=0.3),
        capacity_blocks=100,
    )
    assert first_s(bold)[1] == 2.0
    assert bold.preemptions > 0  # 0.3 * 0.7 * 39 is not enough for both


def test_sglang_keeps_room_for_all_of_an_answer_whose_length_it_knows() -> None:
    """`_get_running_request_total_token_offset`: the share is 1 for requests with ignore_eos."""
    asked = [(0.0, 10, 40), (0.5, 20, 29)]  # 20 + 29 + 1 < 90 - 39
    known = PrefillFirstVariant(ignore_eos=True)
    cached = {"prefix_caching": True, "capacity_blocks": 100}
    assert first_s(served(asked, known, **cached))[1] == 2.0
    asked[1] = (0.5, 20, 30)
    assert first_s(served(asked, known, **cached))[1] > 40
    assert first_s(served(asked, PrefillFirstVariant(), **cached))[1] == 2.0


def test_sglang_lets_answers_of_known_length_take_turns_where_nothing_is_cached() -> None:
    """`add_one_req_ignore_eos`: the second fits once the first, which ends before, is gone."""
    asked = [(0.0, 10, 20), (0.5, 20, 60)]
    known = PrefillFirstVariant(ignore_eos=True)
    assert first_s(served(asked, known, capacity_blocks=100))[1] == 2.0
    assert first_s(served(asked, known, capacity_blocks=100, prefix_caching=True))[1] > 20


def test_sglang_looks_at_nobody_after_a_prompt_found_no_room_until_somebody_ends() -> None:
    """`batch_is_full`: the third would fit, but the second stands before it."""
    asked = [(0.0, 10, 20), (0.5, 60, 25), (0.5, 2, 2)]
    result = served(asked, PrefillFirstVariant(), capacity_blocks=100)
    first, second, third = result.records
    assert first.end_s < second.chunk_times_s[0] == third.chunk_times_s[0]


def test_sglang_puts_back_who_has_the_fewest_tokens_and_of_these_the_longest_prompt() -> None:
    """`retract_decode`: sorted by (tokens, -prompt) and taken from the end, then queued last.

    The first is three tokens ahead; of the others the one with 35 goes, and so 43 are free for
    twenty steps of two.
    """
    scheduler = PrefillFirstScheduler(
        config(PrefillFirstVariant(conservativeness=0.0), capacity_blocks=100),
        OneSecond(),  # type: ignore[arg-type]
    )

    def step() -> None:
        assert scheduler.plan(0.0) is not None
        scheduler.cut_short(0.0)
        scheduler.commit()

    scheduler.enqueue(Sequence(0, 30, 30))
    for _ in range(4):
        step()
    for index, prompt_tokens in ((1, 10), (2, 35)):
        scheduler.enqueue(Sequence(index, prompt_tokens, 15))
        step()
    for _ in range(7):
        step()
    scheduler.enqueue(Sequence(3, 90, 5))
    assert scheduler.cache.free_blocks == 1
    assert not scheduler.preemptions
    step()
    assert [sequence.index for sequence in scheduler.decoding] == [0, 1]
    assert scheduler.preemptions == 1
    assert [sequence.index for sequence in scheduler._queue] == [3, 2]
    tokens, asked = 11 + 8, 30 + 15
    decayed = (tokens + 20 * 2) / (asked + 1)
    assert scheduler._ratio == pytest.approx(min(1.0, decayed))


def test_sglangs_guess_rises_when_it_was_too_low_and_falls_as_it_decodes() -> None:
    scheduler = PrefillFirstScheduler(config(PrefillFirstVariant()), OneSecond())  # type: ignore[arg-type]
    assert scheduler._ratio == 0.7
    scheduler.enqueue(Sequence(0, 10, 2000))
    scheduler.plan(0.0)
    scheduler.commit()
    end_s = scheduler.plan(1.0)
    assert end_s is not None
    scheduler.cut_short(100.5)
    scheduler.commit()
    steps = len(scheduler.ends_s)
    assert scheduler._ratio == pytest.approx(0.7 - steps * (0.7 - 0.098) / 600)
    scheduler.plan(end_s)
    scheduler.commit()
    assert scheduler._ratio == pytest.approx(0.098)


def test_sglang_may_serve_the_longest_known_beginning_first() -> None:
    """`_sort_by_longest_prefix`, and first come, first served from 129 on."""
    fields = {"prefix_caching": True, "max_num_seqs": 1}

    def order(variant: PrefillFirstVariant, others: int) -> list[int]:
        known = Request(index=0, due_s=0.0, input_tokens=40, output_tokens=3, prefix=((7, 40),))
        strangers = [
            Request(
                index=1 + i, due_s=0.5, input_tokens=40, output_tokens=1, prefix=((100 + i, 40),)
            )
            for i in range(others)
        ]
        friend = Request(
            index=1 + others, due_s=0.5, input_tokens=50, output_tokens=1, prefix=((7, 40),)
        )
        result = run_requests(
            (known, *strangers, friend),
            config(variant, **fields),
            OneSecond(),  # type: ignore[arg-type]
        )
        return sorted(range(2 + others), key=lambda index: first_s(result)[index])

    assert order(PrefillFirstVariant(), 2) == [0, 1, 2, 3]
    assert order(PrefillFirstVariant(longest_prefix_first=True), 2) == [0, 3, 1, 2]
    # With 128 strangers and the friend 129 wait; one stranger later they are sorted.
    assert order(PrefillFirstVariant(longest_prefix_first=True), 128)[:3] == [0, 1, 129]


# TGI


def test_tgi_waits_until_enough_prompts_wait_for_those_that_decode() -> None:
    """`min_size = floor(batch_size * waiting_served_ratio)`: 2 * 1.2 is 2."""
    asked = [(0.0, 5, 12), (0.0, 5, 12), (1.5, 5, 2), (4.5, 5, 2)]
    assert first_s(served(asked, InterruptingVariant())) == [1.0, 1.0, 6.0, 6.0]
    assert first_s(served(asked, InterruptingVariant(waiting_served_ratio=0.5))) == [
        1.0,
        1.0,
        3.0,
        6.0,
    ]


def test_tgi_takes_any_prompt_after_max_waiting_tokens() -> None:
    """`waiting_tokens` is 1 after a prefill and grows by one with each decode."""
    asked = [(0.0, 5, 40)] * 3 + [(1.5, 5, 2)]
    for most in (4, 9):
        result = served(asked, InterruptingVariant(max_waiting_tokens=most))
        assert first_s(result)[3] == 1.0 + (most - 1) + 1.0


def test_tgi_decodes_once_between_two_batches_of_prompts() -> None:
    """The loop asks the queue, computes what it gives, and decodes, in turns."""
    asked = [(0.0, 60, 9), (0.0, 60, 2), (0.0, 60, 2), (0.0, 60, 2)]
    result = served(asked, InterruptingVariant(waiting_served_ratio=0.0))
    # The first batch is not followed by a decode: the loop within asks again at once.
    assert first_s(result) == [1.0, 2.0, 4.0, 6.0]
    assert result.records[0].chunk_times_s[:4] == (1.0, 3.0, 5.0, 7.0)


def test_tgi_keeps_room_for_whole_answers_and_puts_nobody_back() -> None:
    """`prefill_tokens + decode_tokens > token_budget`: 10 + 30 twice are more than 79."""
    for total, together in ((79, False), (80, True)):
        result = served(
            [(0.0, 10, 30), (0.0, 10, 30)], InterruptingVariant(max_batch_total_tokens=total)
        )
        assert (first_s(result)[1] == 1.0) == together
        assert result.preemptions == 0
    short = served([(0.0, 10, 30)] * 4, InterruptingVariant(), capacity_blocks=21)
    assert short.preemptions == 0
    assert first_s(short)[1] == 1.0 < first_s(short)[2] == first_s(short)[3]
    assert short.kv_peak_fraction > 0.9


def test_tgi_limits_the_prompts_of_a_step_and_the_sequences_of_a_batch() -> None:
    asked = [(0.0, 30, 2)] * 3
    assert first_s(served(asked, InterruptingVariant())) == [1.0, 1.0, 2.0 + 1.0]
    assert first_s(served(asked, InterruptingVariant(), max_num_seqs=1)) == [1.0, 3.0, 5.0]


# How plans choose them


def plan_of(engine: str, **extra: object) -> Plan:
    return Plan(model="m", engine=engine, extra=tuple(sorted(extra.items())))  # type: ignore[arg-type]


def test_tgi_rounds_the_prompts_of_a_step_up_to_whole_blocks() -> None:
    """`next_batch`: `prefill_token_budget` becomes a multiple of the block size, here of 4."""
    asked = [(0.0, 30, 2), (0.0, 2, 2), (0.0, 1, 2)]
    assert first_s(served(asked, InterruptingVariant(), max_num_batched_tokens=30)) == [
        1.0,
        1.0,
        3.0,
    ]


def test_a_plans_engine_and_its_own_settings_choose_the_rules() -> None:
    assert variant_of(plan_of("vllm")) is None
    assert variant_of(plan_of("simulated", max_waiting_tokens=3)) is None
    said = {"schedule_policy": "lpm", "schedule_conservativeness": 0.5, "max_prefill_tokens": 9}
    assert variant_of(plan_of("sglang", enable_mixed_chunk=True, **said)) == PrefillFirstVariant(
        max_prefill_tokens=9, conservativeness=0.5, longest_prefix_first=True, mixed_chunk=True
    )
    assert variant_of(
        plan_of("tgi", waiting_served_ratio=2.0, max_waiting_tokens=5)
    ) == InterruptingVariant(waiting_served_ratio=2.0, max_waiting_tokens=5)
    assert isinstance(
        scheduler_for(config(PrefillFirstVariant()), OneSecond()), PrefillFirstScheduler
    )  # type: ignore[arg-type]
    assert isinstance(
        scheduler_for(config(InterruptingVariant()), OneSecond()), InterruptingScheduler
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "extra", "said"),
    [
        ("sglang", {"schedule_policy": "dfs-weight"}, "dfs-weight"),
        ("sglang", {"schedule_conservativeness": "bold"}, "schedule_conservativeness"),
        ("tgi", {"max_waiting_tokens": -1}, "max_waiting_tokens"),
    ],
)
def test_settings_that_are_not_played_are_refused(
    engine: str, extra: dict[str, object], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        variant_of(plan_of(engine, **extra))


def test_what_could_never_be_admitted_is_refused_before_the_run() -> None:
    for variant, capacity_blocks in ((PrefillFirstVariant(), 32), (InterruptingVariant(), 7)):
        with pytest.raises(PlanError, match="whole KV cache"):
            served([(0.0, 10, 20)], variant, capacity_blocks=capacity_blocks - 1)
        assert served([(0.0, 10, 20)], variant, capacity_blocks=capacity_blocks + 1).records


def test_routing_follows_the_engine_and_its_setting() -> None:
    assert routing_of(plan_of("vllm")) == "cache_pressure"
    assert routing_of(plan_of("sglang")) == "round_robin"
    assert routing_of(plan_of("sglang", load_balance_method="total_requests")) == "shortest_queue"
    assert routing_of(plan_of("simulated", load_balance_method="waiting_first")) == "waiting_first"
    with pytest.raises(UnknownName, match="load_balance_method"):
        routing_of(plan_of("sglang", load_balance_method="minimum_tokens"))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_whole_plans_are_served_by_their_engines_rules(engine: str) -> None:
    load = Workload.of(LengthLaws.ranged(800, 150, 0.3), request_count=150, arrivals=Poisson(8.0))
    plan = Plan(model="m", engine=engine, max_model_len=2048, max_num_batched_tokens=2048)
    result = simulate(plan, SHAPE, MACHINE, load)
    assert all(record.outcome == "ok" for record in result.records)
    asked = load.requests()
    assert [r.output_tokens for r in result.records] == [r.output_tokens for r in asked]
