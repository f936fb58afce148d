"""Recommendation: the best of several tried configurations, with reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from servetune.json_value import JsonObject
from servetune.metrics import LATENCIES, Constraint, short_texts, unmet, value_of
from servetune.metrics.results import ResultFields
from servetune.search.pareto import pareto_front

#: Largest share of failed requests with which a trial's other figures stay comparable: published
#: endpoints are judged by 99% success, and a server that refuses a request saves its work, so
#: with more failures a trial looks faster and cheaper than it is.
TOLERATED_ERROR_RATE = 0.01

ObjectiveName = Literal["throughput", "latency", "cost"]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """Objective of a choice: one metric and its direction; `title` is its display name."""

    name: ObjectiveName
    metric: str
    statistic: str
    maximize: bool
    title: str

    def value(self, results: ResultFields) -> float | None:
        return value_of(results, self.metric, self.statistic)

    def shown(self, value: float) -> str:
        """Value of this objective with its unit, for display."""
        return _with_unit(self.metric, value)


_RATE_UNITS: Mapping[str, str] = {
    "output_throughput": " tok/s",
    "input_throughput": " tok/s",
    "request_throughput": " req/s",
    "goodput": " req/s",
}

#: Objectives by name. Latency is p99 end-to-end, as in a service level objective: means hide the
#: tail.
OBJECTIVES: Mapping[str, Objective] = {
    "throughput": Objective(
        name="throughput",
        metric="output_throughput",
        statistic="mean",
        maximize=True,
        title="output throughput",
    ),
    "latency": Objective(
        name="latency",
        metric="e2e_latency",
        statistic="p99",
        maximize=False,
        title="p99 end-to-end latency",
    ),
    "cost": Objective(
        name="cost",
        metric="cost_per_million_tokens",
        statistic="mean",
        maximize=False,
        title="cost per million output tokens",
    ),
}


class FailedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Failed requests of one trial; at least one.

    Attributes:
        rate: Failed share of all requests, above 0 and at most 1.
        count: Number of failed requests; `None` where the results have only the rate.
        total: Number of all requests; `None` where the results have only the rate.
    """

    rate: float
    count: int | None = None
    total: int | None = None

    @property
    def beyond_tolerance(self) -> bool:
        return self.rate > TOLERATED_ERROR_RATE

    @property
    def share(self) -> str:
        """Failed share as text: `47%`; `100%` only if all failed."""
        if self.rate >= 1:
            return "100%"
        percent = self.rate * 100
        return f"{min(99, math.floor(percent + 0.5))}%" if percent >= 10 else f"{percent:.2g}%"

    @property
    def fraction(self) -> str:
        """Failed count as text: `14/30`, or the share without counts."""
        return self.share if self.count is None else f"{self.count}/{self.total}"

    @property
    def sentence(self) -> str:
        """Sentence on the failures and their effect on the trial's other figures."""
        failed = (
            f"{self.share} of its requests failed"
            if self.count is None
            else f"{self.count} of {self.total} requests failed ({self.share})"
        )
        return failed if self.rate >= 1 else f"{failed}: its figures are of the others"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Tried configuration with its results.

    Attributes:
        key: Key of the trial.
        label: Display name made of the swept settings.
        results: Results under the journal's field names.
    """

    key: str
    label: str
    results: JsonObject


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen configuration and its reasons.

    Attributes:
        chosen: Chosen candidate; `None` if none has a value for the objective.
        feasible: Whether the choice meets every constraint; if no candidate does, the choice
            is the nearest miss.
        unmet: Constraints that the choice misses.
        reasons: Reasons as sentences.
        feasible_count: Number of candidates that meet every constraint.
        left_out: Descriptions of the candidates that were excluded; see `recommend`.
    """

    objective: str
    chosen: Candidate | None
    feasible: bool
    unmet: tuple[Constraint, ...] = ()
    runner_up: Candidate | None = None
    feasible_count: int = 0
    left_out: tuple[str, ...] = ()
    candidate_count: int = 0
    reasons: tuple[str, ...] = ()


