"""Guided search for several objectives: the set of points none of which is better in all.

What a set is worth is its hypervolume: the volume of all results that some point of the set reaches
or exceeds in every objective, from zero. It is a mean over directions, which are drawn once from
the seed (Zhang and Golovin, Random hypervolume scalarizations, ICML 2020):

    volume(set) ~ mean over directions l of
                  max over points y of (min over objectives j of y_j / l_j)^d

so that draws of all contenders together give draws of what the set lacks. The d-th root of a ratio
of volumes is a factor on all objectives, and has the size of a `margin`; with one objective it is
the ratio of the best to the pick, as in `guided`.

The next point is the one that enlarges the set most per second, in the mean over draws. The search
is over once, with probability `confidence`, no missing point is better than one of the set in every
objective by more than `margin`, and all of them together do not enlarge the set by more than that.
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.search.beliefs import Array, sampled
from servetune.search.pareto import pareto_front
from servetune.search.strategies.guided import Guided, Mask
from servetune.search.strategies.strategy import ALL_MEASURED, Stop

#: Draws of all contenders together, directions of the hypervolume, and of the choice of contenders.
_DRAWS, _DIRECTIONS, _LOOKS = 256, 48, 16
#: Contenders that may be best in one of the looks, and that surely hold every limit.
_EACH_LOOK = 5
#: Chance of holding every limit below which a point is no contender.
_LEAST_CHANCE = 1e-3


class SetDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """Doubt about the set of points that are best in several objectives.

    Attributes:
        members: Measured points that hold every limit, none of which is better than another in
            every objective; the best in the first objective first.
        best: Probability that no missing point is better than a member in every objective by more
            than the margin, and that all missing ones do not enlarge the set by more.
        regret: Expected factor, less one, on all objectives by which missing points enlarge the
            set; infinite without a member, NaN where no point is likely to hold every limit.
        rivals: Missing points with the probability of each to enlarge the set most where more than
            the margin is missing, likeliest first.
        settles: Point whose measurement is worth most per second; `None` where none is.
        surprise: Factor by which measurements lie further off the predictions than expected.
    """

    members: tuple[int, ...] = ()
    best: float = 0.0
    regret: float
    rivals: tuple[tuple[int, float], ...] = ()
    settles: int | None = None
    surprise: float = 1.0


class GuidedSet(Guided):
    """Search for the set of points that are best in the objectives of a forecast.

    Arguments and attributes are those of `Guided`.
    """

    _found: _Found | None = None

    @property
    def stop(self) -> Stop | None:
        return self._searched().stop

    def ask(self) -> int | None:
        found = self._searched()
        return None if found.stop else found.front.settles

    @property
    def front(self) -> SetDoubt:
        """The measured points that are best, and how sure it is that none is missing."""
        return self._searched().front

    def _searched(self) -> _Found:
        if self._found is None:
            front = self._front()
            self._found = _Found(front, self._ended(front))
        return self._found

    def _forget(self) -> None:
        self._found = None

    def _front(self) -> SetDoubt:
        beliefs = self._beliefs()
        means, sds = beliefs.expected()
        open_ = self._open()
        members = self._members(means)
        contenders = self._contenders_of_set(means, sds, open_)
        if not len(contenders):
            return SetDoubt(regret=math.nan)
        mean, covariance = beliefs.joint(contenders)
        shape = (_DRAWS, len(self._forecast.quantities), len(contenders))
        draws = sampled(mean, covariance, _DRAWS, self._seed).reshape(shape)
        objectives, ratios = draws[:, : self._objectives], draws[:, self._objectives :]
        known = np.array([index in self._measured for index in contenders])
        mine = np.isin(contenders, members)
        # What was measured to hold its limits holds them, and what was measured to miss one does.
        holds = np.where(known, mine, (ratios <= 0).all(axis=1))
        top = means[: self._objectives, contenders].max(axis=1)
        reached = _reached(objectives - top[:, None], holds, self._seed)
        of_set = reached[..., mine].max(axis=2, initial=0.0)
        missing = open_[contenders]
        added = np.maximum(reached - of_set[..., None], 0.0).mean(axis=1) * missing
        following = self._worth_most(contenders, added.mean(axis=0))
        if not members:
            hopeless = float(holds.any(axis=1).mean()) < 1 - self._confidence
            regret = math.nan if hopeless else math.inf
            return SetDoubt(regret=regret, settles=following, surprise=beliefs.surprise)
        volume = np.maximum(of_set.mean(axis=1), 1e-300)
        whole = reached.max(axis=2).mean(axis=1)
        lacks = (whole / volume) ** (1 / self._objectives) - 1
        better = _better_in_all(objectives, holds & missing, mine, math.log1p(self._margin))
        within = (lacks <= self._margin) & ~better
        leaders = np.bincount(added[~within].argmax(axis=1), minlength=len(contenders))
        rivals = [
            (int(contenders[at]), float(leaders[at] / _DRAWS))
            for at in np.argsort(-leaders, kind="stable")[:8]
            if leaders[at]
        ]
        return SetDoubt(
            members=members,
            best=float(within.mean()),
            regret=float(np.maximum(lacks, 0.0).mean()),
            rivals=tuple(rivals),
            settles=following,
            surprise=beliefs.surprise,
        )

    def _members(self, means: Array) -> tuple[int, ...]:
        """Measured points on the front, by all measurements together."""
        held = [index for index in self._usable() if self._held(index)]
        values = [tuple(map(float, means[: self._objectives, index])) for index in held]
        front = pareto_front(values, maximize=(True,) * self._objectives)
        return tuple(held[at] for at in sorted(front, key=lambda at: -values[at][0]))

    def _contenders_of_set(self, means: Array, sds: Array, open_: Mask) -> NDArray[np.int_]:
        """Points that may belong to the set, the measured ones among them."""
        always = tuple(self._usable())
        chances = self._chances(means, sds)
        able = (
            open_ & (chances > _LEAST_CHANCE) if (chances[open_] > _LEAST_CHANCE).any() else open_
        )
        values, doubts = means[: self._objectives], sds[: self._objectives]
        top = np.where(able, values, -np.inf).max(axis=1)
        found: list[int] = []
        if able.any():
            for direction in _directions(_LOOKS, self._objectives, self._seed):
                away = (top + direction)[:, None]
                hopeful = np.where(able, (values + 2 * doubts - away).min(axis=0), -np.inf)
                likely = (values - away).min(axis=0) + np.log(np.maximum(chances, 1e-12))
                for score in (hopeful, np.where(open_, likely, -np.inf)):
                    best = np.argsort(-score, kind="stable")[:_EACH_LOOK]
                    found += [int(at) for at in best if np.isfinite(score[at])]
        return self._told_apart(found, open_, always)

    def _worth_most(self, contenders: NDArray[np.int_], added: Array) -> int | None:
        """Missing contender that enlarges the set most per second; `None` where none does."""
        if not added.max(initial=0.0) > 0:
            return None
        return int(contenders[np.argmax(added / self._takes_s()[contenders])])

    def _ended(self, front: SetDoubt) -> Stop | None:
        figures = {"regret": front.regret, "confidence": front.best, "margin": self._margin}
        if not self._open().any():
            return ALL_MEASURED
        if front.members and front.best >= self._confidence:
            words = (
                f"no missing trial enlarges the set of the best by more than {self._margin:.0%} "
                f"with a probability of {min(front.best, 0.99):.0%}"
            )
            return Stop("settled", words, figures)
        if math.isnan(front.regret):
            return Stop("settled", "no trial left is likely to hold every constraint", {})
        if front.settles is None:
            return Stop("settled", "no measurement left would enlarge the set", figures)
        return None


class _Found(msgspec.Struct, frozen=True):
    front: SetDoubt
    stop: Stop | None


@functools.cache
def _directions(count: int, objectives: int, seed: int) -> Array:
    """Logarithms of directions with positive parts, even on the sphere, shape (count, objectives).

    Two objectives have angles at equal distances, which need no chance.
    """
    if objectives == 2:
        angles = (np.arange(count) + 0.5) / count * math.pi / 2
        return np.asarray(np.log(np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    drawn = np.abs(np.random.default_rng(seed).standard_normal((count, objectives)))
    return np.asarray(np.log(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)))


def _reached(objectives: Array, holds: Mask, seed: int) -> Array:
    """Volume that each point reaches in each direction, shape (draws, directions, points).

    Args:
        objectives: Logarithms of all objectives, shape (draws, objectives, points).
        holds: Whether a point holds every limit, shape (draws, points).
        seed: Seed of the directions.
    """
    draws, count, points = objectives.shape
    found = np.full((draws, _DIRECTIONS, points), np.inf)
    directions = _directions(_DIRECTIONS, count, seed)
    for number in range(count):
        along = objectives[:, number][:, None] - directions[None, :, number, None]
        np.minimum(found, along, out=found)
    return np.asarray(np.where(holds[:, None], np.exp(count * found), 0.0))


def _better_in_all(objectives: Array, missing: Mask, mine: Mask, margin: float) -> Mask:
    """Whether a missing point is better than a member in all objectives by more than a margin.

    Args:
        objectives: Logarithms of all objectives, shape (draws, objectives, points).
        missing: Missing points that hold every limit, shape (draws, points).
        mine: Members, shape (points,).
        margin: Logarithm.
    """
    found = np.zeros(len(objectives), dtype=bool)
    for member in np.flatnonzero(mine):
        beyond = (objectives > objectives[:, :, member, None] + margin).all(axis=1)
        found |= (beyond & missing).any(axis=1)
    return found
