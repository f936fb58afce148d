"""Fleet sizing: instances that hold the limits at a traffic or through a day, at the least cost."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.api import choosing
from servetune.api.estimate_commands import journal_command
from servetune.api.estimated_plan import estimated_plan
from servetune.api.estimation import ENGINES
from servetune.api.fleet_days import fleet_day
from servetune.api.fleet_instances import (
    Candidates,
    Measured,
    Sized,
    SizedInstance,
    StartUp,
    instances_by_name,
    measured_instances,
    predicted_instances,
)
from servetune.api.fleet_results import FleetDay, FleetLevel, FleetPlan, Scaled
from servetune.api.inputs import read_records
from servetune.api.layouts import long_enough
from servetune.api.notes import progress
from servetune.api.request import Request, given, request_of
from servetune.api.shared_options import (
    ALLOW_UNKNOWN,
    FURTHER_SERVER_ARGS,
    MODEL,
    Calibrated,
    Drafts,
    Limits,
    PlanOptions,
    Settings,
    SharedPrompts,
)
from servetune.deploy.evidence import HEADROOM
from servetune.engines import DEFAULT_ENGINE, check_weights
from servetune.errors import InputError
from servetune.hardware import Price, device_names
from servetune.metrics import LATENCIES, Constraint, parse_constraints
from servetune.models import NetworkShape, load_shape
from servetune.option import (
    Count,
    Fraction,
    NonNegative,
    NonNegativeCount,
    Positive,
    argument,
    option,
)
from servetune.plan import Plan
from servetune.search.least_cost import Cover, LeastCost
from servetune.store import TrialRecord, latest, require_regular, write_text
from servetune.workload import SHAREGPT, Workload
from servetune.workload.day import Traffic, traffic_of

_MOST_RATE = 1e6
_MOST_LOST = 100
#: Requests that the longest is looked for among, where lengths are drawn, and by how much another
#: draw's may be longer.
_MOST_DRAWN, _LONGER = 4000, 1.5
_RANGE = re.compile(r"\s*([0-9.eE+]+?)\s*\.\.\s*([0-9.eE+]+)\s*")
_RATES = "write it like --rate 50, --rate 10,50,200 or --rate 1..10000"
#: Instances that `deploy sagemaker --instances` takes.
_MOST_DEPLOYED = 1024


class Fleet(Request, frozen=True, kw_only=True):
    """Instances that hold the limits at a traffic, at the least cost."""

    verb: ClassVar[str] = "fleet"
    first: ClassVar[str] = "model"
    group: ClassVar[str] = "Traffic"
    most_used: ClassVar[tuple[str, ...]] = (
        "source", "model", "rate", "day", "peak_per_s", "constraints", "instance", "survive",
        "reserved_discount", "out",
    )  # fmt: skip
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"tensor_parallel": "every split of the GPUs"}
    )

    source: Annotated[
        tuple[Path, ...],
        argument(
            "Journals (.jsonl), summaries or folders of trials at several loads; none to predict.",
            metavar="[SOURCE]...",
        ),
    ] = ()
    model: Annotated[str | None, MODEL] = None
    rate: Annotated[
        str | None,
        option(
            "Requests per second; several as a list or as a range in steps of 1, 2 and 5.",
            "--rate",
            "--request-rate",
            metavar="PER_S,..|FROM..TO",
        ),
    ] = None
    day: Annotated[
        str | None,
        option(
            "Traffic of a day: a CSV file with the columns time and rate, or a shape: flat, "
            "office, two-peaks.",
            metavar="FILE|SHAPE",
        ),
    ] = None
    peak_per_s: Annotated[
        Positive | None,
        option(
            "Largest rate of the day, in requests per second.",
            "--peak",
            metavar="PER_S",
            default="the file's",
        ),
    ] = None
    limits: Limits = Limits()
    input_tokens: Annotated[
        Count,
        option(
            "Length of prompts, in tokens.",
            "--input-tokens",
            "--input-len",
            group="Model and load",
            metavar="TOKENS",
        ),
    ] = 1024
    output_tokens: Annotated[
        Count,
        option(
            "Length of answers, in tokens.",
            "--output-tokens",
            "--output-len",
            group="Model and load",
            metavar="TOKENS",
        ),
    ] = 512
    shared: SharedPrompts = SharedPrompts()
    dataset: Annotated[
        Literal["random", "sharegpt"],
        option(
            "Data set of the lengths: random has fixed ones, sharegpt its published ones.",
            group="Model and load",
        ),
    ] = "random"
    instance: Annotated[
        str | None,
        option(
            "Instance type, or several to choose from, separated by commas.",
            group="Instances",
            metavar="NAME,..",
            default="all of the service; of trials, that of each",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        option(
            "GPU type of the instances.",
            group="Instances",
            metavar="NAME",
            default="any",
            known=device_names,
        ),
    ] = None
    service: Annotated[
        Literal["sagemaker", "ec2"] | None,
        option(
            "Service whose instances and prices count.",
            group="Instances",
            default="that of the --instance; sagemaker where machines are compared",
        ),
    ] = None
    price_per_hour_usd: Annotated[
        NonNegative | None,
        option(
            "Price of an instance, in dollars per hour, where there is one type.",
            "--price-per-hour",
            group="Instances",
            metavar="USD",
            default="the catalogue's",
        ),
    ] = None
    one_type: Annotated[
        bool, option("Restriction of each fleet to one type of instance.", group="Instances")
    ] = False
    survive: Annotated[
        NonNegativeCount,
        option(
            "Number of lost instances without which the limits still hold.",
            group="Headroom",
            metavar="COUNT",
        ),
    ] = 0
    headroom: Annotated[
        Fraction,
        option("Share of each instance's load that is kept free, for --rate.", group="Headroom"),
    ] = HEADROOM
    start_up_s: Annotated[
        Positive | None,
        option(
            "Time from the decision to add an instance until it serves, in seconds.",
            "--start-up",
            group="Headroom",
            metavar="S",
            default="300 for the machine, then the server's start as measured, else 120",
        ),
    ] = None
    reserved_discount: Annotated[
        Fraction | None,
        option(
            "Discount on reserved instances, such as 0.4 of a savings plan.",
            group="Instances",
            metavar="FRACTION",
            default="none, and nothing is reserved",
        ),
    ] = None
    engine: Annotated[
        str,
        option(
            "Engine whose kernels, defaults and overheads count.",
            "--engine",
            "--framework",
            choices=ENGINES,
            group="Plan",
        ),
    ] = DEFAULT_ENGINE
    plan: PlanOptions = PlanOptions()
    server_args: Annotated[Settings, FURTHER_SERVER_ARGS] = ()
    allow_unknown: Annotated[bool, ALLOW_UNKNOWN] = False
    drafts: Drafts = Drafts()
    correction: Calibrated = Calibrated()
    out: Annotated[
        Path | None,
        option("Page (.html) with charts and tables.", group="Outputs", metavar="FILE"),
    ] = None


def fleet(request: Fleet | str | None = None, /, **options: object) -> FleetPlan:
    """Instances that hold the limits at a traffic, at the least cost.

    With trials as `source` their load curves count; otherwise copies of the model are simulated on
    the catalogue's instances. Nothing is measured, launched or bought.

    Args:
        request: The request, or the model.
        options: Fields of `Fleet`.

    Raises:
        InputError: Options contradict or cannot be read, or no instance holds the limits.
        PlanError: The plan contradicts itself.

    Example:
        >>> import servetune as st
        >>> found = st.fleet(
        ...     "Qwen/Qwen3-4B", rate=20, constraints="e2e_latency:p99<=30s",
        ...     instance="ml.g6.xlarge", input_tokens=300, output_tokens=100,
        ... )
        >>> found.levels[0].fleet.counts
        {'ml.g6.xlarge': 3}
    """
    request = request_of(Fleet, request, options)
    _require_agreement(request)
    rates = _rates(request.rate) if request.rate is not None else ()
    traffic = traffic_of(request.day, request.peak_per_s) if request.day is not None else None
    limits, sized, load = _from_trials(request) if request.source else _from_catalogue(request)
    by_rate = _Rates(sized, request) if rates else None
    levels = tuple(by_rate.level(rate) for rate in rates) if by_rate else ()
    if len(levels) == 1:
        levels = (_with_commands(levels[0], sized, request),)
    found = FleetPlan(
        model=sized.model,
        limits=limits,
        load=load,
        instances=sized.instances,
        left_out=sized.left_out,
        levels=levels,
        day=None if traffic is None else _day(traffic, sized, request),
        survive=request.survive,
        headroom=request.headroom,
        reserved_discount=request.reserved_discount,
    )
    if request.out is not None:
        write_text(request.out, found.page())
        progress(f"page       {request.out}")
    return found


#: Options that a prediction needs and trials say themselves.
_OF_PREDICTION = frozenset(
    {
        *("model", "input_tokens", "output_tokens", "dataset", "gpu", "service", "engine"),
        *("server_args", "allow_unknown", "calibration"),
        *PlanOptions.__struct_fields__,
        *SharedPrompts.__struct_fields__,
        *Drafts.__struct_fields__,
    }
)


def _require_agreement(request: Fleet) -> None:
    """Refuse options that contradict each other, before anything is computed."""
    spelled = {field.name: field.names[0] for field in given(request)}
    if request.rate is not None and request.day is not None:
        raise InputError("a fleet is for rates or for a day", hint="give one of --rate and --day")
    if request.rate is None and request.day is None:
        raise InputError(
            "a fleet needs a traffic", hint="give --rate 50, or --day office --peak 50"
        )
    if request.peak_per_s is not None and request.day is None:
        raise InputError("--peak is the largest rate of a --day", hint="give --day office, too")
    if request.day is not None and "headroom" in spelled:
        raise InputError(
            f"{spelled['headroom']} has no effect on a day",
            hint="its headroom is found by playing it",
        )
    if request.source:
        for name in _OF_PREDICTION & spelled.keys():
            raise InputError(
                f"{spelled[name]} has no effect on trials, which say it themselves",
                hint="leave it out, or leave the trials out to predict",
            )
    elif request.model is None:
        raise InputError(
            "fleet needs trials, or a model to predict",
            hint="give a journal, or --model Qwen/Qwen3-4B",
        )
    _require_bounds(request)
    if request.out is not None:
        if request.out.suffix.lower() != ".html":
            raise InputError(
                f"--out writes a page, and '{request.out}' does not end in .html",
                hint="name it fleet.html",
            )
        require_regular(request.out)


def _require_bounds(request: Fleet) -> None:
    """Refuse numbers that leave nothing to size."""
    if request.headroom >= 1:
        raise InputError("--headroom 1 leaves no load", hint="give a share below 1")
    if request.reserved_discount is not None and request.reserved_discount >= 1:
        raise InputError("--reserved-discount 1 is free of charge", hint="give a share below 1")
    if request.survive > _MOST_LOST:
        raise InputError(
            f"--survive {request.survive} is more than {_MOST_LOST} instances",
            hint="several are lost together where a zone is; divide a larger fleet",
        )
    if request.price_per_hour_usd == 0:
        raise InputError("--price-per-hour 0 leaves nothing to compare", hint="give one above 0")
    named = [name for name in (request.instance or "").split(",") if name.strip()]
    if request.price_per_hour_usd is not None and (len(named) != 1 or named == ["all"]):
        raise InputError(
            "--price-per-hour is of one type of instance", hint="name it with --instance"
        )


def _rates(text: str) -> tuple[float, ...]:
    """Rates of a list, or of a range in steps of 1, 2 and 5 with both ends."""
    found: set[float] = set()
    for part in text.split(","):
        ends = _RANGE.fullmatch(part)
        numbers = [_rate(each) for each in (ends.groups() if ends else (part,))]
        found.update(numbers)
        if ends:
            low, high = numbers
            if low > high:
                raise InputError(f"--rate {part.strip()} runs backwards", hint=_RATES)
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            steps = {float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)}
            found.update(step for step in steps if low < step < high)
    return tuple(sorted(found))


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number > _MOST_RATE:
        raise InputError(
            f"--rate '{text.strip()}' is above {_MOST_RATE:,.0f} requests per second",
            hint="divide the traffic, and size the fleet of each part",
        )
    if not number > 0:
        raise InputError(f"--rate '{text.strip()}' is no rate above 0", hint=_RATES)
    return number


def _require_latencies(limits: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Limits on latencies from above, which decide how much one instance may be given."""
    if not limits:
        raise InputError(
            "a fleet is sized by limits, and there are none",
            hint='give them with --limits "ttft:p99<=2s;e2e_latency:p99<=20s"',
        )
    for limit in limits:
        if limit.metric not in LATENCIES or limit.op not in ("<", "<="):
            raise InputError(
                f"{limit.label} is no upper limit on a latency, by which a fleet is sized",
                hint=f"limit {', '.join(LATENCIES)} with <=; the traffic is --rate or --day",
            )
        if limit.statistic == "std":
            raise InputError(f"{limit.label} is no limit that a load curve has", hint="limit p99")
    return tuple(limits)


