"""Recommendation: the best of several tried configurations, with reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import msgspec

from servetune.metrics import Constraint, short_texts, unmet, value_of
from servetune.metrics.results import ResultFields
from servetune.search.candidate import Candidate
from servetune.search.objectives import OBJECTIVES, Objective, parse_objectives, with_unit
from servetune.search.pareto import knee, pareto_front
from servetune.search.reach import Reach, binding, miss_of, off_text, reaches, shown
from servetune.search.ties import doubt_of_ties, ties_of
from servetune.visible import visible

#: Largest share of failed requests with which a trial's other figures stay comparable: published
#: endpoints are judged by 99% success, and a server that refuses a request saves its work, so
#: with more failures a trial looks faster and cheaper than it is.
TOLERATED_ERROR_RATE = 0.01


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


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen configuration and its reasons.

    Attributes:
        objective: Objectives in the grammar, joined by commas.
        chosen: Chosen candidate, of several objectives the knee of the Pareto set; `None` if none
            has a value for each objective.
        feasible: Whether the choice meets every constraint; if no candidate does, the choice
            is the nearest miss.
        unmet: Constraints that the choice misses.
        reasons: Reasons as sentences.
        feasible_count: Number of candidates that meet every constraint.
        left_out: Descriptions of the candidates that were excluded; see `recommend`.
        objectives: Objectives of the choice.
        ladder: Whether constraints are in order of importance.
        pareto: Candidates of the Pareto set of several objectives, by the first of them; empty for
            one objective, and where no candidate meets every constraint.
        ties: Candidates that cannot be told apart from the choice by its one objective.
        reaches: Best value of each constraint, where no candidate meets all of them.
        shortfall: The same as sentences: rungs of a ladder, best values, what to relax.
        binding: Constraint that keeps most candidates from meeting all of them, or the first rung
            of a ladder that cannot be held; `None` where one meets all.
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
    objectives: tuple[Objective, ...] = ()
    ladder: bool = False
    pareto: tuple[Candidate, ...] = ()
    ties: tuple[Candidate, ...] = ()
    reaches: tuple[Reach, ...] = ()
    shortfall: tuple[str, ...] = ()
    binding: Constraint | None = None

    def __repr__(self) -> str:
        return "\n".join([self._title, *(f"  - {reason}" for reason in self.reasons)])

    def _repr_html_(self) -> str:
        reasons = "".join(f"<li>{escape(visible(reason))}</li>" for reason in self.reasons)
        return (
            '<div class="servetune tex2jax_ignore mathjax_ignore">'
            f"<p><strong>{escape(visible(self._title))}</strong></p><ul>{reasons}</ul></div>"
        )

    @property
    def _title(self) -> str:
        if self.chosen is None:
            return f"best by {self.objective}: none"
        missed = "" if self.feasible else " (misses a constraint)"
        return f"best by {self.objective}: {self.chosen.label}{missed}"


def recommend(
    candidates: Sequence[Candidate],
    constraints: tuple[Constraint, ...],
    objectives: str | Sequence[Objective] = "throughput",
    *,
    ladder: bool = False,
) -> Recommendation:
    """Best candidate for an objective, or for several, among those that meet every constraint.

    Ties go to the higher output throughput and then to the earlier trial. Of several objectives the
    knee of the Pareto set is chosen (`pareto.knee`). If no candidate meets all constraints, the one
    with the smallest worst relative miss is chosen and marked as infeasible: it shows which
    constraint to relax. Of a ladder, it holds as many of the first constraints as any candidate
    and comes nearest to the next one.

    Candidates with more failed requests than `TOLERATED_ERROR_RATE` are excluded while there is
    another one, unless a constraint limits failures. So are those whose server counts tokens that
    did not arrive (`metrics.short_texts`). A candidate that meets every constraint is still
    preferred to one with fewer failures that does not.

    Args:
        candidates: Successful trials.
        constraints: Limits; in order of importance where `ladder`.
        objectives: Objectives, or their text in the grammar of `--objective`.
        ladder: Whether earlier constraints go before later ones where not all can be met.

    Raises:
        GrammarError: The text of the objectives does not follow the grammar.
        UnknownName: A metric is unknown.
    """
    wanted = parse_objectives(objectives) if isinstance(objectives, str) else tuple(objectives)
    empty = Recommendation(
        objective=",".join(each.name for each in wanted),
        chosen=None,
        feasible=False,
        candidate_count=len(candidates),
        objectives=wanted,
        ladder=ladder,
    )
    valued = [c for c in candidates if all(o.value(c.results) is not None for o in wanted)]
    if not valued:
        return msgspec.structs.replace(empty, reasons=(_without_value(candidates, wanted),))
    held = [_held_first(constraints, c) if ladder else _held_all(constraints, c) for c in valued]
    most = max(held)
    possible = [c for c, count in zip(valued, held, strict=True) if count == most]
    feasible_count = len(possible) if most == len(constraints) else 0
    eligible, left_out = _eligible(possible, candidates, constraints)
    front: list[Candidate] = []
    if not feasible_count:
        ranked = sorted(
            eligible, key=lambda c: (*_misses(constraints, c, ladder), *_rank(wanted[0], c))
        )
    elif len(wanted) == 1:
        ranked = sorted(eligible, key=lambda c: _rank(wanted[0], c))
    else:
        front = _front(wanted, eligible)
        ranked = [front[knee(_values(wanted, front), maximize=tuple(o.maximize for o in wanted))]]
    chosen, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    alone = feasible_count > 0 and len(wanted) == 1
    reached = () if feasible_count else reaches(constraints, candidates)
    binds = None if feasible_count else _binding(constraints, reached, chosen, ladder)
    found = msgspec.structs.replace(
        empty,
        chosen=chosen,
        feasible=feasible_count > 0,
        unmet=tuple(unmet(constraints, chosen.results)),
        runner_up=runner_up,
        feasible_count=feasible_count,
        left_out=left_out,
        pareto=tuple(front),
        ties=tuple(ties_of(wanted[0], chosen, ranked[1:])) if alone else (),
        reaches=reached,
        binding=binds,
    )
    if binds is not None:
        lines = (
            *(_rung_lines(found, constraints, len(possible)) if ladder else ()),
            *(each.sentence for each in reached),
            *([] if ladder or len(constraints) == 1 else [_relaxation(found)]),
        )
        found = msgspec.structs.replace(found, shortfall=lines)
    reasons = _reasons(found, constraints) if found.feasible else _miss_reasons(found)
    return msgspec.structs.replace(
        found,
        reasons=(
            *_feasible_reason(constraints, feasible_count, len(candidates)),
            *(f"left out: {trials}" for trials in left_out),
            *reasons,
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
    priced = all(OBJECTIVES["cost"].value(c.results) is not None for c in candidates)
    objectives = [each for name, each in OBJECTIVES.items() if name != "cost" or priced]
    points = _values(objectives, candidates)
    maximize = tuple(each.maximize for each in objectives)
    return [candidates[index].key for index in pareto_front(points, maximize=maximize)]


def _values(
    objectives: Sequence[Objective], candidates: Sequence[Candidate]
) -> list[tuple[float, ...]]:
    """Values of all objectives, one tuple for each candidate; not a number where there is none."""
    return [
        tuple(math.nan if (v := o.value(c.results)) is None else v for o in objectives)
        for c in candidates
    ]


def _front(objectives: Sequence[Objective], candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates of the Pareto set, the best by the first objective first."""
    maximize = tuple(each.maximize for each in objectives)
    places = pareto_front(_values(objectives, candidates), maximize=maximize)
    return sorted((candidates[at] for at in places), key=lambda c: _rank(objectives[0], c))


