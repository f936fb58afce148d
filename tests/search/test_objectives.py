"""Objectives: their grammar, Pareto sets and knees, ladders, and what binds."""

from __future__ import annotations

import pytest

from servetune.errors import GrammarError, InputError, UnknownName
from servetune.metrics import LARGER_IS_BETTER, METRICS, parse_constraints
from servetune.report.quantities import QUANTITIES
from servetune.search import (
    Candidate,
    parse_objectives,
    parse_sla,
    recommend,
    stated_goal,
)
from servetune.search.pareto import knee


def candidate(key, throughput, ttft_ms, *, itl_ms=30.0, **more):
    return Candidate(
        key=key,
        label=key,
        results={
            "output_throughput": throughput,
            "p99_ttft_ms": ttft_ms,
            "mean_itl_ms": itl_ms,
            **more,
        },
    )


def test_every_metric_with_each_statistic_is_an_objective_with_its_own_direction():
    for text, metric, statistic, maximize in (
        ("throughput", "output_throughput", "mean", True),
        ("throughput_per_gpu", "output_throughput_per_gpu", "mean", True),
        ("goodput", "goodput", "mean", True),
        ("latency", "e2e_latency", "p99", False),
        ("ttft:p99", "ttft", "p99", False),
        ("itl:median", "itl", "median", False),
        ("itl:p50", "itl", "median", False),
        ("e2e_latency:mean", "e2e_latency", "mean", False),
        ("tpot", "tpot", "mean", False),
        ("cost", "cost_per_million_tokens", "mean", False),
        ("energy", "energy_per_token_j", "mean", False),
        ("error_rate", "error_rate", "mean", False),
    ):
        [found] = parse_objectives(text)
        assert (found.metric, found.statistic, found.maximize) == (metric, statistic, maximize)


def test_the_page_and_the_choice_agree_on_which_way_each_metric_is_better():
    for metric in METRICS:
        assert QUANTITIES[metric].maximize == (metric in LARGER_IS_BETTER), metric


def test_an_objective_that_is_named_twice_counts_once():
    names = [each.name for each in parse_objectives("output_throughput,ttft:p99,throughput")]
    assert names == ["throughput", "ttft:p99"]
    assert parse_objectives("ttft:mean") == parse_objectives("ttft")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", GrammarError, "an objective is missing"),
        ("cost,", GrammarError, "an objective is missing, at character 6"),
        ("speed", UnknownName, "speed"),
        ("cost,ttft:p100x", GrammarError, "unknown statistic 'p100x', at character 11"),
        ("goodput:p99", GrammarError, "one number per trial and has no p99"),
        ("ttft<=2s", GrammarError, "is no metric with its statistic"),
    ],
)
def test_an_objective_that_cannot_be_read_is_refused_at_its_place(text, error, words):
    with pytest.raises(error, match=words) as refused:
        parse_objectives(text)
    assert refused.value.hint


def test_energy_is_that_of_the_gpus_over_the_output_tokens():
    [energy] = parse_objectives("energy")
    measured = {"server": {"energy_j": 600.0}, "total_output_tokens": 1200}
    assert energy.value(measured) == 0.5
    assert energy.shown(0.5) == "0.5 J"
    for silent in ({}, {"server": {"energy_j": None}}, {"server": {"energy_j": 5.0}}):
        assert energy.value(silent) is None
    [limit] = parse_constraints("energy_per_token_j<=0.4")
    assert limit.holds(measured) is False
    choice = recommend([candidate("a", 1.0, 1.0)], (), "energy")
    assert choice.chosen is None
    assert choice.reasons == ("no trial has a value for the energy per output token",)


