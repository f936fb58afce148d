import numpy as np
import pytest
from msgspec.structs import replace

from servetune.metrics import Record, steady_window
from servetune.metrics.steady import mser_cut


@pytest.mark.parametrize("seed", range(5))
def test_a_closed_loop_begins_after_its_first_wave_and_ends_with_its_last_request(
    closed_loop, seed
):
    records = closed_loop(32, 1000, seed=seed)
    window = steady_window(records)
    assert window.settled
    assert 1.0 < window.start_s < 8.0  # the first wave is late by up to 3 s
    assert window.end_s == pytest.approx(max(record.sent_s for record in records))
    assert "last request was sent" in window.reason


def test_what_is_steady_from_the_start_loses_little(open_loop):
    shares = []
    for seed in range(20):
        records = open_loop(0.5, 1000, seed=seed)
        window = steady_window(records)
        assert window.settled
        shares.append(window.start_s / window.end_s)
    assert np.mean(shares) < 0.05


def test_a_system_that_fills_up_begins_when_it_is_full(open_loop):
    for seed in range(5):  # a hundred servers, one second each: full after a few seconds
        window = steady_window(open_loop(70, 5000, servers=100, capacity_per_s=100, seed=seed))
        assert window.settled
        assert 1.0 < window.start_s < 12.0


def test_a_queue_that_grows_all_along_has_no_steady_part(open_loop):
    for seed in range(10):
        window = steady_window(open_loop(1.2, 1500, seed=seed))
        assert not window.settled
        assert "settled" in window.reason or "grew" in window.reason


def test_a_busy_queue_that_holds_is_steady(open_loop):
    settled = [steady_window(open_loop(0.9, 3000, seed=seed)).settled for seed in range(20)]
    assert sum(settled) >= 18  # at 90 % load a queue may wander all along


def test_conversations_that_run_out_end_the_window_before_the_last_request():
    rng = np.random.default_rng(0)
    records = []
    for user in range(40):
        at_s = 0.0
        last_s = 100.0 if user < 4 else 60.0  # four go on long after the others
        while at_s < last_s:
            end_s = at_s + rng.uniform(0.5, 1.5)
            records.append(
                Record(
                    index=len(records),
                    input_tokens=5,
                    output_tokens=2,
                    due_s=at_s,
                    sent_s=at_s,
                    end_s=end_s,
                    chunk_times_s=(at_s + 0.1, end_s),
                )
            )
            at_s = end_s
    window = steady_window(records)
    assert window.settled
    assert 50 < window.end_s < 70
    assert "fell below" in window.reason


def test_requests_cut_off_by_the_end_of_the_run_end_the_window_before_they_were_due(closed_loop):
    records = [
        replace(record, end_s=30.0, outcome="cancelled") if record.end_s > 30 else record
        for record in closed_loop(32, 2000)
        if record.due_s < 30
    ]
    window = steady_window(records)
    assert window.end_s == min(r.due_s for r in records if r.outcome == "cancelled")


@pytest.mark.parametrize("count", [0, 1, 49])
def test_few_requests_say_nothing(closed_loop, count):
    window = steady_window(closed_loop(8, count) if count else [])
    assert not window.settled
    assert window.reason


def test_a_burst_at_one_moment_has_no_window():
    records = [
        Record(index=i, input_tokens=1, output_tokens=1, due_s=0.0, sent_s=0.0, end_s=1.0 + i)
        for i in range(100)
    ]
    assert not steady_window(records).settled


def test_the_cut_is_where_a_step_ends():
    rng = np.random.default_rng(1)
    values = np.concatenate((np.full(100, 5.0), np.full(900, 1.0))) + rng.normal(0, 0.3, 1000)
    assert mser_cut(values) == (100, True)
    assert mser_cut(np.arange(1000.0))[1] is False
    assert mser_cut(np.ones(1000)) == (0, True)
