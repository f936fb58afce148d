"""Predictions of every plan that fits: thousands per second, by formula.

A plan is laid out over all devices of a node; what is left over after its own parallelism
holds copies. Each is judged at the concurrencies of a ladder, because a throughput without
its latency answers nobody; where limits decide, the best is sought between two of them, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from servetune.engines import engine
from servetune.engines.defaults import resolved
from servetune.engines.memory import check_resolved_fits
from servetune.engines.parallel import check_parallel, with_whole_experts
from servetune.engines.refusals import made_on_load
from servetune.engines.words import without_drafts
from servetune.errors import PlanError
from servetune.hardware.device import Device, Node
from servetune.models.shape import NetworkShape, has_experts
from servetune.perf.load_steps import nearest_load, whole_load
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S
from servetune.perf.roofline.factors import run_coefficients
from servetune.perf.roofline.local_corrections import LocalCorrections
from servetune.perf.roofline.steady_state import (
    KnownPoints,
    LengthMoments,
    OperatingPoint,
    SteadyState,
    workload_moments,
)
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.plan.plan import Plan
from servetune.workload.workload import Workload

#: Concurrencies at which each plan is judged, over all its copies.
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

#: Token budgets and sequence limits worth comparing; `None` is the engine's default.
BATCHED_TOKENS = (None, 2048, 4096, 8192, 16384)
SEQUENCES = (None, 32, 64, 128, 256, 512, 1024)

#: Two rates are equal within this share, to which steady states are solved.
_NEAR = 1e-9
_EQUAL = 1 - _NEAR
#: Longest answers of which fewer users may have more tokens per second.
_FEW_TOKENS = 2

Holds = Callable[[Node, "Swept"], bool]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """One plan at one concurrency.

    Attributes:
        cost_per_million_tokens_usd: Cost of output tokens on the whole node; `None` without a
            price.
        correction: Calibration of this plan at this concurrency by measured runs, if any.
    """

    plan: Plan
    point: OperatingPoint
    cost_per_million_tokens_usd: float | None
    correction: Calibration | None = None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest way to serve a workload on one kind of machine.

    Attributes:
        best: `None` where nothing fits or holds; `why_not` says which.
        as_good: Whether it may be as cheap as the cheapest, from which predictions do not tell it
            apart; `None` where that is not known.
    """

    node: Node
    best: Swept | None
    why_not: str = ""
    as_good: bool | None = None


class PlanCurve:
    """Steady states of one plan on a machine, by the number of users over all its copies."""

    def __init__(
        self, plan: Plan, node: Node, state: SteadyState, corrections: LocalCorrections
    ) -> None:
        self.plan, self.node = plan, node
        self._state, self._corrections = state, corrections

    def at(self, users: int) -> Swept:
        """The plan with so many users."""
        point = self._state.at(users, self._corrections.on(users))
        return Swept(
            plan=self.plan,
            point=point,
            cost_per_million_tokens_usd=self.node.cost_per_million_tokens_usd(
                point.output_tokens_per_s
            ),
            correction=self._corrections.at(users),
        )

    def nearest(self, held: Swept, failing: Swept, holds: Holds) -> Swept:
        """The plan with the number of users nearest to one that fails that holds."""
        known = {held.point.concurrency: held}

        def tried(users: int) -> bool:
            known[users] = self.at(users)
            return holds(self.node, known[users])

        users = held.point.concurrency, failing.point.concurrency
        return known[nearest_load(*users, self.plan.replicas, tried)]


def ladder_of(node: Node, copies: int = 1) -> tuple[int, ...]:
    """Numbers of users at which a machine is judged: up to the largest of `LADDER` for each device.

    So eight devices are not judged at an eighth of the load of a single one. Copies have equally
    many users each.
    """
    most, found = LADDER[-1] * node.device_count, list(LADDER)
    while found[-2] * 2 <= most:
        found.append(found[-2] * 2)
    return tuple(dict.fromkeys(whole_load(users, copies) for users in found))


