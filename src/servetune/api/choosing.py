"""Choice among plans and machines: limits held, confidence and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from servetune.api.notes import progress
from servetune.engines import DEFAULT_ENGINE, engine
from servetune.errors import InputError
from servetune.hardware import Device, Node, Service, device_names, instances, node
from servetune.metrics import LATENCIES, Constraint, value_of
from servetune.models import NetworkShape
from servetune.perf import Calibration
from servetune.perf.roofline import Interval, SafetyFactors, interval_of, safety_factors_of
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.sweep import Offer, Swept, cheapest_offers
from servetune.plan import Plan
from servetune.prediction.calibrations import KeptCalibration
from servetune.workload import Workload

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

#: Makers whose devices the stock default engine runs on; others need an engine of their own.
STOCK_VENDORS = ("NVIDIA", "AMD")
#: Architectures of these makers for which the default engine has no kernels: NVIDIA's below compute
#: capability 7.0, and AMD's that vLLM's installation guide does not list (November 2026).
_WITHOUT_KERNELS = frozenset({"pascal", "vega", "cdna", "rdna2"})
COUNTS = (1, 2, 4, 8)
#: Words in the names of devices that are soldered into a machine of their own, one each.
_ALONE = ("Laptop", "Jetson", "GB10", "Ryzen")

#: With which predictions hold limits where nobody says. After anchors it is the level that kept
#: most of the best throughput of those at which 95% of picks held;
#: `benchmarks/prediction/choosing.py` also says what such a choice is worth on new groups.
_CONFIDENCE, _CALIBRATED_CONFIDENCE = 0.8, 0.75


#: Change of the number of users that may bring a missed limit within reach.
Remedy: TypeAlias = Literal["fewer", "more", "unknown"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints and objective of a choice among plans or machines.

    Attributes:
        plan: Plan whose unset fields the choice may vary.
        limits: Constraints that must all hold, with `confidence`.
        target: Objective: `throughput` or `latency`.
        top: Number of results to list.
        tensor_parallel: The only degree allowed, if not `None`.
    """

    plan: Plan
    shape: NetworkShape
    workload: Workload
    limits: tuple[Constraint, ...] = ()
    confidence: float
    target: str = "throughput"
    top: int
    tensor_parallel: int | None = None

    @property
    def judge(self) -> Judge:
        """Judge of its constraints for users who each wait for their answer."""
        return self.judge_of("closed")

    def judge_of(self, protocol: str) -> Judge:
        """Judge of its constraints, with its confidence, for requests that come in one way."""
        return Judge(self.limits, self.shape, self.confidence, self.workload, protocol)

    def allows(self, plan: Plan) -> bool:
        return self.tensor_parallel in (None, plan.tensor_parallel)


def judged_by_formula(limits: Sequence[Constraint]) -> tuple[list[Constraint], list[Constraint]]:
    """Limits that means can judge, and those that need a simulation."""
    judged = (*POINT_FIELDS, "cost_per_million_tokens", "cost_per_hour")
    means = [limit for limit in limits if limit.metric in judged and limit.statistic == "mean"]
    return means, [limit for limit in limits if limit not in means]


