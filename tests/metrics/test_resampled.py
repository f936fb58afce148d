"""Sampling error of one run, by its requests."""

import math
from array import array

import numpy as np
import pytest

from servetune.metrics.columns import columns_of
from servetune.metrics.intervals import closed_loop_reaches, independent_stretches
from servetune.metrics.record import Record
from servetune.metrics.resampled import resampled_reaches
from servetune.metrics.summary import summarize


def run(rng, count=1000, memory=0.0, tokens=3, at_once=0):
    """Requests whose logarithm of the time to first token is correlated with the one before.

    The first `at_once` arrive together, and each of them waits for those before it.
    """
    steps = rng.normal(size=count)
    for place in range(1, count):
        steps[place] = memory * steps[place - 1] + math.sqrt(1 - memory**2) * steps[place]
    records = []
    for index, step in enumerate(steps):
        due_s = 0.1 * max(0, index - at_once)
        first_s = due_s + 0.1 * math.exp(0.5 * step) + 0.01 * min(index, at_once)
        times_s = first_s + 0.01 * np.arange(tokens)
        records.append(
            Record(
                index=index,
                input_tokens=10,
                output_tokens=tokens,
                due_s=due_s,
                sent_s=due_s,
                end_s=float(times_s[-1]),
                chunk_times_s=array("d", times_s),
            )
        )
    return records


def test_requests_that_share_a_queue_are_not_counted_as_independent():
    rng, held, alone = np.random.default_rng(5), 0, 0
    truth = math.log(0.1 * math.exp(0.125))
    for _ in range(16):
        records = run(rng, memory=0.8)
        values = np.array([record.ttft_s for record in records])
        off = abs(math.log(values.mean()) - truth)
        held += off <= resampled_reaches(records)["mean_ttft_ms"]
        alone += off <= 1.96 * values.std() / math.sqrt(len(values)) / values.mean()
    assert held >= 13
    assert alone <= 12


def test_a_run_with_fewer_independent_stretches_than_blocks_tells_of_its_middle_alone():
    rng = np.random.default_rng(8)
    short, long = run(rng, memory=0.5), run(rng, memory=0.995)
    assert "correlated" not in summarize(short, duration_s=101)
    assert summarize(long, duration_s=101)["correlated"] == ["ttft", "e2e_latency"]
    assert math.isfinite(resampled_reaches(short)["p99_ttft_ms"])
    reaches = resampled_reaches(long)
    assert {name for name, reach in reaches.items() if math.isinf(reach)} == {
        f"{statistic}_{latency}_ms"
        for statistic in ("p90", "p95", "p99")
        for latency in ("ttft", "e2e_latency")
    }
    assert reaches["mean_ttft_ms"] == reaches["median_ttft_ms"]


def test_equal_runs_of_few_stretches_are_rarely_told_apart():
    rng, means, reaches = np.random.default_rng(11), [], []
    for _ in range(24):
        records = run(rng, memory=0.99)
        means.append(math.log(np.mean([record.ttft_s for record in records])))
        reaches.append(resampled_reaches(records)["mean_ttft_ms"])
    one, other = np.triu_indices(len(means), 1)
    apart = np.abs(np.array(means)[one] - np.array(means)[other])
    told = apart > np.hypot(np.array(reaches)[one], np.array(reaches)[other])
    assert np.mean(told) < 0.07
    assert max(reaches) < math.log(10)  # and a tenfold difference is told


def test_users_who_all_begin_at_once_are_not_taken_for_a_long_queue():
    records = run(np.random.default_rng(8), count=300, at_once=150)
    assert independent_stretches(np.log([record.ttft_s for record in records])) < 20
    assert "correlated" not in summarize(records, duration_s=31)


def test_stretches_of_a_series_are_counted_by_its_correlations():
    rng, memory = np.random.default_rng(9), 0.8
    counts = [
        independent_stretches(np.log([record.ttft_s for record in run(rng, 2000, memory)]))
        for _ in range(8)
    ]
    assert np.median(counts) == pytest.approx(2000 * (1 - memory) / (1 + memory), rel=0.2)
    assert independent_stretches(rng.normal(size=999)) == pytest.approx(999, rel=0.2)
    assert independent_stretches(np.ones(50)) == 50


def test_a_metric_of_too_few_requests_has_no_reach():
    records = run(np.random.default_rng(6), count=300)
    reaches = resampled_reaches(records)
    assert "p99_ttft_ms" not in reaches
    assert 0 < reaches["median_ttft_ms"] < 0.2
    assert resampled_reaches(records[:50]) == {}


def test_a_steady_rate_is_known_well_and_equal_requests_give_equal_reaches():
    records = run(np.random.default_rng(7))
    reaches = resampled_reaches(records)
    assert reaches["output_throughput"] < 0.01
    assert reaches == resampled_reaches(records)
    assert "mean_itl_ms" not in reaches  # every gap is 10 ms: nothing tells of its doubt


def in_step(waves, users=12, wave_s=0.2):
    """Users who all begin and end together, with a tiny difference from wave to wave."""
    records = []
    for wave in range(waves):
        for user in range(users):
            due_s, end_s = wave * wave_s, (wave + 1) * wave_s
            records.append(
                Record(
                    index=wave * users + user,
                    input_tokens=10,
                    output_tokens=32,
                    due_s=due_s,
                    sent_s=due_s,
                    end_s=end_s,
                    chunk_times_s=array("d", np.linspace(due_s + 0.05, end_s, 32)),
                )
            )
    return records


def test_throughput_of_users_in_step_is_known_well():
    records = in_step(10)
    low, high = summarize(records, duration_s=2.0)["intervals"]["output_throughput"]
    assert low == pytest.approx(1920, rel=0.05)
    assert high == pytest.approx(1920, rel=0.05)
    assert low < 1920 < high
    assert resampled_reaches(records)["output_throughput"] < 0.05


def test_an_open_loop_is_no_closed_one():
    records = run(np.random.default_rng(3))
    assert closed_loop_reaches(columns_of(records), {"n": np.ones(1000)}) == {}


def test_requests_that_take_no_time_have_no_throughput_by_them():
    records = [
        Record(
            index=i,
            input_tokens=1,
            output_tokens=5,
            due_s=float(i),
            sent_s=float(i),
            end_s=float(i),
        )
        for i in range(150)
    ]
    assert closed_loop_reaches(columns_of(records), {"n": np.ones(150)}) == {}
    resampled_reaches(records)  # does not divide by zero
