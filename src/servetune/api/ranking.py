"""Ranking of plans by prediction, on one machine or on several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from servetune.api.choosing import Judge, Selection, confidence_text, heading_text, times_text
from servetune.errors import PlanError
from servetune.hardware import Node
from servetune.metrics import LATENCIES
from servetune.perf import Calibration
from servetune.perf.roofline import Interval, SafetyFactors, interval_of
from servetune.perf.sweep import LADDER, Swept, plans_of, sweep
from servetune.plan import Plan
from servetune.store import Results
from servetune.trials.record import percentiles_of
from servetune.trials.simulated import simulated_results
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd

__all__ = ["Priced", "Ranked", "ranked_plans", "sweep_text"]

#: Leading plans that are simulated at most, where percentiles must be judged.
MOST_SIMULATED = 100

#: The correction that was measured on a machine, if any.
CorrectionOf: TypeAlias = Callable[[Node], Calibration | None]


#: Which batch limits are priced: the engine's own, all the others, or both.
_Limits: TypeAlias = Literal["own", "other", "all"]


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at its best concurrency, and how the constraints were judged.

    Attributes:
        node: Where.
        caution: What its times were multiplied by before the constraints judged them.
        results: The simulator's, where percentiles had to be judged; else `None`.
        interval: Within which factors its times are expected.
    """

    node: Node
    swept: Swept
    caution: SafetyFactors
    results: dict[str, Any] | None = None
    interval: Interval


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """What a ranking chose from.

    Attributes:
        count: Plans times concurrencies, on all machines.
        at_face_value: How many of those hold the limits on means as predicted.
        confidence: With which the ranked ones hold them.
    """

    count: int
    at_face_value: int
    confidence: float


