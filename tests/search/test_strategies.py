import doctest
from collections import Counter

import pytest

from servetune.errors import InputError, UnknownName
from servetune.search import strategies
from servetune.search.strategies import Outcome, Point, strategy
from servetune.testing.strategy_contract import StrategyContract, decisions, example_points


class NamedStrategy(StrategyContract):
    name = ""

    def make(self, points, *, seed=0):
        return strategy(self.name, points, seed=seed, objective_count=2)


class TestGrid(NamedStrategy):
    name = "grid"


class TestRandom(NamedStrategy):
    name = "random"


def test_a_grid_is_asked_for_as_written():
    points = example_points()
    asked = [index for index, _ in decisions(strategy("grid", points), points)]
    assert asked == list(range(len(points)))


def test_each_point_is_as_likely_as_another_to_be_first_of_a_random_search():
    points = [Point({"max_num_seqs": n}) for n in range(4)]
    first = Counter(strategy("random", points, seed=seed).ask() for seed in range(400))
    assert all(70 <= first[index] <= 130 for index in range(4))  # 100 expected, deviation 8.7


def test_an_unknown_strategy_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match="unknown strategy 'gird'") as refused:
        strategy("gird", example_points())
    assert "grid" in refused.value.hint


def test_a_search_without_points_is_refused():
    with pytest.raises(InputError, match="at least one point"):
        strategy("grid", [])


def test_an_outcome_holds_where_all_its_constraints_do():
    assert Outcome((1.0,), (0.3, 1.0)).holds
    assert not Outcome((1.0,), (0.3, 1.01)).holds
    assert not Outcome((1.0,), failed=True).holds
    assert not Outcome().holds


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(strategies).failed == 0