def layouts(plan: Plan, shape: NetworkShape, node: Node) -> Iterator[Plan]:
    """The plan over all devices of the node, in every way that divides both and the engine serves.

    Tensor parallelism first; data-parallel attention with whole experts only where there
    are experts, which are also whole where a split would cut them; copies fill the rest.
    Pipelines are tried where devices are joined by PCIe, over which they send far less.
    """
    count = node.device_count
    experts = has_experts(shape)
    joined = node.link.bytes_per_s >= FABRIC_BYTES_PER_S
    for tensor in _divisors(count):
        rest = count // tensor
        splits = [(1, data) for data in (_divisors(rest) if experts else (1,))]
        splits += [(stages, 1) for stages in _divisors(rest) if stages > 1 and not joined]
        for stages, data in splits:
            split = msgspec.structs.replace(
                plan,
                tensor_parallel=tensor,
                pipeline_parallel=stages,
                data_parallel=data,
                expert_parallel=data > 1,
                replicas=rest // (stages * data),
            )
            if _served(split):
                yield with_whole_experts(split, shape)


def quantizations_of(plan: Plan, shape: NetworkShape, device: Device) -> tuple[str | None, ...]:
    """Storage of weights worth comparing: the checkpoint's, and fp8 made of 16 bits while loading.

    fp8 is left out where the device does not compute with it or the engine cannot make it.
    """
    able = made_on_load(plan.engine) or ("fp8",)
    narrow = device.fp8_flops and shape.quantization == "none" and "fp8" in able
    return (None, "fp8") if narrow else (None,)


def _divisors(count: int) -> Iterator[int]:
    return (number for number in range(1, count + 1) if count % number == 0)


def _served(plan: Plan) -> bool:
    """Whether the plan's engine has settings for its layout."""
    try:
        engine(plan.engine).plan_settings(without_drafts(plan))
    except PlanError:
        return False
    return True


def plans_of(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    *,
    quantizations: Sequence[str | None] = (None,),
    cache_dtypes: Sequence[str | None] = (None,),
) -> Iterator[Plan]:
    """Every layout with every batch limit worth comparing.

    Args:
        plan: Fields that are set stay as they are.
        shape: The network.
        node: The machine.
        quantizations: Storage of weights to try where the plan leaves it open.
        cache_dtypes: Types of the KV cache to try, likewise.
    """
    tokens = (
        BATCHED_TOKENS if plan.max_num_batched_tokens is None else (plan.max_num_batched_tokens,)
    )
    sequences = SEQUENCES if plan.max_num_seqs is None else (plan.max_num_seqs,)
    weights = quantizations if plan.quantization is None else (plan.quantization,)
    caches = cache_dtypes if plan.kv_cache_dtype is None else (plan.kv_cache_dtype,)
    for laid_out in layouts(plan, shape, node):
        for quantization, cache, budget, limit in itertools.product(
            weights, caches, tokens, sequences
        ):
            if budget is not None and limit is not None and limit > budget:
                continue
            yield msgspec.structs.replace(
                laid_out,
                quantization=quantization,
                kv_cache_dtype=cache,
                max_num_batched_tokens=budget,
                max_num_seqs=limit,
            )


def sweep(
    plans: Iterator[Plan] | Sequence[Plan],
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    concurrencies: Sequence[int] = LADDER,
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
) -> Iterator[Swept]:
    """Predict plans at each concurrency; plans that cannot run are skipped.

    A calibration corrects each plan at each concurrency.
    """
    for curve in curves(
        plans,
        shape,
        node,
        workload,
        prepared=concurrencies,
        coefficients=coefficients,
        calibration=calibration,
    ):
        for concurrency in concurrencies:
            yield curve.at(concurrency)


