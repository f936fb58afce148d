"""Knees of latency against load, by named definitions.

Latency grows slowly with load and then fast; where the one turns into the other is a matter of
definition, and definitions differ by a factor. So each has a name, and none is called the knee.

| name | load | single-server queue M/M/1 |
|---|---|---|
| `limit` | the largest that holds the constraints | as the limit says |
| `half_latency` | the mean latency of all throughput below is half of the latency there | 71.5% |
| `doubled_latency` | latency is twice that of the lightest load | 50% |
| `curvature` | latency lies furthest below the line from first to last level | by the range |

The half-latency rule is Patel's ("Half-latency rule for finding the knee of the latency curve",
SIGMETRICS Performance Evaluation Review 43(2), 2015). Twice the latency of an idle system is the
saturation load of interconnection networks and, for M/M/1, the maximum of Kleinrock's power
(throughput over latency). Greatest distance from the chord is Kneedle (Satopää, Albrecht, Irwin and
Raghavan, "Finding a 'Kneedle' in a haystack", ICDCS Workshops, 2011), which approximates the
maximum of curvature on the normalised curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

KneeName = Literal["limit", "half_latency", "doubled_latency", "curvature"]

#: Fewest levels from which a curve can be told from a line.
FEWEST_LEVELS = 4
#: Distance below the chord, of a curve normalised to a square, that is no bend.
SMALLEST_BEND = 0.1


class LoadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One measured load.

    Attributes:
        load: Offered load: users, or requests per second.
        throughput: Requests per second that were answered.
        latency: Latency of a request, in any unit of time.
        holds: Whether every constraint holds; `None` without any.
    """

    load: float
    throughput: float
    latency: float
    holds: bool | None = None


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Knee by one definition.

    Attributes:
        name: Name of the definition.
        load: Load at the knee, interpolated between levels except by limit and by curvature;
            `None` where the levels do not show it.
        latency: Latency at the knee, in the levels' unit.
        reason: Reason why there is none; empty otherwise.
    """

    name: KneeName
    load: float | None = None
    latency: float | None = None
    reason: str = ""

    def text(self, shown: Callable[[float], str]) -> str:
        """Definition and load in words: `by half latency 31 users`.

        Args:
            shown: Gives a load with its unit.
        """
        name = f"by {self.name.replace('_', ' ')}"
        return f"{name} none ({self.reason})" if self.load is None else f"{name} {shown(self.load)}"


def knees(levels: Sequence[LoadLevel]) -> tuple[Knee, ...]:
    """Knees of a curve, by limit, half latency, doubled latency and curvature.

    Args:
        levels: Measured loads in any order, each once.
    """
    ordered = sorted(levels, key=lambda level: level.load)
    return tuple(each(ordered) for each in (_limit, _half_latency, _doubled_latency, _curvature))


def _limit(levels: Sequence[LoadLevel]) -> Knee:
    """The largest load below the first that misses a constraint."""
    if all(level.holds is None for level in levels):
        return Knee(name="limit", reason="there are no constraints")
    missed = next((place for place, level in enumerate(levels) if not level.holds), None)
    if missed is None:
        return Knee(name="limit", reason="every load holds the constraints")
    if missed == 0:
        return Knee(name="limit", reason="the lightest load misses a constraint")
    return _at(levels[missed - 1], "limit")


def _half_latency(levels: Sequence[LoadLevel]) -> Knee:
    """Load at which latency is twice the mean latency over all throughput from 0 to there.

    The mean is an integral over throughput by trapezes; below the lightest load latency counts as
    constant. Throughput that no longer grows adds nothing to the integral.
    """
    if not levels:
        return _without("half_latency", levels)
    rate = np.maximum.accumulate([level.throughput for level in levels])
    latency = np.array([level.latency for level in levels])
    slices = np.diff(rate) * (latency[1:] + latency[:-1]) / 2
    area = rate[0] * latency[0] + np.concatenate(([0.0], np.cumsum(slices)))
    return _crossing("half_latency", levels, rate * latency - 2 * area)


def _doubled_latency(levels: Sequence[LoadLevel]) -> Knee:
    """Load at which latency is first twice that of the lightest load."""
    if not levels:
        return _without("doubled_latency", levels)
    latency = np.array([level.latency for level in levels])
    return _crossing("doubled_latency", levels, latency - 2 * latency[0])


def _curvature(levels: Sequence[LoadLevel]) -> Knee:
    """Level furthest below the line from the first level to the last, both axes from 0 to 1."""
    if len(levels) < FEWEST_LEVELS or levels[-1].latency <= levels[0].latency:
        return _without("curvature", levels)
    load = _normalised([level.load for level in levels])
    latency = _normalised([level.latency for level in levels])
    below = load - latency
    place = int(np.argmax(below))
    if below[place] < SMALLEST_BEND:
        return Knee(name="curvature", reason="latency grows in proportion to load, without a bend")
    return _at(levels[place], "curvature")


def _normalised(values: Sequence[float]) -> NDArray[np.float64]:
    """Values between the first, 0, and the last, 1."""
    array = np.array(values, dtype=np.float64)
    between: NDArray[np.float64] = (array - array[0]) / (array[-1] - array[0])
    return between


def _crossing(name: KneeName, levels: Sequence[LoadLevel], excess: NDArray[np.float64]) -> Knee:
    """Knee where a quantity that begins below 0 first reaches it, linear between levels."""
    reached = np.flatnonzero(excess >= 0)
    after = int(reached[0]) if len(reached) else 0
    if not after:  # never reached, or already at a lightest load that answered nothing
        return _without(name, levels)
    low, high = levels[after - 1], levels[after]
    share = float(-excess[after - 1] / (excess[after] - excess[after - 1]))
    return Knee(
        name=name,
        load=low.load + share * (high.load - low.load),
        latency=low.latency + share * (high.latency - low.latency),
    )


def _without(name: KneeName, levels: Sequence[LoadLevel]) -> Knee:
    fewest = FEWEST_LEVELS if name == "curvature" else 2
    few = len(levels) < fewest
    return Knee(
        name=name,
        reason="too few loads were measured" if few else "it lies beyond the measured loads",
    )


def _at(level: LoadLevel, name: KneeName) -> Knee:
    return Knee(name=name, load=level.load, latency=level.latency)
