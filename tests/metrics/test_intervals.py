"""Coverage over synthetic runs; each tolerance is stated where it is used."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from servetune.metrics.intervals import (
    bootstrap_interval,
    gap_percentile_interval,
    mean_interval,
    percentile_interval,
    rate_interval,
    ratio_interval,
    student_t,
)
from servetune.metrics.latency import Gaps

RUNS = 300
SIGMA = 0.8


def log_normal_runs(count, memory, seed=0):
    """Series with a known distribution, neighbours correlated by `memory` in the logarithm."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(RUNS, count))
    runs = np.empty((RUNS, count))
    runs[:, 0] = steps[:, 0]
    for place in range(1, count):
        runs[:, place] = memory * runs[:, place - 1] + math.sqrt(1 - memory**2) * steps[:, place]
    return np.exp(SIGMA * runs)


def quantile(percent):
    return math.exp(SIGMA * NormalDist().inv_cdf(percent / 100))


def coverage(intervals, truth):
    held = [
        (interval.low is None or interval.low <= truth)
        and (interval.high is None or truth <= interval.high)
        for interval in intervals
    ]
    return sum(held) / len(held)


# 300 runs tell a coverage of 95 % to within 2.5 points (two standard errors).
@pytest.mark.parametrize(("count", "memory", "least"), [(2000, 0.0, 0.92), (2000, 0.9, 0.88)])
def test_intervals_hold_the_truth_as_often_as_they_say(count, memory, least):
    runs = log_normal_runs(count, memory)
    assert coverage(map(mean_interval, runs), math.exp(SIGMA**2 / 2)) >= least
    for percent, allowed in ((50, 0.0), (95, 0.0), (99, 0.07)):
        intervals = [percentile_interval(run, percent) for run in runs]
        assert coverage(intervals, quantile(percent)) >= least - allowed, percent


def test_taking_neighbours_for_independent_would_hold_the_truth_far_too_seldom():
    runs = log_normal_runs(2000, 0.9)
    truth = math.exp(SIGMA**2 / 2)
    reach = [1.96 * run.std() / math.sqrt(len(run)) for run in runs]
    held = sum(abs(run.mean() - truth) <= r for run, r in zip(runs, reach, strict=True))
    assert held / RUNS < 0.5
    assert coverage(map(mean_interval, runs), truth) > 0.88


def test_a_run_that_is_alike_throughout_has_no_interval_and_one_of_few_stretches_a_wider_one():
    run = log_normal_runs(2000, 0.5)[0]
    alone, known = mean_interval(run), mean_interval(run, stretches=25)
    assert known.half_width > 1.2 * alone.half_width
    assert percentile_interval(run, 99, stretches=25).high is None
    for found in (mean_interval(run, stretches=19), percentile_interval(run, 50, stretches=19)):
        assert found.ends == [None, None]


def test_values_of_one_stretch_do_not_end_a_tail():
    rng = np.random.default_rng(3)
    apart, together = rng.random(1000), rng.random(1000)
    apart[::50] += 1
    together[500:520] += 1  # as many, in one long queue
    assert percentile_interval(apart, 99).high is not None
    assert percentile_interval(together, 99).high is None


def test_more_requests_make_intervals_narrower():
    few, many = log_normal_runs(500, 0.5), log_normal_runs(4500, 0.5)
    for interval_of in (mean_interval, lambda run: percentile_interval(run, 90)):
        narrow = np.median([interval_of(run).half_width for run in many])
        wide = np.median([interval_of(run).half_width for run in few])
        assert 2 < wide / narrow < 4.5  # the root of nine is three


def test_a_hundred_requests_have_no_upper_end_for_a_99th_percentile():
    interval = percentile_interval(np.random.default_rng(0).random(100), 99)
    assert interval.high is None
    assert interval.low is not None
    assert interval.half_width == math.inf


def test_gaps_of_one_request_are_not_taken_for_independent():
    rng = np.random.default_rng(4)
    truth = quantile(90)
    held = alone = 0
    for _ in range(RUNS):
        pace = np.exp(SIGMA * rng.normal(size=300))  # each request has one speed
        gaps = Gaps(np.repeat(pace, 50), np.full(300, 50))
        held += coverage([gap_percentile_interval(gaps, 90)], truth)
        singly = Gaps(gaps.seconds, np.ones(len(gaps.seconds), dtype=np.int64))
        alone += gap_percentile_interval(singly, 90).half_width
        alone -= gap_percentile_interval(gaps, 90).half_width / 2
    assert held / RUNS >= 0.92
    assert alone != 0


def test_requests_without_gaps_do_not_matter_to_the_interval_of_gaps():
    rng = np.random.default_rng(5)
    seconds = rng.random(400)
    counts = np.zeros(200, dtype=np.int64)
    counts[::2] = 4
    interval = gap_percentile_interval(Gaps(seconds, counts), 50)
    assert interval.low < 0.5 < interval.high


def test_the_mean_of_all_gaps_weighs_long_answers_more():
    sums, counts = np.tile([1.0, 30.0], 50), np.tile([1.0, 10.0], 50)
    interval = ratio_interval(sums, counts)
    assert interval.low <= 31 / 11 <= interval.high


def test_equal_seeds_draw_equal_bootstraps_that_hold_a_standard_deviation():
    rng = np.random.default_rng(6)
    values = rng.normal(size=(100, 800))
    intervals = [bootstrap_interval(v, lambda drawn: drawn.std(axis=-1), seed=1) for v in values]
    assert intervals[0] == bootstrap_interval(values[0], lambda d: d.std(axis=-1), seed=1)
    assert coverage(intervals, 1.0) >= 0.85  # a bootstrap of stretches falls a little short


@pytest.mark.parametrize("count", [0, 1, 9])
def test_few_values_have_no_interval(count):
    values = np.arange(float(count))
    assert mean_interval(values) is None
    assert percentile_interval(values, 50) is None
    assert bootstrap_interval(values, lambda drawn: drawn.mean(axis=-1)) is None


def test_ten_values_have_an_interval():
    values = np.arange(10.0)
    assert mean_interval(values).low < 4.5 < mean_interval(values).high
    assert percentile_interval(values, 50).low <= 4.5 <= percentile_interval(values, 50).high
    assert bootstrap_interval(values, lambda drawn: drawn.mean(axis=-1)) is not None


def test_equal_values_have_an_interval_without_width():
    values = np.full(100, 3.0)
    assert mean_interval(values).half_width == 0
    assert (percentile_interval(values, 50).low, percentile_interval(values, 50).high) == (3, 3)


@pytest.mark.parametrize(("freedom", "table"), [(4, 2.776), (9, 2.262), (19, 2.093), (120, 1.980)])
def test_students_t_is_that_of_the_tables(freedom, table):
    assert student_t(0.975, freedom) == pytest.approx(table, abs=1.5e-3)


def test_a_rate_is_that_of_twenty_slices_and_edges_belong_to_the_outer_ones():
    at_s = np.linspace(100.0, 120.0, 201)  # ten each second, and one on the last edge
    found = rate_interval(at_s, np.ones(201), 100.0, 120.0)
    counts = np.full(20, 10.0)
    counts[-1] = 11.0
    wanted = mean_interval(counts)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))


def test_a_rate_needs_an_event_for_each_slice_and_a_stretch_of_time():
    assert rate_interval(np.linspace(0, 1, 19), np.ones(19), 0.0, 1.0) is None
    assert rate_interval(np.linspace(0, 1, 20), np.ones(20), 0.0, 1.0) is not None
    assert rate_interval(np.zeros(20), np.ones(20), 1.0, 1.0) is None
