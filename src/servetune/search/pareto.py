"""Pareto fronts: what is not beaten in every respect at once."""

from __future__ import annotations

import numpy as np

__all__ = ["pareto_front"]


def pareto_front(points: list[tuple[float, ...]], *, maximize: tuple[bool, ...]) -> list[int]:
    """Indices of the points that no other point dominates, in the order given.

    A point dominates another when it is as good in every coordinate and better in one.
    Equal points are all kept: they are different ways to the same result. A point with a
    coordinate that is not a number is never on the front.

    Args:
        points: Each of the same length as `maximize`.
        maximize: For each coordinate whether more is better.
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
