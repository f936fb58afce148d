"""Digest of a run: what a reader wants first, as texts, for every page that is not the dashboard.

A pull request (`markdown`) and a notebook (`inline`) say the same of a run, because both are made
of this value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from servetune.metrics import Constraint
from servetune.metrics.results import ResultFields
from servetune.report.page_data import header_of
from servetune.report.prices import price_lines
from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown
from servetune.report.ranking import (
    check_constraints,
    constraint_lines,
    failed_text,
    goal_text,
    label_of,
    pick_title,
    ranked,
    results_of,
    varying,
)
from servetune.report.tables import simulated_notice
from servetune.search import Recommendation, SearchSummary, failed_requests
from servetune.store.schema import TrialRecord

#: Trials that are listed.
MOST_LISTED = 10

#: Columns of a list of trials: heading, metric and statistic.
_COLUMNS = (
    ("output", "output_throughput", "mean"),
    ("TTFT mean", "ttft", "mean"),
    ("TTFT p99", "ttft", "p99"),
    ("ITL mean", "itl", "mean"),
    ("E2E p99", "e2e_latency", "p99"),
    ("$/M tokens", "cost_per_million_tokens", "mean"),
)
#: Facts of the head, in order: title and name in the page's head.
_FACTS = (
    ("engine", "engine"),
    ("workload", "workload"),
    ("instance", "instance"),
    ("date", "date"),
)


class PickDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One pick in words.

    Attributes:
        title: Objective that it is best in.
        label: Settings of the picked trial; empty where there is none.
        feasible: Whether it holds every constraint.
        values: Figures of the trial, as in a list of trials.
        doubt: Clauses on how sure the pick is; empty where nothing is known of it.
        reasons: Reasons as sentences.
        cmd: Command line of its server.
    """

    title: str
    label: str
    feasible: bool
    values: tuple[str, ...] = ()
    doubt: str = ""
    reasons: tuple[str, ...] = ()
    cmd: str = ""


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """A run in words.

    Attributes:
        heading: Model and machine.
        notice: Notice that trials were simulated; empty if all were measured.
        facts: Titles and values of what all trials have in common, and of a single trial's results.
        picks: Picks; none of a single trial.
        search: Lines on the search and its doubt.
        columns: Headings of the figures of picks and trials.
        trials: Best trials: label, figures, standing.
        failures: Labels and reasons of failed trials.
        trial_count: Number of trials.
    """

    heading: str
    notice: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    picks: tuple[PickDigest, ...] = ()
    search: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    trials: tuple[tuple[str, ...], ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    trial_count: int = 0


def digest_of(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation],
    search: SearchSummary | None = None,
    *,
    further: Sequence[str] = (),
) -> Digest:
    """Digest of a run.

    Args:
        records: Trials of the run in order.
        constraints: Limits of the run.
        chosen: Picks of the run.
        search: What the search of the run did, where there was one.
        further: Further lines on what it found.
    """
    if not records:
        return Digest(heading="No trials yet")
    names, columns = varying(records), _columns_of(records)
    failed = [record for record in records if record.failure is not None]
    about = Digest(
        heading=_heading(records),
        notice=simulated_notice(records),
        facts=_facts(records, constraints, chosen),
        search=(*further, *(search.lines() if search else ())),
        columns=tuple(head for head, _, _ in columns),
        trial_count=len(records),
    )
    if len(records) == 1:
        return msgspec.structs.replace(about, facts=(*about.facts, *_results(records[0])))
    by_key = {record.key: record for record in reversed(records)}
    picks = (_pick_digest(pick, by_key, search, columns) for pick in chosen.values())
    best = ranked(records, constraints)[:MOST_LISTED]
    return msgspec.structs.replace(
        about,
        picks=tuple(picks),
        trials=tuple(
            (
                label_of(record, names),
                *_values(results_of(record), columns),
                _standing(record, constraints),
            )
            for record in best
        ),
        failures=tuple(
            (label_of(record, names), record.failure.reason)
            for record in failed[:MOST_LISTED]
            if record.failure
        ),
    )


def digest_of_pick(
    pick: Recommendation, record: TrialRecord | None, search: SearchSummary | None
) -> Digest:
    """Digest of one pick, whose record is that of the picked trial."""
    if record is None:
        return Digest(heading=f"{pick_title(pick)}: none", search=pick.reasons)
    columns = _columns_of([record])
    return Digest(
        heading=_heading([record]),
        notice=simulated_notice([record]),
        facts=tuple(("price", line.removeprefix("price: ")) for line in price_lines([record])),
        picks=(_pick_digest(pick, {record.key: record}, search, columns),),
        search=tuple(search.lines()) if search else (),
        columns=tuple(head for head, _, _ in columns),
        trial_count=1,
    )


