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
    usable = np.isfinite(costs).all(axis=1)
    front = []
    for index in np.flatnonzero(usable):
        others = costs[usable]
        dominated = (others <= costs[index]).all(axis=1) & (others < costs[index]).any(axis=1)
        if not dominated.any():
            front.append(int(index))
    return front
