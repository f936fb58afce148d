"""Instances of a fleet: what one of each does within the limits, measured or predicted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from servetune.api import choosing
from servetune.api.notes import note, progress
from servetune.deploy.from_trial import instance_of_trial, plan_of_trial
from servetune.engines import resolved
from servetune.errors import InputError, ServetuneError
from servetune.hardware import Node, Price, Service, device, instance
from servetune.metrics import Constraint, interval_of
from servetune.models import NetworkShape
from servetune.perf import Calibration
from servetune.perf.copies import host_fraction
from servetune.perf.copy_curve import CopyCurve, Level, open_curve, point_of
from servetune.perf.roofline import interval_of as predicted_interval
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.sim.copy_load import SimulatedCopy
from servetune.perf.sweep import LADDER, Swept, layouts, sweep
from servetune.plan import Plan
from servetune.search.least_cost import Capacity
from servetune.store import TrialRecord
from servetune.units import MS_PER_S, counted, format_rate, format_seconds
from servetune.workload import Workload

Basis = Literal["predicted", "simulated", "measured"]
"""Where a load curve comes from: simulated here, or trials that were simulated or measured."""

#: Time from the decision to add an instance until its server starts: the machine, its container and
#: the model's download. An assumption, as AWS states none; endpoints take three to eight minutes.
MACHINE_S = 300.0
#: Start of a server where no trial says it. An assumption; vLLM that compiles takes 1 to 2.5 min.
SERVER_S = 120.0

#: By how much a simulated copy may do more than the formula says before it is passed over unseen.
_MARGIN = 1.15
#: Users for whom the formula bounds what a copy does.
_USERS = LADDER[::2]


class SizedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of instance and what one of it does.

    Attributes:
        node: The instance.
        plan: Plan of the whole instance.
        copies: Copies on it.
        curve: Load curve of one copy beside the others.
        capacity_per_s: Requests per second within the limits.
        slow_curve: The curve at the slow end of its 90% interval; `None` where that is not known.
        slow_capacity_per_s: Requests per second there; 0 where the limits hold at no load.
        slow_factor: Factor on times at the slow end of a prediction; `None` of what was measured.
        slow_ttft_factor: Factor on times to the first token likewise.
        basis: Source of the curve: simulated here, or trials that were simulated or measured.
        interval: The interval in words.
        start_up_s: Time from the decision to add one until it serves.
        start_up_source: Source of that time, in words.
        copies_tried: Copies in the trials; all of the instance for a prediction.
        source: Journal of its trials; `None` for a prediction.
        key: Key of the trial with the load nearest to what it will have.
    """

    node: Node
    plan: Plan
    copies: int
    curve: CopyCurve
    capacity_per_s: float
    slow_curve: CopyCurve | None
    slow_capacity_per_s: float
    slow_factor: float | None = None
    slow_ttft_factor: float | None = None
    basis: Basis
    interval: str
    start_up_s: float
    start_up_source: str
    copies_tried: int
    source: Path | None = None
    key: str = ""

    @property
    def name(self) -> str:
        """Name of the instance type."""
        return self.node.name

    @property
    def price(self) -> Price:
        """Price of one."""
        assert self.node.price is not None
        return self.node.price

    def in_flight(self, rate_per_s: float) -> float:
        """Requests in flight of one that serves a rate."""
        return self.copies * self.curve.in_flight(rate_per_s / self.copies)

    def capacity(self, free_fraction: float, *, slow: bool = False) -> Capacity:
        """What it does with a share of it kept free."""
        rate = self.slow_capacity_per_s if slow else self.capacity_per_s
        return Capacity(
            name=self.name,
            rate_per_s=rate * (1 - free_fraction),
            usd_per_hour=self.price.usd_per_hour,
        )


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that no fleet here has, and why."""

    instance: str
    reason: str


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """Instances that fleets are made of, and those that they are not.

    Attributes:
        model: Name of the model.
        instances: Instances that hold the limits, by their price per request.
        left_out: All others.
    """

    model: str
    instances: tuple[SizedInstance, ...]
    left_out: tuple[LeftOut, ...]


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """Start of an instance as the user gave it; `None` for what records say, or an assumption."""

    given_s: float | None = None

    def of(self, server_ready_s: float | None) -> tuple[float, str]:
        """Time until an instance serves, and its source in words."""
        if self.given_s is not None:
            return self.given_s, "as given"
        server_s = SERVER_S if server_ready_s is None else server_ready_s
        known = "both assumed" if server_ready_s is None else "assumed and as measured"
        words = f"{MACHINE_S:g} s for the machine and {server_s:.0f} s for the server, {known}"
        return MACHINE_S + server_s, words


# predicted


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What instances are predicted for.

    Attributes:
        plan: Plan without its split.
        shape: Network.
        workload: Requests.
        limits: Limits on latencies.
        nodes: Instances to choose from.
        named: Whether they were named one by one, so that each is shown.
        calibrations: Calibrations by device.
        tensor_parallel: The only degree allowed, if not `None`.
        start_up: Start of an instance.
    """

    plan: Plan
    shape: NetworkShape
    workload: Workload
    limits: tuple[Constraint, ...]
    nodes: tuple[Node, ...]
    named: bool
    calibrations: dict[str, Calibration]
    tensor_parallel: int | None
    start_up: StartUp