def confidence_of(given: float | None, *, calibrated: bool) -> float:
    """Confidence of a choice: as given, else the usual one."""
    if given is not None:
        return given
    return _CALIBRATED_CONFIDENCE if calibrated else _CONFIDENCE


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
        workload: Workload,
        protocol: str = "closed",
    ) -> None:
        self.means, self.others = judged_by_formula(limits)
        self.confidence = confidence
        self._limits, self._shape = tuple(limits), shape
        self.ran = Ran.of(workload.lengths, protocol)
        self._cautions: dict[tuple[object, ...], SafetyFactors] = {}

    def caution(self, on: Node, plan: Plan, correction: Calibration | None) -> SafetyFactors:
        """The factors for a plan; plans that predictions reach equally far for share them."""
        key: tuple[object, ...] = (
            on.name,
            on.device.name,
            plan.engine,
            plan.quantization,
            (plan.tensor_parallel > 1, plan.data_parallel > 1, plan.pipeline_parallel > 1),
            (plan.draft_method, plan.draft_tokens, plan.draft_acceptance_fraction),
            correction and (correction.tpot_doubt, correction.ttft_doubt),
        )
        if key not in self._cautions:
            self._cautions[key] = safety_factors_of(
                on, plan, self._shape, self.confidence, correction, self.ran
            )
        return self._cautions[key]

    def holds(self, on: Node, swept: Swept) -> bool:
        """Whether a steady state holds the limits on means, as corrected by measured runs."""
        return not self.missed_by(on, swept)

    def missed_by(self, on: Node, swept: Swept) -> tuple[Miss, ...]:
        """Limits on means that a steady state misses."""
        if not self.means:
            return ()
        caution = self.caution(on, swept.plan, swept.correction)
        judged = ((limit, _mean_of(limit, on, swept)) for limit in self.means)
        return _missed(judged, caution, served=self.ran.protocol == "open")

    def missed_in(
        self,
        on: Node,
        plan: Plan,
        results: Mapping[str, object],
        correction: Calibration | None = None,
    ) -> tuple[Miss, ...]:
        """Limits, on means and percentiles, that a simulated run misses."""
        caution = self.caution(on, plan, correction)
        rate = value_of(results, "output_throughput")
        per_gpu = None if rate is None else rate / plan.device_count
        results = {**results, "output_throughput_per_gpu": per_gpu}
        judged = (
            (limit, value_of(results, limit.metric, limit.statistic)) for limit in self._limits
        )
        return _missed(judged, caution, served=self.ran.protocol == "open")


class Miss(msgspec.Struct, frozen=True):
    """A limit that a prediction misses.

    Attributes:
        limit: The constraint.
        predicted: Predicted value, in the limit's unit; `None` where there is none.
        judged: Value that the limit was compared with: `predicted` with the caution that the
            confidence asks for.
    """

    limit: Constraint
    predicted: float | None
    judged: float | None

    @property
    def excess(self) -> float:
        """Factor, above 1, by which the judged value is beyond the limit."""
        if not self.judged or not self.limit.value:
            return math.inf
        ratio = self.judged / self.limit.value
        return ratio if self.limit.op in ("<", "<=") else 1 / ratio

    @property
    def remedy(self) -> Remedy:
        """Change of concurrency that may mend it; latencies rise with it, rates and cost gain."""
        metric, upper = self.limit.metric, self.limit.op in ("<", "<=")
        if metric in (*LATENCIES, "error_rate") and upper:
            return "fewer"
        gains = metric == "cost_per_million_tokens" if upper else "_throughput" in metric
        return "more" if gains else "unknown"


def _mean_of(limit: Constraint, on: Node, swept: Swept) -> float | None:
    """Predicted value that a limit on a mean is about; costs are unknown without a price."""
    if limit.metric == "cost_per_hour":
        return on.price.usd_per_hour if on.price else None
    if limit.metric == "cost_per_million_tokens":
        return swept.cost_per_million_tokens_usd
    return float(getattr(swept.point, POINT_FIELDS[limit.metric]))


def _missed(
    judged: Iterable[tuple[Constraint, float | None]], caution: SafetyFactors, *, served: bool
) -> tuple[Miss, ...]:
    """Limits that are missed.

    Args:
        judged: Limits and what is predicted for them.
        caution: Factors that the confidence asks for.
        served: Whether rates are those at which requests come, however long their times are.
    """
    missed = []
    for limit, predicted in judged:
        value = predicted
        rate = limit.metric == "cost_per_million_tokens" or "_throughput" in limit.metric
        if predicted is not None and not (served and rate):
            value = _cautious(limit, predicted, caution)
        if value is None or not limit.holds({limit.field: value}):
            missed.append(Miss(limit, predicted, value))
    return tuple(missed)


