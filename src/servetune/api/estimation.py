"""Estimation: fit, speed and cost of a model on a machine, from their data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from servetune.api import choosing
from servetune.api.choosing import Selection
from servetune.api.estimate_commands import tune_commands
from servetune.api.estimate_load import LoadCurve
from servetune.api.estimate_plot import require_plottable, write_machines, write_roofline
from servetune.api.estimate_results import (
    Compared,
    Estimation,
    MachineComparison,
    Ranking,
    Shown,
    TablePrediction,
    predict_file,
    rows_of,
    side_by_side,
)
from servetune.api.estimate_text import Split
from servetune.api.estimated_plan import estimated_plan
from servetune.api.layouts import (
    chosen_split,
    laid_out,
    long_enough,
    possible_degrees,
    refuse,
    refuse_all,
    require_longest_fits,
    with_as_good,
)
from servetune.api.notes import note, progress
from servetune.api.ranking import ranked_plans, which_as_good
from servetune.api.request import Request, given, request_of
from servetune.api.shared_options import (
    ALLOW_UNKNOWN,
    ENGINE_VERSION,
    FURTHER_SERVER_ARGS,
    MODEL,
    Calibrated,
    Confidence,
    Drafts,
    Estimator,
    Limits,
    Machine,
    PlanOptions,
    Settings,
    SharedPrompts,
    own_prompts,
)
from servetune.engines import (
    DEFAULT_ENGINE,
    check_weights,
    engine,
    engines_with_defaults,
    priced_release,
)
from servetune.errors import InputError, PlanError
from servetune.hardware import Node, device
from servetune.metrics import parse_constraints
from servetune.models import load_sampling, load_shape
from servetune.option import Count, Positive, option
from servetune.perf import Calibration
from servetune.perf.roofline import estimate as priced
from servetune.perf.roofline.factors import sampling_timed
from servetune.plan import Plan
from servetune.prediction.aiconfigurator import require_installed
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.tables import CONVENTIONS, TableOptions
from servetune.workload import SHAREGPT, Workload
from servetune.workload.laws import Uniform
from servetune.workload.presets import known_workloads, preset

#: Engines whose defaults and overheads are known.
ENGINES = tuple(name for name in engines_with_defaults() if not engine(name).virtual_time)
#: Most devices that a note names.
_MOST_NAMED = 4


class Estimate(Request, frozen=True, kw_only=True):
    """A model on a machine: fit, latency, throughput, limits and cost."""

    verb: ClassVar[str] = "estimate"
    first: ClassVar[str] = "model"
    group: ClassVar[str] = "Model and load"
    most_used: ClassVar[tuple[str, ...]] = (
        "model",
        "gpu",
        "num_gpus",
        "instance",
        "input_tokens",
        "output_tokens",
        "quantization",
        "constraints",
        "sweep",
        "price_per_hour_usd",
    )
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"tensor_parallel": "every split of the GPUs"}
    )

    model: Annotated[str | None, MODEL] = None
    machine: Machine = Machine()
    engine: Annotated[
        str,
        option(
            "Engine whose kernels, defaults and overheads count.",
            "--engine",
            "--framework",
            choices=ENGINES,
        ),
    ] = DEFAULT_ENGINE
    engine_version: Annotated[str | None, ENGINE_VERSION] = None
    input_tokens: Annotated[
        Count,
        option("Length of prompts, in tokens.", "--input-tokens", "--input-len", metavar="TOKENS"),
    ] = 1024
    output_tokens: Annotated[
        Count,
        option(
            "Length of answers, in tokens.", "--output-tokens", "--output-len", metavar="TOKENS"
        ),
    ] = 512
    shared: SharedPrompts = SharedPrompts()
    workload: Annotated[
        str | None,
        option(
            "Workload by name, or a TOML file with one: its lengths, what its prompts share, and "
            "its users or rate.",
            metavar="NAME|FILE",
            known=known_workloads,
        ),
    ] = None
    dataset: Annotated[
        Literal["random", "sharegpt"],
        option("Data set of the lengths: random has fixed ones, sharegpt its published ones."),
    ] = "random"
    concurrency: Annotated[
        Count | None,
        option(
            "Concurrent users whose steady state alone is shown.",
            "--concurrency",
            "--max-concurrency",
            "-c",
            metavar="USERS",
            default="a table of them",
        ),
    ] = None
    rate: Annotated[
        Positive | None,
        option(
            "Requests per second that come by chance; their means and those in flight are shown.",
            "--rate",
            "--request-rate",
            metavar="PER_S",
        ),
    ] = None
    plan: PlanOptions = PlanOptions()
    server_args: Annotated[Settings, FURTHER_SERVER_ARGS] = ()
    allow_unknown: Annotated[bool, ALLOW_UNKNOWN] = False
    limits: Limits = Limits()
    drafts: Drafts = Drafts()
    correction: Calibrated = Calibrated()
    confidence: Annotated[
        Confidence | None,
        option(
            "Chance with which a predicted plan holds each constraint; 0.5 takes predictions at "
            "face value. See docs/guides/choosing.md.",
            group="Prediction",
            metavar="FRACTION",
            default="0.8; 0.75 for a machine with a --calibration",
        ),
    ] = None
    estimator: Annotated[
        Estimator,
        option(
            "Predictor: servetune, NVIDIA's aiconfigurator (needs servetune[aiconfigurator]) for a "
            "second opinion, or both side by side.",
            group="Prediction",
        ),
    ] = "servetune"

    target: Annotated[
        Literal["throughput", "latency"],
        option("Quantity by which the split in detail is chosen.", group="Choice"),
    ] = "throughput"
    sweep: Annotated[
        bool,
        option(
            "Ranking of every plan that fits the machine: splits, batch limits, quantizations.",
            group="Choice",
        ),
    ] = False
    top: Annotated[
        Count, option("Number of plans or machines to list.", group="Choice", metavar="COUNT")
    ] = 15
    service: Annotated[
        Literal["sagemaker", "ec2", "all"] | None,
        option(
            "Service whose machines and prices count; with --gpu, the price of renting so many.",
            group="Choice",
            default="that of the --instance; sagemaker where machines are compared",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        option(
            "Page (.html) with figures: the chosen plan's roofline and curves, or machines' costs.",
            group="Outputs",
            metavar="FILE",
        ),
    ] = None

    batch: Annotated[
        Path | None,
        option(
            "Table whose every row is predicted instead; see docs/guides/batch.md.",
            group="Tables",
            metavar="CSV",
        ),
    ] = None
    out: Annotated[
        Path | None,
        option("File for the predictions of --batch.", group="Tables", metavar="CSV"),
    ] = None
    models: Annotated[
        Path | None,
        option(
            "Folder of configurations for --batch, named org--name_config.json.",
            group="Tables",
            metavar="DIR",
        ),
    ] = None
    anchors: Annotated[
        Path | None,
        option(
            "Table of measured rows, which correct those of --batch of their model and GPU.",
            group="Tables",
            metavar="CSV",
        ),
    ] = None

    convention: Annotated[
        str | None,
        option(
            "Benchmark whose server settings apply where the rows of --batch state none.",
            group="Tables",
            choices=tuple(CONVENTIONS),
            default="each row as it stands",
        ),
    ] = None

    def everywhere(self) -> bool:
        """Whether machines are compared: `gpu` or `instance` is `all`."""
        return "all" in (_word(self.machine.gpu), _word(self.machine.instance))


Estimated: TypeAlias = Estimation | Ranking | MachineComparison | TablePrediction
"""What `estimate` gives: one plan, a sweep, a comparison of machines, or a table."""


def estimate(request: Estimate | str | None = None, /, **options: object) -> Estimated:
    """Fit, latency, throughput, limits and cost of a model on a machine.

    Nothing is run or downloaded where the catalogue, a folder or the hub's cache has the model.

    Args:
        request: The request, or the model.
        options: Fields of `Estimate`.

    Returns:
        An `Estimation` of the machine; with `sweep` a `Ranking` of plans; with `gpu` or
        `instance` `all` a `MachineComparison`; with `batch` a `TablePrediction`.

    Raises:
        DoesNotFit: The model does not fit the machine.
        PlanError: No plan of it can run there.
        InputError: Options contradict or cannot be read.

    Example:
        >>> import servetune as st
        >>> st.estimate("Qwen/Qwen3-4B", gpu="L4", num_gpus=4).chosen.plan.replicas
        4
    """
    request = request_of(Estimate, request, options)
    request.drafts.require_known_method()
    require_read(request, everywhere=request.everywhere())
    kept = request.correction.kept()
    if request.plot is not None:
        require_plottable(request.plot)
    if request.estimator != "servetune":
        require_installed()
    if request.batch is not None:
        return predict_file(
            request.batch,
            request.out,
            TableOptions(
                models_dir=request.models,
                calibration=kept,
                anchors=rows_of(request.anchors) if request.anchors is not None else None,
                estimator=request.estimator,
                convention=request.convention,
            ),
        )
    if request.model is None:
        raise InputError("estimate needs a model", hint="name one with --model Qwen/Qwen3-4B")
    return _of_model(request, request.model, kept)


def _of_model(request: Estimate, model: str, kept: KeptCalibration | None) -> Estimated:
    limits = parse_constraints(request.limits.constraints or "")
    if any(limit.metric == "goodput" for limit in limits):
        raise InputError(
            "goodput counts single requests, which an estimate does not",
            hint="limit a percentile, such as ttft:p95<=500ms; simulate --slo counts goodput",
        )
    if any(limit.metric == "energy_per_token_j" for limit in limits):
        raise InputError(
            "energy is measured, and an estimate does not predict it",
            hint="limit it where trials run: tune or bench on NVIDIA GPUs",
        )
    everywhere = request.everywhere()
    nodes = _machines(request) if everywhere else [request.machine.node(service=request.service)]
    shape = load_shape(model)
    if request.workload is not None:
        workload = preset(request.workload)
        request = _with_load_of(request, workload)
    elif request.dataset == "random":
        part = request.shared.part(request.input_tokens, request.output_tokens)
        workload = Workload(parts=(part,), request_count=1000)
    else:
        workload = Workload.of(SHAREGPT, request_count=1000)
    checkpoint = load_sampling(model)
    if checkpoint is not None and checkpoint.filters:
        workload = msgspec.structs.replace(workload, sampling="checkpoint")
    if checkpoint is not None and checkpoint.penalises:
        workload = msgspec.structs.replace(workload, penalties="checkpoint")
    selection = Selection(
        plan=estimated_plan(
            model,
            request.engine,
            request.engine_version,
            request.plan,
            request.drafts,
            request.server_args,
            allow_unknown=request.allow_unknown,
            stages=not everywhere and not request.sweep,
        ),
        shape=shape,
        workload=workload,
        limits=limits,
        confidence=choosing.confidence_of(
            request.confidence, calibrated=kept is not None and not everywhere
        ),
        target=request.target,
        top=request.top,
        tensor_parallel=request.plan.tensor_parallel,
    )
    for text in _unpriced_sampling(selection.plan, workload, nodes):
        note(f"note: {text}")
    check_weights(selection.plan, shape, None if everywhere else nodes[0].device)
    priced_release(selection.plan)
    if everywhere or request.sweep:
        roomy = msgspec.structs.replace(
            selection, plan=long_enough(selection.plan, shape, workload)
        )
        if request.sweep:
            return _ranking(roomy, nodes, kept)
        compared = _comparison(roomy, nodes, kept)
        if request.plot is not None:
            write_machines(request.plot, compared.offers, roomy)
            progress(f"plot       {request.plot}")
        return compared
    correction = kept.require_for(shape=shape, node=nodes[0]) if kept else None
    return _estimation(request, selection, nodes[0], correction)


def _estimation(
    request: Estimate, selection: Selection, node: Node, correction: Calibration | None
) -> Estimation:
    """Every split of the machine, the details of the best, and commands to try it."""
    plan, shape, workload = selection.plan, selection.shape, selection.workload
    if request.rate is not None and request.dataset == "random" and request.workload is None:
        # Users who come by chance are not in step, as those with equal answers would be priced.
        answers = Uniform.around(request.output_tokens, 0.5)
        [part] = workload.parts
        mixed = msgspec.structs.replace(part, output_tokens=answers)
        selection = msgspec.structs.replace(
            selection, workload=msgspec.structs.replace(workload, parts=(mixed,))
        )
    only = selection.tensor_parallel
    degrees = (only,) if only else possible_degrees(plan, shape, node)
    stages = plan.pipeline_parallel
    if stages > 1 and node.device_count % (degrees[0] * stages):
        raise PlanError(
            f"{stages} pipeline stages of {degrees[0]} GPUs do not divide {node.label}",
            hint="give other stages, or another --tensor-parallel",
        )
    splits = [
        Split(
            plan=each,
            answer=priced(shape, node, each, selection.workload, calibration=correction),
        )
        for each in (laid_out(plan, shape, degree, node) for degree in degrees)
    ]
    fitting = [split for split in splits if split.answer.fits]
    if not fitting:
        refuse(splits[-1])
    require_longest_fits(workload, shape, plan, fitting)
    splits = with_as_good(splits, node, selection, correction)
    fitting = [split for split in splits if split.answer.fits]
    best = chosen_split(fitting, selection.target)
    busiest = best.answer.best_throughput
    assert busiest is not None
    load = LoadCurve(
        selection,
        best.plan,
        node,
        correction,
        best=busiest.concurrency,
        named=request.concurrency,
        rate=request.rate,
        workload=workload,
    )
    opinions: list[Compared] = []
    if request.estimator != "servetune":
        opinions = side_by_side(best, plan.model, shape, node, workload, correction)
    if request.plot is not None:
        write_roofline(request.plot, best, load, node, shape, workload)
        progress(f"plot       {request.plot}")
    held = load.held()
    centre = held.concurrency if selection.limits else load.knee.concurrency
    commands = tune_commands(
        fitting,
        best,
        node,
        workload,
        constraints=request.limits.constraints,
        centre=centre or 1,
        rate=request.rate,
        named=request.workload,
    )
    return Estimation(
        node=node,
        workload=workload,
        chosen=best,
        release=priced_release(best.plan),
        splits=tuple(splits),
        curve=load.points,
        intervals=tuple(load.interval(point.concurrency) for point in load.points),
        knee=load.knee.concurrency,
        second_opinion=tuple(opinions),
        constraints=held,
        tune_commands=commands,
        shown=Shown(
            shape=shape,
            estimator=request.estimator,
            limited=bool(selection.limits),
            concurrency=request.concurrency if request.rate is None else load.named,
            rate=request.rate,
        ),
    )


def _with_load_of(request: Estimate, workload: Workload) -> Estimate:
    """The request with the workload's users or mean rate, where it names neither."""
    one_plan = not request.sweep and not request.everywhere()
    if not one_plan or request.rate is not None or request.concurrency is not None:
        return request
    if workload.closed_loop:
        return msgspec.structs.replace(request, concurrency=workload.concurrency)
    found = workload.requests()
    span_s = found[-1].due_s - found[0].due_s
    rate = float(f"{(len(found) - 1) / span_s:.4g}") if span_s > 0 else None
    return msgspec.structs.replace(request, rate=rate)