class _Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A plan on an instance, and what a formula says of one of its copies.

    Attributes:
        node: Instance.
        plan: Plan of the whole instance.
        most_per_s: Largest throughput of a copy.
        least_excess: Factor by which the limits on means are missed with one user; 1 or less
            where they hold.
        bound_per_s: Rate within limits that no copy is taken to exceed.
    """

    node: Node
    plan: Plan
    most_per_s: float
    least_excess: float
    bound_per_s: float

    @property
    def usd_per_hour(self) -> float:
        assert self.node.price is not None
        return self.node.price.usd_per_hour

    def copies_per_s(self, alone_per_s: float) -> float:
        """Throughput of all copies together, by that of one alone."""
        count = self.plan.replicas * self.plan.data_parallel
        return self.plan.replicas * host_fraction(count) * alone_per_s

    @property
    def one(self) -> Plan:
        return msgspec.structs.replace(self.plan, replicas=1)

    @property
    def kind(self) -> tuple[object, ...]:
        """What copies share that are equally fast."""
        one = self.one
        return (self.node.device.name, self.node.link, one)


def instances_by_name(names: str, service: Service | None, gpu: str | None) -> tuple[Node, ...]:
    """Instances of a list of names, or all of a service that stock engines run on.

    Raises:
        UnknownName: There is no such instance or GPU.
        InputError: None is left.
    """
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if listed and listed != ["all"]:
        found = [instance(name, service=service) for name in dict.fromkeys(listed)]
        if gpu is not None:
            found = [node for node in found if node.device.name == device(gpu).name]
            if not found:
                raise InputError(f"none of {names} has the GPU {gpu}", hint="leave --gpu out")
        return tuple(found)
    wanted = device(gpu).name if gpu is not None else None
    return tuple(choosing.machines("instance", service or "sagemaker", device_name=wanted))


def predicted_instances(asked: Candidates) -> Sized:
    """Instances by prediction: each copy is simulated under random arrivals.

    A formula bounds what an instance can do from above. One whose work others do for no more, even
    if it did all that, is left out without a simulation; so no cheaper fleet is passed over as far
    as the simulation stays below the bound, which has a margin of 15%.

    Raises:
        InputError: No instance has a price, holds the model, or holds the limits at any load.
    """
    left: list[LeftOut] = []
    found: dict[str, list[_Layout]] = {}
    known: dict[tuple[object, ...], list[Swept]] = {}
    for node in asked.nodes:
        if node.price is None:
            left.append(LeftOut(instance=node.name, reason="its price is not known"))
            continue
        laid_out = list(_layouts(asked, node, known))
        if laid_out:
            found[node.name] = laid_out
        else:
            left.append(
                LeftOut(
                    instance=node.name,
                    reason="the model does not fit, or the engine does not run there",
                )
            )
    if not found:
        raise InputError(
            f"no instance to choose from can serve {asked.shape.name} at a known price",
            hint="; ".join(f"{each.instance}: {each.reason}" for each in left[:4]),
        )
    chosen, passed = _simulated(asked, [each for some in found.values() for each in some])
    if not chosen:
        raise _nothing_holds(asked, [each for some in found.values() for each in some])
    best: dict[str, SizedInstance] = {}
    for sized in chosen:
        other = best.get(sized.name)
        if other is None or sized.capacity_per_s > other.capacity_per_s:
            best[sized.name] = sized
    if not asked.named:
        for name, one in list(best.items()):
            others = [each for each in best.values() if each.name != name]
            better = _replacing(others, one.capacity_per_s, one.price.usd_per_hour)
            if better is not None:
                passed[name] = f"{better.name} does the same for no more"
                del best[name]
    left += [
        LeftOut(instance=name, reason=passed.get(name, "the limits hold at no load"))
        for name in found
        if name not in best
    ]
    return _sized(asked.shape.name, best.values(), left)


def _sized(model: str, instances: Iterable[SizedInstance], left_out: Sequence[LeftOut]) -> Sized:
    """Instances by their price per request."""
    ordered = sorted(instances, key=lambda one: one.price.usd_per_hour / one.capacity_per_s)
    return Sized(model=model, instances=tuple(ordered), left_out=tuple(left_out))


def _replacing(
    sized: Iterable[SizedInstance], rate_per_s: float, usd_per_hour: float
) -> SizedInstance | None:
    """The first of these instances that does the work of another for no more."""
    able = (one for one in sized if one.capacity(0.0).replaces(rate_per_s, usd_per_hour))
    return next(able, None)


def _layouts(
    asked: Candidates, node: Node, known: dict[tuple[object, ...], list[Swept]]
) -> Iterator[_Layout]:
    """The plan on an instance in every way that fits, with the formula's bound."""
    calibration = asked.calibrations.get(node.device.name)
    for plan in layouts(asked.plan, asked.shape, node):
        if asked.tensor_parallel not in (None, plan.tensor_parallel):
            continue
        one = msgspec.structs.replace(plan, replicas=1)
        key = (node.device.name, node.link, one)
        if key not in known:
            alone = msgspec.structs.replace(node, device_count=one.device_count)
            known[key] = list(
                sweep(
                    [one],
                    asked.shape,
                    alone,
                    asked.workload,
                    concurrencies=_USERS,
                    calibration=calibration,
                )
            )
        points = known[key]
        if not points:
            continue
        most = max(each.point.requests_per_s for each in points)
        holding = [n for n, each in enumerate(points) if _excess(each, asked.limits) <= 1]
        bound = 0.0
        if holding:  # up to the first number of users that misses a limit
            reached = points[: min(holding[-1] + 2, len(points))]
            bound = _MARGIN * max(each.point.requests_per_s for each in reached)
        yield _Layout(
            node=node,
            plan=plan,
            most_per_s=most,
            least_excess=_excess(points[0], asked.limits),
            bound_per_s=bound,
        )


