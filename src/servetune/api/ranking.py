"""Ranking of plans by prediction, on one machine or on several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from servetune.api.choosing import Miss, Remedy, Selection
from servetune.api.notes import progress
from servetune.errors import PlanError
from servetune.hardware import Node
from servetune.metrics import LATENCIES
from servetune.perf import Calibration
from servetune.perf.roofline import (
    Contender,
    Interval,
    SafetyFactors,
    as_good_as_first,
    interval_of,
    scattered_factor,
)
from servetune.perf.sweep import (
    LADDER,
    Swept,
    curves,
    ladder_of,
    plans_of,
    quantizations_of,
    sweep,
)
from servetune.plan import Plan
from servetune.store import Results
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import percentiles_of
from servetune.workload import Workload

#: Token budgets that are simulated at most for one layout and number of users.
BUDGETS_SIMULATED = 3

#: Slope of a rate by all times where times hardly depend on the number of users.
_STEEPEST = 100.0

#: The correction that was measured on a machine, if any.
CorrectionOf: TypeAlias = Callable[[Node], Calibration | None]


#: Which batch limits are priced: the engine's own, all the others, or both.
_Limits: TypeAlias = Literal["own", "other", "all"]


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at its best concurrency, and how the constraints were judged.

    Attributes:
        node: Node that serves the plan.
        caution: Factors on the predicted times before the constraints judged them.
        results: Results of the simulator, where percentiles had to be judged; else `None`.
        interval: Factors within which the measured times are expected.
        as_good: Whether it may be as good as the first of the list, from which predictions do not
            tell it apart (`as_good_as_first`); `None` where it has no price to be compared by.
    """

    node: Node
    swept: Swept
    caution: SafetyFactors
    results: Results | None = None
    interval: Interval
    as_good: bool | None = True


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """Combination that misses the constraints by least, where none holds them all.

    Attributes:
        node: Machine of the plan.
        swept: The plan, its concurrency and its predicted means.
        misses: Constraints that it misses, the furthest first.
    """

    node: Node
    swept: Swept
    misses: tuple[Miss, ...]

    @property
    def excess(self) -> float:
        """Factor by which the furthest constraint is missed."""
        return self.misses[0].excess


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates that a ranking chose from.

    Attributes:
        count: Number of plans times concurrencies, on all machines.
        at_face_value: Number of these that hold the limits on means as predicted, without a margin.
        confidence: Probability with which the ranked plans hold the constraints.
        layouts: Number of layouts (machine, parallelism, storage) that hold the limits on means.
        simulated: Number of runs simulated to judge percentiles.
        nearest: Combination that misses by least, where no plan holds every constraint.
    """

    count: int
    at_face_value: int
    confidence: float
    layouts: int = 0
    simulated: int = 0
    nearest: Nearest | None = None


class _Found(msgspec.Struct, frozen=True):
    """One combination that holds the limits on means."""

    node: Node
    swept: Swept

    @property
    def layout(self) -> tuple[Any, ...]:
        """Machine, parallelism and storage: of plans that differ in batch limits one is kept."""
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
        """Key that combinations share whose throughput agrees to three digits."""
        point = self.swept.point
        return (*self.layout, point.concurrency, f"{point.output_tokens_per_s:.3g}")


class _Edge(NamedTuple):
    """A plan at two neighbours of the ladder, of which one misses a limit on means."""

    held: _Found
    beyond: _Found
    """The one that misses, which would be the better of the two."""


def ranked_plans(
    selection: Selection, nodes: Sequence[Node], correction_of: CorrectionOf
) -> tuple[list[Ranked], Priced]:
    """The best plans that hold every limit, and what they were chosen from.

    On one machine the target orders them; on several, throughput is weighed by what a million
    output tokens cost. Of plans that differ in batch limits alone the best is kept, at the
    concurrency that suits the target best. Percentiles are judged by simulation, for every
    layout that could still be among the best.
    """
    search = _Search(selection, nodes, correction_of)
    kept: list[_Judged] = []
    layouts = search.layouts()
    for number, candidates in enumerate(layouts, start=1):
        best = search.order(candidates[0])
        if len(kept) >= selection.top and search.order(kept[selection.top - 1].found) < best:
            break
        chosen = search.best_that_holds(candidates)
        if chosen is not None:
            kept.append(chosen)
            kept.sort(key=lambda judged: search.order(judged.found))
        if search.simulated and number % 10 == 0:
            progress(f"percentiles judged by simulation: {number} of {len(layouts)} layouts")
    leading = kept[: selection.top]
    found = [(each.found.node, each.found.swept) for each in leading]
    as_good = which_as_good(found, selection, correction_of, by_cost=len(nodes) > 1)
    judged = zip(leading, as_good, strict=True)
    ranked = [search.ranked(each, as_good=good) for each, good in judged]
    return ranked, search.priced(none_holds=not ranked)


class _Judged(NamedTuple):
    """Combination that holds every constraint."""

    found: _Found
    results: Results | None
    """Results of its simulation, where percentiles had to be judged."""


class _Search:
    """Search for the best plans: limits on means by formula, percentiles by simulation.

    Percentiles of a layout are judged by bisection over the numbers of users, because latencies
    rise with them: some five simulations decide for a layout instead of one for each
    combination of users and batch limits.
    """

    def __init__(
        self, selection: Selection, nodes: Sequence[Node], correction_of: CorrectionOf
    ) -> None:
        self.selection = selection
        self.simulated = 0
        self._several = len(nodes) > 1
        self._correction_of = correction_of
        self._judge = selection.judge
        self._at_face_value = msgspec.structs.replace(selection, confidence=0.5).judge
        self._count = self._face_value_count = 0
        self._nearest: Nearest | None = None
        self._holding: dict[tuple[Any, ...], _Found] = {}
        self._edges: list[_Edge] = []
        self._price(nodes)
        self._layouts = self._by_layout()

    def layouts(self) -> list[list[_Found]]:
        """Candidates of each layout, best first; the layout with the best candidate first."""
        return self._layouts

    def order(self, found: _Found) -> tuple[float, float]:
        """Sort key of a combination: the best has the lowest."""
        return _order(found, self.selection.target, several=self._several)

    def best_that_holds(self, candidates: Sequence[_Found]) -> _Judged | None:
        """The best candidate of a layout that holds every constraint."""
        if not self._judge.others:
            return _Judged(candidates[0], None)
        if not self.simulated:
            self._nearest = None  # what missed by means alone was not judged by percentiles
        rungs = self._rungs(candidates)
        verdicts: dict[int, _Judged | Remedy] = {}

        def verdict(rung: int) -> _Judged | Remedy:
            if rung not in verdicts:
                verdicts[rung] = self._simulate(rungs[rung])
            return verdicts[rung]

        worse = "more" if self.selection.target == "latency" else "fewer"
        low, high, best = 0, len(rungs) - 1, None
        probe = 0 if self.selection.target == "latency" else high // 2
        while low <= high:
            found = verdict(probe)
            if isinstance(found, _Judged):
                best, high = found, probe - 1
            elif found == "unknown":  # no direction in which the limit comes within reach
                held = (verdict(rung) for rung in range(len(rungs)))
                return next((each for each in held if isinstance(each, _Judged)), None)
            elif found == worse:
                low = probe + 1
            else:
                high = probe - 1
            probe = (low + high) // 2
        return best

    def ranked(self, judged: _Judged, *, as_good: bool | None) -> Ranked:
        """A chosen plan with the doubt about its prediction."""
        node, swept = judged.found.node, judged.found.swept
        return Ranked(
            node=node,
            swept=swept,
            caution=self._judge.caution(node, swept.plan, swept.correction),
            results=judged.results,
            as_good=as_good,
            interval=interval_of(
                node,
                swept.plan,
                self.selection.shape,
                swept.correction,
                self._judge.ran,
                output_tokens_per_s=swept.point.output_tokens_per_s,
                scattered_factor=scattered_factor(
                    swept.plan,
                    self.selection.shape,
                    node,
                    self.selection.workload,
                    swept.point.concurrency,
                ),
            ),
        )

    def priced(self, *, none_holds: bool) -> Priced:
        """Size of the set of plans, in words."""
        return Priced(
            count=self._count,
            at_face_value=self._face_value_count,
            confidence=self.selection.confidence,
            layouts=len(self._layouts),
            simulated=self.simulated,
            nearest=self._nearest if none_holds else None,
        )

    def _price(self, nodes: Sequence[Node]) -> None:
        """Collect the combinations that hold the limits on means.

        Of many machines every layout is priced with the engine's own batch limits, and the
        limits are varied on those that lead: they move a plan by far less than another machine.
        """
        if self._several:
            for node in nodes:
                self._look(node, "own")
            self._refine()
            leading = {found.node.name: found.node for found in self._ordered()}
            nodes = list(leading.values())[: self.selection.top]
        for node in nodes:
            self._look(node, "other" if self._several else "all")
        self._refine()

    def _look(self, node: Node, limits: _Limits) -> None:
        before: tuple[_Found, bool] | None = None
        for swept in _swept(self.selection, node, self._correction_of(node), limits):
            self._count += 1
            self._face_value_count += self._at_face_value.holds(node, swept)
            found = _Found(node, swept)
            missed = self._judge.missed_by(node, swept)
            if missed:
                self._note(found, missed)
            else:
                self._keep(found)
            if before is not None and before[0].swept.plan is swept.plan:
                self._compare(before, (found, not missed))
            before = found, not missed

    def _keep(self, found: _Found) -> None:
        known = self._holding.setdefault(found.figures, found)
        target = self.selection.target
        if _merit(found.swept, target) > _merit(known.swept, target):
            self._holding[found.figures] = found

    def _compare(self, *neighbours: tuple[_Found, bool]) -> None:
        """Remember two neighbours between which a better number of users may hold."""
        held, beyond = sorted(neighbours, key=lambda one: not one[1])
        if held[1] != beyond[1] and self.order(beyond[0]) < self.order(held[0]):
            self._edges.append(_Edge(held[0], beyond[0]))

    def _refine(self) -> None:
        """Number of users of the leading plans, sought between neighbours of the ladder.

        Of a layout, and of all, only those plans whose neighbour beyond the limit is better than
        the best so far. Where each has to be simulated, the ladder is left as it is.
        """
        edges = {(e.held.figures, e.held.swept.point, e.beyond.swept.point): e for e in self._edges}
        self._edges = []
        if self._judge.others:
            return
        best: dict[tuple[Any, ...], tuple[float, float]] = {}
        for found in reversed(self._ordered()):
            best[found.layout] = self.order(found)
        for held, beyond in sorted(edges.values(), key=lambda edge: self.order(edge.beyond)):
            bound, leading = self.order(beyond), sorted(best.values())[: self.selection.top]
            if len(leading) == self.selection.top and bound >= leading[-1]:
                break
            if bound < best[held.layout]:
                nearest = self._nearest_of(held, beyond)
                self._keep(nearest)
                best[held.layout] = min(best[held.layout], self.order(nearest))

    def _nearest_of(self, held: _Found, beyond: _Found) -> _Found:
        node, selection = held.node, self.selection
        (curve,) = curves(
            [held.swept.plan],
            selection.shape,
            node,
            selection.workload,
            calibration=self._correction_of(node),
        )
        return _Found(node, curve.nearest(held.swept, beyond.swept, self._judge.holds))

    def _ordered(self) -> list[_Found]:
        return sorted(self._holding.values(), key=self.order)

    def _by_layout(self) -> list[list[_Found]]:
        grouped: dict[tuple[Any, ...], list[_Found]] = {}
        for found in self._ordered():
            grouped.setdefault(found.layout, []).append(found)
        return list(grouped.values())

    def _rungs(self, candidates: Sequence[_Found]) -> list[list[_Found]]:
        """Candidates by number of users, from the best number on in the direction of worse.

        Of each number those with the best means are kept, one for each token budget.
        """
        latency = self.selection.target == "latency"
        best = candidates[0].swept.point.concurrency
        by_users: dict[int, dict[int | None, _Found]] = {}
        for found in candidates:
            users = found.swept.point.concurrency
            if (users >= best) if latency else (users <= best):
                budget = found.swept.plan.max_num_batched_tokens
                by_users.setdefault(users, {}).setdefault(budget, found)
        return [
            list(by_users[users].values())[:BUDGETS_SIMULATED]
            for users in sorted(by_users, reverse=not latency)
        ]

    def _simulate(self, alike: Sequence[_Found]) -> _Judged | Remedy:
        """The first combination that holds, or what may mend the first one's furthest miss."""
        remedy: Remedy | None = None
        for found in alike:
            self.simulated += 1
            swept = found.swept
            results = simulated_with(
                swept.point.concurrency,
                swept.plan,
                found.node,
                self.selection,
                self._correction_of(found.node),
            )
            if results is None:
                remedy = remedy or "fewer"
                continue
            missed = self._judge.missed_in(found.node, swept.plan, results, swept.correction)
            if not missed:
                return _Judged(found, results)
            self._note(found, missed)
            remedy = remedy or _remedy(missed)
        return remedy or "fewer"

    def _note(self, found: _Found, missed: Sequence[Miss]) -> None:
        """Remember the combination that misses by least."""
        excess = max(miss.excess for miss in missed)
        if self._nearest is None or excess < self._nearest.excess:
            furthest_first = sorted(missed, key=lambda miss: -miss.excess)
            self._nearest = Nearest(
                node=found.node, swept=found.swept, misses=tuple(furthest_first)
            )