def _rank(objective: Objective, candidate: Candidate) -> tuple[float, float]:
    value = objective.value(candidate.results) or 0.0
    throughput = OBJECTIVES["throughput"].value(candidate.results) or 0.0
    return (-value if objective.maximize else value, -throughput)


def _held_all(constraints: tuple[Constraint, ...], candidate: Candidate) -> int:
    """Number of all constraints where the candidate meets them, else -1."""
    return -1 if unmet(constraints, candidate.results) else len(constraints)


def _held_first(constraints: tuple[Constraint, ...], candidate: Candidate) -> int:
    """Number of constraints, from the first on, that the candidate meets one after another."""
    holds = (constraint.holds(candidate.results) for constraint in constraints)
    return next((at for at, each in enumerate(holds) if not each), len(constraints))


def _misses(
    constraints: tuple[Constraint, ...], candidate: Candidate, ladder: bool
) -> tuple[float, ...]:
    """Relative misses to compare candidates by: one for each rung of a ladder, else the worst."""
    misses = [miss_of(constraint, candidate.results) for constraint in constraints]
    return tuple(misses) if ladder else (max(misses, default=0.0),)


def _binding(
    constraints: tuple[Constraint, ...],
    reached: tuple[Reach, ...],
    chosen: Candidate,
    ladder: bool,
) -> Constraint:
    if ladder:
        return constraints[_held_first(constraints, chosen)]
    return binding(reached) or max(constraints, key=lambda c: miss_of(c, chosen.results))


def _without_value(candidates: Sequence[Candidate], objectives: Sequence[Objective]) -> str:
    missing = [o for o in objectives if all(o.value(c.results) is None for c in candidates)]
    if missing:
        return f"no trial has a value for the {missing[0].title}"
    return f"no trial has values for both {' and '.join(o.title for o in objectives)}"


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


