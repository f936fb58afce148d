"""Ties by the sampling intervals of records, and nothing invented where there are none."""

from __future__ import annotations

import msgspec
import pytest

from servetune.metrics import interval_of
from servetune.search import Candidate, recommend


def measured(key, throughput, half=None, **more):
    intervals = (
        {} if half is None else {"output_throughput": [throughput - half, throughput + half]}
    )
    return Candidate(
        key=key,
        label=key,
        results={"output_throughput": throughput, "intervals": intervals, **more},
    )


def ties(trials, objective="throughput"):
    return [each.key for each in recommend(trials, (), objective).ties]


def test_trials_within_each_others_sampling_intervals_are_a_tie_and_named():
    trials = [measured("a", 100.0, 5), measured("b", 97.0, 5), measured("c", 80.0, 5)]
    choice = recommend(trials, (), "throughput")
    assert [each.key for each in choice.ties] == ["b"]
    assert (
        "a tie in output throughput: b cannot be told apart from it, their difference lies within "
        "the sampling intervals (95%)"
    ) in choice.reasons


def test_values_further_apart_than_both_intervals_are_no_tie():
    assert ties([measured("a", 100.0, 1), measured("b", 97.0, 1)]) == []
    choice = recommend([measured("a", 100.0, 1), measured("b", 97.0, 1)], (), "throughput")
    assert not any("tie" in each or "interval" in each for each in choice.reasons)


@pytest.mark.parametrize(("half", "tied"), [(2.0, []), (2.2, ["b"])])
def test_two_intervals_reach_as_far_as_the_root_of_their_squares(half, tied):
    # The difference of 3 is beyond hypot(2, 2) = 2.83 and within hypot(2.2, 2.2) = 3.11.
    assert ties([measured("a", 100.0, half), measured("b", 97.0, half)]) == tied


def test_an_end_that_the_requests_do_not_determine_tells_nothing_apart():
    def late(key, p99_ms, ends):
        intervals = {"p99_e2e_latency_ms": ends}
        return Candidate(
            key=key,
            label=key,
            results={"p99_e2e_latency_ms": p99_ms, "intervals": intervals},
        )

    open_end = [late("a", 100.0, [90.0, None]), late("b", 500.0, [480.0, 520.0])]
    assert ties(open_end, "latency") == ["b"]
    closed = [late("a", 100.0, [90.0, 120.0]), late("b", 500.0, [480.0, None])]
    assert ties(closed, "latency") == []


def test_no_interval_is_invented_where_a_record_has_none():
    choice = recommend([measured("a", 100.0, 5), measured("b", 99.9)], (), "throughput")
    assert choice.ties == ()
    assert any(
        each.startswith("no sampling interval of the output throughput in the record of b:")
        for each in choice.reasons
    )


def test_simulated_trials_say_that_they_rest_on_simulation():
    one, other = (
        msgspec.structs.replace(measured(key, rate, 0.1), simulated=True)
        for key, rate in (("a", 100.0), ("b", 99.0))
    )
    assert any(
        each == "its value and the next one's rest on simulation: measurements can tell them apart"
        for each in recommend([one, other], (), "throughput").reasons
    )
    silent = msgspec.structs.replace(measured("s", 100.0), simulated=True)
    assert any(
        each.startswith("its value rests on simulation, which has no sampling interval")
        for each in recommend([silent, measured("m", 99.0, 1)], (), "throughput").reasons
    )
    mixed = recommend([measured("m", 200.0, 1), one], (), "throughput")
    assert any(each.startswith("the next one's value rests on sim") for each in mixed.reasons)
    same = [msgspec.structs.replace(one, key=key, label=key) for key in ("a", "b")]
    choice = recommend(same, (), "throughput")
    assert "a tie in output throughput: b cannot be told apart from it, equal values" in (
        choice.reasons
    )


def test_cost_and_throughput_per_gpu_have_the_interval_of_the_throughput():
    results = measured(
        "a", 100.0, 20, output_throughput_per_gpu=25.0, cost_per_million_tokens=2.0
    ).results
    assert interval_of(results, "output_throughput_per_gpu") == (20.0, 30.0)
    low, high = interval_of(results, "cost_per_million_tokens")
    assert (low, high) == pytest.approx((2.0 * 100 / 120, 2.0 * 100 / 80))
    assert interval_of(results, "energy_per_token_j") is None
    assert interval_of({**results, "intervals": {"output_throughput": "wide"}}, "goodput") is None
