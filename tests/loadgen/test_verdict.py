"""What the instrument says of itself, in words that hold for what was measured."""

import pytest

from servetune.loadgen import Instrument, verdict_of

STREAMED = {"median_ttft_ms": 50.0, "median_itl_ms": 10.0, "median_e2e_latency_ms": 200.0}
WHOLE = {"median_ttft_ms": None, "median_itl_ms": None, "median_e2e_latency_ms": 200.0}


def instrument(**known):
    blank = {
        "loop_lag_max_s": None,
        "loop_lag_p99_s": None,
        "sent_late_max_s": None,
        "sent_late_p99_s": None,
        "late_count": 0,
        "held_count": 0,
        "connections_opened": 1,
        "connections_reused": 0,
        "retried_count": 0,
        "stamped_by": "kernel",
    }
    return Instrument(**blank | known)


def test_a_late_departure_is_measured_against_the_time_to_first_token():
    told = verdict_of(instrument(sent_late_p99_s=0.002), STREAMED)
    assert told.trusted
    assert told.words == "instrument: kernel's clock; sent 2.00 ms late (p99), 4.0% of median TTFT"


def test_where_answers_come_whole_it_is_measured_against_all_of_them():
    told = verdict_of(instrument(sent_late_p99_s=0.002), WHOLE)
    assert told.words.endswith("1.0% of median E2E latency")


@pytest.mark.parametrize(("late_s", "trusted"), [(0.0049, True), (0.0051, False)])
def test_a_tenth_of_the_smallest_latency_is_the_limit(late_s, trusted):
    told = verdict_of(instrument(sent_late_p99_s=late_s), STREAMED)
    assert told.trusted is trusted
    assert told.words.startswith("instrument" if trusted else "THE CLIENT WAS LATE")


@pytest.mark.parametrize(("stamped_by", "trusted"), [("kernel", True), ("process", False)])
def test_a_lagging_loop_blurs_gaps_only_where_the_process_stamps(stamped_by, trusted):
    told = verdict_of(instrument(loop_lag_p99_s=0.0015, stamped_by=stamped_by), STREAMED)
    assert told.trusted is trusted
    assert ("1.50 ms late (p99); sent" in told.words) is not trusted


def test_a_process_without_time_left_was_the_limit_whatever_else_it_says():
    told = verdict_of(instrument(busy_fraction=0.95), STREAMED)
    assert not told.trusted
    assert told.words.startswith("THE CLIENT WAS THE LIMIT: it was busy for 95% of a core")
    assert "--processes" in told.words


@pytest.mark.parametrize("results", [{}, {"median_ttft_ms": None}, {"median_ttft_ms": 0.0}])
def test_nothing_measured_is_nothing_to_judge(results):
    told = verdict_of(instrument(sent_late_p99_s=1.0), results)
    assert told.words == "instrument: no latency was reported"
