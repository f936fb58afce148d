"""Differences between runs: what they hold, and how often they are wrong."""

import math

import numpy as np
import pytest

from servetune.metrics.differences import (
    RunFigure,
    difference_of_runs,
    difference_of_shares,
    holm,
)


def runs(values):
    return [RunFigure(float(value)) for value in values]


def share_told(rng, *, count, paired=False, shared=0.0, shift=0.0, draws=1500):
    """Share of comparisons whose 95% interval leaves no difference out."""
    told = 0
    for _ in range(draws):
        common = shared * rng.normal(size=count)
        base, new = (common + 0.02 * rng.normal(size=count) for _ in range(2))
        found = difference_of_runs(
            runs(np.exp(base)), runs(np.exp(new + math.log1p(shift))), paired=paired
        )
        told += not found.low <= 0 <= found.high
    return told / draws


def test_equal_sides_are_told_apart_in_one_of_twenty_comparisons():
    rng = np.random.default_rng(1)
    assert share_told(rng, count=4) == pytest.approx(0.05, abs=0.02)
    assert share_told(rng, count=4, paired=True) == pytest.approx(0.05, abs=0.02)


def test_equal_seeds_take_what_they_share_out_of_the_difference():
    rng = np.random.default_rng(2)
    for paired, least, most in ((True, 0.85, 1.0), (False, 0.0, 0.3)):
        told = share_told(rng, count=6, paired=paired, shared=0.2, shift=0.05, draws=300)
        assert least <= told <= most


def test_one_run_a_side_rests_on_its_own_interval_and_an_open_end_tells_nothing():
    low = difference_of_runs([RunFigure(100.0, (95.0, 105.0))], [RunFigure(120.0, (114.0, None))])
    assert low.change == pytest.approx(0.2)
    assert low.method == "requests"
    assert low.low > 0.1
    assert low.high is None
    assert low.rise_chance < 0.001
    assert low.fall_chance is None
    assert low.tellable() is None


def test_repeats_need_no_intervals_of_their_own_and_runs_without_spread_stay_finite():
    found = difference_of_runs(runs([100, 102, 98]), runs([100, 101, 99]))
    assert (found.method, found.freedom) == ("runs", 4)
    assert found.tellable() > 0.03
    same = difference_of_runs(runs([100] * 3), runs([100] * 3))
    assert same.low < 0 < same.high


def test_a_mean_agrees_with_its_change_and_a_zero_hides_nothing():
    skewed = difference_of_runs(runs([10.0, 1000.0]), runs([9.0, 900.0]))
    assert skewed.new / skewed.base - 1 == pytest.approx(skewed.change)
    some = difference_of_runs(runs([0.0, 100.0, 100.0]), runs([80.0, 100.0, 100.0]))
    assert (some.base, some.change) == (pytest.approx(200 / 3), pytest.approx(0.4))
    assert -1 <= some.low < 0 < some.change < some.high
    assert difference_of_runs(runs([2.0]), runs([0.0])).change == -1
    assert difference_of_runs(runs([0.0]), runs([1.0])).change is None


def test_an_interval_without_width_tells_nothing():
    still = difference_of_runs([RunFigure(100.0, (100.0, 100.0))], [RunFigure(90.0, (80.0, 99.0))])
    assert (still.change, still.low, still.high) == (pytest.approx(-0.1), None, None)
    assert still.chance is None
    assert difference_of_runs([], runs([1.0])).base is None


def test_shares_differ_by_points_and_none_of_none_is_no_rise():
    found = difference_of_shares((0, 1000), (30, 1000))
    assert found.absolute
    assert found.change == pytest.approx(0.03)
    assert found.rise_chance < 0.001
    none = difference_of_shares((0, 1000), (0, 1000))
    assert none.low < 0 < none.high
    assert difference_of_shares((0, 0), (1, 10)).change is None


def test_several_tests_share_the_chance_of_a_false_alarm():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([]) == []