def _word(name: str | None) -> str:
    return (name or "").strip().lower()


def _unpriced_sampling(plan: Plan, workload: Workload, nodes: Sequence[Node]) -> list[str]:
    """Notes on what a checkpoint's generation_config.json asks for and predictions leave out."""
    sampling = engine(plan.engine).behaviour.sampling
    if not sampling.reads_checkpoint(plan):
        return []
    untimed = list(dict.fromkeys(n.device.name for n in nodes if not sampling_timed(n.device)))
    on = f" on {', '.join(untimed)}" if len(untimed) <= _MOST_NAMED else " but on NVIDIA's devices"
    found = []
    if workload.sampling == "checkpoint" and untimed:
        found.append(f"top-k and top-p of generation_config.json are not priced{on}")
    if workload.penalties == "checkpoint":
        known = sampling.penalty_cost is not None
        if untimed or not known:
            penalty = "the repetition_penalty of generation_config.json is not priced"
            found.append(f"{penalty}{on if known else ''}")
    return found


def _machines(request: Estimate) -> list[Node]:
    """The machines to compare; a GPU beside `--instance all` leaves those that hold it."""
    if _word(request.machine.instance) not in ("", "all"):
        raise InputError("--gpu all and --instance both name machines", hint="give one of the two")
    by_gpu = _word(request.machine.gpu) if _word(request.machine.gpu) != "all" else ""
    return choosing.machines(
        "instance" if request.machine.instance else "gpu",
        request.service or "sagemaker",
        device_name=device(by_gpu).name if by_gpu else None,
        device_count=request.machine.num_gpus,
    )