def _excess(swept: Swept, limits: Sequence[Constraint]) -> float:
    """Largest factor of a mean over its limit; limits on percentiles bound the mean as well."""
    excess = 0.0
    for limit in limits:
        low = limit.statistic.startswith("p") and float(limit.statistic[1:]) < 90
        if not low and limit.statistic != "median":  # a mean may be above a median
            mean = float(getattr(swept.point, choosing.POINT_FIELDS[limit.metric]))
            excess = max(excess, mean / limit.value if limit.value else math.inf)
    return excess


def _simulated(
    asked: Candidates, candidates: Sequence[_Layout]
) -> tuple[list[SizedInstance], dict[str, str]]:
    """Instances that hold the limits by simulation, and why others were not simulated."""
    sized: list[SizedInstance] = []
    passed: dict[str, str] = {}
    copies: dict[tuple[object, ...], SimulatedCopy] = {}
    possible = [each for each in candidates if each.bound_per_s > 0]
    queue: list[tuple[float, float, int, float]] = []

    def put(place: int, rate_per_s: float) -> None:
        if rate_per_s:
            usd = possible[place].usd_per_hour
            heapq.heappush(queue, (usd / rate_per_s, usd, place, rate_per_s))

    for place, layout in enumerate(possible):
        put(place, layout.bound_per_s * layout.plan.replicas)
    while queue:  # the one that may be the cheapest per request is looked at more closely
        _, usd, place, rate = heapq.heappop(queue)
        layout = possible[place]
        copy = _copy_of(asked, layout, copies)
        cheaper = None if asked.named else _replacing(sized, rate, usd)
        if cheaper is not None:
            passed[layout.node.name] = f"{cheaper.name} does the same for no more"
        elif (upper := layout.copies_per_s(copy.upper_per_s)) < rate:
            put(place, upper)
        elif copy.narrow():
            put(place, rate)
        elif (found := _size(asked, layout, copy)) is not None:
            sized.append(found)
    runs = [copy.runs for copy in copies.values() if copy.runs]
    progress(
        f"simulated {counted(len(runs), 'kind')} of copies, {sum(runs)} runs, for "
        f"{counted(len(asked.nodes), 'instance')}"
    )
    return sized, passed


