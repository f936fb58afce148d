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
