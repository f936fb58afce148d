"""Guided strategy: predictions first, corrected by each measurement, the next one worth most.

Before anything is measured every point has a forecast with its doubt (`beliefs`). Points that
cannot run, or that most probably miss a limit, are left out and counted. Each next point is the one
that teaches most about the choice per second: the expected rise of the best point's worth once it
is measured, over the time that the measurement takes. A point of the server that is running costs
no start; what a start takes is learnt (`starts`).

The search is over once the pick, the best measured point that holds every limit, is within `margin`
of the best point there is with probability `confidence`. Both are by draws from the beliefs, in
which errors of points with common causes move together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.search.beliefs import Array, Beliefs, Factor, Forecast, normals, sampled
from servetune.search.blas_threads import by_one_thread
from servetune.search.starts import Starts
from servetune.search.strategies.strategy import ALL_MEASURED, Outcome, Point, Stop

Mask = NDArray[np.bool_]

#: Draws of all contenders together, and of the outcome of one measurement.
_DRAWS, _OUTCOMES = 512, 24
#: Contenders that are drawn, and points whose measurement is weighed.
_CONTENDERS, _WEIGHED = 160, 48
#: Points that are predicted more closely for one decision.
_MOST_CLOSER = 3
#: Chance of holding every limit below which a point is no contender.
_LEAST_CHANCE = 1e-3
#: Objectives further than this below the best, in standard deviations, are no contenders'.
_FAR = 4.0


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Doubt about a choice among the points, by what was predicted and measured.

    Attributes:
        index: Chosen point; `None` where none is.
        best: Probability that it holds every limit and no point that does is better by more than
            the margin. A point that was measured to hold is taken to.
        holds: Probability that it holds each limit.
        regret: Expected share of its worth by which the best point exceeds it; infinite without a
            choice, NaN where no point is likely to hold every limit.
        rivals: Points that may be better by more than the margin, with the probability of each to
            be the best then, likeliest first.
        settles: Point whose measurement teaches most about the choice per second; `None` where none
            does.
        surprise: Factor by which measurements lie further off the predictions than expected; all
            doubts have grown by it (`beliefs`).
    """

    index: int | None
    best: float
    holds: tuple[float, ...] = ()
    regret: float
    rivals: tuple[tuple[int, float], ...] = ()
    settles: int | None = None
    surprise: float = 1.0


