"""Drafted tokens in the simulator: their luck, their ledger, and what the formula says of them."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from servetune.errors import PlanError
from servetune.hardware import node
from servetune.metrics.latency import itl_gaps_s
from servetune.models import load_shape
from servetune.perf import performance_at, simulate
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.simulation import SimulatedRun, run_requests
from servetune.perf.sim.speculative import (
    SpeculativeInterrupting,
    SpeculativePrefillFirst,
    SpeculativeScheduler,
    gains_of,
)
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant, SchedulerVariant
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload
from servetune.workload.request import Request

SHAPE, MACHINE = load_shape("Qwen/Qwen3-8B", catalogue_first=True), node(gpu="H100")


class LinearLaw:
    """Step times that tell every step apart."""

    def seconds(self, tokens, pairs, ended, sequences, context):  # type: ignore[no-untyped-def]
        return 0.25 + tokens / 64 + pairs / 4096 + ended / 256 + sequences / 128 + context / 8192

    def decode_steps_s(self, sequences, contexts):  # type: ignore[no-untyped-def]
        return np.array([self.seconds(0, 0, 0, sequences, context) for context in contexts])


def one_by_one(kind: type[SpeculativeScheduler]) -> type[SpeculativeScheduler]:
    """The same, without stretches of several steps."""

    class OneByOne(kind):  # type: ignore[misc,valid-type]
        def _decode_run(self, now_s, *, single):  # type: ignore[no-untyped-def]
            return super()._decode_run(now_s, single=True)

    return OneByOne


def config(**fields: object) -> SchedulerConfig:
    usual = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_tokens": 4,
        "capacity_blocks": 1000,
        "chunked_prefill": True,
        "draft_tokens": 3,
        "draft_acceptance_fraction": 0.6,
        "lookahead_tokens": 3,
    }
    return SchedulerConfig(**(usual | fields))  # type: ignore[arg-type]


def random_requests(seed: int, count: int = 40) -> tuple[Request, ...]:
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(0.8, count)).tolist()
    return tuple(
        Request(
            index=index,
            due_s=due_s[index],
            input_tokens=int(rng.integers(1, 30)),
            output_tokens=int(rng.integers(1, 20)),
        )
        for index in range(count)
    )


def run(
    *, users: int = 16, arrivals: Poisson | None = None, seed: int = 1, **fields: object
) -> SimulatedRun:
    load = Workload.of(
        LengthLaws.ranged(400, 200, 0.5),
        request_count=150,
        seed=seed,
        concurrency=None if arrivals else users,
        **({"arrivals": arrivals} if arrivals else {}),  # type: ignore[arg-type]
    )
    return simulate(Plan(model="m", max_model_len=8192, **fields), SHAPE, MACHINE, load)  # type: ignore[arg-type]


@pytest.mark.parametrize("accepted", [0.0, 0.35, 0.8, 1.0])
def test_the_mean_gain_is_the_sum_of_powers(accepted: float) -> None:
    gains = np.concatenate([gains_of(5, index, 400, 3, accepted) for index in range(500)])
    plan = Plan(model="m", draft_tokens=3, draft_acceptance_fraction=accepted)
    assert gains.mean() == pytest.approx(tokens_per_step(plan), rel=0.005)
    assert gains.min() >= 1
    assert gains.max() <= 4


def test_luck_is_a_sequences_own() -> None:
    drawn = gains_of.__wrapped__  # without those that are kept
    assert (drawn(1, 7, 50, 3, 0.5) == drawn(1, 7, 50, 3, 0.5)).all()
    assert (gains_of(1, 7, 50, 3, 0.5) != gains_of(1, 8, 50, 3, 0.5)).any()
    assert (gains_of(1, 7, 50, 3, 0.5) != gains_of(2, 7, 50, 3, 0.5)).any()
    assert (gains_of(1, 7, 50, 3, 0.5) == gains_of(1, 7, 90, 3, 0.5)[:50]).all()


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        (SpeculativeScheduler, None),
        (SpeculativePrefillFirst, PrefillFirstVariant()),
        (SpeculativeInterrupting, InterruptingVariant()),
    ],
)
@pytest.mark.parametrize("capacity_blocks", [16, 22, 1000])
@pytest.mark.parametrize("seed", range(8))
def test_the_ledger_says_what_single_steps_do(
    seed: int,
    capacity_blocks: int,
    kind: type[SpeculativeScheduler],
    variant: SchedulerVariant | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, requests = config(capacity_blocks=capacity_blocks, variant=variant), random_requests(seed)
    schedulers: list[SpeculativeScheduler] = []

    def build(kind: type[SpeculativeScheduler]) -> SimulatedRun:
        def scheduler_for(of: SchedulerConfig, law: object, _: object) -> SpeculativeScheduler:
            schedulers.append(kind(of, law))  # type: ignore[arg-type]
            return schedulers[-1]

        monkeypatch.setattr("servetune.perf.sim.serving.scheduler_for", scheduler_for)
        return run_requests(requests, of, LinearLaw())  # type: ignore[arg-type]

    whole, single = build(kind), build(one_by_one(kind))
    assert whole.preemptions == single.preemptions
    if variant is None:
        assert (whole.preemptions > 0) == (capacity_blocks < 1000)
    assert whole.steps == single.steps
    for one, other, request in zip(whole.records, single.records, requests, strict=True):
        assert one.chunk_tokens == other.chunk_tokens
        assert one.chunk_times_s == pytest.approx(other.chunk_times_s, rel=1e-9)
        assert sum(one.chunk_tokens) == one.output_tokens == request.output_tokens
    for scheduler in schedulers:
        assert scheduler.cache.free_blocks == scheduler.cache.capacity_blocks
        assert not scheduler._ledger.tokens[scheduler.steps :].any()
        assert not scheduler._luck


def test_a_sequence_holds_blocks_for_its_drafts_and_for_what_the_drafter_writes() -> None:
    """Prompt 8, k = 3, blocks of 4: 8 + 3 tokens first, then 8 + 1 + 3 + 3 for the next step."""
    for lookahead_tokens, blocks in ((0, [2, 3]), (3, [3, 4])):
        scheduler = SpeculativeScheduler(config(lookahead_tokens=lookahead_tokens), LinearLaw())  # type: ignore[arg-type]
        scheduler.enqueue(Sequence(0, 8, 9))
        held = []
        for _ in range(2):
            scheduler.plan(0.0)
            held.append(scheduler.cache.capacity_blocks - scheduler.cache.free_blocks)
            scheduler.cut_short(0.0)
            scheduler.commit()
        assert held == blocks


def test_drafts_take_their_share_of_the_steps_tokens() -> None:
    """Eight sequences of four tokens each leave 32 of 64 for the next prompt."""
    requests = [Request(index=i, due_s=0.0, input_tokens=1, output_tokens=60) for i in range(8)]
    requests.append(Request(index=8, due_s=0.3, input_tokens=64, output_tokens=2))
    of = config(max_num_seqs=9, draft_acceptance_fraction=0.0)
    result = run_requests(tuple(requests), of, LinearLaw())  # type: ignore[arg-type]
    others = result.records[0].chunk_times_s
    late = result.records[8]
    assert late.chunk_times_s[0] == pytest.approx(others[2])  # two steps for 64 tokens


def test_what_can_not_be_finished_is_refused_before_the_run() -> None:
    one = (Request(index=0, due_s=0.0, input_tokens=20, output_tokens=8),)
    with pytest.raises(PlanError, match="KV cache of 32"):
        run_requests(one, config(capacity_blocks=8), LinearLaw())  # type: ignore[arg-type]
    assert run_requests(one, config(capacity_blocks=9), LinearLaw()).records  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_always_right_gives_whole_steps_and_never_right_only_costs(engine: str) -> None:
    plain, right, wrong = (
        run(engine=engine, **fields)
        for fields in (
            {},
            {"draft_tokens": 3, "draft_acceptance_fraction": 1.0},
            {"draft_tokens": 3, "draft_acceptance_fraction": 0.0},
        )
    )
    for record in right.records:
        assert record.chunk_tokens[0] == 1
        assert set(record.chunk_tokens[1:-1]) <= {4}
    assert all(set(record.chunk_tokens) == {1} for record in wrong.records)
    assert right.duration_s < plain.duration_s < wrong.duration_s


def test_better_drafts_are_never_slower() -> None:
    durations = [
        run(draft_tokens=2, draft_acceptance_fraction=a).duration_s for a in (0.0, 0.4, 0.7, 1.0)
    ]
    assert durations == sorted(durations, reverse=True)


def test_the_gaps_add_up_to_the_time_between_first_and_last_token() -> None:
    result = run(draft_tokens=3, draft_acceptance_fraction=0.7)
    between_s = sum(r.chunk_times_s[-1] - r.chunk_times_s[0] for r in result.records)
    gaps = itl_gaps_s(result.records)
    assert len(gaps) == sum(record.output_tokens - 1 for record in result.records)
    assert gaps.sum() == pytest.approx(between_s)
    for record in result.records:
        assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))


def test_the_same_seed_is_the_same_to_the_last_digit_and_another_is_not() -> None:
    fields = {"draft_tokens": 3, "draft_acceptance_fraction": 0.6}
    first, second = run(**fields), run(**fields)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert first.records != run(seed=2, **fields).records


def test_luck_does_not_depend_on_the_order_of_events() -> None:
    """At another rate all is served at other times beside others, but the gains are the same."""
    fields = {"draft_tokens": 3, "draft_acceptance_fraction": 0.6}
    slow, fast = run(arrivals=Poisson(2.0), **fields), run(arrivals=Poisson(20.0), **fields)
    assert slow.records[30].chunk_times_s != fast.records[30].chunk_times_s
    for one, other in zip(slow.records, fast.records, strict=True):
        assert one.chunk_tokens == other.chunk_tokens


@pytest.mark.parametrize("method", [None, "ngram"])
@pytest.mark.parametrize("users", [1, 16, 64])
def test_a_closed_loop_agrees_with_the_formulas(users: int, method: str | None) -> None:
    """Mean gap and throughput within 6% of the steady state's, gap within 6% of a whole run's.

    A whole run's first tokens bear fitted delays that the steps do not have, so its throughput
    is left out.
    """
    plan = Plan(
        model=SHAPE.name,
        max_model_len=8192,
        draft_tokens=3,
        draft_acceptance_fraction=0.7,
        draft_method=method,
    )
    load = Workload.of(
        LengthLaws.fixed(500, 301), request_count=max(20, 6 * users), concurrency=users
    )
    result = simulate(plan, SHAPE, MACHINE, load)
    gap_ms = 1000 * itl_gaps_s(result.records).mean()
    rate = sum(record.output_tokens for record in result.records) / result.duration_s
    steady = performance_at(SHAPE, MACHINE, plan, load, users)
    assert gap_ms == pytest.approx(steady.itl_ms, rel=0.06)
    assert rate == pytest.approx(steady.output_tokens_per_s, rel=0.06)
    whole = PlannedRun(
        shape=SHAPE,
        node=MACHINE,
        plan=plan,
        lengths=load.lengths,
        concurrency=users,
        request_count=load.request_count,
    )
    (priced,) = predict_runs([whole])
    assert gap_ms == pytest.approx(priced.point.tpot_ms, rel=0.06)


def test_orders_that_are_not_played_with_drafts_are_refused() -> None:
    for setting in (("scheduling_policy", "priority"), ("async_scheduling", True)):
        with pytest.raises(PlanError, match="are not simulated with"):
            run(draft_tokens=3, extra=(setting,))