def _pick_digest(
    pick: Recommendation,
    by_key: Mapping[str, TrialRecord],
    search: SearchSummary | None,
    columns: Sequence[tuple[str, str, str]],
) -> PickDigest:
    if pick.chosen is None:
        return PickDigest(title=pick_title(pick), label="", feasible=False, reasons=pick.reasons)
    record = by_key[pick.chosen.key]
    return PickDigest(
        title=pick_title(pick),
        label=pick.chosen.label,
        feasible=pick.feasible,
        values=_values(pick.chosen.results, columns),
        doubt="; ".join(_doubts(pick, record, search)),
        reasons=pick.reasons,
        cmd=record.cmd,
    )


def _doubts(pick: Recommendation, record: TrialRecord, search: SearchSummary | None) -> list[str]:
    """What makes a pick less than certain, in few words."""
    assert pick.chosen is not None
    words = []
    if not pick.feasible:
        words.append("misses a constraint")
    failed = failed_requests(pick.chosen.results)
    if failed is not None and failed.beyond_tolerance:
        words.append(f"{failed.share} of its requests failed")
    doubt = search.doubt_about(record.key) if search else None
    if doubt is not None and doubt.objective in ("", pick.objective):
        words.append(doubt.verdict if doubt.settled else f"not settled: {doubt.verdict}")
    if pick.ties:
        tied = ", ".join(each.label for each in pick.ties[:3])
        words.append(f"a tie: cannot be told apart from {tied}")
    if record.simulated:
        words.append("rests on simulation alone")
    return words


def _heading(records: Sequence[TrialRecord]) -> str:
    head = header_of(records)
    return " on ".join(filter(None, (head.model, head.machine))) or "Trials"


def _facts(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation],
) -> tuple[tuple[str, str], ...]:
    head = header_of(records)
    facts = [(title, str(fact)) for title, name in _FACTS if (fact := getattr(head, name))]
    if head.price:
        facts.append(("price", f"${head.price} per hour ({head.price_source or 'given'})"))
    goal = goal_text(constraints, chosen)
    if goal and len(records) > 1:
        facts.append(tuple(goal.split(": ", 1)))  # type: ignore[arg-type]
    failed = f", {head.failed_count:,} of them failed" if head.failed_count else ""
    if len(records) > 1:
        facts.append(("trials", f"{len(records):,}{failed}"))
    else:
        facts += [("constraint", line) for line in constraint_lines(records[0], constraints)]
    return tuple(facts)


def _results(record: TrialRecord) -> tuple[tuple[str, str], ...]:
    """Results of a single trial, those that it has."""
    if record.failure is not None:
        return (("failed", f"{record.failure.kind}: {record.failure.reason}"),)
    values = [(_title(*each), _value(results_of(record), *each)) for each in _SINGLE]
    return (
        *((title, value) for title, value in values if value != DASH),
        ("failed requests", failed_text(record)),
    )


#: Figures of a single trial: metric and statistic.
_SINGLE = (
    ("output_throughput", "mean"),
    ("request_throughput", "mean"),
    ("ttft", "mean"),
    ("ttft", "p99"),
    ("itl", "mean"),
    ("itl", "p99"),
    ("e2e_latency", "mean"),
    ("e2e_latency", "p99"),
    ("cost_per_million_tokens", "mean"),
)


def _title(name: str, statistic: str) -> str:
    quantity = QUANTITIES[name]
    return f"{quantity.title}, {statistic}" if quantity.has_statistics else quantity.title


def _columns_of(records: Sequence[TrialRecord]) -> tuple[tuple[str, str, str], ...]:
    """Columns of which a trial has a value."""
    return tuple(
        (head, name, statistic)
        for head, name, statistic in _COLUMNS
        if any(_value(results_of(record), name, statistic) != DASH for record in records)
    )


def _values(results: ResultFields, columns: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(_value(results, name, statistic) for _, name, statistic in columns)


def _value(results: ResultFields, name: str, statistic: str) -> str:
    return shown(quantity_value(results, name, statistic), QUANTITIES[name].unit)


def _standing(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str:
    """Whether a trial meets the constraints, what it misses, and whether it was measured."""
    check = check_constraints(record, constraints)
    words = ["meets all"] if check.meets_all and constraints else []
    words += [f"misses {each.label}" for each in check.missed]
    words += [f"{each.label} not measured" for each in check.unknown]
    words += ["simulated"] if record.simulated else []
    return ", ".join(words) or "measured"
