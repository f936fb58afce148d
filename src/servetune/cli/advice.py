"""`servetune estimate --sweep`, `--gpu all`, `--instance all`: which plan, which machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from servetune.cli.output import echo
from servetune.errors import InputError, PlanError
from servetune.hardware import Node, Service, device_names, instances, node
from servetune.metrics import LATENCIES, Constraint, value_of
from servetune.models import NetworkShape
from servetune.perf import Calibration
from servetune.perf.roofline import Caution, Interval, OperatingPoint, caution_of, interval_of
from servetune.perf.sweep import LADDER, Offer, Swept, cheapest_offers, plans_of, sweep
from servetune.plan import Plan
from servetune.trials.calibrations import KeptCalibration
from servetune.trials.simulated import percentiles_of, simulated_results
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd
from servetune.workload import Workload

__all__ = [
    "Judge",
    "buying_text",
    "confidence_text",
    "judged_by_formula",
    "machines",
    "offers",
    "ranked_plans",
    "sweep_text",
]

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
        caution: What its times were multiplied by before the constraints judged them.
        results: The simulator's, where percentiles had to be judged; else `None`.
        interval: Within which factors its times are expected.
    """

    swept: Swept
    caution: Caution
    results: dict[str, Any] | None = None
    interval: Interval


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """What a ranking chose from.

    Attributes:
        count: Plans times concurrencies.
        at_face_value: How many of those hold the limits on means as predicted.
        confidence: With which the ranked ones hold them.
    """

    count: int
    at_face_value: int
    confidence: float


def judged_by_formula(limits: Sequence[Constraint]) -> tuple[list[Constraint], list[Constraint]]:
    """Limits that means can judge, and those that need a simulation."""
    means = [
        limit for limit in limits if limit.metric in POINT_FIELDS and limit.statistic == "mean"
    ]
    return means, [limit for limit in limits if limit not in means]


class Judge:
    """Whether predictions of one model hold limits, with a stated confidence.

    A time is lengthened and a rate lowered by what the confidence asks for, each only where
    that is the unfavourable side; a share of failed requests is taken as it is.
    """

    def __init__(
        self,
        limits: Sequence[Constraint],
        shape: NetworkShape,
        confidence: float,
        calibration: Calibration | None = None,
    ) -> None:
        self.means, self.others = judged_by_formula(limits)
        self.confidence = confidence
        self._limits, self._shape, self._calibration = tuple(limits), shape, calibration
        self._cautions: dict[tuple[str, str, str, bool], Caution] = {}

    def caution(self, on: Node, plan: Plan) -> Caution:
        """The factors for a plan; plans that predictions reach equally far for share them."""
        key = (on.name, on.device.name, plan.engine, plan.tensor_parallel > 1)
        if key not in self._cautions:
            self._cautions[key] = caution_of(
                on, plan, self._shape, self.confidence, self._calibration
            )
        return self._cautions[key]

    def holds(self, on: Node, plan: Plan, point: OperatingPoint) -> bool:
        """Whether a steady state holds the limits on means."""
        caution = self.caution(on, plan)
        return all(
            _holds(limit, getattr(point, POINT_FIELDS[limit.metric]), caution)
            for limit in self.means
        )

    def simulated_hold(self, on: Node, plan: Plan, results: Mapping[str, Any]) -> bool:
        """Whether a simulated run holds all limits."""
        caution = self.caution(on, plan)
        values = [value_of(results, each.metric, each.statistic) for each in self._limits]
        return all(
            value is not None and _holds(limit, value, caution)
            for limit, value in zip(self._limits, values, strict=True)
        )


def _holds(limit: Constraint, value: float, caution: Caution) -> bool:
    factor = caution.ttft_factor if limit.metric == "ttft" else caution.tpot_factor
    rises = limit.metric in (*LATENCIES, "cost_per_million_tokens")
    if limit.metric == "error_rate":
        factor = 1.0
    if rises and limit.op in ("<", "<="):
        value *= factor
    elif not rises and limit.op in (">", ">="):
        value /= factor
    return bool(limit.holds({limit.field: value}))


