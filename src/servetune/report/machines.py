"""Cost per million output tokens of each machine: its cheapest trial or plan within the limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from servetune.metrics import Constraint, interval_of
from servetune.report.ranking import check_constraints, label_of, plan_of, results_of, varying
from servetune.search import exceeds_error_tolerance
from servetune.store.schema import TrialRecord

#: Quantity that machines are compared by, in US dollars.
COST = "cost_per_million_tokens"


class MachineCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cheapest way to serve the workload on one machine.

    Attributes:
        machine: Name of the machine.
        label: Trial or plan, with its load.
        cost: US dollars per million output tokens; `None` where the machine cannot serve.
        low: Lower end of its interval; `None` without one.
        high: Upper end of its interval.
        usd_per_hour: Price of the whole machine.
        price_source: Source of the price.
        copies: Copies of the model on the machine; `None` where not known.
        output_tokens_per_s: Output tokens per second of the whole machine.
        holds: Whether it holds every limit.
        missed: Limits that it misses, or why the machine cannot serve, as text.
        key: Key of the trial; empty for a plan that was only predicted.
        predicted: Whether nothing was measured.
    """

    machine: str
    label: str
    cost: float | None
    low: float | None = None
    high: float | None = None
    usd_per_hour: float | None = None
    price_source: str = ""
    copies: int | None = None
    output_tokens_per_s: float | None = None
    holds: bool = True
    missed: str = ""
    key: str = ""
    predicted: bool = False


def machine_costs(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]
) -> tuple[MachineCost, ...]:
    """Cheapest trial of each machine, those within the limits first.

    A machine whose trials have no cost is left out. A trial is within the limits where it holds
    every one and its requests succeeded.
    """
    names = varying(records)
    by_machine: dict[str, list[MachineCost]] = {}
    for record in records:
        if record.status != "ok" or (cost := record.results.cost_per_million_tokens_usd) is None:
            continue
        missed = _missed(record, constraints)
        low, high = _cost_ends(record, cost)
        plan = plan_of(record)
        found = MachineCost(
            machine=_machine_of(record),
            label=label_of(record, names),
            cost=cost,
            low=low,
            high=high,
            usd_per_hour=record.metadata.price_per_hour_usd,
            price_source=record.metadata.price_source or "",
            copies=plan.replicas if plan is not None else None,
            output_tokens_per_s=record.results.output_throughput,
            holds=not missed,
            missed=missed,
            key=record.key,
            predicted=record.simulated,
        )
        by_machine.setdefault(found.machine, []).append(found)
    return cheapest_first(min(each, key=_order) for each in by_machine.values())


def cheapest_first(costs: Iterable[MachineCost]) -> tuple[MachineCost, ...]:
    """Machines within the limits by cost, those that miss one, then those that cannot serve."""
    return tuple(sorted(costs, key=_order))


def _order(one: MachineCost) -> tuple[bool, bool, float]:
    return one.cost is None, not one.holds, one.cost or 0.0


def _machine_of(record: TrialRecord) -> str:
    metadata = record.metadata
    if metadata.instance_type:
        return metadata.instance_type
    gpu = metadata.gpu_type or "unknown machine"
    return f"{metadata.gpu_count} × {gpu}" if metadata.gpu_count else gpu


def _missed(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str:
    check = check_constraints(record, constraints)
    words = [f"misses {limit.label}" for limit in check.missed]
    words += [f"{limit.label} not measured" for limit in check.unknown]
    if exceeds_error_tolerance(results_of(record), constraints):
        words.append("too many requests failed")
    return ", ".join(words)


def _cost_ends(record: TrialRecord, cost: float) -> tuple[float | None, float | None]:
    """Sampling interval of a measured cost, or the interval of a predicted one."""
    if record.simulated:
        ends = record.interval.ends(COST, cost) if record.interval else None
        return ends or (None, None)
    return interval_of(record.results, COST) or (None, None)