#: Definition of the knee; see `pareto.knee`.
KNEE = "nearest to the best value of every objective at once, each scaled to its range in the set"
#: Members of a Pareto set, and trials of a tie, that reasons list.
_LISTED = 12


def _reasons(found: Recommendation, constraints: tuple[Constraint, ...]) -> list[str]:
    """Reasons of a choice that meets every constraint."""
    chosen = found.chosen
    assert chosen is not None
    objectives, runner_up = found.objectives, found.runner_up
    if len(objectives) > 1:
        reasons = set_reasons(found)
    else:
        word = "highest" if objectives[0].maximize else "lowest"
        value = objectives[0].value(chosen.results) or 0.0
        reasons = [
            f"it has the {word} {objectives[0].title} among them: {objectives[0].shown(value)}"
        ]
    reasons += [f"{c.label} holds: {shown(c, chosen)}" for c in constraints]
    failed = failed_requests(chosen.results)
    if failed is not None:
        reasons.append(failed.sentence)
    if runner_up is not None:
        reasons += doubt_of_ties(objectives[0], chosen, runner_up, found.ties, most=_LISTED)
        value = objectives[0].value(chosen.results) or 0.0
        other = objectives[0].value(runner_up.results) or 0.0
        change = (other / value - 1) * 100 if value else 0.0
        difference = "within 0.1%" if abs(change) < 0.05 else f"{change:+.1f}%"
        reasons.append(f"next is {runner_up.label}: {objectives[0].shown(other)} ({difference})")
    return reasons


def set_reasons(found: Recommendation) -> list[str]:
    """Members of the Pareto set with their values, and which of them is the knee; none of one
    objective.
    """
    if not found.pareto:
        return []
    titles = [each.title for each in found.objectives]
    count = len(found.pareto)
    size = f"{count} {'trial is' if count == 1 else 'trials are'} in the Pareto set"
    reasons = [
        f"{size} of {' and '.join(titles)}, where better in one is worse in another",
        f"it is the knee of the set: {KNEE}",
    ]
    for member in found.pareto[:_LISTED]:
        values = (o.shown(o.value(member.results) or 0.0) for o in found.objectives)
        mark = " (the knee)" if member is found.chosen else ""
        reasons.append(f"in the set: {member.label}{mark}: {', '.join(values)}")
    if count > _LISTED:
        reasons.append(f"in the set: {count - _LISTED} further trials")
    return reasons


def _miss_reasons(found: Recommendation) -> list[str]:
    """Reasons of a choice where no candidate meets every constraint."""
    chosen = found.chosen
    assert chosen is not None
    missed = ", ".join(f"{c.label} (got {shown(c, chosen)})" for c in found.unmet)
    failed = failed_requests(chosen.results)
    return [
        f"no trial meets every constraint; this one comes nearest and misses {missed}",
        *([] if failed is None else [failed.sentence]),
        *found.shortfall,
    ]


def _rung_lines(
    found: Recommendation, constraints: tuple[Constraint, ...], level_count: int
) -> list[str]:
    """Rungs that the choice holds, and the one that binds.

    Args:
        found: The choice.
        constraints: Its constraints.
        level_count: Number of candidates that hold as many of the first rungs.
    """
    assert found.chosen is not None
    assert found.binding is not None
    at, total = constraints.index(found.binding), len(constraints)
    value = f"{shown(found.binding, found.chosen)}{_off(found)}"
    before = "the nearest trial"
    if at:
        before = (
            "the trial that holds the rungs before it"
            if level_count == 1
            else f"of {level_count} trials that hold the rungs before it the nearest"
        )
    return [
        *(
            f"rung {place} of {total}, {rung.label}, holds: {shown(rung, found.chosen)}"
            for place, rung in enumerate(constraints[:at], start=1)
        ),
        f"rung {at + 1} of {total}, {found.binding.label}, binds: {before} has {value}",
    ]


def _off(found: Recommendation) -> str:
    assert found.chosen is not None
    assert found.binding is not None
    limit = found.binding
    value = value_of(found.chosen.results, limit.metric, limit.statistic)
    return "" if value is None else f", {off_text(limit, value)}"


def _relaxation(found: Recommendation) -> str:
    """The one constraint that is best relaxed."""
    reach = next(each for each in found.reaches if each.constraint == found.binding)
    count, total = reach.freed_count, found.candidate_count
    if not count:
        return "no constraint can be relaxed alone: every trial misses at least two"
    needed = ""
    if reach.needed is not None:
        needed = f", the first of them at {with_unit(reach.constraint.metric, reach.needed)}"
    return (
        f"{reach.constraint.label} binds: relaxed alone it lets {count} of {total} trials meet "
        f"all{needed}"
    )
