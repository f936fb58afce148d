from __future__ import annotations

import pytest

from servetune.metrics import parse_constraints
from servetune.search import (
    TOLERATED_ERROR_RATE,
    Candidate,
    exceeds_error_tolerance,
    failed_requests,
    recommend,
)

UNKNOWN_TIE = (
    "no sampling interval of the output throughput in the record of {}: whether the two can be "
    "told apart is not known"
)
LEFT_OUT = "1 trial with more than 1% failed requests"


def candidate(key, throughput, *, failed=None, of=30, e2e_ms=1000.0):
    counts = {}
    if failed is not None:
        counts = {"failed": failed, "completed": of - failed, "error_rate": failed / of}
    return Candidate(
        key=key,
        label=key,
        results={"output_throughput": throughput, "p99_e2e_latency_ms": e2e_ms, **counts},
    )


FAST_DIRTY = candidate("dirty", 300.0, failed=14, e2e_ms=900.0)
CLEAN = candidate("clean", 200.0, failed=0)
SLOW = candidate("slow", 100.0, failed=0, e2e_ms=2000.0)


def test_a_trial_that_failed_its_requests_does_not_win_and_the_reasons_say_so():
    for objective in ("throughput", "latency"):
        choice = recommend([FAST_DIRTY, SLOW, CLEAN], (), objective)
        assert choice.chosen == CLEAN
        assert choice.runner_up == SLOW
        assert choice.left_out == (LEFT_OUT,)
        assert f"left out: {LEFT_OUT}" in choice.reasons
        assert not any("of 30 requests failed" in reason for reason in choice.reasons)


def test_the_tolerance_itself_is_tolerated_and_told():
    just = candidate("just", 300.0, failed=1, of=100)
    assert just.results["error_rate"] == TOLERATED_ERROR_RATE
    choice = recommend([just, CLEAN], (), "throughput")
    assert choice.chosen == just
    assert choice.left_out == ()
    assert "1 of 100 requests failed (1%): its figures are of the others" in choice.reasons
    assert recommend([candidate("more", 300.0, failed=11, of=1000), CLEAN], (), "throughput") == (
        recommend([candidate("more", 300.0, failed=999, of=1000), CLEAN], (), "throughput")
    )


def test_where_all_failed_too_many_the_best_of_them_is_chosen_with_a_warning():
    choice = recommend([FAST_DIRTY, candidate("d", 250.0, failed=3)], (), "throughput")
    assert choice.chosen == FAST_DIRTY
    assert choice.feasible
    assert choice.left_out == ()
    assert "14 of 30 requests failed (47%): its figures are of the others" in choice.reasons


def test_one_that_meets_the_constraints_goes_before_a_cleaner_one_that_does_not():
    choice = recommend([CLEAN, FAST_DIRTY], parse_constraints("e2e_latency:p99<=0.95s"), "latency")
    assert choice.chosen == FAST_DIRTY
    assert choice.feasible
    assert any(reason.startswith("14 of 30") for reason in choice.reasons)


@pytest.mark.parametrize("limit", ["error_rate<=0.5", "error_rate<=0.1"])
def test_a_constraint_on_failures_takes_the_place_of_the_tolerance(limit):
    choice = recommend([FAST_DIRTY, CLEAN], parse_constraints(limit), "throughput")
    assert choice.chosen == (FAST_DIRTY if limit.endswith("0.5") else CLEAN)
    assert LEFT_OUT not in choice.reasons
    assert not exceeds_error_tolerance(FAST_DIRTY.results, parse_constraints(limit))


def test_the_nearest_miss_is_sought_among_the_clean_ones_first():
    limits = parse_constraints("e2e_latency:p99<=500ms")
    choice = recommend([FAST_DIRTY, CLEAN, SLOW], limits, "throughput")
    assert choice.chosen == CLEAN
    assert not choice.feasible
    assert f"left out: {LEFT_OUT}" in choice.reasons
    only = recommend([FAST_DIRTY], limits, "throughput")
    assert only.chosen == FAST_DIRTY
    assert any(reason.startswith("14 of 30") for reason in only.reasons)


def test_records_that_do_not_speak_of_failures_count_as_clean():
    silent = candidate("silent", 300.0)
    assert failed_requests(silent.results) is None
    choice = recommend([silent, CLEAN], (), "throughput")
    assert choice.chosen == silent
    assert choice.left_out == ()


@pytest.mark.parametrize(
    ("failed", "of", "share"),
    [(14, 30, "47%"), (1, 1000, "0.1%"), (1, 8, "13%"), (999, 1000, "99%"), (30, 30, "100%")],
)
def test_a_share_of_all_is_written_only_where_nothing_was_answered(failed, of, share):
    told = failed_requests(candidate("k", 1.0, failed=failed, of=of).results)
    assert told is not None
    assert told.share == share
    assert told.fraction == f"{failed}/{of}"
    assert told.sentence.endswith("of the others") == (failed < of)


def test_a_rate_without_counts_is_reported_as_a_share():
    told = failed_requests({"error_rate": 0.25})
    assert told is not None
    assert told.fraction == "25%"
    assert told.sentence == "25% of its requests failed: its figures are of the others"


