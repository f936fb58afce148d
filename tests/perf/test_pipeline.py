"""Batches that a pipeline has in flight: one cache for all, whatever each of them plans."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from one_second import OneSecond
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import RunOptions, simulate
from servetune.perf.sim import SimulatedRun
from servetune.perf.sim.disaggregation import CacheTransfer, PrefillPool
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.serving import EngineLayout
from servetune.perf.sim.simulation import ClientLoad, VirtualRun, run_requests
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant
from servetune.plan import Plan
from servetune.workload import Workload
from servetune.workload.laws import Always
from servetune.workload.parts import Level, Part, Prefix
from servetune.workload.request import Request

LAW: Any = OneSecond()
CRAMPED = SchedulerConfig(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    block_tokens=16,
    capacity_blocks=14,
    chunked_prefill=True,
)
RULES: dict[str, dict[str, Any]] = {
    "mixed steps": {},
    "prefixes": {"prefix_caching": True},
    "priority": {"prefix_caching": True, "policy": "priority"},
    "ahead": {"prefix_caching": True, "async_scheduling": True},
    "states": {"state_blocks": 2},
    "drafts": {"draft_tokens": 3, "draft_acceptance_fraction": 0.7, "lookahead_tokens": 3},
    "prompts first": {"variant": PrefillFirstVariant(), "prefix_caching": True},
    "prompts first, mixed": {"variant": PrefillFirstVariant(mixed_chunk=True)},
    "interrupting": {
        "variant": InterruptingVariant(),
        "chunked_prefill": False,
        "max_num_batched_tokens": 160,
    },
}


def served(requests: tuple[Request, ...], batches: int, **fields: Any) -> SimulatedRun:
    rules = msgspec.structs.replace(CRAMPED, **fields)
    layout = EngineLayout(batches=batches, routing="round_robin")
    return run_requests(requests, rules, LAW, ClientLoad(), layout)


def alike(count: int) -> tuple[Request, ...]:
    """Requests whose prompts share 32 of 40 tokens, one after the other."""
    return tuple(
        Request(index=i, due_s=20.0 * i, input_tokens=40, output_tokens=8, prefix=((7, 32),))
        for i in range(count)
    )


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("variant", [None, PrefillFirstVariant()])
def test_a_prefix_that_one_batch_computed_is_found_by_all(
    batches: int, variant: PrefillFirstVariant | None
) -> None:
    found = served(alike(8), batches, prefix_caching=True, variant=variant)
    assert found.cached_fraction == pytest.approx(7 / 8 * 32 / 40)


def test_a_batch_may_fill_the_whole_cache_while_others_are_empty() -> None:
    """Two sequences of six blocks fit 14 blocks, though not the seven of half a cache."""
    two = tuple(
        Request(index=i, due_s=0.0, input_tokens=64, output_tokens=2 if i == 1 else 30)
        for i in range(3)
    )
    found = served(two, 2)  # the first and the third take the first batch
    assert found.preemptions == 0
    assert found.records[2].chunk_times_s[0] < found.records[0].end_s


def test_who_waits_for_blocks_of_another_batch_is_served_when_they_come_back() -> None:
    long = Request(index=0, due_s=0.0, input_tokens=160, output_tokens=20)
    other = Request(index=1, due_s=1.0, input_tokens=160, output_tokens=20)
    first, second = served((long, other), 2).records
    assert first.end_s < second.chunk_times_s[0] <= first.end_s + 4  # its prompt takes 3 steps


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("name", RULES)
def test_all_is_answered_once_and_every_block_comes_back(
    name: str, batches: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(rng.choice([0.2, 2.0, 20.0]), 60))
    requests = tuple(
        Request(
            index=i,
            due_s=float(due_s[i]),
            input_tokens=40 + int(rng.integers(1, 90)),
            output_tokens=int(rng.integers(1, 30)),
            prefix=((int(rng.integers(3)), 40),),
            priority=int(rng.integers(3)),
        )
        for i in range(60)
    )
    rules = msgspec.structs.replace(CRAMPED, **RULES[name])
    timeout_s = float(rng.choice([15.0, 60.0])) if seed % 2 else None
    load = ClientLoad(options=RunOptions(timeout_s=timeout_s))
    layout = EngineLayout(batches=batches, ranks=1 + seed % 2)
    run = VirtualRun(requests, rules, LAW, load, layout)
    run.play(float("inf"))
    outcomes = {record.outcome for record in run.records if record is not None}
    assert outcomes <= {"ok", "timeout"}
    for request, record in zip(requests, run.records, strict=True):
        assert record is not None
        if record.outcome == "ok":
            assert record.output_tokens == request.output_tokens
            assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))
    caches = {id(scheduler.cache): scheduler.cache for scheduler in run.schedulers}
    assert len(caches) == layout.ranks
    for cache in caches.values():
        assert cache.free_blocks == rules.capacity_blocks
        if rules.prefix_caching:
            queued = sum(getattr(item, "blocks", 1) for item in cache._queue)
            assert cache._blank_blocks + queued == cache.free_blocks


@pytest.mark.parametrize("seed", range(3))
def test_prompts_for_others_share_the_cache_of_their_pipeline(seed: int) -> None:
    rng = np.random.default_rng(seed)
    requests = tuple(
        Request(index=i, due_s=float(i), input_tokens=int(rng.integers(20, 120)), output_tokens=5)
        for i in range(30)
    )
    transfer = CacheTransfer(latency_s=2.0, bytes_per_s=1.0, bytes_per_token=0.0)
    layout = EngineLayout(batches=2, prefill_pool=PrefillPool(1, transfer))
    run = VirtualRun(requests, CRAMPED, LAW, ClientLoad(), layout)
    run.play(float("inf"))
    assert all(record is not None and record.outcome == "ok" for record in run.records)
    assert len({id(scheduler.cache) for scheduler in run.schedulers}) == 2
    assert all(s.cache.free_blocks == CRAMPED.capacity_blocks for s in run.schedulers)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_pipeline_finds_what_one_stage_finds(engine: str) -> None:
    """Twenty prefixes, once each: four batches in flight do not compute them four times.

    SGLang's are found when they have been computed, vLLM's when that is planned.
    """
    model = "Qwen/Qwen3-8B"
    part = Part(
        input_tokens=Always(1024),
        output_tokens=Always(64),
        prefix=Prefix(levels=(Level(tokens=960, branches=20),)),
    )
    load = Workload(parts=(part,), request_count=400, concurrency=32)
    run = simulate(
        Plan(model=model, engine=engine, pipeline_parallel=4, max_model_len=4096),
        load_shape(model, catalogue_first=True),
        node(gpu="L4", count=4),
        load,
    )
    late = 0.03 if engine == "sglang" else 0.001
    assert run.cached_fraction == pytest.approx((1 - 20 / 400) * 960 / 1024, abs=late)
