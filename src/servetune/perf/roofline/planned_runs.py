"""Predictions of many runs at once, each by its protocol: the bulk form of an estimate."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from servetune.engines import (
    behaviour_named,
    check_parallel,
    check_resolved_fits,
    memory,
    resolved,
)
from servetune.errors import PlanError
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.clumps import missed_share
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.factors import coefficients_for, run_coefficients
from servetune.perf.roofline.operations import Operations, operations
from servetune.perf.roofline.run_formulas import RunFormulas, RunPoint
from servetune.perf.roofline.runs import Protocol
from servetune.perf.roofline.steady_state import (
    LengthMoments,
    OperatingPoint,
    moments_of,
    workload_moments,
)
from servetune.perf.roofline.step_laws import PlanBatch, columns_of
from servetune.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload.lengths import Lengths
from servetune.workload.workload import Workload

#: Requests of an open loop where nobody says how many.
REQUESTS_OF_A_RATE = 1000
#: Fields of a plan that decide what one device computes; all others decide how many steps.
_READ_BY_OPERATIONS = (
    "engine",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "dtype",
    "quantization",
    "kv_cache_dtype",
)
_read_by_operations = attrgetter(*_READ_BY_OPERATIONS)


#: Runs that are computed at once: with 20,000 a run takes a tenth longer.
_MOST_AT_ONCE = 4096


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `request_count` requests, of which `concurrency` are in flight in closed loops.

    Attributes:
        engine: Engine whose kernels and overheads apply; the plan's if `None`. It may be one
            that plans name otherwise (`StepLawFacts.name`).
        engine_version: Release of the engine, empty if unknown; releases differ in coefficients.
        admission_delay_steps: Mean delay before the engine admits a waiting prompt, in decode
            steps: it polls for requests every so many steps, or gathers several prompts.
        protocol: Way in which its requests come.
        rate_per_s: Requests per second of an open loop.
        dispersion: Variance over mean of the number that come in a long time: 1 by chance, more in
            bursts (`workload.arrivals`). Not read of capped loops, nor of engines that gather
            prompts: they are computed as if requests came by chance.
        capped: Whether no more than `concurrency` of an open loop are in flight: the client holds
            the others back and starts their clocks when it sends them.
        warmed: Whether requests were sent before it, so that its first do not wait for kernels to
            compile.
    """

    shape: NetworkShape
    node: Node
    plan: Plan
    lengths: Lengths | LengthMoments
    concurrency: int
    request_count: int
    engine: str | None = None
    engine_version: str = ""
    admission_delay_steps: float = 0.0
    protocol: Protocol = "closed"
    rate_per_s: float = 0.0
    dispersion: float = 1.0
    capped: bool = False
    warmed: bool = False

    @property
    def coefficients(self) -> Coefficients:
        """Coefficients of its engine on its device."""
        name, device = self.engine or self.plan.engine, self.node.device
        version = self.engine_version or self.plan.engine_version or ""
        plan = resolved(self.plan, self.shape, device)
        in_series = behaviour_named(name).waits_for_host(plan, device, version)
        eager = bool(plan.enforce_eager)
        return coefficients_for(device, name, version, eager=eager, in_series=in_series)


class PredictedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of a run, and the reason if its plan does not fit the memory.

    A plan that does not fit is predicted all the same, because a run that was measured did fit:
    with the cache that the whole device would leave, or with room for all where the weights
    alone are larger than it.
    """

    point: RunPoint
    misfit: str | None


def predict_runs(
    runs: Sequence[PlannedRun], calibrations: Sequence[Calibration | None] | None = None
) -> list[PredictedRun]:
    """Prediction of every run; equal plans, machines and lengths are computed once.

    Args:
        runs: Runs in any order.
        calibrations: Calibration of each run by measured runs of its model and machine; no run is
            corrected if omitted.

    Raises:
        UnknownName: A plan's engine has no known defaults.
        PlanError: A plan has servers of several kinds.
    """
    given = calibrations or [None] * len(runs)
    coefficients = [run.coefficients for run in runs]
    kinds: dict[Hashable, list[int]] = {}  # of runs that go through the same formulas
    for number, (run, own) in enumerate(zip(runs, coefficients, strict=True)):
        drafts = run.plan.draft_tokens is not None  # computed for whole batches of plans
        kind = (drafts, own.scheduling.separate_prefill, run.protocol)
        kinds.setdefault(kind, []).append(number)
    found: dict[int, PredictedRun] = {}
    for mine in _batches(kinds.values()):
        loops, misfits = run_formulas([runs[i] for i in mine])
        points = loops.points(columns_of([_law(runs[i], coefficients[i], given[i]) for i in mine]))
        for number, point, misfit in zip(mine, points, misfits, strict=True):
            corrected = _corrected(runs[number], point, given[number])
            found[number] = PredictedRun(point=corrected, misfit=misfit)
    return [found[number] for number in range(len(runs))]


def _batches(kinds: Iterable[list[int]]) -> Iterator[list[int]]:
    """The same runs, no more at once than a processor's cache has arrays for."""
    for numbers in kinds:
        for start in range(0, len(numbers), _MOST_AT_ONCE):
            yield numbers[start : start + _MOST_AT_ONCE]


def _law(
    run: PlannedRun, coefficients: Coefficients, calibration: Calibration | None
) -> Coefficients:
    """Coefficients of a run: slower steps keep more requests of an open loop in flight."""
    if calibration is None:
        return coefficients
    if run.protocol == "open":
        return calibration.coefficients(coefficients)
    return calibration.relearned(coefficients)


def _corrected(run: PlannedRun, point: RunPoint, calibration: Calibration | None) -> RunPoint:
    """Point of the run's law with what its calibration says besides."""
    if calibration is None:
        return point
    if run.protocol != "open":
        return calibration.on(point)
    ttft_ms = calibration.first_token_factor * point.ttft_ms
    e2e_ms = point.e2e_ms + ttft_ms - point.ttft_ms
    return msgspec.structs.replace(point, ttft_ms=ttft_ms, e2e_ms=e2e_ms)


def at_a_rate(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    rate_per_s: float,
    calibration: Calibration | None = None,
) -> OperatingPoint:
    """Means of a plan under requests that come by chance.

    Args:
        plan: Plan that fits the machine.
        shape: Its network.
        node: Machine.
        workload: Lengths of the requests and what they share; its users or rate are not read.
        rate_per_s: Requests per second, less than are served.
        calibration: Calibration of this plan with as many users as the rate keeps in flight.
    """
    filled = resolved(plan, shape, node.device)
    divided = memory(filled, shape, node.device)
    moments = workload_moments(workload, filled, divided)
    run = PlannedRun(
        shape=shape,
        node=node,
        plan=plan,
        lengths=moments,
        concurrency=1,
        request_count=REQUESTS_OF_A_RATE,
        protocol="open",
        rate_per_s=rate_per_s,
        warmed=True,
    )
    loops, _ = run_formulas([run])
    own = run_coefficients(node.device, filled, shape, workload)
    columns = columns_of([_law(run, own, calibration)])
    point = _corrected(run, loops.points(columns)[0], calibration)
    in_flight = rate_per_s * point.e2e_ms / MS_PER_S
    places = float(loops.copies[0] * loops.most_placed(columns)[0])
    return OperatingPoint(
        concurrency=max(1, round(in_flight)),
        running=point.running,
        ttft_ms=point.ttft_ms,
        itl_ms=point.tpot_ms,
        e2e_ms=point.e2e_ms,
        requests_per_s=rate_per_s,
        input_tokens_per_s=rate_per_s * moments.input_tokens,
        output_tokens_per_s=rate_per_s * moments.output_tokens,
        queued=in_flight > places,
    )