def _copy_of(
    asked: Candidates, layout: _Layout, copies: dict[tuple[object, ...], SimulatedCopy]
) -> SimulatedCopy:
    """The copy of a layout, simulated once for all instances that have equal ones."""
    if layout.kind not in copies:
        copies[layout.kind] = SimulatedCopy(
            layout.one,
            asked.shape,
            msgspec.structs.replace(layout.node, device_count=layout.one.device_count),
            asked.workload,
            asked.limits,
            most_per_s=layout.most_per_s,
            calibration=asked.calibrations.get(layout.node.device.name),
        )
    return copies[layout.kind]


def _size(asked: Candidates, layout: _Layout, copy: SimulatedCopy) -> SizedInstance | None:
    node, count = layout.node, layout.plan.replicas * layout.plan.data_parallel
    calibration = asked.calibrations.get(node.device.name)
    if copy.capacity_per_s() is None:
        return None
    curve = copy.curve()
    assert curve is not None
    replicas = layout.plan.replicas
    beside = curve.slower(1 / host_fraction(count))
    capacity = beside.capacity_per_s()
    if capacity is None:
        return None
    interval = predicted_interval(
        node,
        resolved(layout.plan, asked.shape, node.device),
        asked.shape,
        calibration,
        Ran.of(asked.workload.lengths, "open"),
    )
    start_up_s, source = asked.start_up.of(None)
    slow = beside.slower(interval.high_factor, interval.ttft_high_factor)
    return SizedInstance(
        node=node,
        plan=layout.plan,
        copies=replicas,
        curve=beside,
        capacity_per_s=replicas * capacity,
        slow_curve=slow,
        slow_capacity_per_s=replicas * (slow.capacity_per_s() or 0.0),
        slow_factor=interval.high_factor,
        slow_ttft_factor=interval.ttft_high_factor,
        basis="predicted",
        interval=interval.basis,
        start_up_s=start_up_s,
        start_up_source=source,
        copies_tried=replicas,
    )


def _nothing_holds(asked: Candidates, candidates: Sequence[_Layout]) -> InputError:
    """The error that says which limit binds on the instance that comes nearest."""
    nearest: tuple[float, Constraint, float, str] | None = None
    seen: set[tuple[object, ...]] = set()
    for layout in sorted(candidates, key=lambda each: each.least_excess):
        if layout.kind in seen or len(seen) == 3:
            continue
        seen.add(layout.kind)
        copy = SimulatedCopy(
            layout.one,
            asked.shape,
            msgspec.structs.replace(layout.node, device_count=layout.one.device_count),
            asked.workload,
            asked.limits,
            most_per_s=layout.most_per_s,
            calibration=asked.calibrations.get(layout.node.device.name),
        )
        point = copy.point(0.02 * layout.most_per_s)
        if point is None:
            continue
        furthest = max(asked.limits, key=lambda limit: _ratio(point.values, limit))
        found = (
            _ratio(point.values, furthest), furthest, point.values[furthest.field],
            layout.node.name,
        )  # fmt: skip
        if nearest is None or found[0] < nearest[0]:
            nearest = found
    if nearest is None:
        return InputError(
            "no instance holds the limits at any load, or no request has what they limit",
            hint="relax --limits; answers of one token have no ITL and no TPOT",
        )
    excess, limit, value_ms, name = nearest
    return InputError(
        f"no instance holds {limit.label} even at a fiftieth of its throughput: {name} comes "
        f"nearest, with {format_seconds(value_ms / MS_PER_S)}{_excess_text(excess)}",
        hint="relax that limit, shorten the answers, or try --quantization fp8",
    )


def _excess_text(excess: float) -> str:
    return f", {excess:,.{0 if excess >= 10 else 1}f} times the limit" if excess < math.inf else ""


def _ratio(values: dict[str, float], limit: Constraint) -> float:
    return values[limit.field] / limit.value if limit.value else math.inf


# measured