def curves(
    plans: Iterator[Plan] | Sequence[Plan],
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    prepared: Sequence[int] = (),
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
) -> Iterator[PlanCurve]:
    """Curves of the plans that can run; `prepared` are numbers of users that will be asked for."""
    laws: dict[Plan, tuple[StepLaw, LocalCorrections, LengthMoments, KnownPoints]] = {}
    for plan in plans:
        try:
            filled = resolved(plan, shape, node.device)
            check_parallel(filled, shape, node)
            divided = check_resolved_fits(filled, shape, node.device, advise=False)
        except PlanError:
            continue
        alike = msgspec.structs.replace(filled, max_num_seqs=None, max_num_batched_tokens=None)
        if alike not in laws:  # batch limits say which steps come, not how long one takes
            moments = workload_moments(workload, filled, divided)
            corrections = LocalCorrections(calibration, filled, shape, moments, node)
            corrections.prepare(prepared)
            chosen = coefficients or run_coefficients(node.device, filled, shape, workload)
            law = step_law(filled, shape, node, corrections.law(chosen))
            laws[alike] = law, corrections, moments, {}
        law, corrections, moments, known = laws[alike]
        kv_tokens = divided.kv_tokens_at(moments.context_tokens)
        state = SteadyState(law, divided.served(filled), kv_tokens, moments, known)
        yield PlanCurve(plan, node, state, corrections)


def cheapest_offers(
    plan: Plan,
    shape: NetworkShape,
    nodes: Sequence[Node],
    workload: Workload,
    *,
    holds: Holds,
    calibrations: Mapping[str, Calibration] = MappingProxyType({}),
) -> list[Offer]:
    """Cheapest layout of each machine that holds the constraints, cheapest machine first.

    Machines without a price come after those with one, by throughput per device; machines
    on which nothing fits or holds come last. `calibrations` are of this model, by the name
    of the device that was measured.
    """
    offers = [
        _offer(plan, shape, node, workload, holds, calibrations.get(node.device.name))
        for node in nodes
    ]
    return sorted(offers, key=_order)


def _offer(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    holds: Holds,
    calibration: Calibration | None,
) -> Offer:
    """Cheapest layout of one machine, which is the one of most tokens per second."""
    best: Swept | None = None
    fits = False
    for laid_out in layouts(plan, shape, node):
        ladder = ladder_of(node, laid_out.replicas)
        for curve in curves(
            [laid_out], shape, node, workload, prepared=ladder, calibration=calibration
        ):
            fits = True
            best = _better(curve, ladder, holds, best, ordered=calibration is None) or best
    if best is not None:
        return Offer(node=node, best=best)
    why = "nothing holds the constraints" if fits else "does not fit"
    return Offer(node=node, best=None, why_not=why)


def _better(
    curve: PlanCurve, ladder: Sequence[int], holds: Holds, best: Swept | None, *, ordered: bool
) -> Swept | None:
    """The number of users with most tokens per second that holds, if these are more than the best.

    Fewer users seldom have more of them, so the ladder is tried from the most users down, as long
    as they may be the best; to its end where a calibration corrects each number by itself (not
    `ordered`), and of answers of one or two tokens. Then what is between a number that holds and
    one above it that does not.
    """
    found: Swept | None = None
    failing: Swept | None = None  # the number above, where it misses a limit but may be the best

    def wins(swept: Swept) -> bool:
        if found is not None:
            return _rate(swept) >= _rate(found) * _EQUAL
        return best is None or _rate(swept) >= _rate(best) * (1 + _NEAR)

    for users in reversed(ladder):
        swept = curve.at(users)
        fast = wins(swept)
        held = (fast or failing is not None) and holds(curve.node, swept)
        if held and failing is not None:
            nearest = curve.nearest(swept, failing, holds)
            found = nearest if wins(nearest) else found
        if held and fast and wins(swept):
            found = swept
        failing = swept if fast and not held else None
        answer_tokens = _rate(swept) / swept.point.requests_per_s
        if not fast and ordered and answer_tokens > _FEW_TOKENS:
            break
    return found


def _rate(swept: Swept) -> float:
    return swept.point.output_tokens_per_s


def _order(offer: Offer) -> tuple[int, float]:
    if offer.best is None:
        return (2, 0.0)
    cost_usd = offer.best.cost_per_million_tokens_usd
    if cost_usd is None:
        return (1, -offer.best.point.output_tokens_per_s / offer.node.device_count)
    return (0, cost_usd)
