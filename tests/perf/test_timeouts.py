"""Clients that give up, and engines that refuse: what queueing and bookkeeping promise."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_second import OneSecond
from servetune.engines import engine, resolved
from servetune.errors import NotSimulated, PlanError
from servetune.hardware import node
from servetune.metrics.record import Record
from servetune.models import load_shape
from servetune.perf import simulate
from servetune.perf.sim import SimulatedRun
from servetune.perf.sim.admission import Limit, limits_of
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.serving import EngineLayout, RequestOverhead
from servetune.perf.sim.simulation import ClientLoad, RunOptions, VirtualRun, run_requests
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload
from servetune.workload.request import Request

LAW = OneSecond()
ONE_PLACE = SchedulerConfig(
    max_num_seqs=1,
    max_num_batched_tokens=512,
    block_tokens=16,
    capacity_blocks=100,
    chunked_prefill=True,
)
CRAMPED = msgspec.structs.replace(ONE_PLACE, max_num_seqs=8, capacity_blocks=40)
CONFIGS = (
    CRAMPED,
    msgspec.structs.replace(CRAMPED, prefix_caching=True),
    msgspec.structs.replace(CRAMPED, policy="priority"),
    msgspec.structs.replace(CRAMPED, async_scheduling=True),
    msgspec.structs.replace(
        CRAMPED, draft_tokens=3, draft_acceptance_fraction=0.7, lookahead_tokens=3
    ),
    msgspec.structs.replace(CRAMPED, variant=PrefillFirstVariant()),
    msgspec.structs.replace(
        CRAMPED, variant=PrefillFirstVariant(), prefix_caching=True, async_scheduling=True
    ),
    msgspec.structs.replace(CRAMPED, variant=PrefillFirstVariant(mixed_chunk=True)),
    msgspec.structs.replace(CRAMPED, variant=InterruptingVariant(), chunked_prefill=False),
)


def requests(*answers: int, due_s: float | None = None, prompt: int = 16) -> tuple[Request, ...]:
    """Requests for answers of so many tokens, one every `due_s` seconds."""
    return tuple(
        Request(index=i, input_tokens=prompt, output_tokens=tokens, due_s=i * (due_s or 0.0))
        for i, tokens in enumerate(answers)
    )


def limited(setting: str, most: int, engine_name: str) -> EngineLayout:
    rules = engine(engine_name).behaviour.admission
    (rule,) = (each for each in rules if each.setting == setting)
    return EngineLayout(admission=(Limit(rule, most),))


def shown(record: Record) -> tuple[str, float, float, int]:
    return record.outcome, record.sent_s, record.end_s, record.output_tokens


def test_a_client_gives_up_at_its_limit_and_the_next_has_the_place() -> None:
    run = run_requests(
        requests(3, 9, 2), ONE_PLACE, LAW, ClientLoad(options=RunOptions(timeout_s=5.5))
    )
    assert [shown(each) for each in run.records] == [
        ("ok", 0.0, 3.0, 3),
        ("timeout", 0.0, 5.5, 2),  # the token at 6 s came too late
        ("timeout", 0.0, 5.5, 0),  # it waited all the time
    ]
    assert run.records[1].detail == "no whole answer within 5.5 s"
    assert run.records[1].chunk_times_s == (4.0, 5.0)


def test_an_answer_that_is_whole_at_the_limit_is_no_failure() -> None:
    run = run_requests(requests(3), ONE_PLACE, LAW, ClientLoad(options=RunOptions(timeout_s=3.0)))
    assert shown(run.records[0]) == ("ok", 0.0, 3.0, 3)


def test_a_user_goes_on_at_once_after_a_time_out() -> None:
    load = ClientLoad(closed_loop=True, max_concurrency=1, options=RunOptions(timeout_s=4.5))
    run = run_requests(requests(9, 2), ONE_PLACE, LAW, load)
    # The step that had begun is finished before the place is free.
    assert [shown(each) for each in run.records] == [
        ("timeout", 0.0, 4.5, 4),
        ("ok", 4.5, 7.0, 2),
    ]


def test_turns_after_a_turn_that_failed_are_never_asked() -> None:
    first, second, other = requests(9, 2, 2)
    second = msgspec.structs.replace(second, follows=0, session=0, turn=1)
    load = ClientLoad(closed_loop=True, max_concurrency=1, options=RunOptions(timeout_s=4.5))
    run = run_requests((first, second, other), ONE_PLACE, LAW, load)
    assert [each.index for each in run.records] == [0, 2]


def test_an_engine_refuses_above_its_limit_and_takes_the_next_when_one_left() -> None:
    layout = limited("max_concurrent_requests", 2, "tgi")
    run = run_requests(requests(4, 4, 4, 4, due_s=1.5), ONE_PLACE, LAW, ClientLoad(), layout)
    # 0 runs until 4 s, 1 waits behind it; 2 comes at 3 s to two, 3 at 4.5 s to one.
    assert [each.outcome for each in run.records] == ["ok", "ok", "http_status", "ok"]
    refused = run.records[2]
    assert (refused.status, refused.detail) == (429, "Model is overloaded")
    assert refused.sent_s == refused.end_s == 3.0


def test_waiting_requests_alone_count_where_the_queue_is_limited() -> None:
    layout = limited("max_queued_requests", 1, "sglang")
    run = run_requests(requests(9, 9, 9, due_s=1.5), ONE_PLACE, LAW, ClientLoad(), layout)
    assert [each.outcome for each in run.records] == ["ok", "ok", "http_status"]
    assert run.records[2].status == 503


def test_prompt_tokens_count_until_their_prompt_is_computed() -> None:
    layout = limited("max_num_queued_tokens", 16, "vllm")
    three = requests(9, 9, 9, due_s=0.6)
    run = run_requests(three, CRAMPED, LAW, ClientLoad(), layout)
    # The first prompt is computed at 1 s: the request of 0.6 s finds it open, that of 1.2 s not.
    assert [each.outcome for each in run.records] == ["ok", "http_status", "ok"]


def test_each_copy_has_a_limit_of_its_own() -> None:
    layout = msgspec.structs.replace(limited("max_num_queued_reqs", 2, "vllm"), replicas=2)
    run = run_requests(requests(5, 5, 5, 5, 5), ONE_PLACE, LAW, ClientLoad(), layout)
    assert [each.outcome for each in run.records] == ["ok"] * 4 + ["http_status"]


def test_limits_come_from_settings_and_the_engines_defaults() -> None:
    assert [each.most for each in limits_of(Plan(model="m", engine="tgi"))] == [128]
    assert limits_of(Plan(model="m")) == limits_of(Plan(model="m", engine="sglang")) == ()
    given_one = Plan(model="m", extra=(("max-num-queued-reqs", 7),))
    assert [(each.rule.setting, each.most) for each in limits_of(given_one)] == [
        ("max_num_queued_reqs", 7)
    ]
    said = Plan(model="m", engine="tgi", extra=(("max_concurrent_requests", "64"),))
    assert [each.most for each in limits_of(said)] == [64]
    with pytest.raises(PlanError, match="must be a number of 0 or more, got 'x'"):
        limits_of(Plan(model="m", engine="tgi", extra=(("max_concurrent_requests", "x"),)))
    with pytest.raises(NotSimulated, match="prefill servers"):
        limits_of(msgspec.structs.replace(given_one, prefill_replicas=1))


@settings(max_examples=60, deadline=None)
@given(
    config=st.sampled_from(CONFIGS),
    seed=st.integers(0, 10_000),
    timeout_s=st.floats(0.3, 60.0),
    users=st.sampled_from([None, 3, 20]),
    most=st.sampled_from([None, 6]),
    each_token=st.booleans(),
)
def test_nothing_is_answered_late_and_everything_is_given_back(
    config: SchedulerConfig,
    seed: int,
    timeout_s: float,
    users: int | None,
    most: int | None,
    each_token: bool,
) -> None:
    rng = np.random.default_rng(seed)
    due_s = np.zeros(40) if users else rng.exponential(0.8, 40).cumsum()
    asked = tuple(
        Request(
            index=i,
            input_tokens=int(rng.integers(1, 300)),
            output_tokens=int(rng.integers(1, 40)),
            due_s=float(due_s[i]),
            priority=i % 2,
            prefix=((i % 3, 1),),
        )
        for i in range(40)
    )
    load = ClientLoad(
        closed_loop=users is not None,
        max_concurrency=users,
        overhead=RequestOverhead(request_s=0.1),
        options=RunOptions(timeout_s=timeout_s, each_token=each_token),
    )
    layout = limited("max_concurrent_requests", most, "tgi") if most else EngineLayout()
    run = VirtualRun(asked, config, LAW, load, layout)
    run.play(float("inf"))
    records = [each for each in run.records if each is not None]
    assert len(records) == 40
    for record, request in zip(records, asked, strict=True):
        took_s = record.end_s - record.sent_s
        tokens = sum(record.chunk_tokens or [1] * len(record.chunk_times_s))
        assert tokens == record.output_tokens
        assert max(record.chunk_times_s, default=0.0) <= record.end_s
        match record.outcome:
            case "ok":
                assert took_s <= timeout_s + 1e-9
                assert tokens == request.output_tokens
            case "timeout":
                assert took_s == pytest.approx(timeout_s)
                assert tokens < request.output_tokens
            case "http_status":
                assert (took_s, tokens) == (pytest.approx(0.1), 0)
            case _:
                raise AssertionError(record.outcome)
    for scheduler in run.schedulers:
        assert scheduler.cache.free_blocks == scheduler.cache.capacity_blocks
        assert (scheduler.running, scheduler.waiting) == (0, 0)
    assert not run.events


SHAPE, NODE = load_shape("Qwen/Qwen3-4B", catalogue_first=True), node(gpu="L4")


def overloaded(timeout_s: float | None, **fields: object) -> SimulatedRun:
    load = Workload.of(
        LengthLaws.ranged(500, 200, 0.5), request_count=600, arrivals=Poisson(9.0), seed=3
    )
    plan = Plan(model="m", **({"max_model_len": 4096} | fields))  # type: ignore[arg-type]
    return simulate(plan, SHAPE, NODE, load, options=RunOptions(timeout_s=timeout_s))


@pytest.mark.parametrize("fields", [{}, {"prefill_replicas": 1}, {"replicas": 2}])
def test_a_limit_that_nobody_reaches_changes_nothing(fields: dict[str, object]) -> None:
    plan = Plan(model="m", max_model_len=4096, **fields)  # type: ignore[arg-type]
    machine = node(gpu="L4", count=2)
    load = Workload.of(LengthLaws.fixed(500, 100), request_count=60, arrivals=Poisson(2.0), seed=3)
    free = simulate(plan, SHAPE, machine, load)
    assert simulate(plan, SHAPE, machine, load, options=RunOptions(timeout_s=1e6)) == free


def test_time_outs_relieve_an_overloaded_server_and_cost_goodput() -> None:
    """Without them everybody is answered late; with them those who stay are answered in time."""
    free, cut = overloaded(None), overloaded(20.0)
    late = [each for each in free.records if each.e2e_s > 20.0]
    failed = [each for each in cut.records if each.outcome == "timeout"]
    assert len(late) > 100
    assert 0 < len(failed) < len(late)
    assert all(each.e2e_s <= 20.0 + 1e-9 for each in cut.records)
    assert cut.duration_s < free.duration_s


def test_a_prompt_that_is_computed_elsewhere_is_given_up_wherever_it_is() -> None:
    plan = Plan(model="m", max_model_len=4096, prefill_replicas=1)
    load = Workload.of(LengthLaws.fixed(2000, 50), request_count=80, arrivals=Poisson(9.0), seed=1)
    run = simulate(plan, SHAPE, node(gpu="L4", count=2), load, options=RunOptions(timeout_s=6.0))
    outcomes = {each.outcome for each in run.records}
    assert outcomes == {"ok", "timeout"}
    assert len(run.records) == 80


def test_tgi_refuses_the_129th_request_by_default() -> None:
    plan = Plan(model="m", engine="tgi", max_model_len=4096)
    assert resolved(plan, SHAPE, NODE.device).engine == "tgi"
    load = Workload.of(LengthLaws.fixed(100, 20), request_count=140, concurrency=140, seed=1)
    run = simulate(plan, SHAPE, NODE, load)
    refused = [each for each in run.records if each.status == 429]
    assert len(refused) == 12
    assert sum(each.outcome == "ok" for each in run.records) == 128