def _from_catalogue(request: Fleet) -> tuple[tuple[Constraint, ...], Sized, str]:
    assert request.model is not None
    limits = _require_latencies(parse_constraints(request.limits.constraints or ""))
    request.drafts.require_known_method()
    shape = load_shape(request.model)
    workload = Workload.of(SHAREGPT, request_count=1000)
    load = "ShareGPT's lengths"
    if request.dataset == "random":
        part = request.shared.part(request.input_tokens, request.output_tokens)
        workload = Workload(parts=(part,), request_count=1000)
        load = f"{request.input_tokens:,} tokens in, {request.output_tokens:,} out"
    elif any(getattr(request.shared, name) is not None for name in SharedPrompts.__struct_fields__):
        raise InputError(
            "sharegpt has prompts of its own", hint="leave --dataset or the prefix out"
        )
    plan = estimated_plan(
        request.model,
        request.engine,
        None,
        request.plan,
        request.drafts,
        request.server_args,
        allow_unknown=request.allow_unknown,
    )
    check_weights(plan, shape)
    plan = _with_room(plan, shape, workload)
    kept = request.correction.kept()
    nodes = instances_by_name(request.instance or "", request.service, request.gpu)
    if request.price_per_hour_usd is not None:
        price = Price(
            usd_per_hour=request.price_per_hour_usd, region="", source="given by the user", date=""
        )
        nodes = tuple(msgspec.structs.replace(node, price=price) for node in nodes)
    asked = Candidates(
        plan=plan,
        shape=shape,
        workload=workload,
        limits=limits,
        nodes=nodes,
        named=(request.instance or "all").strip() != "all",
        calibrations=dict(choosing.corrections(kept, shape)),
        tensor_parallel=request.plan.tensor_parallel,
        start_up=StartUp(given_s=request.start_up_s),
    )
    return limits, predicted_instances(asked), f"{load}, at random times"