def test_several_objectives_give_the_pareto_set_and_its_knee():
    trials = [
        candidate("quick", 20.0, 1.0),
        candidate("fast", 100.0, 9.0),
        candidate("both", 90.0, 2.0),
        candidate("beaten", 80.0, 3.0),
        candidate("late", 500.0, 900.0),
    ]
    limits = parse_constraints("ttft:p99<=100ms")
    choice = recommend(trials, limits, "throughput,ttft:p99")
    assert [member.key for member in choice.pareto] == ["fast", "both", "quick"]
    assert choice.chosen.key == "both"
    assert choice.objective == "throughput,ttft:p99"
    assert "in the set: both (the knee): 90 tok/s, 2 ms" in choice.reasons
    assert "in the set: fast: 100 tok/s, 9 ms" in choice.reasons
    assert any("nearest to the best value of every objective" in each for each in choice.reasons)
    assert choice.ties == ()
    only = recommend(trials, limits, "throughput")
    assert (only.pareto, only.chosen.key) == ((), "fast")


def test_a_pareto_set_needs_a_value_for_each_objective():
    priced, fast = (
        candidate("priced", 1.0, 5.0, cost_per_million_tokens=2.0),
        candidate("f", 9.0, 1),
    )
    choice = recommend([priced, fast], (), "throughput,cost")
    assert [member.key for member in choice.pareto] == ["priced"]
    assert recommend([fast], (), "throughput,cost").reasons == (
        "no trial has a value for the cost per million output tokens",
    )


def test_the_knee_is_nearest_to_the_ideal_point_whatever_the_units():
    front = [(10.0, 1.0), (9.0, 0.2), (1.0, 0.1)]
    assert knee(front, maximize=(True, False)) == 1
    assert knee([(x * 1e6, y * 1e-3) for x, y in front], maximize=(True, False)) == 1
    assert knee([(1.0, 1.0)], maximize=(True, True)) == 0
    assert knee([(5.0, 1.0), (5.0, 1.0)], maximize=(True, False)) == 0


LADDER = "ttft:p99<=2s; itl<=50ms; output_throughput>=100; then cost"


def test_a_ladder_is_limits_in_their_order_and_then_objectives():
    goal = parse_sla("ttft:p99<=2s, then cost")
    assert [each.label for each in goal.constraints] == ["ttft:p99<=2s"]
    assert [each.name for each in goal.objectives] == ["cost"]
    assert goal.ladder
    assert parse_sla(LADDER).label == LADDER.replace("; then", "; then")
    assert [each.name for each in parse_sla("ttft<=1s").objectives] == ["throughput"]
    assert [each.name for each in parse_sla("ttft<=1s then cost,itl:p99").objectives] == [
        "cost",
        "itl:p99",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("then cost", "no limit found"),
        ("", "no limit found"),
        ("ttft<=1s; then", "an objective is missing, at character 15"),
        ("ttft<=1s; then speed", "speed"),
        ("ttft<=1s; ttft<=1s; then cost", "twice"),
        ("ttft<=1s; cost", "cannot read the constraint 'cost'"),
    ],
)
def test_a_ladder_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_sla(text)


def test_what_contradicts_a_ladder_is_refused_and_what_repeats_it_is_not():
    sla = "ttft:p99<=2s; itl<=50ms; then cost"
    assert stated_goal("itl<=50ms;ttft:p99<=2s", ("cost",), sla) == parse_sla(sla)
    with pytest.raises(InputError, match="--sla and --constraints give different limits"):
        stated_goal("ttft:p99<=3s", (), sla)
    with pytest.raises(InputError, match="--sla ends in cost and --objective is throughput"):
        stated_goal(None, ("throughput",), sla)


def test_a_ladder_holds_as_many_first_rungs_as_any_trial_and_says_which_one_binds():
    goal = parse_sla(LADDER)
    trials = [
        candidate("late", 500.0, 9000.0, itl_ms=20.0, cost_per_million_tokens=1.0),
        candidate("rough", 50.0, 1000.0, itl_ms=61.0, cost_per_million_tokens=3.0),
        candidate("rougher", 200.0, 1500.0, itl_ms=75.0, cost_per_million_tokens=2.0),
    ]
    choice = recommend(trials, goal.constraints, goal.objectives, ladder=True)
    assert choice.chosen.key == "rough"
    assert not choice.feasible
    assert choice.binding.label == "itl<=50ms"
    assert "rung 1 of 3, ttft:p99<=2s, holds: 1 s" in choice.reasons
    assert (
        "rung 2 of 3, itl<=50ms, binds: of 2 trials that hold the rungs before it the nearest has "
        "61 ms, 22% above the limit"
    ) in choice.reasons
    third = candidate("third", 60.0, 1900.0, itl_ms=49.0, cost_per_million_tokens=9.0)
    held = recommend([*trials, third], goal.constraints, goal.objectives, ladder=True)
    assert held.chosen.key == "third"
    assert any(
        "rung 3 of 3, output_throughput>=100, binds: the trial that holds the rungs before it has "
        "60 tok/s, 40% below the limit" in each
        for each in held.reasons
    )