def _comparison(
    selection: Selection, nodes: Sequence[Node], kept: KeptCalibration | None
) -> MachineComparison:
    """Comparison of machines by cost for this workload."""
    by_device = choosing.corrections(kept, selection.shape)
    found = choosing.offers(selection, nodes, by_device)
    best = [(offer.node, offer.best) for offer in found if offer.best is not None]
    as_good = which_as_good(
        best[: selection.top],
        msgspec.structs.replace(selection, target="throughput"),
        lambda node: by_device.get(node.device.name),
        by_cost=True,
    )
    shown = iter(as_good)
    offers = [
        offer if offer.best is None else msgspec.structs.replace(offer, as_good=next(shown, None))
        for offer in found
    ]
    ran = selection.judge.ran
    return MachineComparison(
        selection=selection,
        offers=tuple(offers),
        intervals=tuple(
            choosing.offer_interval(offer, selection.shape, ran)
            for offer in offers
            if offer.best is not None
        ),
    )


def _ranking(selection: Selection, nodes: Sequence[Node], kept: KeptCalibration | None) -> Ranking:
    """The best plans for these machines."""
    if len(nodes) == 1 and kept is not None:
        kept.require_for(shape=selection.shape, node=nodes[0])
    by_device = choosing.corrections(kept, selection.shape)
    ranked, chosen_from = ranked_plans(
        selection, nodes, lambda node: by_device.get(node.device.name)
    )
    if not chosen_from.count:
        refuse_all(selection, nodes[-1])
    return Ranking(
        nodes=tuple(nodes), selection=selection, ranked=tuple(ranked), priced=chosen_from
    )


