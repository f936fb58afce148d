"""Prompts computed by some engines and decoded by others."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from one_second import OneSecond
from servetune.engines import check_fits, resolved, settings_of
from servetune.errors import DoesNotFit, PlanError, UnknownName
from servetune.hardware import instance, node
from servetune.metrics.latency import itl_gaps_s
from servetune.models import load_shape
from servetune.perf import estimate, performance_at, simulate
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.sim import SimulatedRun
from servetune.perf.sim.disaggregation import CacheTransfer, PrefillPool, cache_transfer_of
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.serving import EngineLayout
from servetune.perf.sim.simulation import ClientLoad, run_requests
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload
from servetune.workload.request import Request

SHAPE, MACHINE = load_shape("Qwen/Qwen3-8B", catalogue_first=True), node(gpu="H100", count=8)
FREE = CacheTransfer(latency_s=0.0, bytes_per_s=float("inf"), bytes_per_token=1.0)


def run(
    *, rate: float = 8.0, transfer: CacheTransfer | None = None, **fields: object
) -> SimulatedRun:
    load = Workload.of(
        LengthLaws.ranged(2000, 200, 0.5), request_count=200, arrivals=Poisson(rate), seed=3
    )
    plan = Plan(model="m", **({"max_model_len": 8192} | fields))  # type: ignore[arg-type]
    return simulate(plan, SHAPE, MACHINE, load, transfer=transfer)


def config(**fields: object) -> SchedulerConfig:
    usual = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_tokens": 4,
        "capacity_blocks": 100,
        "chunked_prefill": True,
    }
    return SchedulerConfig(**(usual | fields))  # type: ignore[arg-type]


def served(
    requests: list[tuple[float, int, int]],
    transfer: CacheTransfer,
    takers: int = 1,
    **fields: object,
) -> SimulatedRun:
    return run_requests(
        tuple(
            Request(index=i, due_s=due_s, input_tokens=tokens_in, output_tokens=tokens_out)
            for i, (due_s, tokens_in, tokens_out) in enumerate(requests)
        ),
        config(**fields),
        OneSecond(),  # type: ignore[arg-type]
        layout=EngineLayout(prefill_pool=PrefillPool(takers, transfer)),
    )


def test_a_first_token_waits_for_prompt_transfer_and_one_step_of_decoding() -> None:
    slow = CacheTransfer(
        latency_s=0.25, bytes_per_s=8.0, bytes_per_token=1.0, bytes_per_sequence=2.0
    )
    (record,) = served([(0.0, 10, 3)], slow).records
    assert record.chunk_times_s == (1 + 0.25 + 12 / 8 + 1, 4.75, 5.75)
    assert record.output_tokens == 3


def test_a_sender_sends_one_cache_after_the_other_and_two_send_at_once() -> None:
    """Two prompts end in the same step; each takes two seconds to travel."""
    slow = CacheTransfer(latency_s=0.0, bytes_per_s=5.0, bytes_per_token=1.0)
    one, two = (served([(0.0, 10, 1), (0.0, 10, 1)], slow, takers) for takers in (1, 2))
    assert [record.end_s for record in one.records] == [4.0, 6.0]
    assert [record.end_s for record in two.records] == [4.0, 4.0]


def test_blocks_stay_where_the_prompt_was_computed_until_they_have_arrived() -> None:
    """Room for one prompt: the second is taken up when the first has left, 1 + 10 s in."""
    slow = CacheTransfer(latency_s=0.0, bytes_per_s=1.0, bytes_per_token=1.0)
    both = served([(0.0, 10, 1), (0.0, 10, 1)], slow, capacity_blocks=4)
    assert both.admitted_s == (0.0, 11.0)
    scheduler = PrefillOnlyScheduler(config(), OneSecond())  # type: ignore[arg-type]
    sequence = Sequence(0, 10, 1)
    scheduler.enqueue(sequence)
    scheduler.plan(0.0)
    scheduler.commit()
    assert scheduler.cache.capacity_blocks - scheduler.cache.free_blocks == 3
    scheduler.release(sequence)
    assert scheduler.cache.capacity_blocks == scheduler.cache.free_blocks


def test_who_decodes_needs_blocks_for_the_whole_prompt_when_it_is_admitted() -> None:
    """Three blocks each, five there: the second decodes when the first has ended."""
    both = served([(0.0, 10, 3), (0.0, 10, 3)], FREE, takers=2, capacity_blocks=5)
    assert both.records[0].chunk_times_s == (2.0, 3.0, 4.0)
    assert both.records[1].chunk_times_s == (5.0, 6.0, 7.0)
    assert both.preemptions == 0


def test_who_loses_its_cache_computes_it_again_where_it_decodes() -> None:
    """Two of six tokens and twelve to come in six blocks of four cannot both stay."""
    both = served([(0.0, 6, 12), (0.0, 6, 12)], FREE, takers=2, capacity_blocks=6)
    assert both.preemptions > 0
    assert [record.output_tokens for record in both.records] == [12, 12]


@pytest.mark.parametrize("drafts", [{}, {"draft_tokens": 2, "draft_acceptance_fraction": 0.6}])
def test_every_token_comes_once_and_in_order(drafts: dict[str, float]) -> None:
    result = run(prefill_replicas=2, replicas=2, **drafts)
    for index, record in enumerate(result.records):
        assert record.index == index
        assert record.outcome == "ok"
        assert record.output_tokens == sum(record.chunk_tokens or [1] * len(record.chunk_times_s))
        assert record.sent_s < record.chunk_times_s[0]
        assert all(a < b for a, b in itertools.pairwise(record.chunk_times_s))
    asked = LengthLaws.ranged(2000, 200, 0.5)
    load = Workload.of(asked, request_count=200, arrivals=Poisson(8.0), seed=3).requests()
    assert [r.output_tokens for r in result.records] == [r.output_tokens for r in load]


def test_no_prompt_disturbs_who_decodes() -> None:
    """As many decode on one engine as on the aggregated one; their gaps are shorter."""
    apart, together = run(prefill_replicas=1), run()
    gaps, mixed = itl_gaps_s(apart.records), itl_gaps_s(together.records)
    assert gaps.mean() < mixed.mean()
    assert np.percentile(gaps, 99) < 0.5 * np.percentile(mixed, 99)


def test_a_slower_link_makes_first_tokens_later_and_a_free_one_costs_nothing() -> None:
    rates = (float("inf"), 20e9, 2e9)
    ttfts = []
    for rate in rates:
        law = CacheTransfer(latency_s=0.0, bytes_per_s=rate, bytes_per_token=147_456)
        result = run(prefill_replicas=1, transfer=law)
        ttfts.append(np.mean([record.ttft_s for record in result.records]))
    assert ttfts == sorted(ttfts)
    assert ttfts[0] < ttfts[2]
    assert served([(0.0, 10, 2)], FREE).records[0].chunk_times_s == (2.0, 3.0)


def test_more_prefill_engines_help_the_first_token_under_load() -> None:
    one, two = run(rate=30.0, prefill_replicas=1), run(rate=30.0, prefill_replicas=2)
    ttft = [np.mean([record.ttft_s for record in result.records]) for result in (one, two)]
    assert ttft[1] < 0.7 * ttft[0]


def test_the_same_run_is_the_same_to_the_last_digit() -> None:
    first, second = (run(prefill_replicas=2, replicas=2) for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


def test_a_stopped_run_counts_only_what_was_decoded() -> None:
    slow = CacheTransfer(latency_s=100.0, bytes_per_s=1.0, bytes_per_token=0.0)
    requests = (Request(index=0, due_s=0.0, input_tokens=10, output_tokens=3),)
    result = run_requests(
        requests,
        config(),
        OneSecond(),  # type: ignore[arg-type]
        ClientLoad(stop_s=50.0),
        EngineLayout(prefill_pool=PrefillPool(1, slow)),
    )
    (record,) = result.records
    assert (record.outcome, record.output_tokens, record.chunk_times_s) == ("cancelled", 0, ())
    assert result.admitted_s == (0.0,)


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_the_whole_cache_of_a_prompt_travels_over_what_links_the_devices(
    tensor_parallel: int,
) -> None:
    plan = resolved(Plan(model="m", tensor_parallel=tensor_parallel), SHAPE, MACHINE.device)
    law = cache_transfer_of(plan, MACHINE, check_fits(plan, SHAPE, MACHINE.device))
    assert law.bytes_per_token == pytest.approx(2 * 36 * 8 * 128 * 2)  # K and V, layers, heads
    assert law.bytes_per_s < tensor_parallel * MACHINE.link.bytes_per_s
    cards = node(gpu="L40S", count=8)
    alone = cache_transfer_of(plan, cards, check_fits(plan, SHAPE, cards.device))
    assert alone.bytes_per_s < cards.link.bytes_per_s  # one way through the host for all


def test_the_network_carries_it_where_that_is_asked_and_known() -> None:
    known = instance("p5.48xlarge")
    plan = resolved(Plan(model="m"), SHAPE, known.device)
    divided = check_fits(plan, SHAPE, known.device)
    law = cache_transfer_of(plan, known, divided, network=True)
    assert law.bytes_per_s == known.network_bytes_per_s
    with pytest.raises(PlanError, match="network of 8x H100"):
        run(prefill_replicas=1, kv_link="network")
    with pytest.raises(UnknownName, match="kv_link"):
        run(prefill_replicas=1, kv_link="pigeon")


def test_copies_of_both_kinds_need_devices_and_memory() -> None:
    assert Plan(model="m", tensor_parallel=2, replicas=2, prefill_replicas=1).device_count == 6
    assert "prefill x1" in Plan(model="m", prefill_replicas=1).label
    with pytest.raises(PlanError, match="needs 10 devices"):
        run(replicas=4, prefill_replicas=6)
    with pytest.raises(DoesNotFit):
        run(prefill_replicas=1, gpu_memory_fraction=0.2)


def test_what_makes_no_sense_is_refused() -> None:
    for fields in ({"prefill_replicas": 0}, {"prefill_replicas": 1, "replicas": 0}):
        with pytest.raises(PlanError, match="must be 1 or more"):
            Plan(model="m", **fields)
    with pytest.raises(PlanError, match="in one process"):
        resolved(Plan(model="m", engine="tgi", prefill_replicas=1), SHAPE, MACHINE.device)
    with pytest.raises(PlanError, match="no transfer of a cache"):
        CacheTransfer(latency_s=0.0, bytes_per_s=0.0, bytes_per_token=1.0)


def test_who_has_no_words_or_formula_for_it_says_so() -> None:
    plan = Plan(model=SHAPE.name, prefill_replicas=1)
    load = Workload.of(LengthLaws.fixed(100, 10), request_count=8)
    with pytest.raises(PlanError, match="not started or deployed"):
        settings_of(plan)
    with pytest.raises(PlanError, match="no formula"):
        performance_at(SHAPE, MACHINE, plan, load, 4)
    with pytest.raises(PlanError, match="no formula"):
        estimate(SHAPE, MACHINE, plan, load)
    one = PlannedRun(
        shape=SHAPE, node=MACHINE, plan=plan, lengths=load.lengths, concurrency=4, request_count=8
    )
    with pytest.raises(PlanError, match="no formula"):
        predict_runs([one])