def _remedy(missed: Sequence[Miss]) -> Remedy:
    remedies = {miss.remedy for miss in missed}
    if "unknown" in remedies:
        return "unknown"
    return "fewer" if "fewer" in remedies else "more"


def _swept(
    selection: Selection, node: Node, correction: Calibration | None, limits: _Limits
) -> Iterator[Swept]:
    quantizations = quantizations_of(selection.plan, selection.shape, node.device)
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
    for copies, alike in itertools.groupby(allowed, key=lambda each: each.replicas):
        yield from sweep(
            alike,
            selection.shape,
            node,
            selection.workload,
            concurrencies=_ladder(selection, node, copies),
            calibration=correction,
        )


def _ladder(selection: Selection, node: Node, copies: int) -> tuple[int, ...]:
    """Numbers of users at which plans are judged; fewer where each has to be simulated."""
    return LADDER if selection.judge.others else ladder_of(node, copies)


def simulated_with(
    users: int, plan: Plan, node: Node, selection: Selection, calibration: Calibration | None
) -> Results | None:
    """Results of a simulated run with so many users; `None` where a request cannot be served."""
    load = msgspec.structs.replace(
        selection.workload, concurrency=users, request_count=max(200, 8 * users)
    )
    return simulated_at(load, plan, node, selection, calibration)


