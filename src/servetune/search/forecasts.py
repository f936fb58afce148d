"""Predictions corrected by measurements: the next configuration to measure, and the choice.

A prediction of time is off by a factor, and similar configurations have similar factors: the
same layout at half the users, the same weights in another layout. So one measured run informs
its neighbours. The logarithm of measured over predicted time is a Gaussian process with mean
zero and, between two configurations, the

    covariance = all^2 + storage^2 [same storage] exp(-d / 6) + layout^2 [same layout] exp(-d / 3)

where d is the distance of their concurrencies in doublings, plus `scatter`^2 for each run. The
four standard deviations are from held-out rows: `benchmarks/prediction/choosing.py` prints the
observed scatter by similarity and distance.

The next configuration to measure has the highest expected gain: the probability of meeting the
limit times the gain over the best measured one that meets it. The choice is the best measured
configuration that meets the limit; without one, a prediction that meets it with the requested
confidence.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError

_Array = NDArray[np.float64]

#: Standard deviations of log(measured / predicted): shared by all of one model on one GPU, added
#: by equal storage, added by one layout, and the residual of a single run.
ALL_SD, STORAGE_SD, LAYOUT_SD, SCATTER_SD = 0.06, 0.11, 0.07, 0.03
#: Correlation lengths, in doublings of concurrency.
_STORAGE_REACH, _LAYOUT_REACH = 6.0, 3.0
#: Largest log error that counts; a run further off is an outlier and is clipped.
_MOST_LOG = 0.7


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction for one configuration.

    Attributes:
        objective: Quantity to maximise, such as tokens per second and GPU.
        limit_ratio: Predicted time over its limit, the largest of several; the limit is met
            where this is at most 1.
        storage: Key of the kernels: engine and precisions.
        layout: Key of the parallel split.
        concurrency: Concurrent users.
    """

    objective: float
    limit_ratio: float
    storage: Hashable = None
    layout: Hashable = None
    concurrency: int = 1


class Forecasts:
    """Candidate configurations and the measurements made so far.

    Args:
        candidates: Forecasts; methods refer to them by index.

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
                    f"objective, limit_ratio and concurrency must be positive, got {each}"
                )
        self._objective = np.array([each.objective for each in candidates], dtype=float)
        self._log_limit_ratio = np.log([each.limit_ratio for each in candidates])
        self._doublings = np.log2([each.concurrency for each in candidates])
        self._storage = _codes([each.storage for each in candidates])
        self._layout = _codes([(each.storage, each.layout) for each in candidates])
        self._measured: dict[int, tuple[float, float]] = {}

    def tell(self, candidate: int, *, objective: float, limit_ratio: float) -> None:
        """Add a measured run of a candidate, in the forecast's units."""
        self._measured[candidate] = (objective, limit_ratio)

    def ask(self) -> int | None:
        """Candidate with the highest expected gain; `None` if none has any."""
        if not len(self._objective):
            return None
        objectives, chances = self._posterior()
        held = [objective for objective, limit_ratio in self._measured.values() if limit_ratio <= 1]
        gains = chances * np.maximum(0.0, objectives - max(held, default=0.0))
        gains[list(self._measured)] = 0.0
        best = int(np.argmax(gains))
        return best if gains[best] > 0 else None

    def choice(self, confidence: float) -> int | None:
        """Best measured candidate that meets the limit, else the best predicted one.

        Args:
            confidence: Smallest probability that an unmeasured choice meets its limit. One
                half takes corrected predictions at face value.

        Returns:
            Index of the candidate; `None` where none has that probability.
        """
        held = {
            at: objective
            for at, (objective, limit_ratio) in self._measured.items()
            if limit_ratio <= 1
        }
        if held:
            return max(held, key=lambda at: held[at])
        objectives, chances = (
            self._posterior() if len(self._objective) else (self._objective, self._objective)
        )
        objectives = np.where(chances >= confidence, objectives, -np.inf)
        objectives[list(self._measured)] = -np.inf
        return int(np.argmax(objectives)) if np.isfinite(objectives).any() else None

    def chances(self) -> _Array:
        """Probability that each candidate meets its limit; 0 or 1 where measured."""
        return self._posterior()[1]

    def _posterior(self) -> tuple[_Array, _Array]:
        """Objective and probability of meeting the limit, after all measurements."""
        mean, sd = self._errors()
        normal = NormalDist()
        chances = np.array([normal.cdf(z) for z in -(self._log_limit_ratio + mean) / sd])
        objectives = self._objective * np.exp(-mean)
        for at, (objective, limit_ratio) in self._measured.items():
            objectives[at], chances[at] = objective, float(limit_ratio <= 1)
        return objectives, chances

    def _errors(self) -> tuple[_Array, _Array]:
        """Posterior mean and standard deviation of each candidate's log(measured / predicted)."""
        total = ALL_SD**2 + STORAGE_SD**2 + LAYOUT_SD**2 + SCATTER_SD**2
        everyone = np.arange(len(self._objective))
        done = np.array(list(self._measured), dtype=int)
        if not len(done):
            return np.zeros(len(everyone)), np.full(len(everyone), math.sqrt(total))
        limit_ratios = np.array([self._measured[at][1] for at in done])
        observed = np.clip(
            np.log(limit_ratios) - self._log_limit_ratio[done], -_MOST_LOG, _MOST_LOG
        )
        among = self._covariance(done, done) + SCATTER_SD**2 * np.eye(len(done))
        towards = self._covariance(done, everyone)
        weights = np.linalg.solve(among, towards)
        left = total - (weights * towards).sum(axis=0)
        return weights.T @ observed, np.sqrt(np.maximum(left, SCATTER_SD**2))

    def _covariance(self, one: NDArray[np.int_], other: NDArray[np.int_]) -> _Array:
        distance = np.abs(self._doublings[one][:, None] - self._doublings[other][None, :])
        stored = self._storage[one][:, None] == self._storage[other][None, :]
        laid = self._layout[one][:, None] == self._layout[other][None, :]
        found: _Array = (
            ALL_SD**2
            + STORAGE_SD**2 * stored * np.exp(-distance / _STORAGE_REACH)
            + LAYOUT_SD**2 * laid * np.exp(-distance / _LAYOUT_REACH)
        )
        return found


def _codes(kinds: Sequence[Hashable]) -> NDArray[np.int_]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], dtype=int)