def recommend(
    candidates: Sequence[Candidate], constraints: tuple[Constraint, ...], objective_name: str
) -> Recommendation:
    """Best candidate for an objective among those that meet every constraint.

    Ties go to the higher output throughput and then to the earlier trial. If no candidate
    meets all constraints, the one with the smallest worst relative miss is chosen and marked
    as infeasible: it shows which constraint to relax.

    Candidates with more failed requests than `TOLERATED_ERROR_RATE` are excluded while there is
    another one, unless a constraint limits failures. So are those whose server counts tokens that
    did not arrive (`metrics.short_texts`). A candidate that meets every constraint is still
    preferred to one with fewer failures that does not.
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
            reasons=(f"no trial has a value for the {objective.title}",),
        )
    possible = feasible or valued
    eligible, left_out = _eligible(possible, candidates, constraints)
    if feasible:
        ranked = sorted(eligible, key=lambda c: _rank(objective, c))
    else:
        ranked = sorted(eligible, key=lambda c: (_worst_miss(constraints, c), _rank(objective, c)))
    chosen, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    missed = tuple(unmet(constraints, chosen.results))
    return Recommendation(
        objective=objective_name,
        chosen=chosen,
        feasible=bool(feasible),
        unmet=missed,
        runner_up=runner_up,
        feasible_count=len(feasible),
        left_out=left_out,
        candidate_count=len(candidates),
        reasons=(
            *_feasible_reason(constraints, len(feasible), len(candidates)),
            *(f"left out: {trials}" for trials in left_out),
            *_reasons(objective, chosen, runner_up, constraints, missed),
        ),
    )


def failed_requests(results: ResultFields) -> FailedRequests | None:
    """Failed requests of a trial; `None` without any or without data."""
    rate = value_of(results, "error_rate")
    if rate is None or not rate > 0:
        return None
    count, answered = results.get("failed"), results.get("completed")
    if isinstance(count, int) and isinstance(answered, int):
        return FailedRequests(rate=rate, count=count, total=count + answered)
    return FailedRequests(rate=rate)


def exceeds_error_tolerance(results: ResultFields, constraints: tuple[Constraint, ...]) -> bool:
    """Whether more requests failed than `TOLERATED_ERROR_RATE`.

    A constraint on `error_rate` replaces this tolerance. ResultFields without failure counts, as
    other tools write them, are within it.
    """
    if any(constraint.metric == "error_rate" for constraint in constraints):
        return False
    failed = failed_requests(results)
    return failed is not None and failed.beyond_tolerance


def pareto_keys(candidates: Sequence[Candidate]) -> list[str]:
    """Keys on the Pareto front of throughput, p99 latency and, where known, cost."""
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


def _feasible_reason(
    constraints: tuple[Constraint, ...], feasible_count: int, total: int
) -> list[str]:
    if constraints and feasible_count:
        return [f"{feasible_count} of {total} trials meet every constraint"]
    return []


#: Faults for which a candidate is excluded, as the reasons name them.
_FAULTS: Mapping[str, str] = {
    "failing": f"with more than {TOLERATED_ERROR_RATE * 100:g}% failed requests",
    "miscounted": "whose server counts tokens that did not arrive",
}


def _eligible(
    possible: Sequence[Candidate],
    candidates: Sequence[Candidate],
    constraints: tuple[Constraint, ...],
) -> tuple[Sequence[Candidate], tuple[str, ...]]:
    """Candidates to choose among, and descriptions of those that are excluded.

    All are eligible where each has a fault.
    """
    findings = short_texts([each.results for each in candidates])
    miscounted = {id(c) for c, finding in zip(candidates, findings, strict=True) if finding}
    faults = [
        "miscounted"
        if id(c) in miscounted
        else "failing"
        if exceeds_error_tolerance(c.results, constraints)
        else ""
        for c in possible
    ]
    eligible = [c for c, fault in zip(possible, faults, strict=True) if not fault]
    if not eligible:
        return possible, ()
    counts = {fault: faults.count(fault) for fault in _FAULTS}
    return eligible, tuple(
        f"{count} {'trial' if count == 1 else 'trials'} {_FAULTS[fault]}"
        for fault, count in counts.items()
        if count
    )


def _reasons(
    objective: Objective,
    chosen: Candidate,
    runner_up: Candidate | None,
    constraints: tuple[Constraint, ...],
    missed: tuple[Constraint, ...],
) -> list[str]:
    word = "highest" if objective.maximize else "lowest"
    value = objective.value(chosen.results) or 0.0
    reasons = []
    if missed:
        reasons.append(
            "no trial meets every constraint; this one comes nearest and misses "
            + ", ".join(f"{c.label} (got {_shown(c, chosen)})" for c in missed)
        )
    else:
        reasons.append(f"it has the {word} {objective.title} among them: {objective.shown(value)}")
        reasons += [f"{c.label} holds: {_shown(c, chosen)}" for c in constraints]
    failed = failed_requests(chosen.results)
    if failed is not None:
        reasons.append(failed.sentence)
    if runner_up is not None and not missed:
        other = objective.value(runner_up.results) or 0.0
        change = (other / value - 1) * 100 if value else 0.0
        difference = "within 0.1%" if abs(change) < 0.05 else f"{change:+.1f}%"
        reasons.append(f"next is {runner_up.label}: {objective.shown(other)} ({difference})")
    return reasons


def _shown(constraint: Constraint, candidate: Candidate) -> str:
    measured = value_of(candidate.results, constraint.metric, constraint.statistic)
    if measured is None:
        return "not measured"
    return _with_unit(constraint.metric, measured)


def _with_unit(metric: str, value: float) -> str:
    """Value with four digits and its unit; none for a share of requests."""
    if metric in LATENCIES:
        return f"{value / 1000:,.4g} s" if value >= 1000 else f"{value:,.4g} ms"
    if metric == "cost_per_million_tokens":
        return f"${value:,.4g}"
    return f"{value:,.4g}{_RATE_UNITS.get(metric, '')}"
