"""What queueing theory and bookkeeping promise of every simulated run."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import node
from servetune.metrics import summarize
from servetune.models import load_shape
from servetune.perf.sim import SimulatedRun, simulate
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.simulation import run_requests
from servetune.plan.plan import Plan
from servetune.workload.arrivals import AllAtOnce, Arrivals, Constant, Poisson
from servetune.workload.lengths import SHAREGPT, LengthLaws, Lengths
from servetune.workload.request import Request
from servetune.workload.workload import Workload

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
NODE = node(gpu="L4", count=4)
TIGHT = 0.52  # of the memory: a cache of a few thousand tokens on one device


def run(
    *,
    lengths: Lengths = SHAREGPT,
    count: int = 200,
    users: int | None = 16,
    arrivals: Arrivals | None = None,
    seed: int = 1,
    **fields: object,
) -> SimulatedRun:
    fields = {"max_model_len": 8192, "max_num_batched_tokens": 2048, "max_num_seqs": 64} | fields
    workload = Workload.of(
        lengths,
        request_count=count,
        concurrency=users,
        arrivals=arrivals or AllAtOnce(),
        seed=seed,
    )
    return simulate(Plan(model="m", **fields), SHAPE, NODE, workload)  # type: ignore[arg-type]


RUNS = {
    "closed loop": {},
    "one user": {"users": 1, "count": 20},
    "four devices": {"tensor_parallel": 4, "users": 64},
    "few sequences": {"max_num_seqs": 4, "users": 32},
    "small budget": {"max_num_batched_tokens": 64, "max_num_seqs": 32, "count": 60},
    "tight cache": {
        "gpu_memory_fraction": TIGHT,
        "max_model_len": 2048,
        "lengths": LengthLaws.ranged(600, 900, 0.5),
        "users": 32,
        "count": 80,
    },
    "open loop": {"arrivals": Poisson(2.0), "users": None},
    "open loop behind a limit": {"arrivals": Poisson(5.0), "users": 8},
    "overload": {"arrivals": Constant(50.0), "users": None},
    "replicas and ranks": {"replicas": 2, "data_parallel": 2, "users": 40},
    "one token each": {"lengths": LengthLaws.fixed(300, 1)},
}


@pytest.fixture(scope="module", params=RUNS, ids=lambda name: name.replace(" ", "-"))
def simulation(request: pytest.FixtureRequest) -> SimulatedRun:
    return run(**RUNS[request.param])  # type: ignore[arg-type]


def test_every_request_gets_exactly_its_tokens(simulation: SimulatedRun) -> None:
    for index, record in enumerate(simulation.records):
        assert record.index == index
        assert record.outcome == "ok"
        assert record.output_tokens == len(record.chunk_times_s) >= 1
    assert sum(r.input_tokens for r in simulation.records) > 0


def test_tokens_come_in_strict_order_after_sending_and_sending_after_due(
    simulation: SimulatedRun,
) -> None:
    for record in simulation.records:
        assert record.due_s <= record.sent_s < record.chunk_times_s[0]
        assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))
        assert record.end_s == record.chunk_times_s[-1]


def test_the_cache_is_never_over_full(simulation: SimulatedRun) -> None:
    assert 0 < simulation.kv_peak_fraction <= 1


def test_littles_law_holds_on_the_records(simulation: SimulatedRun) -> None:
    """Mean number in the system from events = arrival rate x mean time in it."""
    marks = sorted(
        [(r.due_s, 1) for r in simulation.records] + [(r.end_s, -1) for r in simulation.records]
    )
    area, inside = 0.0, 0
    for (time_s, change), (next_s, _) in itertools.pairwise(marks):
        inside += change
        area += inside * (next_s - time_s)
    results = summarize(simulation.records, duration_s=simulation.duration_s)
    assert area / simulation.duration_s == pytest.approx(results["concurrency"], rel=1e-9)


def test_no_engine_works_longer_than_the_run(simulation: SimulatedRun) -> None:
    assert 0 < simulation.busy_s <= simulation.duration_s


def test_the_scenarios_reach_what_they_are_named_for() -> None:
    assert run(**RUNS["tight cache"]).preemptions > 0  # type: ignore[arg-type]
    assert run(**RUNS["tight cache"]).kv_peak_fraction > 0.95  # type: ignore[arg-type]
    assert run(**RUNS["overload"]).saturated  # type: ignore[arg-type]
    assert not run(**RUNS["open loop"]).saturated  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["closed loop", "tight cache", "open loop", "replicas and ranks"])
def test_the_same_run_is_the_same_to_the_last_digit(name: str) -> None:
    first, second = run(**RUNS[name]), run(**RUNS[name])  # type: ignore[arg-type]
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


def test_another_seed_is_another_run() -> None:
    assert run(seed=1).records != run(seed=2).records


def test_a_closed_loop_never_has_more_in_flight_than_users() -> None:
    marks = sorted(
        (time_s, change)
        for r in run(users=7).records
        for time_s, change in ((r.sent_s, 1), (r.end_s, -1))
    )
    inside = list(itertools.accumulate(change for _, change in marks))
    assert max(inside) == 7


def test_first_tokens_come_in_order_of_arrival_without_preemption() -> None:
    result = run(arrivals=Constant(20.0), users=None, max_num_seqs=4)
    assert result.preemptions == 0
    firsts = [record.chunk_times_s[0] for record in result.records]
    assert firsts == sorted(firsts)


def test_alone_a_request_waits_for_nothing() -> None:
    result = run(lengths=LengthLaws.fixed(100, 20), users=1, count=5)
    ttfts = [record.ttft_s for record in result.records]
    assert ttfts == pytest.approx([ttfts[0]] * 5)
    assert result.busy_s < result.duration_s  # between answers the engine is idle


def test_fewer_places_mean_queueing() -> None:
    few, many = run(max_num_seqs=4, users=32), run(max_num_seqs=64, users=32)
    few_ttft = np.mean([r.ttft_s for r in few.records])
    many_ttft = np.mean([r.ttft_s for r in many.records])
    assert few_ttft > 5 * many_ttft
    assert few.duration_s > many.duration_s


def test_more_memory_is_never_worse_for_the_same_requests() -> None:
    durations = [
        run(**(RUNS["tight cache"] | {"gpu_memory_fraction": fraction})).duration_s  # type: ignore[arg-type]
        for fraction in (TIGHT, 0.6, 0.8)
    ]
    assert durations == sorted(durations, reverse=True)


def test_two_replicas_serve_nearly_twice_as_much_under_overload() -> None:
    load = {
        "lengths": LengthLaws.fixed(300, 100),
        "arrivals": Constant(100.0),
        "users": None,
        "count": 600,
    }
    one, two = run(**load, max_num_seqs=16), run(**load, max_num_seqs=16, replicas=2)  # type: ignore[arg-type]
    assert one.duration_s / two.duration_s == pytest.approx(2, rel=0.05)


class ConstantLaw:
    """Every step takes one second."""

    def seconds(self, *_: float) -> float:
        return 1.0

    def decode_run_s(self, _sequences: int, _context: float, steps: int) -> np.ndarray:
        return np.ones(steps)


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(0.3, marks=pytest.mark.slow),
        0.6,
        pytest.param(0.8, marks=pytest.mark.slow),
    ],
)
def test_one_place_and_constant_service_wait_as_m_d_1(load: float) -> None:
    """Pollaczek-Khinchine: mean wait = load / (2 (1 - load)) services; 40,000 requests, 6%."""
    rng = np.random.default_rng(7)
    due_s = np.cumsum(rng.exponential(1 / load, 40_000))
    requests = tuple(
        Request(index=i, due_s=float(due), input_tokens=1, output_tokens=1)
        for i, due in enumerate(due_s)
    )
    rules = SchedulerConfig(
        max_num_seqs=1,
        max_num_batched_tokens=8,
        block_tokens=16,
        capacity_blocks=4,
        chunked_prefill=True,
    )
    result = run_requests(requests, rules, ConstantLaw())  # type: ignore[arg-type]
    waits = [record.e2e_s - 1.0 for record in result.records]
    assert min(waits) >= -1e-9
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.06)


def test_a_request_longer_than_the_context_is_refused_before_the_run() -> None:
    with pytest.raises(PlanError, match="max_model_len 512"):
        run(lengths=LengthLaws.fixed(500, 20), max_model_len=512)


def test_a_prompt_that_no_step_can_hold_is_refused_before_the_run() -> None:
    requests = (Request(index=0, due_s=0.0, input_tokens=100, output_tokens=2),)
    small = SchedulerConfig(
        max_num_seqs=1,
        max_num_batched_tokens=64,
        block_tokens=16,
        capacity_blocks=100,
        chunked_prefill=False,
    )
    with pytest.raises(PlanError, match="max_num_batched_tokens 64"):
        run_requests(requests, small, ConstantLaw())  # type: ignore[arg-type]
    tiny = msgspec.structs.replace(small, chunked_prefill=True, capacity_blocks=6)
    with pytest.raises(PlanError, match="KV cache of 96"):
        run_requests(requests, tiny, ConstantLaw())  # type: ignore[arg-type]


def test_a_plan_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFit):
        run(gpu_memory_fraction=0.3)
    with pytest.raises(PlanError, match="5"):
        run(replicas=5)