class _Found(msgspec.Struct, frozen=True):
    """One combination that holds the limits on means."""

    node: Node
    swept: Swept

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layout and storage: of plans that differ in batch limits alone, one is enough."""
        plan = self.swept.plan
        return (
            self.node.name,
            plan.tensor_parallel,
            plan.data_parallel,
            plan.replicas,
            plan.quantization,
            plan.kv_cache_dtype,
        )

    @property
    def figures(self) -> tuple[Any, ...]:
        """Alike to three digits: simulated once."""
        point = self.swept.point
        return (*self.kind, point.concurrency, f"{point.output_tokens_per_s:.3g}")


def ranked_plans(
    selection: Selection, nodes: Sequence[Node], correction_of: CorrectionOf
) -> tuple[list[Ranked], Priced]:
    """The best plans that hold every limit, and what they were chosen from.

    On one machine the target orders them; on several, throughput is weighed by what a million
    output tokens cost. Of plans that differ in batch limits alone the best is kept, at the
    concurrency that suits the target best. Percentiles are judged by simulating the leaders in
    order until enough hold; figures that agree to three digits are simulated once.
    """
    judge = Judge(selection.limits, selection.shape, selection.confidence)
    holding, priced = _holding(selection, nodes, judge, correction_of)
    ordered = sorted(
        holding, key=lambda found: _order(found, selection.target, several=len(nodes) > 1)
    )
    kept: list[Ranked] = []
    done: set[tuple[Any, ...]] = set()
    simulated = 0
    for found in ordered:
        if len(kept) == selection.top or simulated == MOST_SIMULATED:
            break
        if found.kind in done:
            continue
        plan, here, results = found.swept.plan, found.swept.correction, None
        if judge.others:
            simulated += 1
            results = _simulated(found, selection, correction_of(found.node))
            if results is None or not judge.simulated_hold(found.node, plan, results, here):
                continue  # the same plan may hold with fewer users
        kept.append(
            Ranked(
                node=found.node,
                swept=found.swept,
                caution=judge.caution(found.node, plan, here),
                results=results,
                interval=interval_of(found.node, plan, selection.shape, here),
            )
        )
        done.add(found.kind)
    return kept, priced


def _holding(
    selection: Selection, nodes: Sequence[Node], judge: Judge, correction_of: CorrectionOf
) -> tuple[list[_Found], Priced]:
    """Combinations that hold the limits on means, the best of each that agree in figures.

    Of many machines every layout is priced with the engine's own batch limits, and the limits
    are varied on those that lead: they move a plan by far less than another machine does.
    """
    best: dict[tuple[Any, ...], _Found] = {}
    trusting = Judge(selection.limits, selection.shape, 0.5)
    count = at_face_value = 0

    def look(node: Node, limits: _Limits) -> None:
        nonlocal count, at_face_value
        for swept in _swept(selection, node, correction_of(node), limits):
            count += 1
            at_face_value += trusting.holds(node, swept.plan, swept.point)
            if not judge.holds(node, swept.plan, swept.point, swept.correction):
                continue
            found = _Found(node, swept)
            known = best.get(found.figures)
            if known is None or _merit(swept, selection.target) > _merit(
                known.swept, selection.target
            ):
                best[found.figures] = found

    several = len(nodes) > 1
    if several:
        for node in nodes:
            look(node, "own")
        ordered = sorted(
            best.values(), key=lambda found: _order(found, selection.target, several=True)
        )
        leading = {found.node.name: found.node for found in ordered}
        nodes = list(leading.values())[: selection.top]
    for node in nodes:
        look(node, "other" if several else "all")
    return list(best.values()), Priced(
        count=count, at_face_value=at_face_value, confidence=selection.confidence
    )


def _swept(
    selection: Selection, node: Node, correction: Calibration | None, limits: _Limits
) -> Iterator[Swept]:
    quantizations = (None, "fp8") if node.device.fp8_flops else (None,)
    plans: Iterator[Plan] = plans_of(
        selection.plan, selection.shape, node, quantizations=quantizations
    )
    silent = selection.plan.max_num_seqs, selection.plan.max_num_batched_tokens
    allowed = (
        each
        for each in plans
        if selection.allows(each)
        and (
            limits == "all"
            or ((each.max_num_seqs, each.max_num_batched_tokens) == silent) == (limits == "own")
        )
    )
    return sweep(
        allowed,
        selection.shape,
        node,
        selection.workload,
        concurrencies=LADDER,
        calibration=correction,
    )


def _simulated(
    found: _Found, selection: Selection, correction: Calibration | None
) -> Results | None:
    users = found.swept.point.concurrency
    load = msgspec.structs.replace(
        selection.workload, concurrency=users, request_count=max(200, 8 * users)
    )
    try:
        results = simulated_results(
            found.swept.plan,
            selection.shape,
            found.node,
            load,
            percentiles=percentiles_of(selection.limits),
            calibration=correction,
        )
    except PlanError:
        return None
    rate, price = results.output_throughput, found.node.price
    if price and rate:
        usd = price.usd_per_hour / 3600 / rate * 1e6
        results = results.with_fields(cost_per_million_tokens=usd)
    return results


def _merit(swept: Swept, target: str) -> float:
    return -swept.point.e2e_ms if target == "latency" else swept.point.output_tokens_per_s


def _order(found: _Found, target: str, *, several: bool) -> tuple[float, float]:
    """Best first. Machines are compared by money where throughput is what counts."""
    swept = found.swept
    cost_usd = swept.cost_per_million_tokens_usd
    if target == "latency":
        return (swept.point.e2e_ms, math.inf if cost_usd is None else cost_usd)
    if not several:
        return (0.0, -swept.point.output_tokens_per_s)
    if cost_usd is None:  # after all that have a price
        return (math.inf, -swept.point.output_tokens_per_s / found.node.device_count)
    return (cost_usd, -swept.point.output_tokens_per_s)


def sweep_text(
    ranked: Sequence[Ranked], priced: Priced, nodes: Sequence[Node], selection: Selection
) -> Iterator[str]:
    """The ranking, line by line; machines are named where there are several."""
    several = len(nodes) > 1
    where = f"{len(nodes)} machines" if several else nodes[0].label
    yield heading_text(selection.shape, where, selection.workload)
    yield f"Best of {priced.count:,} combinations of plan and concurrency"
    if not ranked:
        yield _nothing_text(priced)
        return
    yield ""
    wide = max(7, *(len(one.node.label) for one in ranked)) if several else 0
    head = f"{'machine':<{wide}}  " if several else ""
    yield (
        f"   #  {head}concurrency  out tok/s   req/s  TTFT      ITL       E2E       "
        "$/M tokens  plan"
    )
    for number, one in enumerate(ranked, start=1):
        point = one.swept.point
        place = f"{one.node.label:<{wide}}  " if several else ""
        yield (
            f"{number:>4}  {place}{point.concurrency:>11}  "
            f"{format_rate(point.output_tokens_per_s):>9}  "
            f"{format_rate(point.requests_per_s):>6}  {times_text(point)}  "
            f"{format_usd(one.swept.cost_per_million_tokens_usd):>10}  {one.swept.plan.label}"
        )
    yield ""
    yield _interval_text(ranked)
    if selection.limits:
        yield ""
        yield confidence_text([one.caution for one in ranked])
    if any(one.results for one in ranked):
        yield ""
        yield "Percentiles were judged by simulating each of these in virtual time:"
        for number, one in enumerate(ranked, start=1):
            yield f"{number:>4}  {_tails_text(one.results or {})}"


def _nothing_text(priced: Priced) -> str:
    if priced.at_face_value and priced.confidence > 0.5:
        return (
            f"no plan holds every constraint with confidence {priced.confidence:g}; taken at "
            f"face value {priced.at_face_value:,} combinations hold those on means: "
            "--confidence 0.5 lists them, a measurement decides"
        )
    return "no plan holds every constraint; relax them or name a larger machine"


def _interval_text(ranked: Sequence[Ranked]) -> str:
    widest = max((one.interval for one in ranked), key=lambda each: each.high_factor)
    return (
        f"Times and rates within a factor of {widest.low_factor:.3g} to {widest.high_factor:.3g}: "
        f"{widest.basis}"
    )


def _tails_text(results: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} p99 {format_seconds(results[f'p99_{name}_ms'] / MS_PER_S)}"
        for name in LATENCIES
        if results.get(f"p99_{name}_ms") is not None
    )