def test_values_are_reported_in_words_and_with_their_units():
    limits = parse_constraints("request_throughput>=5;e2e_latency:p99<=2s;error_rate<=0.5")
    one, other = (
        Candidate(
            key=key,
            label=key,
            results={
                "output_throughput": throughput,
                "request_throughput": 8.306,
                "p99_e2e_latency_ms": 1500.0,
                "cost_per_million_tokens": 0.5,
                "error_rate": 0.0,
            },
        )
        for key, throughput in (("one", 1626.0), ("other", 1625.9))
    )
    assert recommend([other, one], limits, "throughput").reasons == (
        "2 of 2 trials meet every constraint",
        "it has the highest output throughput among them: 1,626 tok/s",
        "request_throughput>=5 holds: 8.306 req/s",
        "e2e_latency:p99<=2s holds: 1.5 s",
        "error_rate<=0.5 holds: 0",
        UNKNOWN_TIE.format("one and other"),
        "next is other: 1,626 tok/s (within 0.1%)",
    )
    assert recommend([one], (), "cost").reasons == (
        "it has the lowest cost per million output tokens among them: $0.5",
    )
    assert recommend([one], (), "latency").reasons == (
        "it has the lowest p99 end-to-end latency among them: 1.5 s",
    )


def test_ties_go_to_the_higher_throughput_and_then_to_the_earlier_trial():
    low, high = candidate("low", 200.0), candidate("high", 201.0)
    assert recommend([low, high], (), "latency").chosen == high
    first, second = candidate("first", 200.0), candidate("second", 200.0)
    for objective in ("latency", "throughput"):
        choice = recommend([first, second], (), objective)
        assert (choice.chosen, choice.runner_up) == (first, second)


def test_the_nearest_miss_is_the_smallest_relative_one_of_its_worst_limits():
    limits = parse_constraints("e2e_latency:p99<=1000ms;output_throughput>=100")
    # 20% too late; in time and 30% too slow; 5% too late and 25% too slow.
    late, slow = candidate("late", 150.0, e2e_ms=1200.0), candidate("slow", 70.0)
    both = candidate("both", 75.0, e2e_ms=1050.0)
    choice = recommend([both, slow, late], limits, "throughput")
    assert choice.chosen == late
    assert choice.runner_up == both
    assert [str(missed.metric) for missed in choice.unmet] == ["e2e_latency"]
    assert (choice.feasible, choice.feasible_count, choice.candidate_count) == (False, 0, 3)
    nearest = "no trial meets every constraint; this one comes nearest and misses "
    assert choice.reasons[0] == f"{nearest}e2e_latency:p99<=1s (got 1.2 s)"
    # Twice as far in time is nearer than what was not measured at all.
    unknown = candidate("unknown", 150.0, e2e_ms=None)
    far = candidate("far", 150.0, e2e_ms=9_000.0)
    assert recommend([unknown, far], limits, "throughput").chosen == far
    choice = recommend([unknown], limits, "throughput")
    assert choice.reasons[0] == f"{nearest}e2e_latency:p99<=1s (got not measured)"
    assert choice.reasons[1] == "e2e_latency:p99<=1s: no trial has a value"


def test_a_limit_of_zero_is_missed_by_the_plain_amount():
    limits = parse_constraints("error_rate<=0")
    few, many = candidate("few", 1.0, failed=1), candidate("many", 9.0, failed=2)
    choice = recommend([many, few], limits, "throughput")
    assert choice.chosen == few


def test_every_part_of_a_choice_is_reported_also_where_there_is_none():
    choice = recommend([candidate("k", None), SLOW], (), "cost")
    assert choice.chosen is None
    assert choice.objective == "cost"
    assert choice.feasible is False
    assert choice.candidate_count == 2
    assert choice.reasons == ("no trial has a value for the cost per million output tokens",)
    choice = recommend([CLEAN, SLOW], parse_constraints("e2e_latency:p99<=1.5s"), "throughput")
    assert choice.objective == "throughput"
    assert (choice.feasible, choice.feasible_count, choice.candidate_count) == (True, 1, 2)
    assert choice.unmet == ()


@pytest.mark.parametrize(
    ("other", "apart"),
    [(199.91, "(within 0.1%)"), (199.88, "(-0.1%)"), (190.0, "(-5.0%)"), (100.0, "(-50.0%)")],
)
def test_the_distance_to_the_next_is_reported_to_a_tenth_of_a_percent(other, apart):
    choice = recommend([CLEAN, candidate("next", other)], (), "throughput")
    assert choice.reasons[-1].endswith(apart)


def test_nothing_is_divided_by_a_throughput_of_zero():
    zero, other = candidate("zero", 0.0), candidate("other", 0.0)
    choice = recommend([zero, other], (), "throughput")
    assert choice.reasons[-1] == "next is other: 0 tok/s (within 0.1%)"


def test_several_that_are_left_out_are_reported_in_the_plural():
    choice = recommend([FAST_DIRTY, candidate("d", 250.0, failed=3), CLEAN], (), "throughput")
    assert "left out: 2 trials with more than 1% failed requests" in choice.reasons


@pytest.mark.parametrize(
    ("e2e_ms", "text"), [(999.9, "999.9 ms"), (1000.0, "1 s"), (1000.4, "1 s"), (1500.0, "1.5 s")]
)
def test_latencies_of_a_second_and_more_are_reported_in_seconds(e2e_ms, text):
    choice = recommend([candidate("k", 1.0, e2e_ms=e2e_ms)], (), "latency")
    assert choice.reasons[0].endswith(f": {text}")


def test_counts_are_reported_only_where_both_are_known():
    told = failed_requests({"error_rate": 0.25, "failed": 5})
    assert told is not None
    assert (told.count, told.total) == (None, None)
