"""Pareto fronts of points with several objectives."""

from __future__ import annotations

import numpy as np


def pareto_front(points: list[tuple[float, ...]], *, maximize: tuple[bool, ...]) -> list[int]:
    """Indices of the non-dominated points, in the given order.

    A point dominates another if it is as good in every coordinate and better in one. Equal
    points are all kept. A point with a coordinate that is not a number is never on the front.

    Args:
        points: Points of the same length as `maximize`.
        maximize: Whether more is better, for each coordinate.
    """
    if not points:
        return []
    costs = np.array(points, dtype=np.float64) * np.where(maximize, -1.0, 1.0)
    left = np.flatnonzero(np.isfinite(costs).all(axis=1))
    left = left[np.lexsort(costs[left].T[::-1])]
    front: list[int] = []
    while len(left):
        # The first in lexical order is on the front, and what it dominates is not.
        first = costs[left[0]]
        equal = (costs[left] == first).all(axis=1)
        front += left[equal].tolist()
        left = left[~equal & (costs[left] < first).any(axis=1)]
    return sorted(front)


def knee(front: list[tuple[float, ...]], *, maximize: tuple[bool, ...]) -> int:
    """Index of the knee of a Pareto front: the point nearest to the ideal one.

    Each objective is scaled to its range on the front, 0 at its worst value and 1 at its best; the
    ideal point has 1 in all of them, and the distance is Euclidean. Of equally near points it is
    the first.

    Args:
        front: Points of the front, at least one, of the same length as `maximize`.
        maximize: Whether more is better, for each coordinate.

    Example:
        >>> knee([(100.0, 9.0), (90.0, 2.0), (20.0, 1.0)], maximize=(True, False))
        1
    """
    gains = np.array(front, dtype=np.float64) * np.where(maximize, 1.0, -1.0)
    best, worst = gains.max(axis=0), gains.min(axis=0)
    spans = np.where(best > worst, best - worst, 1.0)
    return int(np.argmin((((best - gains) / spans) ** 2).sum(axis=1)))
