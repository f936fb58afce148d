"""Progress of a run: the best trial and the regret after each trial, in the order of running.

Of a long run the trials that improved on the best are kept, and an even sample of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from servetune.metrics import Constraint, unmet
from servetune.metrics.results import ResultFields
from servetune.report.ranking import label_of, miscounted, results_of, varying
from servetune.search import Objective, exceeds_error_tolerance
from servetune.store.schema import TrialRecord

#: Most steps of a run.
MOST_STEPS = 500


class ProgressStep(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run when one of its trials had ended.

    Attributes:
        number: Place of the trial in the order of running, from 1.
        key: Key of the trial.
        label: Settings of the trial that differ.
        started_s: Start of the trial in seconds since the first one's; `None` where not recorded.
        value: Value of the objective; `None` of a trial that failed.
        counts: Whether the trial may be picked: it holds every limit, and its requests succeeded.
        best: Best value of a trial that counts so far; `None` before the first.
        regret_fraction: Share by which the run's best exceeds the best so far, as a ratio less 1.
    """

    number: int
    key: str
    label: str
    started_s: float | None
    value: float | None
    counts: bool
    best: float | None
    regret_fraction: float | None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run in one objective.

    Attributes:
        objective: Name of the objective.
        steps: One for each trial, in the order of running.
        trial_count: Trials of the run.
        best: Best value of the run; `None` where no trial counts.
        predicted: Best value that was predicted of the run's trials that are predicted to hold
            every limit; `None` without predictions.
        predicted_low: Lower end of its interval.
        predicted_high: Upper end of its interval.
        reason: Reason why there is no best value, and what would help.
    """

    objective: str
    steps: tuple[ProgressStep, ...]
    trial_count: int
    best: float | None
    predicted: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None
    reason: str = ""


def progress_of(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    objectives: Mapping[str, Objective],
) -> dict[str, Progress]:
    """Progress in each objective, by the name of its pick.

    Args:
        records: Trials of one run.
        constraints: Limits of a trial that may be picked.
        objectives: Objective of each pick.
    """
    started_s = _starts_s(records)
    order = sorted(range(len(records)), key=lambda place: started_s[place] or 0.0)
    names = varying(records)
    suspect = miscounted(records)
    counting = [
        record.status == "ok"
        and record.key not in suspect
        and _may_be_picked(results_of(record), constraints)
        for record in records
    ]
    labels = [label_of(record, names) for record in records]

    def progress(name: str, objective: Objective) -> Progress:
        values = [objective.value(results_of(record)) for record in records]
        known = [
            value
            for value, counts in zip(values, counting, strict=True)
            if counts and value is not None
        ]
        best_of_run = _best(objective, known)
        best: float | None = None
        steps = []
        for number, place in enumerate(order, start=1):
            value = values[place]
            if counting[place] and value is not None:
                best = _best(objective, [value] if best is None else [best, value])
            steps.append(
                ProgressStep(
                    number=number,
                    key=records[place].key,
                    label=labels[place],
                    started_s=started_s[place],
                    value=value,
                    counts=counting[place] and value is not None,
                    best=best,
                    regret_fraction=_regret(objective, best, best_of_run),
                )
            )
        predicted, low, high = _predicted(records, constraints, objective)
        return Progress(
            objective=name,
            steps=_thinned(steps),
            trial_count=len(steps),
            best=best_of_run,
            predicted=predicted,
            predicted_low=low,
            predicted_high=high,
            reason="" if known else _why_none(records, objective, constraints),
        )

    return {name: progress(name, objective) for name, objective in objectives.items()}


def _thinned(steps: Sequence[ProgressStep]) -> tuple[ProgressStep, ...]:
    """Steps that improve on the best, and an even sample of the others, the last one among them."""
    every = math.ceil(len(steps) / MOST_STEPS) or 1
    return tuple(
        step
        for place, step in enumerate(steps)
        if (len(steps) - 1 - place) % every == 0
        or step.best != (steps[place - 1].best if place else None)
    )


def _may_be_picked(results: ResultFields, constraints: tuple[Constraint, ...]) -> bool:
    return not unmet(constraints, results) and not exceeds_error_tolerance(results, constraints)


def _starts_s(records: Sequence[TrialRecord]) -> list[float | None]:
    """Start of each trial in seconds since the earliest; all `None` unless all are recorded."""
    try:
        times = [datetime.fromisoformat(str(r.provenance["started_at"])) for r in records]
        first = min(times, default=None)
        return [] if first is None else [(each - first).total_seconds() for each in times]
    except (KeyError, ValueError, TypeError):  # not recorded, or another tool's form of a time
        return [None] * len(records)


def _best(objective: Objective, values: Sequence[float]) -> float | None:
    return (max if objective.maximize else min)(values, default=None)


def _regret(objective: Objective, value: float | None, best: float | None) -> float | None:
    if value is None or best is None:
        return None
    over, under = (best, value) if objective.maximize else (value, best)
    if over == under:
        return 0.0
    return over / under - 1 if under > 0 else None


def _predicted(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...], objective: Objective
) -> tuple[float | None, float | None, float | None]:
    """Best predicted value and the ends of its interval."""
    found = [
        (value, record)
        for record in records
        if record.predicted
        and not unmet(constraints, record.predicted)
        and (value := objective.value(record.predicted)) is not None
    ]
    if not found:
        return None, None, None
    choose = max if objective.maximize else min
    value, record = choose(found, key=lambda pair: pair[0])
    ends = record.interval.ends(objective.metric, value) if record.interval else None
    return (value, *(ends or (None, None)))


def _why_none(
    records: Sequence[TrialRecord], objective: Objective, constraints: tuple[Constraint, ...]
) -> str:
    if not records:
        return "no trial has ended"
    if all(record.status == "failed" for record in records):
        return "every trial failed; the table has the reasons"
    if all(objective.value(results_of(record)) is None for record in records):
        return f"no trial has a value of {objective.title}"
    if constraints:
        return "no trial holds every limit; the nearest miss is in the picks"
    return "in every trial too many requests failed"