def simulated_at(
    load: Workload, plan: Plan, node: Node, selection: Selection, calibration: Calibration | None
) -> Results | None:
    """Results of a simulated run of a load; `None` where a request cannot be served."""
    try:
        results = simulated_results(
            plan,
            selection.shape,
            node,
            load,
            percentiles=percentiles_of(selection.limits),
            calibration=calibration,
        )
    except PlanError:
        return None
    usd = node.cost_per_million_tokens_usd(results.output_throughput)
    if node.price and usd is not None:
        results = results.with_fields(
            cost_per_million_tokens=usd, cost_per_hour=node.price.usd_per_hour
        )
    return results


def _merit(swept: Swept, target: str) -> float:
    return -swept.point.e2e_ms if target == "latency" else swept.point.output_tokens_per_s


def which_as_good(
    found: Sequence[tuple[Node, Swept]],
    selection: Selection,
    correction_of: CorrectionOf,
    *,
    by_cost: bool,
) -> tuple[bool | None, ...]:
    """Whether each plan may be as good as the first; `None` where they cannot be compared.

    By cost, plans without a price are compared with each other alone, by their rate per device.
    """
    if not found:
        return ()
    priced = found[0][1].cost_per_million_tokens_usd is not None

    def merit(node: Node, swept: Swept) -> float | None:
        if selection.target == "latency":
            return swept.point.e2e_ms
        if not by_cost:
            return swept.point.output_tokens_per_s
        cost_usd = swept.cost_per_million_tokens_usd
        if priced or cost_usd is not None:
            return cost_usd if priced else None
        return swept.point.output_tokens_per_s / node.device_count

    limited = selection.target != "latency" and bool(selection.limits)
    contenders = [
        Contender(
            plan=swept.plan,
            node=node,
            point=swept.point,
            merit=merit(node, swept),
            slope=slope_of_rate(node, swept, selection, correction_of(node)) if limited else 1.0,
        )
        for node, swept in found
    ]
    correction = correction_of(found[0][0])
    return as_good_as_first(contenders, selection.shape, selection.workload, correction)


