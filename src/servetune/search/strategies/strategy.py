"""Contract of search strategies: which point to measure next, given what was measured.

A search is over a finite list of points. Its caller asks for the index of the next point, measures
it and tells the outcome, until the strategy asks for nothing more:

    while (index := strategy.ask()) is not None:
        strategy.tell(index, measured(points[index]))

`ask` is a function of the strategy's seed and of what was told, in order. So a second `ask` before
the next `tell` gives the same point, and a search that was interrupted goes on with the same
decisions once a new strategy was told the same outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal, Protocol

import msgspec

from servetune.search.conditions import Value


class Point(msgspec.Struct, frozen=True):
    """Point of a search.

    Attributes:
        settings: Swept settings, of server and client, by name; a conditional setting is missing
            where it has no meaning.
        server: Key of the server; equal for points that can be measured on one running server,
            which saves a start.
    """

    settings: Mapping[str, Value]
    server: Hashable = None


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a measured point.

    Attributes:
        objectives: Values of the objectives, larger is better; a strategy with a single objective
            maximises the first.
        limit_ratios: Share of each constraint that is used up; at most 1 where it holds.
        failed: True where there is no result, and objectives and ratios mean nothing.
        start_s: Seconds that its server took to start; `None` where none did.
    """

    objectives: tuple[float, ...] = ()
    limit_ratios: tuple[float, ...] = ()
    failed: bool = False
    start_s: float | None = None

    @property
    def counts(self) -> bool:
        """Whether there is a result, with finite numbers alone."""
        numbers = (*self.objectives, *self.limit_ratios)
        return not self.failed and bool(self.objectives) and all(map(math.isfinite, numbers))

    @property
    def holds(self) -> bool:
        """Whether there is a result that holds every constraint."""
        return self.counts and all(ratio <= 1 for ratio in self.limit_ratios)


class Stop(msgspec.Struct, frozen=True):
    """Reason for which a strategy asks for no further point.

    Attributes:
        kind: `all_measured`, or `settled` where further points are not worth their measurement.
        words: Reason as a clause: "every trial was run".
        figures: Numbers that it stopped with, by name, such as the regret.
    """

    kind: Literal["all_measured", "settled"]
    words: str
    figures: Mapping[str, float] = {}


#: Reason of a strategy that was told every point.
ALL_MEASURED = Stop("all_measured", "every trial was run")


class Strategy(Protocol):
    """Choice of the points to measure, one after another."""

    @property
    def stop(self) -> Stop | None:
        """Reason why `ask` gives `None`; `None` while it gives points."""
        ...

    def ask(self) -> int | None:
        """Index of the point to measure next, which was not told before; `None` when done."""
        ...

    def tell(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of a point, which need not be the one asked for."""
        ...