def ranked_plans(
    plan: Plan,
    shape: NetworkShape,
    on: Node,
    workload: Workload,
    limits: tuple[Constraint, ...],
    *,
    confidence: float,
    target: str,
    top: int,
    quantizations: Sequence[str | None],
    calibration: Calibration | None = None,
) -> tuple[list[Ranked], Priced]:
    """The best plans that hold every limit, and what they were chosen from.

    Of plans that differ in batch limits alone the best is kept, at the concurrency that suits
    the target best. Percentiles are judged by simulating the leaders in order until enough
    hold; figures that agree to three digits are simulated once.
    """
    judge = Judge(limits, shape, confidence, calibration)
    plans = list(plans_of(plan, shape, on, quantizations=quantizations))
    found = sweep(plans, shape, on, workload, concurrencies=LADDER, calibration=calibration)
    priced = list(found)
    holding = [swept for swept in priced if judge.holds(on, swept.plan, swept.point)]
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
        if judge.others:
            tried.add(figures)
            results = _simulated(swept, shape, on, workload, limits, calibration)
            if results is None or not judge.simulated_hold(on, swept.plan, results):
                continue  # the same plan may hold with fewer users
        kept.append(
            Ranked(
                swept=swept,
                caution=judge.caution(on, swept.plan),
                results=results,
                interval=interval_of(on, swept.plan, shape, calibration),
            )
        )
        done.add(kind)
    trusting = Judge(limits, shape, 0.5)
    face_value = sum(trusting.holds(on, swept.plan, swept.point) for swept in priced)
    return kept, Priced(count=len(priced), at_face_value=face_value, confidence=confidence)


def _simulated(
    swept: Swept,
    shape: NetworkShape,
    on: Node,
    workload: Workload,
    limits: tuple[Constraint, ...],
    calibration: Calibration | None,
) -> dict[str, Any] | None:
    users = swept.point.concurrency
    load = msgspec.structs.replace(
        workload, max_concurrency=users, request_count=max(200, 8 * users)
    )
    try:
        results = simulated_results(
            swept.plan,
            shape,
            on,
            load,
            percentiles=percentiles_of(limits),
            calibration=calibration,
        )
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


def machines(kind: str, service: str = "sagemaker") -> list[Node]:
    """Machines to choose from: every instance of a service, or 1 to 8 of every GPU.

    Args:
        kind: `instance` or `gpu`. A number of GPUs is priced as the cheapest instance with
            exactly as many, where there is one.
        service: `sagemaker`, `ec2`, or `all` for both.
    """
    services: tuple[Service, ...] = ("sagemaker", "ec2")
    chosen = [each for each in services if service in (each, "all")]
    rented = [machine for each in chosen for machine in instances(each).values()]
    if kind == "instance":
        found = rented
    else:
        cheapest = _cheapest_by_devices(rented)
        found = [
            _priced_as(node(gpu=name, count=count), cheapest.get((name, count)))
            for name in device_names()
            for count in COUNTS
        ]
    kept = [one for one in found if one.device.vendor in STOCK_VENDORS]
    others = sorted({one.device.vendor for one in found} - {*STOCK_VENDORS, "generic"})
    if others:
        echo(f"left out, because stock vLLM does not run there: {', '.join(others)}")
    return kept


def _cheapest_by_devices(rented: Sequence[Node]) -> dict[tuple[str, int], Node]:
    found: dict[tuple[str, int], Node] = {}
    for machine in rented:
        key = (machine.device.name, machine.device_count)
        best = found.get(key)
        if machine.price and (best is None or _usd_per_hour(machine) < _usd_per_hour(best)):
            found[key] = machine
    return found


def _usd_per_hour(machine: Node) -> float:
    return machine.price.usd_per_hour if machine.price else math.inf


def _priced_as(bare: Node, rented: Node | None) -> Node:
    if rented is None or rented.price is None:
        return bare
    price = msgspec.structs.replace(rented.price, source=f"{rented.name}: {rented.price.source}")
    return msgspec.structs.replace(bare, price=price)