def _cautious(limit: Constraint, value: float, caution: SafetyFactors) -> float:
    """A value made less favourable by what the confidence asks for."""
    if limit.metric in ("error_rate", "cost_per_hour"):
        return value
    factor = caution.ttft_factor if limit.metric == "ttft" else caution.tpot_factor
    rises = limit.metric in (*LATENCIES, "cost_per_million_tokens")
    if rises and limit.op in ("<", "<="):
        return value * factor
    if not rises and limit.op in (">", ">="):
        return value / factor
    return value


def machines(
    kind: str,
    service: str = "sagemaker",
    *,
    device_name: str | None = None,
    device_count: int | None = None,
) -> list[Node]:
    """Machines to choose from: every instance of a service, or 1 to 8 of every GPU.

    Args:
        kind: `instance` or `gpu`. A number of GPUs is priced as the cheapest instance with
            exactly as many, where there is one.
        service: `sagemaker`, `ec2`, or `all` for both.
        device_name: Device that the machines have.
        device_count: Exact number of devices that the machines have.

    Raises:
        InputError: No machine is left.
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
            for count in ((device_count,) if device_count else _counts_of(name))
        ]
    found = [
        one
        for one in found
        if device_name in (None, one.device.name) and device_count in (None, one.device_count)
    ]
    kept = [one for one in found if _runs_the_stock_engine(one.device)]
    others = sorted({one.device.vendor for one in found} - {*STOCK_VENDORS, "generic"})
    unbuilt = {one.device.name for one in found if one.device.architecture in _WITHOUT_KERNELS}
    others += sorted(unbuilt)
    if others:
        stock = f"stock {engine(DEFAULT_ENGINE).title}"
        progress(f"left out, because {stock} does not run there: {', '.join(others)}")
    if not kept:
        description = f"{device_count or 'any number'} of {device_name or 'one GPU'}"
        raise InputError(
            f"no machine to compare has {description}",
            hint="leave --num-gpus out, or compare --gpu all or --service all",
        )
    return kept


def _counts_of(name: str) -> tuple[int, ...]:
    return (1,) if any(word in name for word in _ALONE) else COUNTS


def _runs_the_stock_engine(found: Device) -> bool:
    return found.vendor in STOCK_VENDORS and found.architecture not in _WITHOUT_KERNELS


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


def corrections(kept: KeptCalibration | None, shape: NetworkShape) -> Mapping[str, Calibration]:
    """What is corrected on several machines: those with the device that was measured.

    Raises:
        InputError: The calibration is of another model.
    """
    if kept is None:
        return {}
    if kept.model != shape.name:
        raise InputError(
            f"calibration '{kept.name}' is of {kept.model}, not of {shape.name}",
            hint="leave --calibration out, or measure a trial of this model",
        )
    progress(f"corrected by '{kept.name}': machines with {kept.device}; all others are not")
    return {kept.device: kept.calibration}


def offers(
    selection: Selection, nodes: Sequence[Node], by_device: Mapping[str, Calibration]
) -> list[Offer]:
    """Machines by what a million output tokens cost on them under the limits on means.

    Args:
        selection: Its plan is laid out over each machine in every way that fits. Limits on means
            are held; others are named and left to a simulation.
        nodes: The machines.
        by_device: Calibrations by the name of the device that they were measured on.
    """
    judge = selection.judge

    def holds(on: Node, swept: Swept) -> bool:
        return selection.allows(swept.plan) and judge.holds(on, swept)

    if judge.others:
        labels = ", ".join(limit.label for limit in judge.others)
        progress(
            f"{labels}: not judged here, a formula gives means; check with --sweep or a simulation"
        )
    return cheapest_offers(
        selection.plan,
        selection.shape,
        nodes,
        selection.workload,
        holds=holds,
        calibrations=by_device,
    )


def offer_interval(offer: Offer, shape: NetworkShape, ran: Ran) -> Interval:
    """Interval of the prediction for a machine that holds the limits."""
    best = offer.best
    assert best is not None
    rate = best.point.output_tokens_per_s
    return interval_of(offer.node, best.plan, shape, best.correction, ran, output_tokens_per_s=rate)
