"""Difference of one metric between two sides, each of one or several runs, with its doubt.

Differences are of logarithms, so that a ratio and its inverse are equally far from none. What a
difference may be by chance comes from the best that the runs offer:

- from pairs of runs that sent the same requests (equal seeds), at least `LEAST_PAIRS`: the
  spread of the pairs' differences;
- from repeated runs: the spread of the runs of each side, pooled. It holds all that differs
  from run to run, and the order and correlation of requests within a run do not matter;
- from one run a side: the two runs' own sampling intervals, joined as those of independent
  values. They know nothing of what differs from run to run.

Student's t applies to the first two. A bootstrap over three to ten runs was tried instead: its
intervals are too narrow (`docs/design/0031-what-a-regression-is.md`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal

import msgspec

from servetune.errors import InputError
from servetune.metrics.intervals import wilson_interval

#: Share of true differences that lie inside an interval.
LEVEL = 0.95
#: Share of runs in which a difference of the smallest tellable size is told.
POWER = 0.9
#: Pairs from which on they are compared pair by pair: of fewer the spread is not known well enough.
LEAST_PAIRS = 4
#: Degrees of freedom from which on the spread of runs is used.
LEAST_FREEDOM = 2
#: Reach of an interval, as a logarithm, up to which it has no width and says nothing.
LEAST_REACH = 1e-9
#: Smallest standard error, of runs that agree to the last digit.
_LEAST_ERROR = 1e-4
#: Standard errors from a value to an end of its 95% interval.
_REACH = NormalDist().inv_cdf(0.5 + LEVEL / 2)

Method = Literal["pairs of runs", "runs", "requests", "shares", "none"]
Ends = tuple[float | None, float | None]


class RunFigure(msgspec.Struct, frozen=True):
    """One run's value of a metric.

    Attributes:
        value: Value.
        ends: Ends of its 95% sampling interval; `None` where unknown.
    """

    value: float
    ends: Ends = (None, None)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of a metric, new against base.

    Attributes:
        base: Geometric mean of the values of the base runs, arithmetic where one is 0; `None`
            without a value.
        new: Likewise of the new runs.
        change: Relative difference, new / base - 1; of shares new - base.
        low: Lower end of its 95% interval; `None` where unknown.
        high: Upper end of its 95% interval.
        rise_chance: Probability of so large a rise where nothing changed; `None` where unknown.
        fall_chance: Probability of so large a fall where nothing changed.
        error: Standard error of the difference of logarithms (of shares: of the shares).
        freedom: Degrees of freedom of the error; infinite where it is taken as known.
        method: Source of the error.
        absolute: Whether the differences are new - base.
        linear: Whether the error is of the relative difference itself, as where a value is 0, which
            has no logarithm.
    """

    base: float | None
    new: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    rise_chance: float | None = None
    fall_chance: float | None = None
    error: float | None = None
    freedom: float = math.inf
    method: Method = "none"
    absolute: bool = False
    linear: bool = False

    @property
    def chance(self) -> float | None:
        """Probability of a difference as large, in whichever direction, where nothing changed."""
        sides = [each for each in (self.rise_chance, self.fall_chance) if each is not None]
        return min(1.0, 2 * min(sides)) if sides else None

    def scaled(self, change: float) -> float:
        """Change on the scale of `error`."""
        if self.absolute or self.linear:
            return change
        return math.log1p(max(change, -0.999999))

    def tellable(self, tests: int = 1) -> float | None:
        """Smallest difference that would be told in `POWER` of such comparisons.

        Args:
            tests: Number of tests that share the probability of a false alarm.
        """
        if self.error is None:
            return None
        share = 1 - (1 - LEVEL) / 2 / tests
        reach = (t_quantile(share, self.freedom) + t_quantile(POWER, self.freedom)) * self.error
        return reach if self.absolute or self.linear else math.expm1(reach)


def difference_of_runs(
    base: Sequence[RunFigure], new: Sequence[RunFigure], *, paired: bool = False
) -> Difference:
    """Difference between the runs of two sides.

    Args:
        base: Values of the base runs.
        new: Values of the new runs; where `paired`, each sent the requests of the one in its place.
        paired: Whether the runs are pairs.
    """
    values = [[run.value for run in side] for side in (base, new)]
    means = [_mean(side) for side in values]
    if means[0] is None or means[1] is None or means[0] <= 0:
        return Difference(base=means[0], new=means[1])
    linear = any(value <= 0 for side in values for value in side)
    scaled = [[value / means[0] if linear else math.log(value) for value in s] for s in values]
    shift = _average(scaled[1]) - _average(scaled[0])
    freedom = len(base) + len(new) - 2
    if paired and len(base) == len(new) >= LEAST_PAIRS:
        apart = [later - earlier for earlier, later in zip(*scaled, strict=True)]
        freedom = len(apart) - 1
        error = math.sqrt(_squares(apart) / freedom / len(apart))
        return _by_error(means, shift, error, freedom, "pairs of runs", linear=linear)
    if freedom >= LEAST_FREEDOM:
        spread = sum(map(_squares, scaled)) / freedom
        error = math.sqrt(spread * (1 / len(base) + 1 / len(new)))
        return _by_error(means, shift, error, freedom, "runs", linear=linear)
    if linear:
        return Difference(base=means[0], new=means[1], change=shift, linear=True)
    return _by_intervals(means, shift, base, new)