#: Factor of throughput from one number of users to the next, above which more users may add more;
#: a judgement.
_RISING = 1.05


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of trials.

    Attributes:
        records: Trials of a journal or several.
        source: First journal.
        limits: Limits on latencies.
        names: Instances to keep, or the one that trials without an instance are of.
        price: Price in place of the catalogue's.
        start_up: Start of an instance.
    """

    records: tuple[TrialRecord, ...]
    sources: dict[str, Path]
    limits: tuple[Constraint, ...]
    names: str
    price: Price | None
    start_up: StartUp


def measured_instances(asked: Measured) -> Sized:
    """Instances by trials: a load curve for each configuration on each instance, the best of which
    counts.

    Raises:
        InputError: No configuration has several loads, or none holds the limits.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    left: list[LeftOut] = []
    nodes: dict[str, Node] = {}
    for record in asked.records:
        if record.status != "ok" or not record.results:
            continue
        node = _node_of(record, asked)
        if node is None:
            continue
        nodes[node.name] = node
        plan = plan_of_trial(record)
        settings = repr((plan, sorted(record.config.server_args.items())))
        groups.setdefault((node.name, settings), []).append(record)
    best: dict[str, SizedInstance] = {}
    problems: dict[str, str] = {}
    alone = 0
    for (name, _), records in groups.items():
        if nodes[name].price is None:
            problems[name] = "its price is not known: give --price-per-hour"
            continue
        found = _sized_by_trials(nodes[name], records, asked)
        if isinstance(found, str):
            problems.setdefault(name, found)
            alone += len(_loads(records)) < 2
        elif name not in best or found.capacity_per_s > best[name].capacity_per_s:
            best[name] = found
    if not groups and asked.names:
        others = {record.metadata.instance_type or "" for record in asked.records} - {""}
        if others:
            raise InputError(
                f"no trial is of {asked.names}: these are of {', '.join(sorted(others))}",
                hint="leave --instance out, or name one of theirs",
            )
    if not best:
        if alone == len(groups) and alone:
            raise InputError(
                "each configuration was tried at one load, which is no load curve",
                hint="run the sweep at several: servetune tune ... -c 1,8,32,128",
            )
        words = "; ".join(f"{name}: {why}" for name, why in problems.items())
        raise InputError(
            f"no trial is of an instance that holds the limits: {words or 'none is asked about'}",
            hint="relax --limits, measure lower loads, or price the machine with --price-per-hour",
        )
    left += [
        LeftOut(instance=name, reason=why) for name, why in problems.items() if name not in best
    ]
    first = next(record for record in asked.records if record.status == "ok")
    return _sized(first.metadata.model or plan_of_trial(first).model, best.values(), left)


def _node_of(record: TrialRecord, asked: Measured) -> Node | None:
    """The instance that a trial ran on, with its price; `None` where it is not asked about."""
    listed = [name.strip() for name in asked.names.split(",") if name.strip() not in ("", "all")]
    own = record.metadata.instance_type
    if own:
        bare = [name.lower().removeprefix("ml.") for name in listed]
        if listed and own.lower().removeprefix("ml.") not in bare:
            return None
        node = instance(own)
    elif len(listed) == 1:
        node = instance(listed[0])
        gpu = record.metadata.gpu_type or "unknown"
        if gpu != "unknown" and device(gpu).name != node.device.name:
            raise InputError(
                f"the trials ran on {gpu}, and {node.name} has {node.device.name}",
                hint="name an instance with that GPU",
            )
    else:
        try:
            node = instance_of_trial(record)
        except ServetuneError as error:
            raise InputError(
                error.message, hint="name the instance with --instance ml.g6.12xlarge"
            ) from None
    price = asked.price
    if price is None and record.metadata.price_source == "given by the user":
        usd = record.metadata.price_per_hour_usd
        if usd is not None:
            price = Price(usd_per_hour=usd, region="", source="given for the trials", date="")
    return node if price is None else msgspec.structs.replace(node, price=price)


def _load_of(record: TrialRecord) -> tuple[str, float] | None:
    """Kind and size of a trial's load: users of a closed loop, or requests per second."""
    results = record.results
    if results.max_concurrency and not (
        results.request_rate and math.isfinite(results.request_rate)
    ):
        return "users", float(results.max_concurrency)
    if results.request_rate and math.isfinite(results.request_rate):
        return "rate", float(results.request_rate)
    return None


def _loads(records: Sequence[TrialRecord]) -> set[tuple[str, float]]:
    return {load for record in records if (load := _load_of(record)) is not None}


