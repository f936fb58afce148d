"""Search strategies behind one ask-and-tell contract."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Literal

from servetune.errors import InputError, UnknownName
from servetune.search.strategies.strategy import (
    ALL_MEASURED,
    Outcome,
    Point,
    Stop,
    Strategy,
)

__all__ = [
    "ALL_MEASURED",
    "STRATEGIES",
    "Outcome",
    "Point",
    "Stop",
    "Strategy",
    "StrategyName",
    "strategy",
]

StrategyName = Literal["grid", "random", "guided", "tpe", "nsga2"]
"""Name of a strategy. `guided` needs predictions beside the points: `servetune.trials` makes it."""

#: Strategies by name that need the points alone -> "module:class".
STRATEGIES: Mapping[str, str] = {
    "grid": "servetune.search.strategies.listed:Grid",
    "random": "servetune.search.strategies.listed:Random",
    "tpe": "servetune.search.strategies.sampled:Tpe",
    "nsga2": "servetune.search.strategies.sampled:Nsga2",
}


def strategy(
    name: str, points: Sequence[Point], *, seed: int = 0, objective_count: int = 1
) -> Strategy:
    """Strategy of a name for a list of points.

    Args:
        name: Key of `STRATEGIES`.
        points: Points of the search, at least one.
        seed: Seed of all chance in it.
        objective_count: Number of objectives of each outcome.

    Raises:
        UnknownName: There is no strategy of that name.
        InputError: There are no points, or the strategy needs a package that is not installed.

    Example:
        >>> search = strategy("grid", [Point({"max_num_seqs": n}) for n in (8, 16)])
        >>> search.ask()
        0
        >>> search.tell(0, Outcome(objectives=(120.0,)))
        >>> search.ask()
        1
    """
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, sorted(STRATEGIES))
    if not points:
        raise InputError("a search needs at least one point", hint="sweep a setting")
    module, _, made = STRATEGIES[name].partition(":")
    found: Strategy = getattr(importlib.import_module(module), made)(
        points, seed=seed, objective_count=objective_count
    )
    return found