def _with_room(plan: Plan, shape: NetworkShape, workload: Workload) -> Plan:
    """The plan with room for the workload's longest requests, unless it says."""
    if plan.max_model_len is not None or workload.lengths.fixed_pair is not None:
        return long_enough(plan, shape, workload)
    drawn = msgspec.structs.replace(workload, request_count=_MOST_DRAWN).requests()
    longest = max(each.input_tokens + each.output_tokens for each in drawn)
    room = 1024 * math.ceil(_LONGER * longest / 1024)
    return msgspec.structs.replace(plan, max_model_len=min(shape.max_context_tokens, room))


def _from_trials(request: Fleet) -> tuple[tuple[Constraint, ...], Sized, str]:
    sources: dict[str, Path] = {}
    records: list[TrialRecord] = []
    for path in request.source:
        for record in read_records(path):
            records.append(record)
            sources[record.key] = path
    records = latest(records)
    models = sorted({record.metadata.model or "" for record in records if record.status == "ok"})
    if not models:
        raise InputError("no trial of these succeeded", hint="servetune report shows why")
    if len(models) > 1:
        raise InputError(
            f"the trials are of {len(models)} models: {', '.join(models)}",
            hint="give the trials of one",
        )
    stated = request.limits.constraints
    limits = parse_constraints(stated) if stated is not None else records[0].limits()
    limits = _require_latencies(limits)
    price = None
    if request.price_per_hour_usd is not None:
        price = Price(
            usd_per_hour=request.price_per_hour_usd, region="", source="given by the user", date=""
        )
    sized = measured_instances(
        Measured(
            records=tuple(records),
            sources=sources,
            limits=limits,
            names=request.instance or "",
            price=price,
            start_up=StartUp(given_s=request.start_up_s),
        )
    )
    loads = {_load_text(record) for record in records if record.status == "ok"}
    return limits, sized, f"{', '.join(sorted(loads))}, at random times"