def _sized_by_trials(
    node: Node, records: Sequence[TrialRecord], asked: Measured
) -> SizedInstance | str:
    """The instance with a configuration's load curve, or why there is none."""
    plan = plan_of_trial(records[0])
    tried = plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)
    each = max(1, plan.device_count // tried)
    copies = max(1, node.device_count // each)
    if len(_loads(records)) < 2:
        return "tried at one load, which is no load curve"
    kinds = {load[0] for load in _loads(records)}
    if len(kinds) > 1:  # rates are what is asked, so they count where both are
        records = [r for r in records if (load := _load_of(r)) is not None and load[0] == "rate"]
        kinds = {"rate"}
        if len(_loads(records)) < 2:
            return "tried at one rate, which is no load curve"
    closed = kinds == {"users"}
    curve = _curve(records, asked.limits, tried, closed=closed, slow=False)
    if curve is None:
        labels = ", ".join(limit.label for limit in asked.limits)
        return f"its trials have no value for each of {labels}"
    share = host_fraction(copies) / host_fraction(tried)
    curve = curve.slower(1 / share)
    capacity = curve.capacity_per_s()
    if capacity is None:
        lowest = curve.points[0].rate_per_s
        furthest = max(asked.limits, key=lambda one: curve.value(one, lowest) / one.value)
        excess = curve.value(furthest, lowest) / furthest.value
        return f"{furthest.label} is missed {excess:.2g} times at the lowest load"
    by_load = sorted(records, key=lambda r: (_load_of(r) or ("", 0.0))[1])
    before, last = (r.results.request_throughput or 0.0 for r in by_load[-2:])
    full = closed and last <= _RISING * before
    if capacity >= curve.most_per_s * (1 - 1e-9) and not full:
        note(
            f"note: {node.name} holds every limit as far as its trials go, "
            f"{format_rate(copies * capacity)}/s at random times; trials of higher loads may show "
            "that it does more"
        )
    simulated = records[0].simulated
    slow, words = None, ""
    factors: tuple[float, float] | tuple[None, None] = (None, None)
    if simulated and records[0].interval is not None:
        interval = records[0].interval
        factors = (interval.high_factor, interval.ttft_high_factor)
        slow = curve.slower(*factors)
        words = interval.basis
    elif not simulated:
        slow = _curve(records, asked.limits, tried, closed=closed, slow=True)
        slow = slow.slower(1 / share) if slow is not None else None
        words = "upper ends of the sampling intervals of the runs"
    ready = [r.results.server_ready_s for r in records if r.results.server_ready_s]
    start_up_s, source = asked.start_up.of(max(ready) if ready else None)
    target = curve.in_flight(capacity) * tried
    nearest = min(records, key=lambda r: abs((r.results.max_concurrency or target) - target))
    whole = msgspec.structs.replace(plan, replicas=plan.replicas * copies // tried)
    return SizedInstance(
        node=node,
        plan=whole if copies % tried == 0 else plan,
        copies=copies,
        curve=curve,
        capacity_per_s=copies * capacity,
        slow_curve=slow,
        slow_capacity_per_s=copies * ((slow.capacity_per_s() if slow else None) or 0.0),
        slow_factor=factors[0],
        slow_ttft_factor=factors[1],
        basis="simulated" if simulated else "measured",
        interval=words,
        start_up_s=start_up_s,
        start_up_source=source,
        copies_tried=tried,
        source=asked.sources.get(nearest.key),
        key=nearest.key,
    )


def _curve(
    records: Sequence[TrialRecord],
    limits: tuple[Constraint, ...],
    copies: int,
    *,
    closed: bool,
    slow: bool,
) -> CopyCurve | None:
    """Load curve of one copy by trials of several; of the slow ends of their intervals."""
    levels, points = [], []
    for record in records:
        results = dict(record.results)
        load = _load_of(record)
        rate = record.results.request_throughput
        if load is None or not rate:
            continue
        if slow:
            ends = {
                limit.field: interval_of(record.results, limit.metric, limit.statistic)
                for limit in limits
            }
            highs = {field: each[1] for field, each in ends.items() if each is not None}
            if None in highs.values():  # nothing tells how slow it may be
                continue
            results |= highs
        if closed:
            levels.append(Level(users=load[1] / copies, rate_per_s=rate / copies, results=results))
            continue
        mean_ms = record.results.mean_e2e_latency_ms
        saturated = record.results.saturation is not None and record.results.saturation.saturated
        if mean_ms is None or saturated:
            continue
        in_flight = load[1] * mean_ms / MS_PER_S / copies
        point = point_of(load[1] / copies, in_flight, results, limits)
        if point is not None:
            points.append(point)
    if closed:
        return open_curve(levels, limits)
    points.sort(key=lambda point: point.rate_per_s)
    return CopyCurve(points=tuple(points), limits=limits) if len(points) > 1 else None