#: Options beside a table, whose rows have all others as columns.
_BESIDE_A_TABLE = frozenset(
    {"batch", "out", "models", "anchors", "calibration", "estimator", "convention"}
)

_TABLES_ALONE = "it goes with --batch"
_ONE_PLAN = "it is about one plan: leave --sweep and 'all' out beside it"
_UNREAD_BY_SEVERAL = {"out": _TABLES_ALONE, "models": _TABLES_ALONE, "anchors": _TABLES_ALONE}
_UNREAD_BY_SEVERAL |= {"estimator": _ONE_PLAN, "rate": _ONE_PLAN}
#: Why a page shows no ranking: its plans are a table.
_UNREAD_BY_RANKINGS = _UNREAD_BY_SEVERAL | {
    "plot": "it draws one plan, or machines without --sweep"
}

#: form -> option -> why that form has no effect on it.
_UNREAD: Mapping[str, Mapping[str, str]] = {
    "one plan": {
        "out": _TABLES_ALONE,
        "models": _TABLES_ALONE,
        "anchors": _TABLES_ALONE,
        "top": "one plan is shown: add --sweep, --gpu all or --instance all",
    },
    "a sweep": _UNREAD_BY_RANKINGS,
    "a comparison of machines": _UNREAD_BY_SEVERAL
    | {
        "target": "machines are ordered by cost: add --sweep to order their plans",
        "price_per_hour_usd": "machines have prices of their own: name one machine for it",
    },
    "a sweep over machines": _UNREAD_BY_RANKINGS
    | {
        "price_per_hour_usd": "machines have prices of their own: name one machine for it",
    },
}


