import doctest
import importlib.util
import sys
from collections import Counter

import pytest

from servetune.errors import InputError, UnknownName
from servetune.search import strategies
from servetune.search.strategies import Outcome, Point, strategy
from servetune.testing.strategy_contract import StrategyContract, decisions, example_points

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="the extra optuna is not installed"
)


class NamedStrategy(StrategyContract):
    name = ""

    def make(self, points, *, seed=0):
        return strategy(self.name, points, seed=seed, objective_count=2)


class TestGrid(NamedStrategy):
    name = "grid"


class TestRandom(NamedStrategy):
    name = "random"


@needs_optuna
class TestTpe(NamedStrategy):
    name = "tpe"
    resumed_after = (5, 12)  # each is a search of its own; ten random points come first


@needs_optuna
class TestNsga2(NamedStrategy):
    name = "nsga2"
    resumed_after = (5, 14)  # within the first generation, and the second


def ladder(width=12):
    """A square of points whose objective rises with both settings, and whose limit bounds one."""
    return [
        Point({"max_num_seqs": 2**x, "block_size": 2**y})
        for x in range(width)
        for y in range(width)
    ]


def climbed(point):
    x, y = (int(value).bit_length() - 1 for value in point.settings.values())
    return Outcome((x + y + 1.0,), (x / 6,))


@needs_optuna
@pytest.mark.parametrize("name", ["tpe", "nsga2"])
def test_samplers_learn_objective_and_constraint(name):
    points = ladder()
    search, outcomes = strategy(name, points, seed=1), []
    for _ in range(60):
        index = search.ask()
        outcomes.append(climbed(points[index]))
        search.tell(index, outcomes[-1])
    # A random search has 17 of these 30 that hold, with 9.1 on average.
    held = [outcome.objectives[0] for outcome in outcomes[30:] if outcome.holds]
    assert len(held) >= 18
    assert sum(held) / len(held) > 10.5


@needs_optuna
def test_failed_points_teach_a_sampler_nothing_and_are_not_asked_again():
    points = ladder(4)
    search = strategy("tpe", points, seed=1)
    asked = [index for index, _ in decisions(search, points, lambda _: Outcome(failed=True))]
    assert sorted(asked) == list(range(len(points)))


@pytest.mark.parametrize("name", ["tpe", "nsga2"])
def test_a_sampler_without_its_package_says_how_to_get_it(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="not installed") as refused:
        strategy(name, example_points())
    assert "pip install 'servetune[optuna]'" in refused.value.hint


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
