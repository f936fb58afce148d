"""Strategies whose order is known from the start: as written (grid), or shuffled (random)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from servetune.search.strategies.strategy import ALL_MEASURED, Outcome, Point, Stop


class Listed:
    """Points in an order that no outcome changes.

    Args:
        order: Indexes of all points.

    Attributes:
        order: The same; a caller that measures several points at once may take its beginning.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self.order = tuple(order)
        self._told: set[int] = set()
        self._place = 0

    @property
    def stop(self) -> Stop | None:
        return ALL_MEASURED if self.ask() is None else None

    def ask(self) -> int | None:
        while self._place < len(self.order) and self.order[self._place] in self._told:
            self._place += 1
        return self.order[self._place] if self._place < len(self.order) else None

    def tell(self, index: int, outcome: Outcome) -> None:
        self._told.add(index)


class Grid(Listed):
    """Points in the order of their list."""

    def __init__(self, points: Sequence[Point], *, seed: int = 0, objective_count: int = 1) -> None:
        super().__init__(range(len(points)))


class Random(Listed):
    """Points in a random order, each equally likely at each place."""

    def __init__(self, points: Sequence[Point], *, seed: int = 0, objective_count: int = 1) -> None:
        order = list(range(len(points)))
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        super().__init__(order)
