"""Reach of trials towards constraints: how near the best comes, and which constraint binds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from servetune.metrics import Constraint, value_of
from servetune.metrics.results import ResultFields
from servetune.search.candidate import Candidate
from servetune.search.objectives import with_unit


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How near trials come to one constraint.

    Attributes:
        constraint: The constraint.
        best: Value of the trial that holds it best, or misses it least; `None` where none has one.
        label: Display name of that trial.
        miss: Miss of that trial as a fraction of the limit, of a limit of zero in its unit; 0 where
            it holds, infinite without a value.
        held_count: Number of trials that hold it.
        freed_count: Number of trials that hold all other constraints.
        needed: Value of the nearest of those; `None` where none has one.
        total: Number of trials.
    """

    constraint: Constraint
    best: float | None
    label: str = ""
    miss: float
    held_count: int
    freed_count: int
    needed: float | None
    total: int

    @property
    def sentence(self) -> str:
        """Best value of any trial, and how far it is off."""
        limit = self.constraint
        if self.best is None:
            return f"{limit.label}: no trial has a value"
        state = (
            f"held by {self.held_count} of {self.total} trials"
            if self.held_count
            else off_text(limit, self.best)
        )
        best = with_unit(limit.metric, self.best)
        return f"{limit.label}: the best of any trial is {best} ({self.label}), {state}"


def reaches(constraints: Sequence[Constraint], trials: Sequence[Candidate]) -> tuple[Reach, ...]:
    """Reach of the trials towards each constraint, in the order of the constraints."""
    holds = [[bool(limit.holds(trial.results)) for limit in constraints] for trial in trials]
    missed_counts = [len(constraints) - sum(row) for row in holds]
    found = []
    for at, limit in enumerate(constraints):
        others = [
            trial
            for trial, row, missed in zip(trials, holds, missed_counts, strict=True)
            if missed == (not row[at])
        ]
        best, needed = _nearest(limit, trials), _nearest(limit, others)
        found.append(
            Reach(
                constraint=limit,
                best=_value(limit, best),
                label=best.label if best else "",
                miss=miss_of(limit, best.results) if best else math.inf,
                held_count=sum(row[at] for row in holds),
                freed_count=len(others),
                needed=_value(limit, needed),
                total=len(trials),
            )
        )
    return tuple(found)


def binding(found: Sequence[Reach]) -> Constraint | None:
    """Constraint that, relaxed alone, lets most trials meet the others; the nearest one of equals.

    `None` where every trial misses two or more.
    """
    most = max(found, key=lambda reach: (reach.freed_count, -reach.miss), default=None)
    return most.constraint if most is not None and most.freed_count else None


def miss_of(constraint: Constraint, results: ResultFields) -> float:
    """Miss of a constraint as a fraction of its limit: 0 where it holds, infinite without a value.

    The miss of a limit of zero is the value itself, in its unit.
    """
    value = value_of(results, constraint.metric, constraint.statistic)
    if value is None:
        return math.inf
    if constraint.holds(results):
        return 0.0
    # A strict limit that is exactly reached is missed by nothing, and yet missed.
    return max(abs(value - constraint.value) / (abs(constraint.value) or 1.0), math.ulp(1.0))


def off_text(constraint: Constraint, value: float) -> str:
    """Distance of a value that misses a constraint: `20% above the limit`."""
    off = value - constraint.value
    side = "above" if off > 0 else "below"
    if not off:
        return "exactly at the limit, which is no part of it"
    if not constraint.value:
        return f"{with_unit(constraint.metric, abs(off))} {side} the limit"
    percent = abs(off) / abs(constraint.value) * 100
    return f"{f'{percent:,.0f}' if percent >= 100 else f'{percent:.3g}'}% {side} the limit"


def shown(constraint: Constraint, trial: Candidate) -> str:
    """Value that a constraint limits, with its unit."""
    value = value_of(trial.results, constraint.metric, constraint.statistic)
    return "not measured" if value is None else with_unit(constraint.metric, value)


def _value(constraint: Constraint, trial: Candidate | None) -> float | None:
    if trial is None:
        return None
    return value_of(trial.results, constraint.metric, constraint.statistic)


def _nearest(constraint: Constraint, trials: Sequence[Candidate]) -> Candidate | None:
    """Trial that holds a constraint best or misses it least; `None` where none has a value."""
    valued = [
        (value, trial)
        for trial in trials
        if (value := _value(constraint, trial)) is not None and math.isfinite(value)
    ]
    if not valued:
        return None
    if constraint.op in ("<", "<="):
        return min(valued, key=lambda pair: pair[0])[1]
    if constraint.op in (">", ">="):
        return max(valued, key=lambda pair: pair[0])[1]
    return min(valued, key=lambda pair: miss_of(constraint, pair[1].results))[1]
