"""Spread of the law's errors by traits of a run, as it is of sources that were never seen."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from servetune.perf.roofline.interval import log_spread

Traits = tuple[str, ...]

#: Weight of a term of the spread against no term, by time, and share of the rows of sources that
#: were left out between the two ends of an interval: as stated, and of first tokens more, as
#: strangers' errors of them are larger than laboratories'. `spread_choice.py` finds 0.1 and 0.3,
#: and 0.92 and 0.93; benchmarks/prediction/README.md says why these are kept.
RIDGES = {"tpot": 0.03, "ttft": 0.1}
HELD = {"tpot": 0.90, "ttft": 0.93}
#: Width over which the loss of the regression is smooth, and the least error that counts.
_SMOOTH, _LEAST = 0.05, 0.01
#: Traits whose terms of the spread may not fall from one to the next: what is less known, or harder
#: to know, is not surer, whatever the few rows of it say.
_ORDERED = (
    ("seen:device", "seen:architecture", "seen:nothing"),
    ("link:one", "link:peer", "link:staged"),
)
#: Least step to a term from the one before it in its order: hosts through whose memory devices
#: exchange differ by a factor of three, and few of them were served. A judgement.
_STEPS = {"link:staged": 0.3}


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of rows that no fit has seen, and what their spread depends on.

    Attributes:
        logs: Logarithms of measured over predicted, shape (rows,).
        traits: Traits of each row.
        weight: Weight of each row, shape (rows,).
        source: Source of each row, shape (rows,).
    """

    logs: np.ndarray
    traits: list[Traits]
    weight: np.ndarray
    source: np.ndarray

    def part(self, kept: np.ndarray) -> Errors:
        """The rows that are kept, shape (rows,) of bool."""
        return Errors(
            logs=self.logs[kept],
            traits=[each for each, k in zip(self.traits, kept, strict=True) if k],
            weight=self.weight[kept],
            source=self.source[kept],
        )

    def joined(self, others: Errors) -> Errors:
        """These rows, and others after them."""
        return Errors(
            logs=np.concatenate([self.logs, others.logs]),
            traits=self.traits + others.traits,
            weight=np.concatenate([self.weight, others.weight]),
            source=np.concatenate([self.source, others.source]),
        )

    @property
    def known(self) -> Errors:
        return self.part(~np.isnan(self.logs))


class Spread:
    """Spread of log(measured / predicted) by traits, and quantiles over it.

    The 90% quantile of the logarithm of the absolute error is regressed on traits. The quantiles
    are of rows whose whole source the regression has not seen, each source left out in turn, so
    that they hold what an unseen source is further off.

    Attributes:
        terms: Terms of log(spread) by trait, and `base`.
        typical: Spread of a typical row, over which others are larger or smaller.
        scaled: Logarithms over the spread that was found without their source.
    """

    def __init__(self, errors: Errors, ridge: float) -> None:
        errors = errors.known
        self.weight = errors.weight
        self.scaled = errors.logs / _left_out_spread(errors, ridge)
        self.terms = fitted_terms(errors, ridge)
        logs = np.log(self.of(errors.traits))
        self.typical = float(np.exp(np.average(logs, weights=self.weight)))

    def of(self, traits: Sequence[Traits]) -> np.ndarray:
        """Spread of rows with these traits, shape (rows,)."""
        return spread_of_traits(self.terms, traits)

    def quantile(self, share: float) -> float:
        return quantile(self.scaled, self.weight, share)

    def bounds(self, held: float) -> tuple[float, float]:
        return ends(self.scaled, self.weight, held)


def weights(groups: Sequence[Hashable], sources: Sequence[str]) -> np.ndarray:
    """Weight of each row: a group counts as the root of its rows, a source as that of its groups.

    So no collection outweighs the others by the number of its rows alone.
    """
    counts = collections.Counter(groups)
    found = np.array([counts[group] ** -0.5 for group in groups])
    names = np.array(sources)
    for name in set(sources):
        found[names == name] /= np.sqrt(found[names == name].sum())
    return found


def quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    shares = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return float(np.interp(share, shares, values[order]))


def ends(values: np.ndarray, weight: np.ndarray, held: float) -> tuple[float, float]:
    """Values between which a share of them lies, as much beyond either."""
    return quantile(values, weight, (1 - held) / 2), quantile(values, weight, (1 + held) / 2)


def spread_of_traits(terms: dict[str, float], traits: Sequence[Traits]) -> np.ndarray:
    spreads = {each: np.exp(log_spread(terms, each)) for each in set(traits)}
    return np.array([spreads[each] for each in traits])


def _left_out_spread(errors: Errors, ridge: float) -> np.ndarray:
    """Spread of each row, by the rows of other sources; shape (rows,)."""
    found = np.empty(len(errors.logs))
    for name in set(errors.source):
        mine = errors.source == name
        others = errors if mine.all() else errors.part(~mine)
        found[mine] = spread_of_traits(fitted_terms(others, ridge), errors.part(mine).traits)
    return found


def fitted_terms(errors: Errors, ridge: float) -> dict[str, float]:
    """Terms of log(spread): the pinball loss of the 90% quantile, smoothed, with a ridge."""
    from scipy.optimize import minimize

    names = sorted({trait for each in errors.traits for trait in each})
    # Few combinations of traits: each is one row of the design.
    distinct = sorted(set(errors.traits))
    number = {each: n for n, each in enumerate(distinct)}
    place = np.array([number[each] for each in errors.traits])
    design = np.array([[name in each for name in names] for each in distinct], float)
    target = np.log(np.maximum(np.abs(errors.logs), _LEAST))
    weight = errors.weight / errors.weight.sum()
    start = np.zeros(1 + len(names))
    start[0] = np.quantile(target, 0.9)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        off = target - (values[0] + design @ values[1:])[place]
        smooth = np.logaddexp(0, off / _SMOOTH) * _SMOOTH
        total = float(np.sum(weight * (smooth - (1 - 0.9) * off)))
        slope = weight * (1 / (1 + np.exp(-off / _SMOOTH)) - (1 - 0.9))
        by_place = -np.bincount(place, slope, minlength=len(distinct))
        gradient = np.concatenate([[by_place.sum()], design.T @ by_place])
        total += ridge / 2 * float(values[1:] @ values[1:])
        gradient[1:] += ridge * values[1:]
        return total, gradient

    found = minimize(loss, start, jac=True, method="L-BFGS-B").x
    terms = {"base": float(found[0])} | dict(zip(names, map(float, found[1:]), strict=True))
    for order in _ORDERED:
        least = -np.inf
        for name in order:
            if name in terms:
                least = terms[name] = max(terms[name], least + _STEPS.get(name, 0.0))
    return terms
