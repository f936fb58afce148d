"""Outcomes of trials as a search knows them: objectives, and how far each constraint is used up."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.metrics import Constraint, value_of
from servetune.search import OBJECTIVES
from servetune.search.strategies import Outcome
from servetune.store import Results, TrialRecord

#: Objectives of a study's search, the most important first: a strategy with one takes that.
SEARCHED = (OBJECTIVES["throughput"], OBJECTIVES["latency"])

#: Shares of constraints that have no proportion, such as `error_rate<=0`.
_HELD, _MISSED = 0.0, 2.0


def outcome_of(record: TrialRecord, constraints: Sequence[Constraint]) -> Outcome:
    """Outcome of a trial that ended."""
    if record.status != "ok":
        return Outcome(failed=True)
    return outcome_of_results(record.results, constraints)


def outcome_of_results(results: Results, constraints: Sequence[Constraint]) -> Outcome:
    """Outcome of results, measured or predicted; failed where they lack an objective."""
    objectives = []
    for objective in SEARCHED:
        value = objective.value(results)
        if value is None:
            return Outcome(failed=True)
        objectives.append(value if objective.maximize else -value)
    return Outcome(tuple(objectives), tuple(_limit_ratio(each, results) for each in constraints))


def _limit_ratio(constraint: Constraint, results: Results) -> float:
    """Share of a constraint that is used up; at most 1 where it holds."""
    value = value_of(results, constraint.metric, constraint.statistic)
    if value is not None and value > 0 and constraint.value > 0:
        if constraint.op in ("<", "<="):
            return value / constraint.value
        if constraint.op in (">", ">="):
            return constraint.value / value
    return _HELD if constraint.holds(results) else _MISSED
