"""Strategies of Optuna, which know nothing of servers: TPE and NSGA-II.

Optuna samples each swept setting by itself, one distribution per setting: an integer, the place in
the sorted values, where all values are numbers, and a category otherwise. A sample that is no point
of the list (a conditional setting, a forbidden combination) or that was measured already becomes
the nearest point that was not.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError
from servetune.search.conditions import Value
from servetune.search.strategies.strategy import ALL_MEASURED, Outcome, Point, Stop

#: Trials of one generation of NSGA-II. Optuna's own 50 would be a random search for longer than
#: most studies of servers last.
POPULATION = 12


class Sampled:
    """Points that a sampler of Optuna chooses, maximising one objective or several.

    Optuna's samples are drawn one before each outcome that is told, whether it was asked for or
    not, so that they depend on the seed and the outcomes alone.

    Args:
        points: Points of the search.
        seed: Seed of the sampler.
        objective_count: Number of objectives of each outcome.

    Raises:
        InputError: Optuna is not installed.
    """

    def __init__(self, points: Sequence[Point], *, seed: int = 0, objective_count: int = 1) -> None:
        optuna = _optuna()
        self._axes = _axes(points)
        self._codes = _codes(points, self._axes)
        self._unmeasured = np.ones(len(points), dtype=bool)
        self._objective_count = self.objective_count(objective_count)
        self._distributions = {axis.name: axis.distribution(optuna) for axis in self._axes}
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # else it tells that it made a study
        self._study = optuna.create_study(
            sampler=self.sampler(optuna, seed), directions=["maximize"] * self._objective_count
        )
        optuna.logging.set_verbosity(verbosity)
        self._drawn: tuple[int, Any] | None = None

    def sampler(self, optuna: Any, seed: int) -> Any:
        """Optuna's sampler."""
        raise NotImplementedError

    def objective_count(self, given: int) -> int:
        """Number of objectives that are maximised, the first ones of an outcome."""
        return given

    @property
    def stop(self) -> Stop | None:
        return None if self._unmeasured.any() else ALL_MEASURED

    def ask(self) -> int | None:
        if not self._unmeasured.any():
            return None
        if self._drawn is None:
            trial = self._study.ask(self._distributions)
            index = self._nearest_unmeasured(trial.params)
            self._drawn = index, self._moved(trial, index)
        return self._drawn[0]

    def tell(self, index: int, outcome: Outcome) -> None:
        if not self._unmeasured[index]:
            return
        self.ask()
        assert self._drawn is not None, "a point that was not measured can be asked for"
        trial, self._drawn = self._moved(self._drawn[1], index), None
        self._unmeasured[index] = False
        if not outcome.counts:
            self._study.tell(trial, state=_optuna().trial.TrialState.FAIL)
            return
        for number, ratio in enumerate(outcome.limit_ratios):
            trial.set_constraint(str(number), ratio - 1)
        self._study.tell(trial, list(outcome.objectives[: self._objective_count]))

    def _nearest_unmeasured(self, params: Mapping[str, Any]) -> int:
        """Point that differs least: a whole for each category, a share of the range for a number;
        the first of several.
        """
        distances = np.zeros(len(self._codes))
        for column, axis in enumerate(self._axes):
            gaps = np.abs(self._codes[:, column] - params[axis.name])
            distances += gaps / (len(axis.values) - 1) if axis.ordered else gaps > 0
        distances[~self._unmeasured] = np.inf
        return int(np.argmin(distances))

    def _moved(self, trial: Any, index: int) -> Any:
        """Trial with the settings of a point: the same where it has them."""
        wanted = {axis.name: int(self._codes[index, at]) for at, axis in enumerate(self._axes)}
        if trial.params == wanted:
            return trial
        self._study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        self._study.enqueue_trial(wanted)
        return self._study.ask(self._distributions)


class Tpe(Sampled):
    """Tree-structured Parzen estimator over the first objective.

    J. Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011.
    """

    def sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.TPESampler(seed=seed)

    def objective_count(self, given: int) -> int:
        return 1


class Nsga2(Sampled):
    """Non-dominated sorting genetic algorithm over all objectives.

    K. Deb et al., A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, 2002.
    """

    def sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)


class _Axis:
    """Swept setting with its values; `None` stands for a setting that has no meaning.

    Attributes:
        name: Name of the setting.
        values: Different values, sorted where all are numbers.
        ordered: True where they are numbers.
    """

    def __init__(self, name: str, values: Sequence[Value]) -> None:
        self.name = name
        self.ordered = all(type(value) in {int, float} for value in values)
        self.values = sorted(values, key=_number) if self.ordered else list(values)

    def distribution(self, optuna: Any) -> Any:
        last = len(self.values) - 1
        if self.ordered:
            return optuna.distributions.IntDistribution(0, last)
        return optuna.distributions.CategoricalDistribution(range(last + 1))


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value


def _axes(points: Sequence[Point]) -> list[_Axis]:
    """Settings with more than one value; `True` and `1` are two."""
    axes = []
    for name in dict.fromkeys(name for point in points for name in point.settings):
        values = {_typed(value): value for value in _values(points, name)}
        if len(values) > 1:
            axes.append(_Axis(name, list(values.values())))
    return axes


def _codes(points: Sequence[Point], axes: Sequence[_Axis]) -> NDArray[np.int64]:
    """Places of each point's values; shape (points, axes)."""
    codes = np.zeros((len(points), len(axes)), dtype=np.int64)
    for column, axis in enumerate(axes):
        places = {_typed(value): place for place, value in enumerate(axis.values)}
        codes[:, column] = [places[_typed(value)] for value in _values(points, axis.name)]
    return codes


def _values(points: Sequence[Point], name: str) -> list[Value]:
    return [point.settings.get(name) for point in points]


def _typed(value: Value) -> tuple[type, Value]:
    return type(value), value


def _optuna() -> Any:
    """The package `optuna`.

    Raises:
        InputError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("optuna")
    except ImportError:
        raise InputError(
            "this strategy needs Optuna, which is not installed",
            hint="pip install 'servetune[optuna]', or choose --strategy grid, random or guided",
        ) from None
