"""`servetune estimate --sweep`, `--gpu all`, `--instance all`: which plan, which machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from servetune.cli.output import echo
from servetune.errors import PlanError
from servetune.hardware import Node, device_names, instances, node
from servetune.metrics import LATENCIES, Constraint, unmet
from servetune.models import NetworkShape
from servetune.perf.roofline import OperatingPoint
from servetune.perf.sweep import LADDER, Offer, Swept, cheapest_offers, plans_of, sweep
from servetune.plan import Plan
from servetune.trials.simulated import percentiles_of, simulated_results
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd
from servetune.workload import Workload

__all__ = ["buying_text", "judged_by_formula", "machines", "offers", "ranked_plans", "sweep_text"]

#: What an operating point says about which constraint: means only.
POINT_FIELDS = {
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "tpot": "itl_ms",
    "e2e_latency": "e2e_ms",
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "input_throughput": "input_tokens_per_s",
}

#: Makers whose devices stock vLLM runs on; others need an engine of their own.
STOCK_VENDORS = ("NVIDIA", "AMD")
COUNTS = (1, 2, 4, 8)

#: Leading plans that are simulated at most, where percentiles must be judged.
MOST_SIMULATED = 100


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at its best concurrency, and how the constraints were judged.

    Attributes:
        results: The simulator's, where percentiles had to be judged; else `None`.
    """

    swept: Swept
    results: dict[str, Any] | None = None


def judged_by_formula(limits: Sequence[Constraint]) -> tuple[list[Constraint], list[Constraint]]:
    """Limits that means can judge, and those that need a simulation."""
    means = [
        limit for limit in limits if limit.metric in POINT_FIELDS and limit.statistic == "mean"
    ]
    return means, [limit for limit in limits if limit not in means]


def holds(point: OperatingPoint, limits: Sequence[Constraint]) -> bool:
    """Whether a steady state holds limits on means."""
    values = {limit.field: getattr(point, POINT_FIELDS[limit.metric]) for limit in limits}
    return all(limit.holds(values) for limit in limits)


def ranked_plans(
    plan: Plan,
    shape: NetworkShape,
    on: Node,
    workload: Workload,
    limits: tuple[Constraint, ...],
    *,
    target: str,
    top: int,
    quantizations: Sequence[str | None],
) -> tuple[list[Ranked], int]:
    """The best plans that hold every limit, and how many combinations were priced.

    Of plans that differ in batch limits alone the best is kept, at the concurrency that suits
    the target best. Percentiles are judged by simulating the leaders in order until enough
    hold; figures that agree to three digits are simulated once.
    """
    means, others = judged_by_formula(limits)
    plans = list(plans_of(plan, shape, on, quantizations=quantizations))
    priced = list(sweep(plans, shape, on, workload, concurrencies=LADDER))
    holding = [swept for swept in priced if holds(swept.point, means)]
    order = sorted(holding, key=lambda swept: _merit(swept, target), reverse=True)
    kept: list[Ranked] = []
    done: set[tuple[Any, ...]] = set()
    tried: set[tuple[Any, ...]] = set()
    for swept in order:
        if len(kept) == top or len(tried) == MOST_SIMULATED:
            break
        kind = _kind(swept.plan)
        figures = (*kind, swept.point.concurrency, f"{swept.point.output_tokens_per_s:.3g}")
        if kind in done or figures in tried:
            continue
        results = None
        if others:
            tried.add(figures)
            results = _simulated(swept, shape, on, workload, limits)
            if results is None or unmet(limits, results):
                continue  # the same plan may hold with fewer users
        kept.append(Ranked(swept=swept, results=results))
        done.add(kind)
    return kept, len(priced)


def _simulated(
    swept: Swept,
    shape: NetworkShape,
    on: Node,
    workload: Workload,
    limits: tuple[Constraint, ...],
) -> dict[str, Any] | None:
    users = swept.point.concurrency
    load = msgspec.structs.replace(
        workload, max_concurrency=users, request_count=max(200, 8 * users)
    )
    try:
        results = simulated_results(swept.plan, shape, on, load, percentiles=percentiles_of(limits))
    except PlanError:
        return None
    rate, price = results["output_throughput"], on.price
    if price and rate:
        results["cost_per_million_tokens"] = price.usd_per_hour / 3600 / rate * 1e6
    return results


def _merit(swept: Swept, target: str) -> float:
    return -swept.point.e2e_ms if target == "latency" else swept.point.output_tokens_per_s