def test_a_ladder_goes_by_its_order_where_the_smallest_miss_would_not():
    first, second = (
        candidate("first", 10.0, 1.0, itl_ms=500.0),
        candidate("second", 10.0, 101.0, itl_ms=9.0),
    )
    goal = parse_sla("ttft:p99<=100ms; itl<=10ms")
    chosen = {
        ladder: recommend([first, second], goal.constraints, "throughput", ladder=ladder).chosen.key
        for ladder in (False, True)
    }
    assert chosen == {False: "second", True: "first"}


def test_a_ladder_that_can_be_held_takes_the_best_of_those_that_hold_it():
    goal = parse_sla("ttft:p99<=100ms; itl<=40ms; then throughput")
    trials = [
        candidate("slow", 10.0, 1.0),
        candidate("good", 20.0, 99.0),
        candidate("l", 90.0, 101),
    ]
    choice = recommend(trials, goal.constraints, goal.objectives, ladder=True)
    assert (choice.chosen.key, choice.feasible, choice.binding) == ("good", True, None)
    assert choice.shortfall == ()


def test_where_nothing_holds_all_limits_each_best_value_and_the_binding_limit_are_told():
    limits = parse_constraints("ttft:p99<=100ms;itl<=10ms;output_throughput>=50")
    trials = [
        candidate("a", 60.0, 80.0, itl_ms=12.0),
        candidate("b", 55.0, 90.0, itl_ms=15.0),
        candidate("c", 70.0, 200.0, itl_ms=9.0),
        candidate("d", 40.0, 50.0, itl_ms=30.0),
    ]
    choice = recommend(trials, limits, "throughput")
    assert choice.chosen.key == "a"
    ttft, itl, rate = choice.reaches
    assert (ttft.best, ttft.label, ttft.held_count, ttft.miss) == (50.0, "d", 3, 0.0)
    assert (itl.best, itl.held_count, itl.freed_count, itl.needed) == (9.0, 1, 2, 12.0)
    assert (rate.freed_count, rate.needed) == (0, None)
    assert choice.binding == limits[1]
    assert choice.reasons[-1] == (
        "itl<=10ms binds: relaxed alone it lets 2 of 4 trials meet all, the first of them at 12 ms"
    )
    assert "ttft:p99<=100ms: the best of any trial is 50 ms (d), held by 3 of 4 trials" in (
        choice.reasons
    )
    alone = recommend(trials, parse_constraints("itl<=6ms"), "throughput")
    assert alone.binding == alone.unmet[0]
    assert alone.reasons[-1] == "itl<=6ms: the best of any trial is 9 ms (c), 50% above the limit"


def test_where_every_trial_misses_two_limits_no_single_one_can_be_relaxed():
    limits = parse_constraints("ttft:p99<=10ms;itl<=20ms")
    choice = recommend([candidate("a", 1.0, 11.0), candidate("b", 1.0, 20.0)], limits, "throughput")
    assert (
        choice.reasons[-1] == "no constraint can be relaxed alone: every trial misses at least two"
    )
    assert choice.binding == limits[1]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("error_rate<=0", "0.02 above the limit"),
        ("output_throughput>=4000", "75% below the limit"),
        ("p99<1", None),
    ],
)
def test_a_miss_is_told_as_a_share_of_its_limit_or_in_its_unit(limit, words):
    if words is None:
        limit, words = "ttft:p99<9ms", "exactly at the limit, which is no part of it"
    trial = candidate("a", 1000.0, 9.0, error_rate=0.02)
    assert recommend([trial], parse_constraints(limit), "throughput").reasons[-1].endswith(words)
