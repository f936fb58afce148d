"""Regression gates: their grammar, and when they fail."""

import math
from functools import cache

import numpy as np
import pytest

from servetune.errors import GrammarError, UnknownName
from servetune.metrics.differences import RunFigure, difference_of_runs, difference_of_shares
from servetune.metrics.gate import judge_gate, parse_gate
from servetune.metrics.run_length import MOST_RUNS, likely_most, power_of, runs_for

USUAL = "ttft:p99>+10%;output_throughput<-5%"


def test_a_gate_reads_as_it_is_written():
    assert [each.label for each in parse_gate(USUAL)] == USUAL.split(";")
    assert [each.label for each in parse_gate(" ttft:p99 > 10% ; goodput<5%;")] == [
        "ttft:p99>+10%",
        "goodput<-5%",
    ]
    (late,) = parse_gate("itl>+0.05s")
    assert (late.amount, late.relative, late.label) == (50.0, False, "itl>+50ms")
    (errors,) = parse_gate("error_rate>+0.01")
    assert errors.amount == 0.01


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no condition"),
        ("ttft:p99", "cannot read"),
        ("ttft:p99>+10% output_throughput<-5%", "cannot read"),
        ("output_throughput>-5%", "no regression"),
        ("output_throughput<+5%", "no regression"),
        ("ttft<-5%", "no regression"),
        ("ttft>+0%", "no regression"),
        ("output_throughput<-100%", "cannot fall"),
        ("error_rate>+1%", "says little"),
        ("error_rate>+2", "share from 0 to 1"),
        ("ttft:p99>+10tokens", "unknown unit"),
        ("ttft:best>+10%", "unknown statistic"),
        ("ttft:p99>+1e999ms", "finite"),
        ("ttft:p99>+1e400%", "finite"),
    ],
)
def test_what_is_no_gate_is_one_error_with_its_place(text, words):
    with pytest.raises(GrammarError, match=words) as caught:
        parse_gate(text)
    assert caught.value.message.count("at character") == 1
    assert caught.value.hint


def test_an_unknown_metric_names_the_known():
    with pytest.raises(UnknownName, match="speed"):
        parse_gate("speed<-5%")


def verdicts(change, spread, gate="output_throughput<-5%", tolerance=0.0, count=5):
    steps = np.linspace(-1, 1, count)
    base = [RunFigure(math.exp(spread * step)) for step in steps]
    new = [RunFigure((1 + change) * math.exp(spread * step)) for step in steps]
    (condition,) = parse_gate(gate)
    return judge_gate([(condition, difference_of_runs(base, new))], tolerance)[0].verdict


@pytest.mark.parametrize(
    ("change", "spread", "verdict"),
    [
        (-0.05, 0.005, "failed"),
        (-0.046, 0.005, "failed"),  # short of the threshold, which its interval reaches
        (-0.03, 0.005, "passed"),  # no chance, but surely less than the threshold
        (0.0, 0.005, "passed"),
        (+0.20, 0.005, "passed"),
        (-0.05, 0.1, "cannot tell"),
        (0.0, 0.1, "cannot tell"),
    ],
)
def test_a_gate_fails_what_is_told_apart_unless_it_is_surely_short_of_the_threshold(
    change, spread, verdict
):
    assert verdicts(change, spread) == verdict


def test_one_run_a_side_has_the_tolerance_to_pass():
    assert verdicts(-0.04, 0.001, tolerance=0.05) == "passed"
    assert verdicts(-0.07, 0.001, tolerance=0.05) == "failed"


def test_an_absolute_threshold_is_in_the_unit_of_the_metric():
    (condition,) = parse_gate("ttft:p99>+50ms")
    base = [RunFigure(400.0 + step) for step in range(5)]
    worse = [RunFigure(460.0 + step) for step in range(5)]
    little = [RunFigure(410.0 + step) for step in range(5)]
    tests = [(condition, difference_of_runs(base, side)) for side in (worse, little)]
    assert [each.verdict for each in judge_gate(tests)] == ["failed", "passed"]
    (errors,) = parse_gate("error_rate>+0.01")
    tests = [(errors, difference_of_shares((0, 1000), (bad, 1000))) for bad in (30, 0, 4)]
    assert [each.verdict for each in judge_gate(tests)] == ["failed", "passed", "cannot tell"]


@pytest.mark.parametrize("paired", [True, False])
def test_the_recommended_runs_fail_a_true_difference_in_nine_of_ten_comparisons(paired):
    """By simulation, of a spread that is known."""
    rng, effect, spread = np.random.default_rng(3), math.log1p(0.1), 0.08
    count = runs_for(effect, spread, paired=paired, tests=2)
    assert power_of(effect, spread, count - 1, paired=paired, tests=2) < 0.9
    gate = parse_gate(USUAL)
    failed = 0
    for _ in range(400):
        base, new = (spread / math.sqrt(1 + paired) * rng.normal(size=count) for _ in range(2))
        late = difference_of_runs(
            [RunFigure(math.exp(each)) for each in base],
            [RunFigure(math.exp(each + effect)) for each in new],
            paired=paired,
        )
        same = difference_of_runs([RunFigure(1.0, (0.9, 1.1))], [RunFigure(1.0, (0.9, 1.1))])
        found = judge_gate([(gate[0], late), (gate[1], same)])
        failed += found[0].verdict == "failed"
        assert found[1].verdict != "failed"
    assert failed / 400 >= 0.87


def test_plans_by_five_runs_of_unequal_seeds_hold_where_few_seeds_are_far_off():
    """By simulation: logarithms with a long upper tail, as of a p99 that queues make."""
    rng, effect, gate = np.random.default_rng(3), math.log1p(0.1), parse_gate("ttft:p99>+10%")

    def logs(count):
        return 0.05 * (rng.gamma(0.5, size=count) - 0.5) / math.sqrt(0.5)

    @cache
    def planned(spread):
        return runs_for(effect, spread, paired=False) or MOST_RUNS

    failed = 0
    for _ in range(200):
        spread = likely_most(float(np.std(logs(5), ddof=1)), 4, paired=False)
        count = planned(math.ceil(200 * spread) / 200)
        sides = [
            [RunFigure(value) for value in np.exp(shift + logs(count)).tolist()]
            for shift in (0.0, effect)
        ]
        failed += judge_gate([(gate[0], difference_of_runs(*sides))])[0].verdict == "failed"
    assert failed / 200 >= 0.9


def test_a_spread_of_few_runs_is_planned_with_as_larger():
    for paired in (True, False):
        assert likely_most(0.1, math.inf, paired=paired) == 0.1
        assert likely_most(0.1, 2, paired=paired) > likely_most(0.1, 9, paired=paired) > 0.1
    assert likely_most(0.1, 4, paired=False) > likely_most(0.1, 4, paired=True)
    assert runs_for(0.05, 2.0, paired=False) is None