def _load_text(record: TrialRecord) -> str:
    about = record.metadata
    pair = (about.input_tokens, about.output_tokens)
    name = record.results.get("dataset_name") or "random"
    if None not in pair and min(each for each in pair if each is not None) > 0:
        return f"{name}, {pair[0]:,.0f} tokens in, {pair[1]:,.0f} out"
    return str(name)


# rates


class _Rates:
    """Fleets for rates, of the same instances: their integer programmes are set up once."""

    def __init__(self, sized: Sized, request: Fleet) -> None:
        self._by_name = {one.name: one for one in sized.instances}
        self._free, self._lost = request.headroom, request.survive
        self._discount = request.reserved_discount
        kinds = [one.capacity(self._free) for one in sized.instances]
        self._alone = [LeastCost([kind], self._lost) for kind in kinds]
        self._mixed = None if request.one_type else LeastCost(kinds, self._lost)
        slow = [
            one.capacity(self._free, slow=True)
            for one in sized.instances
            if one.slow_capacity_per_s
        ]
        self._slow = [LeastCost([kind], self._lost) for kind in slow]
        if slow and not request.one_type:
            self._slow.append(LeastCost(slow, self._lost))

    def level(self, rate: float) -> FleetLevel:
        """The fleet for a rate."""
        of_one = (programme.of(rate) for programme in self._alone)
        one_type = min(of_one, key=lambda cover: (cover.usd_per_hour, cover.machines))
        cover = one_type
        if self._mixed is not None:
            mixed = self._mixed.of(rate)
            cover = mixed if mixed.usd_per_hour < one_type.usd_per_hour * (1 - 1e-9) else one_type
        slow = min(
            (programme.of(rate) for programme in self._slow),
            key=lambda cover: (round(cover.usd_per_hour, 9), len(cover.counts), cover.machines),
            default=None,
        )
        usd, discount = cover.usd_per_hour, self._discount
        return FleetLevel(
            rate_per_s=rate,
            fleet=cover,
            one_type=one_type if cover is not one_type else None,
            slow=slow,
            reserved_usd_per_hour=None if discount is None else usd * (1 - discount),
            scaling=tuple(_scaled(self._by_name[name], cover, self._free) for name in cover.counts),
        )