class Guided:
    """Search by predictions that each measurement corrects, for the best in one objective.

    Args:
        points: Points of the search.
        forecast: Predictions of all points.
        start_s: Seconds that the start of each point's server is assumed to take, shape (N,).
        load_s: Seconds that each point's load takes, shape (N,).
        checkpoints: Checkpoint that each point's server loads; all the same if omitted.
        closer: Function that predicts a point more closely than the forecast, at some cost: its
            logarithms, shape (Q,). A point is asked for only after that.
        seed: Seed of the draws.
        margin: Share of its worth by which a point is better.
        confidence: Probability that ends the search.

    Attributes:
        left_out: Number of points left out before the first measurement, by reason.
    """

    def __init__(
        self,
        points: Sequence[Point],
        forecast: Forecast,
        *,
        start_s: Array,
        load_s: Array,
        checkpoints: Sequence[Hashable] = (),
        closer: Callable[[int], Array] | None = None,
        seed: int = 0,
        margin: float = 0.02,
        confidence: float = 0.95,
    ) -> None:
        self._servers = [point.server for point in points]
        self._forecast, self._objectives = forecast, forecast.objective_count
        self._starts, self._load_s = Starts(start_s, self._servers, checkpoints), load_s
        self._seed, self._margin, self._confidence = seed, margin, confidence
        self._measured: dict[int, Array] = {}
        self._drift_sd: Array | None = None
        self._told: list[int] = []
        able: Mask = np.asarray(~np.isnan(forecast.quantities).any(axis=0))
        means, sds = Beliefs(forecast, {}).expected()
        hopeless: Mask = able & (self._chances(means, sds) < _LEAST_CHANCE)
        self.left_out = {
            "cannot run": int((~able).sum()),
            "most probably miss a limit": int(hopeless.sum()),
        }
        self._able: Mask = able & ~hopeless if (able & ~hopeless).any() else able
        self._closer, self._close = closer, set[int]()
        self._answer: _Answer | None = None

    @property
    def stop(self) -> Stop | None:
        return self._decided().stop

    def ask(self) -> int | None:
        return self._decided().next

    def tell(self, index: int, outcome: Outcome) -> None:
        self._predict_closer(index)
        self._told.append(index)
        self._starts.tell(index, outcome.start_s)
        limits = len(self._forecast.quantities) - self._objectives
        objectives = outcome.objectives[: self._objectives]
        if outcome.counts and len(objectives) == self._objectives and min(objectives) > 0:
            ratios = [max(ratio, 1e-9) for ratio in outcome.limit_ratios[:limits]]
            self._measured[index] = np.log([*objectives, *ratios])
        else:
            self._able[index] = False
        self._forget()

    def drifted(self, drift_sd: Array) -> None:
        """Take it that the machine changes by as much between measurements.

        Args:
            drift_sd: Standard deviation of the logarithm of each time, shape (T,).
        """
        self._drift_sd = drift_sd
        self._forget()

    def _beliefs(self) -> Beliefs:
        return Beliefs(self._forecast, self._usable(), self._drift_sd)

    def _forget(self) -> None:
        """Forget what was decided, as more is known."""
        self._answer = None

    @property
    def pick(self) -> Doubt:
        """The best measured point that holds every limit, and how sure it is."""
        return self._decided().pick

    def doubt_about(self, index: int) -> Doubt:
        """Doubt about a choice of one's own, such as the best of predictions alone."""
        return self._decide(index).pick

    def nearest(self) -> tuple[int, int, float]:
        """Point that comes nearest to holding every limit: its index, the number of the limit that
        it misses most, and that limit's expected ratio.
        """
        means, _ = self.expected()
        limits = means[self._objectives :]
        worst = np.where(np.isnan(means[0]), np.inf, limits.max(axis=0))
        index = int(np.argmin(worst))
        return index, int(np.argmax(limits[:, index])), float(np.exp(worst[index]))

    @property
    def factors(self) -> tuple[Factor, ...]:
        """What the measurements say of the causes of all points' times."""
        return self._beliefs().factors()

    def expected(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithms of all quantities, shape (Q, N)."""
        return self._beliefs().expected()

    def _usable(self) -> dict[int, Array]:
        """Measured points that were predicted, too; the others teach nothing of predictions."""
        known: Mask = np.asarray(~np.isnan(self._forecast.quantities).any(axis=0))
        return {index: logs for index, logs in self._measured.items() if known[index]}

    def _decided(self) -> _Answer:
        if self._answer is None:
            # What is predicted more closely for a decision is forgotten after it, so that decisions
            # follow from what was told alone, however often and whenever they are asked for.
            known = self._forecast, self._able.copy(), set(self._close)
            answer = self._decide()
            for _ in range(_MOST_CLOSER):
                if answer.next is None or not self._predict_closer(answer.next):
                    break
                answer = self._decide()
            if self._closer is not None and answer.next not in (None, *self._close):
                # The others have the advantage of a lucky guess, which these have lost.
                answer = self._decide(among=self._close)
            self._forecast, self._able, self._close = known
            self._answer = answer
        return self._answer

    def _predict_closer(self, index: int) -> bool:
        """Predict a point, and all of its kind, more closely; whether that changed anything."""
        if self._closer is None or index in self._close:
            return False
        logs, forecast = self._closer(index), self._forecast
        kind: Mask = np.asarray(forecast.alike == forecast.alike[index])
        self._close |= {int(each) for each in np.flatnonzero(kind)}
        if np.array_equal(logs, forecast.quantities[:, index], equal_nan=True):
            return False
        quantities = forecast.quantities.copy()
        quantities[:, kind] = logs[:, None]
        self._forecast = msgspec.structs.replace(forecast, quantities=quantities)
        if np.isnan(logs).any():
            self._able[kind] = False
        return True

    @by_one_thread
    def _decide(self, chosen: int | None = None, *, among: Collection[int] = ()) -> _Answer:
        """Decision by what is known: a choice of one's own, and the next one among some points."""
        beliefs = self._beliefs()
        means, sds = beliefs.expected()
        chances = self._chances(means, sds)
        open_ = self._open()
        chosen = self._best_measured(means) if chosen is None else chosen
        contenders = self._contenders(means, sds, chances, open_, chosen)
        if not len(contenders):
            return _Answer(Doubt(index=None, best=0.0, regret=math.nan), None, ALL_MEASURED)
        mean, covariance = beliefs.joint(contenders)
        quantities = len(self._forecast.quantities)
        draws = sampled(mean, covariance, _DRAWS, self._seed).reshape(_DRAWS, quantities, -1)
        doubt = self._doubt(chosen, contenders, draws)
        following = self._next(contenders, mean, covariance, open_)
        doubt = msgspec.structs.replace(doubt, settles=following, surprise=beliefs.surprise)
        if among and following is not None:
            few = np.zeros_like(open_)
            few[list(among)] = open_[list(among)]
            following = self._next(contenders, mean, covariance, few) or following
        stop = self._stop(doubt, open_, following)
        return _Answer(doubt, None if stop else following, stop)

    def _open(self) -> Mask:
        """Points that may be asked for."""
        open_ = self._able.copy()
        open_[self._told] = False
        return open_

    def _best_measured(self, means: Array) -> int | None:
        """Best point that was measured to hold every limit, by all measurements together."""
        held = [index for index in self._usable() if self._held(index)]
        return max(held, key=lambda index: float(means[0][index])) if held else None

    def _held(self, index: int) -> bool:
        ratios = self._measured[index][self._objectives :]
        return bool(self._able[index]) and bool((ratios <= 0).all())

    def _chances(self, means: Array, sds: Array) -> Array:
        """Probability that every limit holds, shape (N,)."""
        return _chances(means, sds, self._objectives)

    def _contenders(
        self, means: Array, sds: Array, chances: Array, open_: Mask, chosen: int | None
    ) -> NDArray[np.int_]:
        """Points that may be the best, the measured and the chosen ones among them."""
        always = {*self._usable(), *(() if chosen is None else (chosen,))}
        high = np.where(open_ & (chances > _LEAST_CHANCE), means[0] + 2 * sds[0], -np.inf)
        if not np.isfinite(high).any():
            high = np.where(open_, means[0] + 2 * sds[0], -np.inf)
        low = means[0] - _FAR * sds[0]
        safe = np.where(open_ & (chances > 0.5), low, -np.inf).max()
        high = np.where(means[0] + _FAR * sds[0] < safe, -np.inf, high)
        # Those that may be best, and those that surely hold: the pick may have to be one of these.
        best = np.argsort(-high, kind="stable")[: _CONTENDERS // 2]
        sure = np.argsort(-np.where(open_, means[0] + np.log(np.maximum(chances, 1e-12)), -np.inf))
        found = [*best[np.isfinite(high[best])], *sure[: _CONTENDERS // 2]]
        return self._told_apart(found, open_, always)

    def _told_apart(
        self, found: Iterable[int], open_: Mask, always: Collection[int]
    ) -> NDArray[np.int_]:
        """Open points of those found, one of each kind that is not known, and some always."""
        # Of points that are predicted to do the same one is enough, but where a measured one missed
        # a limit by so little that it may have been noise: then another one tells.
        kinds = self._forecast.alike
        held = {index for index in always if index not in self._measured or self._held(index)}
        known = {int(kinds[index]) for index in held}
        first: dict[int, int] = {}
        for index in found:
            if open_[index] and int(kinds[index]) not in known:
                first.setdefault(int(kinds[index]), int(index))
        return np.array(sorted({*first.values(), *always}), dtype=int)

    def _doubt(self, chosen: int | None, contenders: NDArray[np.int_], draws: Array) -> Doubt:
        worth = _worth(draws)
        best = worth.max(axis=1)
        if chosen is None:
            hopeless = float((best > 0).mean()) < 1 - self._confidence
            return Doubt(index=None, best=0.0, regret=math.nan if hopeless else math.inf)
        place = int(np.flatnonzero(contenders == chosen)[0])
        # What was measured to hold its limits holds them; its worth is what is in doubt.
        mine = np.exp(draws[:, 0, place]) if chosen in self._measured else worth[:, place]
        within = best <= mine * (1 + self._margin)
        leaders = np.bincount(worth[~within].argmax(axis=1), minlength=len(contenders))
        rivals = [
            (int(contenders[at]), float(leaders[at] / len(worth)))
            for at in np.argsort(-leaders, kind="stable")[:8]
            if leaders[at] and at != place
        ]
        holding = np.maximum(mine, np.exp(draws[:, 0, place]))
        return Doubt(
            index=chosen,
            best=float((within & (mine > 0)).mean()),
            holds=tuple(float(share) for share in (draws[:, 1:, place] <= 0).mean(axis=0)),
            regret=float(np.maximum(best / holding - 1, 0.0).mean()),
            rivals=tuple(rivals),
        )

    def _stop(self, doubt: Doubt, open_: Mask, following: int | None) -> Stop | None:
        figures = {"regret": doubt.regret, "confidence": doubt.best, "margin": self._margin}
        if not open_.any():
            return ALL_MEASURED
        if doubt.index is not None and doubt.best >= self._confidence:
            words = (
                f"no other trial is better by more than {self._margin:.0%} "
                f"with a probability of {min(doubt.best, 0.99):.0%}"
            )
            return Stop("settled", words, figures)
        if doubt.index is None and math.isnan(doubt.regret):
            words = "no trial left is likely to hold every constraint"
            return Stop("settled", words, {})
        if following is None:
            return Stop("settled", "no measurement left would change the choice", figures)
        return None

    def _next(
        self,
        contenders: NDArray[np.int_],
        mean: Array,
        covariance: Array,
        open_: Mask,
    ) -> int | None:
        """Open contender whose measurement is worth most per second."""
        count, quantities = len(contenders), len(self._forecast.quantities)
        own_sd = np.sqrt(np.maximum(np.diag(covariance), 1e-12)).reshape(quantities, count)
        now = mean.reshape(quantities, count)
        held = np.array(
            [i in self._measured and bool((self._measured[i][1:] <= 0).all()) for i in contenders]
        )
        floor = float(np.exp(now[0][held]).max()) if held.any() else 0.0
        gains = self._gains(now, own_sd, floor)
        gains[[not open_[i] for i in contenders]] = -1.0
        weighed = [at for at in np.argsort(-gains, kind="stable")[:_WEIGHED] if gains[at] >= 0]
        best, best_rate = None, 0.0
        takes_s = self._takes_s()
        for at in weighed:
            taught = self._taught(int(at), now, covariance, quantities, count)
            index = int(contenders[at])
            rate = (gains[at] + taught) / takes_s[index]
            if rate > best_rate:
                best, best_rate = index, rate
        return best

    def _takes_s(self) -> Array:
        """Seconds that a measurement of each point takes now, shape (N,)."""
        start_s = self._starts.expected_s()
        if self._told:
            running = self._servers[self._told[-1]]
            start_s = np.where([server == running for server in self._servers], 0.0, start_s)
        return np.asarray(np.maximum(self._load_s + start_s, 1e-3))

    def _gains(self, now: Array, sd: Array, floor: float) -> Array:
        """Expected gain of each contender over the best measured one that holds, shape (count,)."""
        standard = normals(256, 1, self._seed)[:, 0]
        values = np.exp(now[0][:, None] + sd[0][:, None] * standard)
        gain = np.maximum(values - floor, 0.0).mean(axis=1)
        scale = floor or float(np.exp(now[0]).max())
        return np.asarray(gain / scale * _chances(now, sd))

    def _taught(self, at: int, now: Array, covariance: Array, quantities: int, count: int) -> float:
        """Expected rise of the best contender's expected worth by measuring one of them."""
        mine = np.arange(quantities) * count + at
        noise = np.diag(self._forecast.noise_sd**2)
        among = covariance[np.ix_(mine, mine)] + noise
        towards = covariance[:, mine]
        weights = np.linalg.solve(among, towards.T).T
        left = np.diag(covariance) - (weights * towards).sum(axis=1)
        left_sd = np.sqrt(np.maximum(left, 1e-12)).reshape(quantities, count)
        root = np.linalg.cholesky(among + 1e-12 * np.eye(quantities))
        shifts = normals(_OUTCOMES, quantities, self._seed + 1) @ (weights @ root).T
        sd_now = np.sqrt(np.maximum(np.diag(covariance), 1e-12)).reshape(quantities, count)
        before = _expected_worth(now, sd_now).max()
        moved = now[:, None] + shifts.reshape(_OUTCOMES, quantities, count).swapaxes(0, 1)
        after = _expected_worth(moved, left_sd[:, None]).max(axis=1).mean()
        return float(max(0.0, after / before - 1)) if before > 0 else 0.0


class _Answer(msgspec.Struct, frozen=True):
    pick: Doubt
    next: int | None
    stop: Stop | None


def _worth(draws: Array) -> Array:
    """Objective where every limit holds, else zero, shape (draws, points)."""
    holds = (draws[:, 1:] <= 0).all(axis=1)
    return np.asarray(np.where(holds, np.exp(draws[:, 0]), 0.0))


def _expected_worth(means: Array, sds: Array) -> Array:
    return np.asarray(np.exp(means[0]) * _chances(means, sds))


def _chances(means: Array, sds: Array, first: int = 1) -> Array:
    """Probability that every limit holds, as if limits were independent, shape (..., N).

    Args:
        means: Means of all quantities.
        sds: Their standard deviations.
        first: Number of the first limit among them.
    """
    chances = np.ones(means.shape[1:])
    for mean, sd in zip(means[first:], sds[first:], strict=True):
        chances = chances * _below(-mean / sd)
    return np.asarray(np.where(np.isnan(chances), 0.0, chances))


def _below(z: Array) -> Array:
    """Normal distribution function; its error is below 1e-7 (Abramowitz and Stegun 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(z))
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * series
    return np.asarray(np.where(z >= 0, 1 - tail, tail))
