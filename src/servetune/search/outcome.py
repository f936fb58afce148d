"""Outcome of a trial for a search strategy: objectives, larger is better, and shares of limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from servetune.metrics import Constraint, value_of
from servetune.metrics.results import ResultFields
from servetune.search.objectives import Objective
from servetune.search.strategies.strategy import Outcome

#: Ends of objectives and of ratios: positive and finite, so that a logarithm exists.
_LEAST, _MOST = 1e-12, 1e12
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e6
#: Shares of a limit without a proportion, where it holds and where it is missed by nothing more.
_HELD, _MISSED = 0.5, 2.0


def outcome_of(
    results: ResultFields,
    constraints: Sequence[Constraint],
    objectives: Sequence[Objective],
    *,
    predicted: bool = False,
) -> Outcome:
    """Outcome of results; failed where they lack a value of an objective.

    An objective that is minimised counts as its reciprocal, so that every objective is positive,
    larger is better, and ratios keep their size.

    The ratio of a limit `<=` or `<` is the value over the limit, of `>=` and `>` the limit over the
    value. A limit without a proportion (`==`, `!=`, and an upper limit of 0) has 0.5 where it holds
    and, where it is missed, 1 plus the distance from the limit, as a fraction of it or, where it is
    0, in its unit; for `!=` 2. A constraint without a value is missed, with a ratio of 2.

    Args:
        results: Results of a trial; empty for one that failed.
        constraints: Limits.
        objectives: Objectives.
        predicted: Whether the results are a prediction. Constraints that it has no value for, and
            those with `==` and `!=`, which say nothing of a prediction, are then taken as held.
    """
    values = [each.value(results) for each in objectives]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return Outcome(failed=True)
    return Outcome(
        objectives=tuple(
            _within(value if each.maximize else 1 / max(value, _LEAST))
            for each, value in zip(objectives, known, strict=True)
        ),
        limit_ratios=tuple(_limit_ratio(limit, results, predicted) for limit in constraints),
    )


def _within(number: float) -> float:
    return min(max(number, _LEAST), _MOST)


def _limit_ratio(limit: Constraint, results: ResultFields, predicted: bool) -> float:
    """Share of a limit that is used up: at most 1 where it holds, above 1 where it is missed."""
    value = value_of(results, limit.metric, limit.statistic)
    equality = limit.op in ("==", "!=")
    if predicted and (value is None or equality):
        return _HELD
    if value is None or not math.isfinite(value):
        return _MISSED
    holds = bool(limit.holds(results))
    upper = limit.op in ("<", "<=")
    if equality or (upper and limit.value == 0):
        if holds:
            return _HELD
        distance = abs(value - limit.value) / (abs(limit.value) or 1.0)
        return _above_one(1 + distance) if distance else _MISSED
    ratio = value / limit.value if upper else limit.value / max(value, _LEAST)
    ratio = max(ratio, _LEAST_RATIO)
    # Rounding, and a strict limit that is exactly reached, must not turn the verdict.
    return min(ratio, 1.0) if holds else _above_one(ratio)


def _above_one(ratio: float) -> float:
    return min(max(ratio, math.nextafter(1.0, 2.0)), _MOST_RATIO)
