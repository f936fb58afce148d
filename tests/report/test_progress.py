"""Progress of a run: the best so far and the regret, in the order of running."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report.progress import progress_of
from servetune.search import parse_objectives
from servetune.store.schema import PredictionInterval

THROUGHPUT = {"throughput": parse_objectives("throughput")[0]}


def started(records, seconds):
    return [
        msgspec.structs.replace(
            record, provenance={"started_at": f"2026-11-20T21:{at // 60:02}:{at % 60:02}+00:00"}
        )
        for record, at in zip(records, seconds, strict=True)
    ]


def test_the_best_so_far_follows_the_order_of_running_and_the_limits():
    records = started(
        [factory.record(tp, users=users) for tp, users in ((4, 128), (1, 32), (2, 32), (4, 32))],
        [90, 0, 30, 60],
    )
    limits = parse_constraints("e2e_latency<=12s")
    found = progress_of(records, limits, THROUGHPUT)["throughput"]
    rates = [record.results.output_throughput for record in records]
    assert [step.key for step in found.steps] == [records[place].key for place in (1, 2, 3, 0)]
    assert [step.started_s for step in found.steps] == [0, 30, 60, 90]
    assert [step.counts for step in found.steps] == [False, True, True, False]  # too slow
    assert [step.best for step in found.steps] == [None, rates[2], rates[3], rates[3]]
    regrets = [step.regret_fraction for step in found.steps]
    assert regrets == [None, pytest.approx(rates[3] / rates[2] - 1), 0, 0]
    assert found.best == rates[3]
    assert found.reason == ""


def test_an_objective_that_is_minimised_has_a_regret_above_zero():
    records = [factory.record(tp) for tp in (1, 4, 2)]
    objective = parse_objectives("ttft:p99")[0]
    found = progress_of(records, (), {"ttft:p99": objective})["ttft:p99"]
    values = [record.results["p99_ttft_ms"] for record in records]
    assert [step.best for step in found.steps] == [values[0], values[1], values[1]]
    assert found.steps[0].regret_fraction == pytest.approx(values[0] / values[1] - 1)
    assert found.steps[0].started_s is None  # of a simulated trial no time is recorded


def test_the_best_prediction_has_its_interval():
    interval = PredictionInterval(
        low_factor=0.8, high_factor=1.25, ttft_low_factor=0.5, ttft_high_factor=2
    )
    records = [msgspec.structs.replace(each, interval=interval) for each in factory.measured()]
    found = progress_of(records, (), THROUGHPUT)["throughput"]
    best = max(record.predicted["output_throughput"] for record in records)
    assert found.predicted == best
    assert (found.predicted_low, found.predicted_high) == (best / 1.25, best / 0.8)
    limited = progress_of(records, parse_constraints("itl<=1ms"), THROUGHPUT)["throughput"]
    assert limited.predicted is None
    assert limited.best is None
    assert limited.reason == "no trial holds every limit; the nearest miss is in the picks"


def test_trials_that_failed_or_lost_requests_are_never_the_best():
    records = factory.dirty_sweep()
    found = progress_of(records, (), THROUGHPUT)["throughput"]
    by_key = {step.key: step for step in found.steps}
    assert not by_key[records[24].key].counts  # 14 of 30 requests failed
    assert found.best == records[23].results.output_throughput
    failed = [record for record in records if record.status == "failed"]
    assert progress_of(failed, (), THROUGHPUT)["throughput"].reason.startswith("every trial failed")
    assert progress_of([], (), THROUGHPUT)["throughput"].reason == "no trial has ended"


def test_a_long_run_keeps_its_improvements_and_an_even_sample():
    rates = [100 - abs(2500 - number) / 100 for number in range(5000)]
    records = [
        msgspec.structs.replace(
            factory.record(), key=str(number), results={"output_throughput": rate}
        )
        for number, rate in enumerate(rates)
    ]
    found = progress_of(records[2490:], (), THROUGHPUT)["throughput"]
    assert found.trial_count == 2510
    assert found.best == 100
    assert len(found.steps) < 520
    numbers = [step.number for step in found.steps]
    assert numbers[:11] == list(range(1, 12))  # each better than the one before
    assert numbers[-1] == 2510
    assert max(b - a for a, b in pairwise(numbers)) <= 6