def _scaled(one: SizedInstance, cover: Cover, free: float) -> Scaled:
    """Scaling that keeps a type at the load that it is sized for, with room for its slow end."""
    count = cover.counts[one.name]
    factor = one.capacity_per_s / one.slow_capacity_per_s if one.slow_capacity_per_s else 1.0
    most = math.ceil(max(1.25, factor) * count - 1e-9)
    target = math.ceil(10 * one.in_flight(one.capacity_per_s * (1 - free))) / 10
    share = count * one.capacity_per_s * (1 - free) / cover.rate_per_s
    return Scaled(
        instance=one.name,
        minimum=count,
        maximum=most,
        target=target,
        target_per_copy=_per_copy(target, one),
        traffic_fraction=share,
    )


def _per_copy(target: float, one: SizedInstance) -> float:
    return round(target / one.copies, 1)


def _with_commands(level: FleetLevel, sized: Sized, request: Fleet) -> FleetLevel:
    by_name = {one.name: one for one in sized.instances}
    scaling = tuple(
        msgspec.structs.replace(each, commands=_commands(by_name[each.instance], each, request))
        for each in level.scaling
    )
    return msgspec.structs.replace(level, scaling=scaling)


def _commands(one: SizedInstance, scaled: Scaled, request: Fleet) -> tuple[str, ...]:
    """Commands that deploy a type with its scaling; a prediction has a journal made first."""
    commands: list[str] = []
    journal, key = one.source, ["--key", one.key] if one.key else []
    if journal is None:
        stem = f"results/fleet-{one.name}"
        journal, key = Path(f"{stem}.json"), []
        # KEDA's threshold is the journal's load less the headroom; SageMaker's is an option.
        free = 0.0 if one.name.startswith("ml.") else HEADROOM
        users = max(1, round(scaled.target / (1 - free)))
        commands.append(journal_command(one.plan, one.node, _workload_of(request), users, stem))
    if not one.name.startswith("ml."):
        words = ["servetune", "deploy", "kubernetes", str(journal), *key, "--copies"]
        words += [str(scaled.minimum * one.copies)]
        if scaled.changes:
            words += ["--autoscaler", "keda", "--max-copies", str(scaled.maximum * one.copies)]
    else:
        words = ["servetune", "deploy", "sagemaker", str(journal), *key, "--instance", one.name]
        endpoints = math.ceil(scaled.maximum / _MOST_DEPLOYED)
        if endpoints > 1:
            commands.append(
                f"# {endpoints} endpoints like this, each with its own --endpoint-name and --out: "
                f"one has {_MOST_DEPLOYED:,} instances at most"
            )
        least, most, target = (
            math.ceil(scaled.minimum / endpoints), math.ceil(scaled.maximum / endpoints),
            scaled.target,
        )  # fmt: skip
        instances = least
        if one.copies_tried < one.copies:  # without copies of their own, each instance has one
            least, most = least * one.copies, most * one.copies
            target = scaled.target_per_copy
            words += ["--copies", str(least)]
        words += ["--instances", str(instances)]
        if scaled.changes:
            words += ["--scale", f"{least}:{most}", "--requests-per-copy", f"{target:g}"]
    return (*commands, shlex.join([*words, "--out", f"bundle-{one.name}"]))


def _workload_of(request: Fleet) -> Workload:
    if request.dataset == "sharegpt":
        return Workload.of(SHAREGPT, request_count=1000)
    part = request.shared.part(request.input_tokens, request.output_tokens)
    return Workload(parts=(part,), request_count=1000)


def _day(traffic: Traffic, sized: Sized, request: Fleet) -> FleetDay:
    """The cheapest fleet for a day, with the commands that deploy it."""
    day = fleet_day(
        traffic,
        sized,
        lost=request.survive,
        discount=request.reserved_discount,
        one_type=request.one_type,
    )
    by_name = {one.name: one for one in sized.instances}

    def with_commands(scaled: Scaled) -> Scaled:
        commands = _commands(by_name[scaled.instance], scaled, request)
        return msgspec.structs.replace(scaled, commands=commands)

    return msgspec.structs.replace(
        day,
        scaling=with_commands(day.scaling),
        base=with_commands(day.base) if day.base is not None else None,
    )
