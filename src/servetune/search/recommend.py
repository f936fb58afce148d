"""Choosing: which of several tried configurations to run, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from servetune.metrics import LATENCIES, Constraint, unmet, value_of
from servetune.search.pareto import pareto_front

__all__ = ["OBJECTIVES", "Candidate", "Objective", "Recommendation", "on_front", "recommend"]

ObjectiveName = Literal["throughput", "latency", "cost"]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What is best: one metric, and whether more of it is better."""

    name: ObjectiveName
    metric: str
    statistic: str
    maximize: bool
    unit: str

    def value(self, results: Mapping[str, Any]) -> float | None:
        return value_of(results, self.metric, self.statistic)

    def shown(self, value: float) -> str:
        """A value of this objective for a reader, with its unit of time."""
        return _with_unit(value) if self.metric in LATENCIES else f"{value:,.4g}"


#: p99 end-to-end is what a user with a latency promise must keep; means hide the tail.
OBJECTIVES: Mapping[str, Objective] = {
    "throughput": Objective(
        name="throughput",
        metric="output_throughput",
        statistic="mean",
        maximize=True,
        unit="output tokens/s",
    ),
    "latency": Objective(
        name="latency",
        metric="e2e_latency",
        statistic="p99",
        maximize=False,
        unit="p99 end-to-end",
    ),
    "cost": Objective(
        name="cost",
        metric="cost_per_million_tokens",
        statistic="mean",
        maximize=False,
        unit="USD per million output tokens",
    ),
}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that was tried, with what it did.

    Attributes:
        key: The trial's.
        label: For a reader, what was swept.
        results: Under the journal's names.
    """

    key: str
    label: str
    results: dict[str, Any]


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A choice and its grounds.

    Attributes:
        chosen: `None` when nothing had a value for the objective.
        feasible: Whether the chosen one meets every constraint; when nothing does, the
            chosen one is the nearest miss.
        unmet: Constraints that the chosen one misses.
        reasons: Sentences for a reader.
        feasible_count: Candidates that meet every constraint.
    """

    objective: str
    chosen: Candidate | None
    feasible: bool
    unmet: tuple[Constraint, ...] = ()
    runner_up: Candidate | None = None
    feasible_count: int = 0
    candidate_count: int = 0
    reasons: tuple[str, ...] = ()


def recommend(
    candidates: Sequence[Candidate], constraints: tuple[Constraint, ...], objective_name: str
) -> Recommendation:
    """The best candidate for an objective among those that meet every constraint.

    Ties go to the higher output throughput and then to the earlier trial. When nothing
    meets all constraints, the candidate with the smallest worst relative miss is named
    instead and marked as infeasible: it tells what to give up.
    """
    objective = OBJECTIVES[objective_name]
    valued = [c for c in candidates if objective.value(c.results) is not None]
    feasible = [c for c in valued if not unmet(constraints, c.results)]
    if not valued:
        return Recommendation(
            objective=objective_name,
            chosen=None,
            feasible=False,
            candidate_count=len(candidates),
            reasons=(f"no trial has a value for {objective.metric}",),
        )
    if feasible:
        ranked = sorted(feasible, key=lambda c: _rank(objective, c))
    else:
        ranked = sorted(valued, key=lambda c: (_worst_miss(constraints, c), _rank(objective, c)))
    chosen, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    missed = tuple(unmet(constraints, chosen.results))
    return Recommendation(
        objective=objective_name,
        chosen=chosen,
        feasible=bool(feasible),
        unmet=missed,
        runner_up=runner_up,
        feasible_count=len(feasible),
        candidate_count=len(candidates),
        reasons=tuple(
            _reasons(objective, chosen, runner_up, constraints, missed, len(feasible), candidates)
        ),
    )


def on_front(candidates: Sequence[Candidate]) -> list[str]:
    """Keys of the candidates on the front of throughput, p99 latency and, where known, cost."""
    priced = all(_value(c, "cost") is not None for c in candidates)
    names = ["throughput", "latency", *(["cost"] if priced else [])]
    points = [
        tuple(float("nan") if (v := _value(c, name)) is None else v for name in names)
        for c in candidates
    ]
    maximize = tuple(OBJECTIVES[name].maximize for name in names)
    return [candidates[index].key for index in pareto_front(points, maximize=maximize)]


def _value(candidate: Candidate, objective_name: str) -> float | None:
    return OBJECTIVES[objective_name].value(candidate.results)


def _rank(objective: Objective, candidate: Candidate) -> tuple[float, float]:
    value = objective.value(candidate.results) or 0.0
    throughput = OBJECTIVES["throughput"].value(candidate.results) or 0.0
    return (-value if objective.maximize else value, -throughput)


def _worst_miss(constraints: tuple[Constraint, ...], candidate: Candidate) -> float:
    misses = [0.0]
    for constraint in unmet(constraints, candidate.results):
        measured = value_of(candidate.results, constraint.metric, constraint.statistic)
        scale = abs(constraint.value) or 1.0
        misses.append(
            float("inf") if measured is None else abs(measured - constraint.value) / scale
        )
    return max(misses)


def _reasons(
    objective: Objective,
    chosen: Candidate,
    runner_up: Candidate | None,
    constraints: tuple[Constraint, ...],
    missed: tuple[Constraint, ...],
    feasible_count: int,
    candidates: Sequence[Candidate],
) -> list[str]:
    word = "highest" if objective.maximize else "lowest"
    value = objective.value(chosen.results) or 0.0
    said = []
    if constraints and feasible_count:
        said.append(f"{feasible_count} of {len(candidates)} trials meet every constraint")
    if missed:
        said.append(
            "no trial meets every constraint; this one comes nearest and misses "
            + ", ".join(f"{c.label} (got {_shown(c, chosen)})" for c in missed)
        )
    else:
        said.append(
            f"it has the {word} {objective.metric} among them: {objective.shown(value)} "
            f"{objective.unit}"
        )
        said += [f"{c.label} holds: {_shown(c, chosen)}" for c in constraints]
    if runner_up is not None and not missed:
        other = objective.value(runner_up.results) or 0.0
        change = (other / value - 1) * 100 if value else 0.0
        said.append(f"next is {runner_up.label}: {objective.shown(other)} ({change:+.1f}%)")
    return said


def _shown(constraint: Constraint, candidate: Candidate) -> str:
    measured = value_of(candidate.results, constraint.metric, constraint.statistic)
    if measured is None:
        return "not measured"
    return _with_unit(measured) if constraint.metric in LATENCIES else f"{measured:,.4g}"


def _with_unit(time_ms: float) -> str:
    return f"{time_ms / 1000:,.4g} s" if time_ms >= 1000 else f"{time_ms:,.4g} ms"