def _kind(plan: Plan) -> tuple[Any, ...]:
    """Layout and storage: of plans that differ in batch limits alone, one is enough."""
    return (
        plan.tensor_parallel,
        plan.data_parallel,
        plan.replicas,
        plan.quantization,
        plan.kv_cache_dtype,
    )


def machines(kind: str) -> list[Node]:
    """Machines to choose from: every instance, or 1 to 8 of every GPU."""
    if kind == "instance":
        found = list(instances().values())
    else:
        found = [node(gpu=name, count=count) for name in device_names() for count in COUNTS]
    kept = [one for one in found if one.device.vendor in STOCK_VENDORS]
    others = sorted({one.device.vendor for one in found} - {*STOCK_VENDORS, "generic"})
    if others:
        echo(f"left out, because stock vLLM does not run there: {', '.join(others)}")
    return kept


def offers(
    plan: Plan,
    shape: NetworkShape,
    nodes: Sequence[Node],
    workload: Workload,
    limits: tuple[Constraint, ...],
) -> list[Offer]:
    """Machines by what a million output tokens cost on them under the limits on means."""
    means, others = judged_by_formula(limits)
    if others:
        said = ", ".join(limit.label for limit in others)
        echo(f"{said}: not judged here, a formula gives means; check with --sweep or a simulation")
    return cheapest_offers(plan, shape, nodes, workload, holds=lambda point: holds(point, means))


def sweep_text(ranked: Sequence[Ranked], priced: int, on: Node) -> Iterator[str]:
    yield f"ESTIMATE (arithmetic, nothing was run): {priced:,} combinations on {on.label}"
    if not ranked:
        yield "no plan holds every constraint; relax them or name a larger machine"
        return
    yield ""
    yield ("   #  concurrency  out tok/s   req/s  TTFT      ITL       E2E       $/M tokens  plan")
    for number, one in enumerate(ranked, start=1):
        point = one.swept.point
        yield (
            f"{number:>4}  {point.concurrency:>11}  {format_rate(point.output_tokens_per_s):>9}  "
            f"{format_rate(point.requests_per_s):>6}  {_times(point)}  "
            f"{format_usd(one.swept.cost_per_million_tokens_usd):>10}  {one.swept.plan.label}"
        )
    if any(one.results for one in ranked):
        yield ""
        yield "Percentiles were judged by simulating each of these in virtual time:"
        for number, one in enumerate(ranked, start=1):
            shown = ", ".join(
                f"{name} p99 {format_seconds((one.results or {})[f'p99_{name}_ms'] / MS_PER_S)}"
                for name in LATENCIES
                if (one.results or {}).get(f"p99_{name}_ms") is not None
            )
            yield f"{number:>4}  {shown}"


def buying_text(found: Sequence[Offer], *, top: int) -> Iterator[str]:
    yield "ESTIMATE (arithmetic, nothing was run): machines by cost per million output tokens"
    yield ""
    yield (
        "   #  machine                       $/hour   $/M tokens  concurrency  out tok/s  "
        "TTFT      ITL       E2E       plan"
    )
    usable = [offer for offer in found if offer.best is not None]
    for number, offer in enumerate(usable[:top], start=1):
        assert offer.best is not None
        point, price = offer.best.point, offer.node.price
        yield (
            f"{number:>4}  {offer.node.label:<28}  "
            f"{format_usd(price.usd_per_hour if price else None):>7}  "
            f"{format_usd(offer.best.cost_per_million_tokens_usd):>10}  {point.concurrency:>11}  "
            f"{format_rate(point.output_tokens_per_s):>9}  {_times(point)}  "
            f"{offer.best.plan.label}"
        )
    priced = [offer for offer in usable if offer.node.price]
    if priced:
        cheapest = min(priced, key=lambda o: o.node.price.usd_per_hour if o.node.price else 0.0)
        assert cheapest.node.price is not None
        yield ""
        yield (
            f"cheapest per hour: {cheapest.node.label} at "
            f"{format_usd(cheapest.node.price.usd_per_hour)}; cheapest per token: "
            f"{priced[0].node.label}"
        )
    left_out = [offer for offer in found if offer.best is None]
    if left_out:
        reasons = sorted({offer.why_not for offer in left_out})
        yield f"{len(left_out)} machines left out: {' or '.join(reasons)}"


def _times(point: OperatingPoint) -> str:
    times_ms = (point.ttft_ms, point.itl_ms, point.e2e_ms)
    return "  ".join(f"{format_seconds(time_ms / MS_PER_S):<8}" for time_ms in times_ms)
