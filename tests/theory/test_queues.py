"""Waiting times and conservation laws that hold for any server, asked of the simulated one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from servetune.metrics import summarize
from servetune.perf.sim import SimulatedRun
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.serving import EngineLayout
from servetune.perf.sim.simulation import ClientLoad, RunOptions, known_pieces, run_requests
from servetune.workload.request import Request


class ConstantLaw:
    """Every step takes the same time, whoever is in it."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.step_s = step_s

    def seconds(self, *_: float) -> float:
        return self.step_s

    def decode_run_s(self, _sequences: int, _context: float, steps: int) -> np.ndarray:
        return np.full(steps, self.step_s)


class LoadLaw(ConstantLaw):
    """Longer steps for more work."""

    def seconds(self, tokens: float, pairs: float, _: float, sequences: float, ctx: float) -> float:
        return 0.5 + tokens / 64 + pairs / 4096 + sequences / 128 + ctx / 8192

    def decode_run_s(self, sequences: int, context: float, steps: int) -> np.ndarray:
        return np.array(
            [self.seconds(0, 0, 0, sequences, context + i * sequences) for i in range(steps)]
        )


def rules(**fields: Any) -> SchedulerConfig:
    usual = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 64,
        "block_tokens": 16,
        "capacity_blocks": 100_000,
        "chunked_prefill": True,
    }
    return SchedulerConfig(**(usual | fields))


def serve(
    requests: tuple[Request, ...],
    of: SchedulerConfig,
    law: ConstantLaw | None = None,
    *,
    replicas: int = 1,
    **load: Any,
) -> SimulatedRun:
    times: Any = law or ConstantLaw()
    layout = EngineLayout(replicas=replicas)
    return run_requests(requests, of, times, ClientLoad(**load), layout)


def asked(due_s: Any, output_tokens: Any, input_tokens: Any = None) -> tuple[Request, ...]:
    input_tokens = [1] * len(due_s) if input_tokens is None else input_tokens
    return tuple(
        Request(index=i, due_s=float(due), input_tokens=int(tokens_in), output_tokens=int(tokens))
        for i, (due, tokens, tokens_in) in enumerate(
            zip(due_s, output_tokens, input_tokens, strict=True)
        )
    )


def geometric_service(load: float, places: int, mean: float, count: int, seed: int) -> Any:
    """Poisson arrivals, and answers of geometric length: in units of a step all but exponential."""
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(mean / (load * places), count))
    return due_s, rng.geometric(1 / mean, count)


def waits_s(result: SimulatedRun) -> Any:
    return np.array([record.chunk_times_s[0] - 1.0 - record.due_s for record in result.records])


@pytest.mark.parametrize(
    ("load", "count"),
    [
        pytest.param(0.3, 15_000, marks=pytest.mark.slow),
        (0.6, 15_000),
        pytest.param(0.8, 40_000, marks=pytest.mark.slow),
    ],
)
def test_one_place_and_random_answers_wait_as_m_m_1(load: float, count: int) -> None:
    """Mean wait = load / (1 - load) mean services, to 8%; waits are alike for longer at 0.8."""
    mean = 60.0
    result = serve(asked(*geometric_service(load, 1, mean, count, seed=3)), rules())
    assert waits_s(result).min() >= -1e-6
    assert waits_s(result).mean() / mean == pytest.approx(load / (1 - load), rel=0.08)


@pytest.mark.parametrize(
    ("places", "load", "count"),
    [
        (2, 0.6, 15_000),
        pytest.param(4, 0.7, 20_000, marks=pytest.mark.slow),
        pytest.param(8, 0.85, 40_000, marks=pytest.mark.slow),
    ],
)
def test_places_and_random_answers_wait_as_m_m_c(places: int, load: float, count: int) -> None:
    """Erlang's C formula, and half a step to the next step's start, to 8%."""
    mean = 120.0
    result = serve(
        asked(*geometric_service(load, places, mean, count, seed=5)), rules(max_num_seqs=places)
    )
    offered = load * places
    terms = [offered**k / math.factorial(k) for k in range(places + 1)]
    queue = terms[-1] / (1 - load)
    must_wait = queue / (sum(terms[:-1]) + queue)
    expected = must_wait * mean / (places * (1 - load)) + 0.5
    assert waits_s(result).mean() == pytest.approx(expected, rel=0.08)


def test_one_place_serves_by_lindleys_recursion() -> None:
    """Each begins when it is due or when the one before ends, whichever is later."""
    due_s, tokens = geometric_service(0.9, 1, 20.0, 2000, seed=1)
    end_s = 0.0
    for record, due, services in zip(
        serve(asked(due_s, tokens), rules()).records, due_s, tokens, strict=True
    ):
        end_s = max(due, end_s) + services
        assert record.end_s == pytest.approx(end_s, rel=1e-9)