def require_read(request: Estimate, *, everywhere: bool) -> None:
    """Refuse options that were given and would be passed over.

    Raises:
        InputError: With the first such option and why.
    """
    spelled = {field.name: field.names[0] for field in given(request)}
    if request.batch is not None:
        others = [option for name, option in spelled.items() if name not in _BESIDE_A_TABLE]
        if others:
            raise InputError(
                f"--batch takes model, machine and lengths from its rows, not from "
                f"{', '.join(others)}",
                hint="leave them out, or put them in the table's columns",
            )
        return
    form = {
        (False, False): "one plan",
        (True, False): "a sweep",
        (False, True): "a comparison of machines",
        (True, True): "a sweep over machines",
    }[request.sweep, everywhere]
    for name, why in _UNREAD[form].items():
        if name in spelled:
            raise InputError(f"{spelled[name]} has no effect on {form}", hint=why)
    if {"rate", "concurrency"} <= spelled.keys():
        raise InputError(
            f"{spelled['rate']} and {spelled['concurrency']} both say how many are in flight",
            hint="give one of the two",
        )
    shared = [spelled[name] for name in SharedPrompts.__struct_fields__ if name in spelled]
    if request.workload is not None:
        own = [spelled[n] for n in ("input_tokens", "output_tokens", "dataset") if n in spelled]
        for name in (*own, *shared):
            raise InputError(
                f"--workload has prompts of its own, {name} cannot be combined",
                hint="leave one of the two out, or change the workload's file",
            )
        if request.estimator != "servetune":
            raise InputError(
                "aiconfigurator is asked about two lengths, not with --workload",
                hint="leave --workload or --estimator out",
            )
    lengths = [spelled[name] for name in ("input_tokens", "output_tokens") if name in spelled]
    if lengths and request.dataset != "random":
        raise InputError(
            f"{request.dataset} has lengths of its own, {lengths[0]} changes nothing",
            hint=f"leave {' and '.join(lengths)} out",
        )
    if shared and request.dataset != "random":
        raise own_prompts(request.dataset, shared[0])
    if shared and request.estimator != "servetune":
        raise InputError(
            f"aiconfigurator is asked about prompts that share nothing, not with {shared[0]}",
            hint=f"leave {shared[0]} or --estimator out",
        )
