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
