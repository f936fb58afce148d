import numpy as np
import pytest
from msgspec.structs import replace

from servetune.metrics import Record, steady, steady_window
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


@pytest.mark.parametrize(("level_after", "drained"), [(0.89, 50), (0.91, 0), (1.1, 0)])
def test_a_fall_of_more_than_a_tenth_at_the_end_is_the_drain(level_after, drained):
    in_system = np.concatenate((np.full(450, 20.0), np.full(50, 20.0 * level_after)))
    assert steady._drain(in_system) == drained


@pytest.mark.parametrize(
    ("climb", "told"), [(0.24, 0.0), (0.26, 0.26), (-0.24, 0.0), (-0.26, -0.26)]
)
def test_a_drift_is_more_than_a_quarter_of_the_mean(climb, told):
    # Batch means lie on the line between their middles, 19/20 of its length.
    line = 100 * (1 + climb * np.linspace(-0.5, 0.5, 2_000) * 2_000 / 1_900)
    assert steady._drift(line) == pytest.approx(told, rel=1e-3)


def test_a_drift_that_may_be_chance_is_none():
    rng = np.random.default_rng(0)
    line = 100 * (1 + 0.5 * np.linspace(-0.5, 0.5, 20))
    assert steady._drift(line + rng.normal(0, 5, 20)) > 0.25
    assert steady._drift(line + rng.normal(0, 150, 20)) == 0.0
    assert steady._drift(np.ones(19)) == 0.0
    assert steady._drift(np.zeros(500)) == 0.0


@pytest.mark.parametrize(("step", "cut"), [(0.019, 0), (0.021, 100)])
def test_a_step_of_less_than_a_fiftieth_is_no_beginning(step, cut):
    values = np.concatenate((np.full(100, 1 + step), np.ones(900)))
    assert mser_cut(values) == (cut, True)


def test_too_few_values_have_no_beginning():
    values = np.concatenate((np.full(5, 9.0), np.ones(44)))
    assert mser_cut(values) == (0, True)
    assert mser_cut(np.append(values, 1.0)) == (5, True)


def test_a_window_holds_its_first_moment_and_not_its_last():
    window = steady.Window(start_s=1.0, end_s=2.0, reason="")
    assert window.holds(np.array([0.99, 1.0, 1.99, 2.0])).tolist() == [False, True, True, False]


def test_fifty_requests_are_enough(closed_loop):
    assert steady_window([]).reason == "no request"
    few = steady_window(closed_loop(8, 49))
    assert few.reason == "fewer than 50 requests were due before the last request was sent"
    at_once = [
        Record(index=i, input_tokens=1, output_tokens=2, due_s=i * 0.1, sent_s=i * 0.1,
               end_s=i * 0.1 + 0.05, chunk_times_s=(i * 0.1 + 0.01, i * 0.1 + 0.02))
        for i in range(51)
    ]  # fmt: skip
    # Up to the moment at which the last is sent, 50 of 51 were due.
    assert steady_window(at_once).settled
    assert not steady_window(at_once[:50]).settled


def test_a_request_that_hung_from_the_first_half_on_ends_nothing(closed_loop):
    records = closed_loop(8, 400)
    last_s = max(one.sent_s for one in records)
    early, late = (replace(records[place], outcome="cancelled") for place in (10, 350))
    with_early = [early if one.index == early.index else one for one in records]
    assert steady_window(with_early).end_s == pytest.approx(last_s)
    with_late = [late if one.index == late.index else one for one in records]
    assert steady_window(with_late).end_s <= late.due_s
    assert "that the end of the run cut off" in steady_window(with_late).reason