def requests_in_flight(
    runs: Sequence[PlannedRun], predicted: Sequence[PredictedRun]
) -> list[float]:
    """Mean requests in flight of each run: of an open loop its rate times a request's time."""
    found = []
    for run, one in zip(runs, predicted, strict=True):
        count = float(run.concurrency)
        if run.protocol == "open":
            coming = min(run.rate_per_s * one.point.e2e_ms / MS_PER_S, float(run.request_count))
            count = min(count, coming) if run.capped else coming
        found.append(count)
    return found


def run_formulas(runs: Sequence[PlannedRun]) -> tuple[RunFormulas, list[str | None]]:
    """All runs in one array form, and the reason of each plan that does not fit."""
    priced, plans, moments, kv_tokens, misfits = [], [], [], [], []
    for run in runs:
        plan = resolved(run.plan, run.shape, run.node.device)
        if plan.prefill_replicas is not None:
            raise PlanError(
                "there is no formula for servers that only compute prompts",
                hint="simulate them with servetune simulate",
            )
        work = _operations_of(run.shape, _read_by_operations(plan))
        means = moments_of(run.lengths)
        plan, tokens, misfit = _served(plan, run, means.context_tokens)
        moments.append(means)
        priced.append((work, run.node, plan))
        plans.append(plan)
        kv_tokens.append(tokens)
        misfits.append(misfit)
    side_by_side = RunFormulas(
        PlanBatch(priced),
        plans,
        kv_tokens,
        moments,
        [run.concurrency for run in runs],
        [run.request_count for run in runs],
        protocols=[run.protocol for run in runs],
        rates_per_s=[run.rate_per_s for run in runs],
        dispersions=[run.dispersion for run in runs],
        capped=[run.capped for run in runs],
        warmed=[run.warmed for run in runs],
        admission_delay_steps=[
            run.admission_delay_steps + _missed_steps(run, plan)
            for run, plan in zip(runs, plans, strict=True)
        ],
    )
    return side_by_side, misfits


@functools.lru_cache(maxsize=1024)
def _operations_of(shape: NetworkShape, split: tuple[Any, ...]) -> Operations:
    """Operations of one device, cached: the rows of a table repeat few splits of a network.

    Args:
        shape: The network.
        split: Values of `_READ_BY_OPERATIONS` of a resolved plan.
    """
    fields = dict(zip(_READ_BY_OPERATIONS, split, strict=True))
    return operations(Plan(model=shape.name, **fields), shape)


def _missed_steps(run: PlannedRun, plan: Plan) -> float:
    """Steps that a prompt misses because they are composed when it comes, as in the simulator."""
    behaviour = behaviour_named(run.engine or plan.engine)
    if run.protocol not in ("open", "closed"):
        return 0.0
    if not behaviour.composes_ahead(plan, run.node.device, run.engine_version):
        return 0.0
    if run.protocol == "open":
        return 1.0
    moments = moments_of(run.lengths)
    return missed_share(moments.output_spread_tokens / moments.output_tokens)


def _served(plan: Plan, run: PlannedRun, context_tokens: float) -> tuple[Plan, float, str | None]:
    """Plan with the sequences that its memory holds, tokens of its cache, and why it does not fit.

    Args:
        plan: Resolved plan.
        run: Run of it.
        context_tokens: Mean tokens of a sequence in the cache.
    """
    try:
        check_parallel(plan, run.shape, run.node)
        divided = check_resolved_fits(plan, run.shape, run.node.device)
    except PlanError as error:
        why = f"{error.message}; {error.hint}" if error.hint else error.message
        return plan, _cache_all_the_same(plan, run, context_tokens), why
    return divided.served(plan), divided.kv_tokens_at(context_tokens), None


def _cache_all_the_same(plan: Plan, run: PlannedRun, context_tokens: float) -> float:
    """Tokens that the cache would hold with all the memory; at least one request."""
    everything = msgspec.structs.replace(plan, gpu_memory_fraction=1.0)
    divided = memory(everything, run.shape, run.node.device)
    if divided.weights_bytes >= divided.usable_bytes:
        return float("inf")
    return max(context_tokens, divided.kv_tokens_at(context_tokens))
