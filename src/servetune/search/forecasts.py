"""Predictions first, corrected by each measurement: what to measure next, and what to choose.

A prediction of time is off by a factor, and configurations that are alike are off alike: the
same layout at half the users, the same weights in another layout. So one measured run says
something about its neighbours. The logarithm of measured over predicted time is taken as
normal, with mean zero and, between two configurations,

    covariance = all^2 + storage^2 [same storage] exp(-d / 6) + layout^2 [same layout] exp(-d / 3)

where d is the distance of their concurrencies in doublings, and `scatter`^2 on top for a run
of its own. The four were read off held-out rows: `benchmarks/prediction/choosing.py` prints
the scatter by similarity and distance that they stand for.

Asked is what promises most: the chance to hold the limit times the gain over the best that was
measured and holds it. The choice is the best measured one that holds; only where there is none,
it is a prediction that holds with the confidence asked for.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError

__all__ = ["Forecast", "Forecasts"]

_Array = NDArray[np.float64]

#: Standard deviations of log(measured / predicted): what all of one model on one GPU share,
#: what equal storage adds, what one layout adds, and what is left of a run of its own.
ALL_SD, STORAGE_SD, LAYOUT_SD, SCATTER_SD = 0.06, 0.11, 0.07, 0.03
#: Doublings of concurrency over which alike configurations forget each other.
_STORAGE_REACH, _LAYOUT_REACH = 6.0, 3.0
#: A run further off than this had an accident of its own and says no more than this.
_MOST_LOG = 0.7


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted of one configuration.

    Attributes:
        objective: What should be large, such as tokens per second and GPU.
        limit_ratio: Predicted time over its limit; the largest where several are limited. It
            holds where this is at most 1.
        storage: Equal for configurations that run the same kernels: engine and precisions.
        layout: Equal for those that also split the model alike.
        concurrency: Users.
    """

    objective: float
    limit_ratio: float
    storage: Hashable = None
    layout: Hashable = None
    concurrency: int = 1


class Forecasts:
    """Configurations to choose from, and what measurements have said so far.

    Args:
        candidates: Referred to by their place in this sequence.

    Example:
        >>> small = Forecast(objective=100, limit_ratio=0.5, concurrency=8)
        >>> large = Forecast(objective=200, limit_ratio=0.98, concurrency=16)
        >>> beliefs = Forecasts([small, large])
        >>> beliefs.choice(0.5), beliefs.choice(0.9)
        (1, 0)
        >>> beliefs.ask()
        1
        >>> beliefs.tell(1, objective=190, limit_ratio=1.04)
        >>> beliefs.choice(0.9)
        0
    """

    def __init__(self, candidates: Sequence[Forecast]) -> None:
        for each in candidates:
            if not (each.objective > 0 and each.limit_ratio > 0 and each.concurrency >= 1):
                raise InputError(
                    f"a forecast has positive objective, limit_ratio and users, got {each}"
                )
        self._objective = np.array([each.objective for each in candidates], dtype=float)
        self._log_limit_ratio = np.log([each.limit_ratio for each in candidates])
        self._doublings = np.log2([each.concurrency for each in candidates])
        self._storage = _codes([each.storage for each in candidates])
        self._layout = _codes([(each.storage, each.layout) for each in candidates])
        self._measured: dict[int, tuple[float, float]] = {}

    def tell(self, candidate: int, *, objective: float, limit_ratio: float) -> None:
        """What a measured run of a candidate gave, in the forecast's units."""
        self._measured[candidate] = (objective, limit_ratio)

    def ask(self) -> int | None:
        """The candidate whose measurement promises most; `None` when none promises anything."""
        if not len(self._objective):
            return None
        objectives, chances = self._believed()
        held = [objective for objective, limit_ratio in self._measured.values() if limit_ratio <= 1]
        gains = chances * np.maximum(0.0, objectives - max(held, default=0.0))
        gains[list(self._measured)] = 0.0
        best = int(np.argmax(gains))
        return best if gains[best] > 0 else None

    def choice(self, confidence: float) -> int | None:
        """The best measured candidate that holds, or else the best that should.

        Args:
            confidence: Chance with which an unmeasured choice must hold its limit, at least.
                One half takes predictions, as corrected, at face value.

        Returns:
            Its place; `None` where nothing holds with that confidence.
        """
        held = {
            at: objective
            for at, (objective, limit_ratio) in self._measured.items()
            if limit_ratio <= 1
        }
        if held:
            return max(held, key=lambda at: held[at])
        objectives, chances = (
            self._believed() if len(self._objective) else (self._objective, self._objective)
        )
        objectives = np.where(chances >= confidence, objectives, -np.inf)
        objectives[list(self._measured)] = -np.inf
        return int(np.argmax(objectives)) if np.isfinite(objectives).any() else None

    def chances(self) -> _Array:
        """Chance of each candidate to hold its limit; 0 or 1 where it was measured."""
        return self._believed()[1]

    def _believed(self) -> tuple[_Array, _Array]:
        """Merit and chance of each candidate after all measurements."""
        mean, sd = self._errors()
        normal = NormalDist()
        chances = np.array([normal.cdf(z) for z in -(self._log_limit_ratio + mean) / sd])
        objectives = self._objective * np.exp(-mean)
        for at, (objective, limit_ratio) in self._measured.items():
            objectives[at], chances[at] = objective, float(limit_ratio <= 1)
        return objectives, chances

    def _errors(self) -> tuple[_Array, _Array]:
        """Mean and standard deviation of each candidate's log(measured / predicted)."""
        total = ALL_SD**2 + STORAGE_SD**2 + LAYOUT_SD**2 + SCATTER_SD**2
        everyone = np.arange(len(self._objective))
        done = np.array(list(self._measured), dtype=int)
        if not len(done):
            return np.zeros(len(everyone)), np.full(len(everyone), math.sqrt(total))
        limit_ratios = np.array([self._measured[at][1] for at in done])
        seen = np.clip(np.log(limit_ratios) - self._log_limit_ratio[done], -_MOST_LOG, _MOST_LOG)
        among = self._covariance(done, done) + SCATTER_SD**2 * np.eye(len(done))
        towards = self._covariance(done, everyone)
        weights = np.linalg.solve(among, towards)
        left = total - (weights * towards).sum(axis=0)
        return weights.T @ seen, np.sqrt(np.maximum(left, SCATTER_SD**2))

    def _covariance(self, one: NDArray[np.int_], other: NDArray[np.int_]) -> _Array:
        apart = np.abs(self._doublings[one][:, None] - self._doublings[other][None, :])
        stored = self._storage[one][:, None] == self._storage[other][None, :]
        laid = self._layout[one][:, None] == self._layout[other][None, :]
        found: _Array = (
            ALL_SD**2
            + STORAGE_SD**2 * stored * np.exp(-apart / _STORAGE_REACH)
            + LAYOUT_SD**2 * laid * np.exp(-apart / _LAYOUT_REACH)
        )
        return found


def _codes(kinds: Sequence[Hashable]) -> NDArray[np.int_]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], dtype=int)
