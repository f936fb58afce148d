"""Verdicts on queues whose truth is known: Poisson arrivals, exponential service."""

import numpy as np
import pytest
from msgspec.structs import replace

from servetune.metrics import saturation
from servetune.metrics.overload import saturation_of

RUNS = 60


def first_alarm(due_s, end_s, rate):
    """Requests that had come at the first alarm of somebody who asks after each tenth one."""
    for come in range(50, len(due_s) + 1, 10):
        now_s = due_s[come - 1]
        known_s = np.where(end_s[:come] <= now_s, end_s[:come], np.inf)
        if saturation_of(due_s[:come], known_s, rate, now_s=now_s).saturated:
            return come
    return None


def queue(load, count, seed):
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(1 / load, count))
    service_s = rng.exponential(1.0, count)
    busy_s = np.cumsum(service_s)
    # Lindley: the last end is the latest of all begins plus the work since.
    end_s = busy_s + np.maximum.accumulate(due_s - (busy_s - service_s))
    return due_s, end_s


def in_flight(records, now_s):
    """As a load generator knows those that have not ended at that time."""
    return [
        (r.due_s, r.chunk_times_s[0] if r.chunk_times_s[0] <= now_s else None)
        for r in records
        if r.due_s <= now_s < r.end_s
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_queue_that_holds_at_ninety_percent_is_not_called_saturated(known):
    """60 runs of 1,500 requests, asked all along: at most two alarms."""
    alarms = [first_alarm(*queue(0.9, 1500, seed), 0.9 if known else None) for seed in range(RUNS)]
    assert sum(alarm is not None for alarm in alarms) <= 2


@pytest.mark.parametrize(("known", "median"), [(True, 450), (False, 800)])
def test_a_load_of_120_percent_is_noticed_early(known, median):
    """Half of 60 runs within the stated number of requests, all but two within 2,000."""
    alarms = [
        first_alarm(*queue(1.2, 2000, seed), 1.2 if known else None) or 9999 for seed in range(RUNS)
    ]
    assert np.median(alarms) <= median
    assert sum(alarm == 9999 for alarm in alarms) <= 2


def test_the_verdict_has_words_and_numbers(open_loop):
    verdict = saturation(open_loop(12.0, 600, capacity_per_s=8.0, seed=1), 12.0)
    assert verdict.saturated
    assert verdict.growth_per_s == pytest.approx(4.0, abs=1.2)
    assert verdict.arrivals_per_s - verdict.served_per_s == pytest.approx(verdict.growth_per_s)
    assert verdict.words.startswith("arrivals 1")
    assert "the queue grew by" in verdict.words


def test_a_system_that_fills_up_is_no_queue_that_grows(open_loop):
    for seed in range(10):  # two hundred servers: the first answer comes after many arrivals
        records = open_loop(100, 3000, servers=200, capacity_per_s=200, seed=seed)
        ended_s = sorted(record.end_s for record in records)
        for now_s in (ended_s[60], ended_s[400], ended_s[-1]):
            ended = [record for record in records if record.end_s <= now_s]
            assert not saturation(ended, now_s=now_s, in_flight=in_flight(records, now_s)).saturated


def test_a_burst_and_a_closed_loop_have_no_growing_queue(closed_loop, open_loop):
    assert not saturation(closed_loop(16, 800)).saturated
    burst_s = np.zeros(200)
    assert not saturation_of(burst_s, np.arange(1.0, 201.0)).saturated


def test_too_few_requests_are_not_judged(open_loop):
    verdict = saturation(open_loop(3.0, 49))
    assert not verdict.saturated
    assert "too few" in verdict.words
    assert not saturation([]).saturated


def test_requests_that_the_end_of_the_run_cut_off_were_not_served(open_loop):
    records = open_loop(1.5, 600, seed=2)
    stop_s = records[-1].due_s
    stopped = [
        replace(r, end_s=stop_s, outcome="cancelled") if r.end_s > stop_s else r for r in records
    ]
    assert saturation(stopped, 1.5).saturated


def test_a_load_generator_that_could_not_send_so_much_is_named(open_loop):
    verdict = saturation(open_loop(3.0, 900, seed=3), 6.0)
    assert verdict.saturated
    assert "not reached" in verdict.words


def test_long_answers_are_found_out_by_those_who_wait_for_a_first_token(open_loop):
    """Fifty places, answers of fifty seconds: full after fifty requests and their first token."""
    records = open_loop(4.0, 1500, servers=50, capacity_per_s=1.0, seed=4)
    now_s = 150.0
    ended = [record for record in records if record.end_s <= now_s]
    flying = in_flight(records, now_s)
    begun = saturation(ended, 4.0, now_s=now_s, in_flight=flying)
    assert begun.saturated
    assert "begun" in begun.words
    hidden = [(due_s, due_s + 0.1) for due_s, _ in flying]  # as if nobody waited
    assert not saturation(ended, 4.0, now_s=now_s, in_flight=hidden).saturated


def test_checks_are_at_fifty_requests_and_each_a_fifth_further():
    def checked(count):
        due_s = np.arange(float(count))
        return saturation_of(due_s, due_s + 0.5).requests

    counts = (49, 50, 59, 60, 71, 72, 86, 87)
    assert [checked(count) for count in counts] == [0, 50, 50, 60, 60, 72, 72, 87]


@pytest.mark.parametrize(("stay_s", "filling"), [(12.25, False), (12.26, True)])
def test_the_ramp_up_is_twice_the_first_stay_and_as_much_must_follow(stay_s, filling):
    due_s = np.arange(50.0)  # the last arrival is 49 s, four stays of 12.25 s, after the first
    words = saturation_of(due_s, due_s + stay_s).words
    assert (words == "the system was still filling up") == filling


@pytest.mark.parametrize(("share", "saturated"), [(0.0305, True), (0.0295, False)])
def test_a_queue_counts_from_three_percent_of_the_arrivals_on(share, saturated):
    due_s = np.arange(7091) * 0.01  # a check point
    verdict = saturation_of(due_s, due_s / (1 - share), 100.0)
    assert verdict.growth_per_s / verdict.arrivals_per_s == pytest.approx(share, abs=3e-4)
    assert verdict.saturated == saturated


def binned(came, served):
    """Due and end times with so many of each in each of twenty seconds, after one at 0 s."""
    due_s = [0.0, *(bin_s + 0.01 * (i + 1) for bin_s, n in enumerate(came) for i in range(n))]
    end_s = [0.0, *(bin_s + 0.01 * (i + 1) for bin_s, n in enumerate(served) for i in range(n))]
    due_s[-1] = 20.0
    return np.array(due_s), np.array(end_s + [np.inf] * (len(due_s) - len(end_s)))


#: Deviations of twenty bins from their mean, with the sum of squares in the name.
SQUARES_126 = [0] * 6 + [-3, 3] * 7
SQUARES_128 = [0, 0, -1, 1] + [-3, 3] * 7 + [0, 0]
SQUARES_140 = [0] * 4 + [-4, 4] * 2 + [-3, 3] * 4 + [-1, 1] * 2
SQUARES_142 = [0, 0] + [-3, 3] * 7 + [-2, 2] * 2


@pytest.mark.parametrize(
    ("deviations", "t", "saturated"), [(SQUARES_140, 3.2950, True), (SQUARES_142, 3.2717, False)]
)
def test_a_growth_is_certain_but_for_two_in_a_thousand(deviations, t, saturated):
    """Student's t of 19 degrees is 3.273 at 0.998."""
    grown = 2 + np.array(deviations)
    assert grown.mean() / grown.std(ddof=1) * np.sqrt(20) == pytest.approx(t, abs=1e-4)
    due_s, end_s = binned([19] * 20, 19 - grown)
    assert saturation_of(due_s, end_s).saturated == saturated


@pytest.mark.parametrize(
    ("deviations", "t", "saturated"), [(SQUARES_126, 1.7366, True), (SQUARES_128, 1.7230, False)]
)
def test_beside_a_known_rate_a_queue_grows_but_for_one_in_twenty(deviations, t, saturated):
    """Student's t of 19 degrees is 1.7291 at 0.95; a constant server falls short for certain."""
    came = 19 + np.array(deviations)
    assert 1 / came.std(ddof=1) * np.sqrt(20) == pytest.approx(t, abs=1e-4)
    due_s, end_s = binned(came, [18] * 20)
    assert saturation_of(due_s, end_s, 19.0).saturated == saturated