def slope_of_rate(
    node: Node, swept: Swept, selection: Selection, correction: Calibration | None
) -> float:
    """Slope of the logarithm of a rate by that of all times; one where no limit on times binds.

    Where times are longer fewer users hold their limit, and these are served more slowly, too: by
    Little's law the rate falls by the logarithm of users over that of times.
    """
    users = swept.point.concurrency
    ladder = _ladder(selection, node, swept.plan.replicas)
    # Far enough apart that times differ by more than they jump from one number to the next.
    fewer = [n for n in ladder if 4 * n <= 3 * users][-1:]
    more = [n for n in ladder if n > users][:1]
    around = {
        each.point.concurrency: each
        for each in sweep(
            [swept.plan],
            selection.shape,
            node,
            selection.workload,
            concurrencies=(*fewer, *more),
            calibration=correction,
        )
    }
    judge = selection.judge
    missed = [miss.limit for n in more for miss in judge.missed_by(node, around[n])]
    binding = judge.others if more else []
    if not any(limit.metric in LATENCIES for limit in (*missed, *binding)):
        return 1.0
    if not fewer:
        return _STEEPEST
    slower = math.log(swept.point.e2e_ms / around[fewer[0]].point.e2e_ms)
    return min(_STEEPEST, max(1.0, math.log(users / fewer[0]) / max(slower, 1e-9)))


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