def difference_of_shares(base: tuple[int, int] | None, new: tuple[int, int] | None) -> Difference:
    """Difference of two shares, such as those of failed requests, by Newcombe's interval.

    Args:
        base: Number of those counted, and of all.
        new: Likewise.
    """
    known = [None if each is None or not each[1] else each for each in (base, new)]
    shares = [None if each is None else each[0] / each[1] for each in known]
    if known[0] is None or known[1] is None:
        return Difference(base=shares[0], new=shares[1], absolute=True)
    was, now = known[0][0] / known[0][1], known[1][0] / known[1][1]
    (was_low, was_high), (now_low, now_high) = (
        wilson_interval(share, count[1], _REACH)
        for share, count in ((was, known[0]), (now, known[1]))
    )
    low = max(math.hypot(now - now_low, was_high - was), _LEAST_ERROR)
    high = max(math.hypot(now_high - now, was - was_low), _LEAST_ERROR)
    return Difference(
        base=was,
        new=now,
        change=now - was,
        low=now - was - low,
        high=now - was + high,
        rise_chance=t_tail((now - was) / (low / _REACH), math.inf),
        fall_chance=t_tail((was - now) / (high / _REACH), math.inf),
        error=max(low, high) / _REACH,
        method="shares",
        absolute=True,
    )


def joined_reach(*pairs: tuple[float, float | None]) -> float | None:
    """Reach of the logarithm of a ratio of independent values towards one end of its interval.

    Args:
        pairs: Each value and the end of its interval that moves the ratio towards that end.

    Returns:
        Root of the sum of the squares; `None` where an end is not known, as is that of an interval
        without width.
    """
    reaches = [
        reach
        for value, end in pairs
        if end is not None and end > 0 and abs(reach := math.log(end / value)) > LEAST_REACH
    ]
    return math.hypot(*reaches) if len(reaches) == len(pairs) else None


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Probabilities of several tests, each as if it were the only one (Holm 1979).

    Whoever acts on those below 5% has at least one false alarm in 5% of cases at most.
    """
    places = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    adjusted: list[float | None] = [None] * len(chances)
    most = 0.0
    for rank, (chance, place) in enumerate(places):
        most = max(most, min(1.0, chance * (len(places) - rank)))
        adjusted[place] = most
    return adjusted


def t_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t-distribution; the normal one for infinite degrees of freedom."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(share)
    return float(scipy_part("special").stdtrit(freedom, share))


def t_tail(value: float, freedom: float) -> float:
    """Probability of a larger value of Student's t-distribution."""
    if math.isinf(freedom):
        return 1 - NormalDist().cdf(value)
    return float(scipy_part("special").stdtr(freedom, -value))


def scipy_part(name: str) -> Any:
    """Module of SciPy, imported when it is used: `special` or `stats`.

    Raises:
        InputError: SciPy is not installed.
    """
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError:
        raise InputError(
            "a comparison of repeated runs or of single requests needs scipy",
            hint="pip install 'servetune[compare]'",
        ) from None


def _by_error(
    means: Sequence[float | None],
    shift: float,
    error: float,
    freedom: float,
    method: Method,
    *,
    linear: bool,
) -> Difference:
    error = max(error, _LEAST_ERROR)
    reach = t_quantile(0.5 + LEVEL / 2, freedom) * error
    low, middle, high = (
        each if linear else math.expm1(each) for each in (shift - reach, shift, shift + reach)
    )
    return Difference(
        base=means[0],
        new=means[1],
        change=middle,
        low=max(low, -1.0),
        high=high,
        rise_chance=t_tail(shift / error, freedom),
        fall_chance=t_tail(-shift / error, freedom),
        error=error,
        freedom=freedom,
        method=method,
        linear=linear,
    )


def _by_intervals(
    means: Sequence[float | None],
    shift: float,
    base: Sequence[RunFigure],
    new: Sequence[RunFigure],
) -> Difference:
    low = _reach([(run.value, run.ends[0]) for run in new], [(r.value, r.ends[1]) for r in base])
    high = _reach([(run.value, run.ends[1]) for run in new], [(r.value, r.ends[0]) for r in base])
    errors = [None if each is None else max(each / _REACH, _LEAST_ERROR) for each in (low, high)]
    known = [each for each in errors if each is not None]
    return Difference(
        base=means[0],
        new=means[1],
        change=math.expm1(shift),
        low=None if low is None else math.expm1(shift - low),
        high=None if high is None else math.expm1(shift + high),
        rise_chance=None if errors[0] is None else t_tail(shift / errors[0], math.inf),
        fall_chance=None if errors[1] is None else t_tail(-shift / errors[1], math.inf),
        error=max(known) if len(known) == len(errors) else None,
        method="requests" if known else "none",
    )


def _reach(*sides: Sequence[tuple[float, float | None]]) -> float | None:
    """Joined reach of the two sides' means, each of independent runs."""
    reaches = [joined_reach(*side) for side in sides]
    known = [
        reach / len(side) for reach, side in zip(reaches, sides, strict=True) if reach is not None
    ]
    return math.hypot(*known) if len(known) == len(sides) else None


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean(values: Sequence[float]) -> float | None:
    """Geometric mean, arithmetic where a value is 0; `None` of none."""
    if not values:
        return None
    if any(value <= 0 for value in values):
        return _average(values)
    return values[0] if len(values) == 1 else math.exp(_average([math.log(v) for v in values]))


def _squares(values: Sequence[float]) -> float:
    middle = _average(values)
    return sum((value - middle) ** 2 for value in values)
