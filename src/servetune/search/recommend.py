"""Choosing: which of several tried configurations to run, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from servetune.metrics import LATENCIES, Constraint, unmet, value_of
from servetune.search.pareto import pareto_front

__all__ = [
    "OBJECTIVES",
    "TOLERATED_ERROR_RATE",
    "Candidate",
    "FailedRequests",
    "Objective",
    "Recommendation",
    "exceeds_error_tolerance",
    "failed_requests",
    "pareto_keys",
    "recommend",
]

#: Share of requests that may fail before a trial's other figures stop being comparable:
#: published endpoints are judged by 99% success, and a server that refuses a request saves
#: its work, so with more failures a trial looks faster and cheaper than it is.
TOLERATED_ERROR_RATE = 0.01

ObjectiveName = Literal["throughput", "latency", "cost"]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What is best: one metric, and whether more of it is better; `title` is for a reader."""

    name: ObjectiveName
    metric: str
    statistic: str
    maximize: bool
    title: str

    def value(self, results: Mapping[str, Any]) -> float | None:
        return value_of(results, self.metric, self.statistic)

    def shown(self, value: float) -> str:
        """A value of this objective for a reader, with its unit."""
        return _with_unit(self.metric, value)


_RATE_UNITS: Mapping[str, str] = {
    "output_throughput": " tok/s",
    "input_throughput": " tok/s",
    "request_throughput": " req/s",
    "goodput": " req/s",
}

#: p99 end-to-end is what a user with a latency promise must keep; means hide the tail.
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
    """The requests of one trial that got no whole answer; there is at least one.

    Attributes:
        rate: Share of all requests, above 0 and at most 1.
        count: `None`, as `total`, where the results give only the rate.
        total: Requests sent, answered or not.
    """

    rate: float
    count: int | None = None
    total: int | None = None

    @property
    def beyond_tolerance(self) -> bool:
        return self.rate > TOLERATED_ERROR_RATE

    @property
    def share(self) -> str:
        """`47%`; `100%` only where nothing was answered."""
        if self.rate >= 1:
            return "100%"
        percent = self.rate * 100
        return f"{min(99, math.floor(percent + 0.5))}%" if percent >= 10 else f"{percent:.2g}%"

    @property
    def fraction(self) -> str:
        """`14/30`, or the share where the counts are not known."""
        return self.share if self.count is None else f"{self.count}/{self.total}"

    @property
    def sentence(self) -> str:
        """What failed, and what that means for the trial's other figures."""
        said = (
            f"{self.share} of its requests failed"
            if self.count is None
            else f"{self.count} of {self.total} requests failed ({self.share})"
        )
        return said if self.rate >= 1 else f"{said}: its figures are of the others"


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
        left_out_count: Candidates that could not be chosen because too many of their
            requests failed; see `recommend`.
    """

    objective: str
    chosen: Candidate | None
    feasible: bool
    unmet: tuple[Constraint, ...] = ()
    runner_up: Candidate | None = None
    feasible_count: int = 0
    left_out_count: int = 0
    candidate_count: int = 0
    reasons: tuple[str, ...] = ()


def recommend(
    candidates: Sequence[Candidate], constraints: tuple[Constraint, ...], objective_name: str
) -> Recommendation:
    """The best candidate for an objective among those that meet every constraint.

    Ties go to the higher output throughput and then to the earlier trial. When nothing
    meets all constraints, the candidate with the smallest worst relative miss is named
    instead and marked as infeasible: it tells what to give up.

    Either way candidates with more failed requests than `TOLERATED_ERROR_RATE` are left out
    while there is another one, unless a constraint says how many may fail. One that meets
    every constraint is still preferred to a cleaner one that does not.
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
    eligible = [
        c for c in possible if not exceeds_error_tolerance(c.results, constraints)
    ] or possible
    left_out_count = len(possible) - len(eligible)
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
        left_out_count=left_out_count,
        candidate_count=len(candidates),
        reasons=(
            *_pool_reasons(constraints, len(feasible), left_out_count, len(candidates)),
            *_reasons(objective, chosen, runner_up, constraints, missed),
        ),
    )


def failed_requests(results: Mapping[str, Any]) -> FailedRequests | None:
    """The failed requests of a trial; `None` when none failed or the results do not say."""
    rate = value_of(results, "error_rate")
    if rate is None or not rate > 0:
        return None
    count, answered = results.get("failed"), results.get("completed")
    if isinstance(count, int) and isinstance(answered, int):
        return FailedRequests(rate=rate, count=count, total=count + answered)
    return FailedRequests(rate=rate)


def exceeds_error_tolerance(
    results: Mapping[str, Any], constraints: tuple[Constraint, ...]
) -> bool:
    """Whether more requests failed than a choice tolerates.

    A constraint on `error_rate` is the user's own tolerance and takes this one's place.
    Results that do not speak of failures, as other tools write them, are not set aside.
    """
    if any(constraint.metric == "error_rate" for constraint in constraints):
        return False
    failed = failed_requests(results)
    return failed is not None and failed.beyond_tolerance


def pareto_keys(candidates: Sequence[Candidate]) -> list[str]:
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


def _pool_reasons(
    constraints: tuple[Constraint, ...], feasible_count: int, left_out_count: int, total: int
) -> list[str]:
    """Among how many the choice was made."""
    said = []
    if constraints and feasible_count:
        said.append(f"{feasible_count} of {total} trials meet every constraint")
    if left_out_count:
        trials, are = ("trial", "is") if left_out_count == 1 else ("trials", "are")
        said.append(
            f"{left_out_count} {trials} with more than {TOLERATED_ERROR_RATE * 100:g}% failed "
            f"requests {are} left out"
        )
    return said


def _reasons(
    objective: Objective,
    chosen: Candidate,
    runner_up: Candidate | None,
    constraints: tuple[Constraint, ...],
    missed: tuple[Constraint, ...],
) -> list[str]:
    word = "highest" if objective.maximize else "lowest"
    value = objective.value(chosen.results) or 0.0
    said = []
    if missed:
        said.append(
            "no trial meets every constraint; this one comes nearest and misses "
            + ", ".join(f"{c.label} (got {_shown(c, chosen)})" for c in missed)
        )
    else:
        said.append(f"it has the {word} {objective.title} among them: {objective.shown(value)}")
        said += [f"{c.label} holds: {_shown(c, chosen)}" for c in constraints]
    failed = failed_requests(chosen.results)
    if failed is not None:
        said.append(failed.sentence)
    if runner_up is not None and not missed:
        other = objective.value(runner_up.results) or 0.0
        change = (other / value - 1) * 100 if value else 0.0
        apart = "within 0.1%" if abs(change) < 0.05 else f"{change:+.1f}%"
        said.append(f"next is {runner_up.label}: {objective.shown(other)} ({apart})")
    return said


def _shown(constraint: Constraint, candidate: Candidate) -> str:
    measured = value_of(candidate.results, constraint.metric, constraint.statistic)
    if measured is None:
        return "not measured"
    return _with_unit(constraint.metric, measured)


def _with_unit(metric: str, value: float) -> str:
    """Four digits and the unit; a share of requests has none, as in its constraint."""
    if metric in LATENCIES:
        return f"{value / 1000:,.4g} s" if value >= 1000 else f"{value:,.4g} ms"
    if metric == "cost_per_million_tokens":
        return f"${value:,.4g}"
    return f"{value:,.4g}{_RATE_UNITS.get(metric, '')}"
