"""Ties: trials that cannot be told apart from the best by the sampling intervals of their records.

Two runs are independent, so the interval of the difference of their values reaches as far as the
root of the sum of squares of the two: from each value to the end of its interval that lies towards
the other. Where it contains zero the two cannot be told apart. Nothing is assumed of records that
have no interval; a simulated trial has none, because what it is wrong by is not sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from servetune.metrics import interval_of
from servetune.search.candidate import Candidate
from servetune.search.objectives import Objective


def told_apart(objective: Objective, one: Candidate, other: Candidate) -> bool | None:
    """Whether the sampling intervals of two trials tell their values apart.

    `None` where a record has no interval, unless the values are equal, which nothing tells apart.
    """
    value, beside = objective.value(one.results), objective.value(other.results)
    if value is None or beside is None:
        return None
    if value == beside:
        return False
    reaches = [
        _reach(objective, trial, own, towards=across)
        for trial, own, across in ((one, value, beside), (other, beside, value))
    ]
    if None in reaches:
        return None
    return abs(value - beside) > math.hypot(*(each for each in reaches if each is not None))


def ties_of(
    objective: Objective, chosen: Candidate, others: Iterable[Candidate]
) -> list[Candidate]:
    """Trials that cannot be told apart from the chosen one, in their order."""
    return [each for each in others if told_apart(objective, chosen, each) is False]


def doubt_of_ties(
    objective: Objective,
    chosen: Candidate,
    runner_up: Candidate,
    ties: Sequence[Candidate],
    *,
    most: int,
) -> list[str]:
    """Reasons on which trials cannot be told apart from the chosen one, or why that is not known.

    Args:
        objective: Objective of the choice.
        chosen: Best trial.
        runner_up: Next best trial.
        ties: Trials that cannot be told apart from the best.
        most: Number of trials that are named.
    """
    reasons = []
    if ties:
        named = ", ".join(each.label for each in ties[:most])
        further = f" and {len(ties) - most} further trials" if len(ties) > most else ""
        same = all(
            objective.value(each.results) == objective.value(chosen.results) for each in ties
        )
        why = (
            "equal values" if same else "their difference lies within the sampling intervals (95%)"
        )
        reasons.append(
            f"a tie in {objective.title}: {named}{further} cannot be told apart from it, {why}"
        )
    pair = (chosen, runner_up)
    silent = [
        each.label
        for each in pair
        if interval_of(each.results, objective.metric, objective.statistic) is None
    ]
    if chosen.simulated or runner_up.simulated:
        who = "its value rests" if chosen.simulated else "the next one's value rests"
        who = "its value and the next one's rest" if all(c.simulated for c in pair) else who
        why = ", which has no sampling interval" if silent else ""
        reasons.append(f"{who} on simulation{why}: measurements can tell them apart")
    elif silent and told_apart(objective, *pair) is None:
        reasons.append(_unknown(objective, silent))
    return reasons


def _unknown(objective: Objective, silent: Sequence[str]) -> str:
    return (
        f"no sampling interval of the {objective.title} in the record of {' and '.join(silent)}: "
        "whether the two can be told apart is not known"
    )


def _reach(objective: Objective, trial: Candidate, value: float, *, towards: float) -> float | None:
    """Distance from a value to the end of its interval on one side; infinite without that end."""
    ends = interval_of(trial.results, objective.metric, objective.statistic)
    if ends is None:
        return None
    end = ends[1] if towards > value else ends[0]
    return math.inf if end is None else abs(end - value)