def random_requests(seed: int, count: int = 60, *, shared: bool = False) -> tuple[Request, ...]:
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(rng.choice([0.2, 2.0, 20.0]), count))
    plain = asked(due_s, rng.integers(1, 30, count), rng.integers(1, 90, count))
    if not shared:
        return plain
    return tuple(
        Request(
            index=request.index,
            due_s=request.due_s,
            input_tokens=request.input_tokens + 40,
            output_tokens=request.output_tokens,
            prefix=((int(rng.integers(3)), 40),),
            priority=int(rng.integers(3)),
        )
        for request in plain
    )


SYSTEMS: dict[str, dict[str, Any]] = {
    "roomy": {"max_num_seqs": 8},
    "tight": {"max_num_seqs": 8, "capacity_blocks": 14},
    "whole prompts": {"max_num_seqs": 4, "chunked_prefill": False, "max_num_batched_tokens": 160},
    "prefixes": {"max_num_seqs": 8, "prefix_caching": True},
    "tight prefixes": {"max_num_seqs": 8, "capacity_blocks": 14, "prefix_caching": True},
    "tight priority": {
        "max_num_seqs": 8,
        "capacity_blocks": 14,
        "prefix_caching": True,
        "policy": "priority",
    },
    "tight prefixes ahead": {
        "max_num_seqs": 8,
        "capacity_blocks": 14,
        "prefix_caching": True,
        "async_scheduling": True,
    },
    "tight priority ahead": {
        "max_num_seqs": 8,
        "capacity_blocks": 14,
        "policy": "priority",
        "async_scheduling": True,
    },
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_engine_works_exactly_while_somebody_is_inside(name: str, seed: int) -> None:
    """Work conservation: steps fill the union of all stays, with no gap and no overlap."""
    result = serve(random_requests(seed, shared="p" in name), rules(**SYSTEMS[name]), LoadLaw())
    inside_s, until_s = 0.0, 0.0
    for record in sorted(result.records, key=lambda each: each.due_s):
        inside_s += max(0.0, record.end_s - max(record.due_s, until_s))
        until_s = max(until_s, record.end_s)
    assert result.busy_s == pytest.approx(inside_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_token_is_early_lost_or_given_twice(name: str, seed: int) -> None:
    requests = random_requests(seed, shared="p" in name)
    result = serve(requests, rules(**SYSTEMS[name]), LoadLaw())
    for request, record in zip(requests, result.records, strict=True):
        assert record.outcome == "ok"
        assert len(record.chunk_times_s) == record.output_tokens == request.output_tokens
        assert request.due_s == record.due_s < record.chunk_times_s[0]
        assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", SYSTEMS)
def test_blocks_are_never_negative_nor_above_capacity_and_all_come_back(
    name: str, seed: int
) -> None:
    """Free blocks are counted three times: as a number, in the queue, and by who holds what."""
    of = rules(**SYSTEMS[name])
    scheduler = Scheduler(of, ConstantLaw())  # type: ignore[arg-type]
    cache, inside = scheduler.cache, {}
    waiting = list(random_requests(seed, shared="p" in name))
    while True:
        for request in waiting[:3]:
            inside[request.index] = Sequence(
                request.index,
                request.input_tokens,
                request.output_tokens,
                pieces=known_pieces(request),
                priority=request.priority,
            )
            scheduler.enqueue(inside[request.index])
        del waiting[:3]
        if scheduler.plan(float(len(scheduler.ends_s))) is None:
            break
        scheduler.interrupt(len(scheduler.ends_s) + 0.5)
        for sequence in scheduler.commit():
            del inside[sequence.index]
        assert 0 <= cache.free_blocks <= of.capacity_blocks
        leaving = scheduler._leaving  # ended, but not yet for who composes ahead
        held = sum(
            -(-sequence.computed // of.block_tokens) - len(sequence.known)
            for sequence in [*inside.values(), *leaving]
            if sequence is scheduler._cut or sequence in leaving
        )
        step = len(scheduler.ends_s)
        for sequence in scheduler._decoding.values():
            length = sequence.length_at_step_0 + step
            held += -(-length // of.block_tokens) - len(sequence.known)
        holders = [*inside.values(), *leaving]
        held += len({id(block) for sequence in holders for block in sequence.known})
        assert cache.free_blocks == of.capacity_blocks - held
        if of.prefix_caching:
            queued = sum(getattr(item, "blocks", 1) for item in cache._queue)
            assert cache._blank_blocks + queued == cache.free_blocks
    assert not inside
    assert cache.free_blocks == of.capacity_blocks


def test_the_tight_systems_do_preempt_and_the_prefixes_are_found() -> None:
    for name, fields in SYSTEMS.items():
        results = [
            serve(random_requests(seed, shared="p" in name), rules(**fields)) for seed in range(4)
        ]
        assert (sum(r.preemptions for r in results) > 0) == ("tight" in name)
        found = sum(r.cached_fraction or 0 for r in results)
        assert (found > 0) == bool(fields.get("prefix_caching"))


@pytest.mark.parametrize("seed", range(4))
def test_without_preemption_nobody_is_overtaken(seed: int) -> None:
    """First come, first served: first tokens come in order of arrival."""
    for name in ("roomy", "whole prompts"):
        result = serve(random_requests(seed), rules(**SYSTEMS[name]), LoadLaw())
        firsts = [record.chunk_times_s[0] for record in result.records]
        assert firsts == sorted(firsts)


MORE: dict[str, list[dict[str, Any]]] = {
    "places": [{"max_num_seqs": n} for n in (1, 2, 4, 8)],
    "blocks": [{"max_num_seqs": 8, "capacity_blocks": n} for n in (6, 9, 18, 1000)],
    "tokens in a step": [
        {"max_num_seqs": 8, "max_num_batched_tokens": n} for n in (90, 120, 200, 720)
    ],
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MORE)
def test_more_capacity_lets_nobody_end_later(name: str, seed: int) -> None:
    """One-token answers in steps of equal length, arriving between steps: path by path."""
    requests = tuple(
        Request(
            index=r.index,
            due_s=float(r.index // 3),
            input_tokens=r.input_tokens,
            output_tokens=1,
        )
        for r in random_requests(seed)
    )
    ends_s = [
        np.array(
            [
                r.end_s
                for r in serve(
                    requests,
                    rules(chunked_prefill=False, **({"max_num_batched_tokens": 100} | fields)),
                ).records
            ]
        )
        for fields in MORE[name]
    ]
    for less, more in itertools.pairwise(ends_s):
        assert (more <= less).all()
    assert (ends_s[-1] < ends_s[0]).any()


@pytest.mark.parametrize("seed", range(4))
def test_two_replicas_or_a_twice_faster_machine_are_never_worse_on_average(seed: int) -> None:
    requests, of = random_requests(seed), rules(max_num_seqs=4)
    one = serve(requests, of)
    for better in (serve(requests, of, replicas=2), serve(requests, of, ConstantLaw(0.5))):
        assert np.mean([r.e2e_s for r in better.records]) <= np.mean([r.e2e_s for r in one.records])


def test_a_rate_beyond_capacity_stops_in_time_and_says_so() -> None:
    """Served is one request of ten tokens per ten steps and place; asked is three times that."""
    due_s = np.arange(0, 3000, 10 / 3 / 4)
    requests = asked(due_s, [10] * len(due_s))
    of = rules(max_num_seqs=4)
    stopped = serve(requests, of, stop_s=600.5)
    assert stopped.saturated
    assert stopped.duration_s == 600.5
    assert len(stopped.records) == sum(due_s <= 600.5)
    done = [record for record in stopped.records if record.outcome == "ok"]
    left = [record for record in stopped.records if record.outcome == "cancelled"]
    assert len(done) == pytest.approx(600 * 4 / 10, abs=4)
    assert len(done) + len(left) == len(stopped.records)
    assert {record.end_s for record in left} == {600.5}
    filling = 3 + 2 + 1  # the first three steps have one, two and three in them
    assert sum(record.output_tokens for record in stopped.records) == 4 * 600 - filling
    assert stopped.busy_s == pytest.approx(600.5)
    calm = serve(asked(np.arange(0, 3000, 5.0), [10] * 600), of, stop_s=600.5)
    assert not calm.saturated


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("stop_s", [0.2, 17.3, 60.0])
def test_a_stopped_run_is_the_beginning_of_the_whole_run(name: str, stop_s: float) -> None:
    requests = random_requests(2, shared="p" in name)
    whole = serve(requests, rules(**SYSTEMS[name]), LoadLaw())
    stopped = serve(requests, rules(**SYSTEMS[name]), LoadLaw(), stop_s=stop_s)
    assert len(stopped.records) == sum(request.due_s <= stop_s for request in requests)
    for record in stopped.records:
        times_s = whole.records[record.index].chunk_times_s
        assert record.chunk_times_s == tuple(t for t in times_s if t <= stop_s)
        assert (record.outcome == "ok") == (len(record.chunk_times_s) == len(times_s))
    late = serve(requests, rules(**SYSTEMS[name]), LoadLaw(), stop_s=whole.duration_s + 1)
    assert late == whole


def test_in_a_closed_loop_what_no_user_has_sent_leaves_no_record() -> None:
    requests = asked([0.0] * 50, [10] * 50)
    stopped = serve(
        requests, rules(max_num_seqs=4), closed_loop=True, max_concurrency=4, stop_s=25.5
    )
    assert [record.outcome for record in stopped.records] == ["ok"] * 8 + ["cancelled"] * 4
    assert not stopped.saturated


def test_records_without_each_token_say_the_same_of_latencies_and_throughput() -> None:
    requests = random_requests(1)
    results = []
    for each_token in (True, False):
        result = serve(
            requests,
            rules(**SYSTEMS["tight"]),
            LoadLaw(),
            options=RunOptions(each_token=each_token),
        )
        assert max(len(r.chunk_times_s) for r in result.records) > 2 or not each_token
        results.append(summarize(result.records, duration_s=result.duration_s, extras=False))
    exact, lean = results
    for name, value in exact.items():
        if "itl" not in name and name != "quantiles":
            assert lean[name] == value, name
    assert lean["mean_itl_ms"] == pytest.approx(exact["mean_itl_ms"])