def offers(
    plan: Plan,
    shape: NetworkShape,
    nodes: Sequence[Node],
    workload: Workload,
    limits: tuple[Constraint, ...],
    confidence: float,
    kept: KeptCalibration | None = None,
) -> list[Offer]:
    """Machines by what a million output tokens cost on them under the limits on means.

    Args:
        plan: Laid out over each machine in every way that fits.
        shape: The network.
        nodes: The machines.
        workload: What is asked.
        limits: Those on means are held; others are named and left to a simulation.
        confidence: With which each limit must be held.
        kept: Corrects the machines with the device that it was measured on.

    Raises:
        InputError: The calibration is of another model.
    """
    calibrations = {}
    if kept is not None:
        if kept.model != shape.name:
            raise InputError(
                f"calibration '{kept.name}' is of {kept.model}, not of {shape.name}",
                hint="leave --calibration out, or measure a trial of this model",
            )
        calibrations[kept.device] = kept.calibration
        echo(f"corrected by '{kept.name}': machines with {kept.device}; all others are not")
    judge = Judge(limits, shape, confidence)
    corrected = Judge(limits, shape, confidence, kept.calibration if kept else None)

    def holds(on: Node, swept: Swept) -> bool:
        chosen = corrected if on.device.name in calibrations else judge
        return chosen.holds(on, swept.plan, swept.point)

    if judge.others:
        said = ", ".join(limit.label for limit in judge.others)
        echo(f"{said}: not judged here, a formula gives means; check with --sweep or a simulation")
    return cheapest_offers(
        plan,
        shape,
        nodes,
        workload,
        holds=holds,
        calibrations=calibrations,
    )


def sweep_text(
    ranked: Sequence[Ranked], priced: Priced, on: Node, limits: Sequence[Constraint]
) -> Iterator[str]:
    yield f"ESTIMATE (arithmetic, nothing was run): {priced.count:,} combinations on {on.label}"
    if not ranked:
        if priced.at_face_value and priced.confidence > 0.5:
            yield (
                f"no plan holds every constraint with confidence {priced.confidence:g}; taken at "
                f"face value {priced.at_face_value:,} combinations hold those on means: "
                "--confidence 0.5 lists them, a measurement decides"
            )
        else:
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
    widest = max((one.interval for one in ranked), key=lambda each: each.high_factor)
    yield ""
    yield (
        f"Times and rates within a factor of {widest.low_factor:.3g} to {widest.high_factor:.3g}: "
        f"{widest.basis}"
    )
    if limits:
        yield ""
        yield confidence_text([one.caution for one in ranked])
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


def confidence_text(cautions: Sequence[Caution]) -> str:
    """What a confidence did to the times that constraints judged."""
    confidence = cautions[0].confidence
    if confidence == 0.5:
        return "Constraints were judged by predictions at face value (--confidence 0.5)."
    gaps = _range_text([caution.tpot_factor for caution in cautions])
    first = _range_text([caution.ttft_factor for caution in cautions])
    return (
        f"Constraints hold with confidence {confidence:g}: they were judged with times {gaps} and "
        f"first tokens {first} times as long as shown."
    )


def _range_text(factors: Sequence[float]) -> str:
    low, high = f"{min(factors):.2f}", f"{max(factors):.2f}"
    return low if low == high else f"{low} to {high}"


def buying_text(found: Sequence[Offer], *, top: int) -> Iterator[str]:
    yield "ESTIMATE (arithmetic, nothing was run): machines by cost per million output tokens"
    yield ""
    usable = [offer for offer in found if offer.best is not None]
    wide = max((len(offer.node.label) for offer in usable[:top]), default=7)
    yield (
        f"   #  {'machine':<{wide}}   $/hour  $/M tokens  concurrency  out tok/s  "
        "TTFT      ITL       E2E       plan"
    )
    for number, offer in enumerate(usable[:top], start=1):
        assert offer.best is not None
        point, price = offer.best.point, offer.node.price
        yield (
            f"{number:>4}  {offer.node.label:<{wide}}  "
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
        yield from _prices_text(priced[:top])
    left_out = [offer for offer in found if offer.best is None]
    if left_out:
        reasons = sorted({offer.why_not for offer in left_out})
        yield f"{len(left_out)} machines left out: {' or '.join(reasons)}"


def _prices_text(priced: Sequence[Offer]) -> Iterator[str]:
    """Where the prices of the listed machines are from, and of which day."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for offer in priced:
        price = offer.node.price
        assert price is not None
        instance_name, _, source = price.source.rpartition(": ")
        place = said.setdefault((price.region, source, price.date), [])
        place.append(instance_name or offer.node.name)
    for (region, source, date), names in said.items():
        listed = ", ".join(dict.fromkeys(names))
        yield f"prices: {source}, {region}, on demand, read {date}: {listed}"


def _times(point: OperatingPoint) -> str:
    times_ms = (point.ttft_ms, point.itl_ms, point.e2e_ms)
    return "  ".join(f"{format_seconds(time_ms / MS_PER_S):<8}" for time_ms in times_ms)
