"""Estimation: what a model can do on a machine, from their data alone; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from servetune.api import choosing
from servetune.api.choosing import Judge, Selection
from servetune.api.corrections import Calibrated, Confidence, Estimator
from servetune.api.estimate_commands import tune_commands
from servetune.api.estimate_plot import curve, require_plottable, roofline_figure, write_plot
from servetune.api.estimate_text import Split, estimate_text
from servetune.api.frames import frame
from servetune.api.limits import Limits
from servetune.api.machine import Machine
from servetune.api.notes import progress
from servetune.api.opinions import Compared, opinion_text, side_by_side
from servetune.api.ranking import Priced, Ranked, ranked_plans, sweep_text
from servetune.api.request import Request, given, request_of
from servetune.api.speculation import Drafts
from servetune.api.table import TablePrediction, predict_file
from servetune.engines import check_parallel, engine, engines_with_defaults, with_whole_experts
from servetune.errors import DoesNotFit, InputError, PlanError
from servetune.hardware import Node, device
from servetune.metrics import parse_constraints
from servetune.models import NetworkShape, load_shape
from servetune.option import Count, option
from servetune.perf import Calibration
from servetune.perf.roofline import OperatingPoint, length_moments, performance_at
from servetune.perf.roofline import estimate as priced
from servetune.perf.roofline.local_corrections import LocalCorrections
from servetune.perf.sweep import Offer
from servetune.plan import Plan
from servetune.prediction.aiconfigurator import require_installed
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.tables import CONVENTIONS, TableOptions, read_table
from servetune.workload import SHAREGPT, Fixed, Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Estimate",
    "Estimated",
    "Estimation",
    "MachineComparison",
    "Ranking",
    "chosen_split",
    "estimate",
    "laid_out",
    "possible_degrees",
]

#: Engines whose defaults and overheads are known.
ENGINES = tuple(name for name in engines_with_defaults() if not engine(name).virtual_time)


class Estimate(Request, frozen=True, kw_only=True):
    """A model on a machine: fit, latency, throughput, limits and cost."""

    verb: ClassVar[str] = "estimate"
    first: ClassVar[str] = "model"
    group: ClassVar[str] = "Model and load"

    model: Annotated[
        str | None,
        option("Model: hub id, local folder, or a name of the catalogue.", metavar="NAME"),
    ] = None
    machine: Machine = Machine()
    engine: Annotated[
        str,
        option("Engine whose kernels, defaults and overheads count.", choices=ENGINES),
    ] = "vllm"
    input_tokens: Annotated[
        Count,
        option("Prompt length, in tokens.", "--input-len", "--input-tokens", metavar="TOKENS"),
    ] = 1024
    output_tokens: Annotated[
        Count,
        option("Answer length, in tokens.", "--output-len", "--output-tokens", metavar="TOKENS"),
    ] = 512
    dataset: Annotated[
        Literal["random", "sharegpt"],
        option("Distribution of lengths: fixed ones, or ShareGPT's published ones."),
    ] = "random"
    tensor_parallel: Annotated[
        Count | None,
        option(
            "Degree of tensor parallelism.",
            "--tensor-parallel",
            "--tp",
            metavar="COUNT",
            default="every split of the GPUs",
        ),
    ] = None
    quantization: Annotated[
        str | None,
        option(
            "Number format of the weights as loaded, such as fp8.",
            "--quantization",
            "--precision",
            metavar="NAME",
            default="the checkpoint's",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None, option("Number format of the KV cache.", metavar="NAME", default="the model's")
    ] = None
    max_model_len: Annotated[
        Count | None,
        option("Longest sequence, prompt and answer, in tokens.", metavar="TOKENS"),
    ] = None

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
            "Service whose machines and prices count.",
            group="Choice",
            default="sagemaker, or that of the --instance",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        option(
            "File for the chosen plan's roofline and curves, .svg or .html.",
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
            "--as",
            group="Tables",
            choices=tuple(CONVENTIONS),
            default="each row as it stands",
        ),
    ] = None

    def everywhere(self) -> bool:
        """Whether machines are compared: `gpu` or `instance` is `all`."""
        return "all" in (_word(self.machine.gpu), _word(self.machine.instance))


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimation's text depends on besides its figures.

    Attributes:
        shape: The network.
        estimator: Whose predictions are shown.
        limited: Whether there are constraints.
    """

    shape: NetworkShape
    estimator: Estimator
    limited: bool


class Estimation(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, priced in every split of its GPUs.

    Attributes:
        node: The machine.
        workload: What is asked of it.
        chosen: The split that the details are of.
        splits: All splits, those that do not fit included.
        curve: Steady states of the chosen split from one user to twice its best throughput's.
        second_opinion: aiconfigurator's predictions beside servetune's, where asked for.
        constraints: The highest concurrency that holds the limits a steady state can judge.
        tune_commands: Commands that try the chosen plan, by name.
    """

    node: Node
    workload: Workload
    chosen: Split
    splits: tuple[Split, ...]
    curve: tuple[OperatingPoint, ...]
    second_opinion: tuple[Compared, ...]
    constraints: dict[str, Any]
    tune_commands: dict[str, str]
    shown: Shown

    @property
    def feasible(self) -> bool:
        """Whether the model fits; it does, or there is no estimation."""
        return True

    @property
    def df(self) -> pd.DataFrame:
        """The chosen split's steady state, one row for each concurrency."""
        return frame(msgspec.to_builtins(point) for point in self.curve)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        del named["shown"]
        return named

    def __str__(self) -> str:
        shape, alone = self.shown.shape, self.shown.estimator == "aiconfigurator"
        opinions = list(
            opinion_text(self.second_opinion, shape, self.node, alone=alone)
            if self.second_opinion
            else ()
        )
        if alone:
            return "\n".join(opinions)
        checked = self.constraints if self.shown.limited else None
        lines = estimate_text(
            self.chosen,
            self.splits,
            self.node,
            shape,
            self.workload,
            checked,
            self.tune_commands,
        )
        return "\n".join([*lines, *(["", *opinions] if opinions else [])])


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The best plans for one machine or several.

    Attributes:
        nodes: The machines.
        selection: What the plans were chosen for.
        ranked: Plans that hold every constraint, best first.
        priced: What they were chosen from.
    """

    nodes: tuple[Node, ...]
    selection: Selection
    ranked: tuple[Ranked, ...]
    priced: Priced

    @property
    def feasible(self) -> bool:
        """Whether a plan holds every constraint."""
        return bool(self.ranked)

    @property
    def df(self) -> pd.DataFrame:
        """One row per plan, best first."""
        return frame(
            {
                "machine": one.node.label,
                "plan": one.swept.plan.label,
                "cost_per_million_tokens_usd": one.swept.cost_per_million_tokens_usd,
                **msgspec.to_builtins(one.swept.point),
            }
            for one in self.ranked
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        where = {"node": self.nodes[0]} if len(self.nodes) == 1 else {"nodes": self.nodes}
        return {
            **where,
            "workload": self.selection.workload,
            "confidence": self.selection.confidence,
            "priced": self.priced.count,
            "at_face_value": self.priced.at_face_value,
            "ranked": self.ranked,
        }

    def __str__(self) -> str:
        return "\n".join(sweep_text(self.ranked, self.priced, self.nodes, self.selection))


class MachineComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Machines by what a million output tokens cost on them.

    Attributes:
        selection: What they were compared for.
        offers: All machines, cheapest first; one that cannot serve says why.
    """

    selection: Selection
    offers: tuple[Offer, ...]

    @property
    def usable(self) -> tuple[Offer, ...]:
        """Machines that hold the limits."""
        return tuple(offer for offer in self.offers if offer.best is not None)

    @property
    def feasible(self) -> bool:
        """Whether a machine holds the limits."""
        return bool(self.usable)

    @property
    def df(self) -> pd.DataFrame:
        """One row per machine that holds the limits, cheapest first."""
        return frame(
            {
                "machine": offer.node.label,
                "usd_per_hour": offer.node.price.usd_per_hour if offer.node.price else None,
                "cost_per_million_tokens_usd": offer.best.cost_per_million_tokens_usd,
                "plan": offer.best.plan.label,
                **msgspec.to_builtins(offer.best.point),
            }
            for offer in self.usable
            if offer.best is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "workload": self.selection.workload,
            "confidence": self.selection.confidence,
            "offers": self.usable[: self.selection.top],
        }

    def __str__(self) -> str:
        lines = list(choosing.buying_text(self.offers, self.selection))
        if self.selection.limits:
            lines.append(
                f"constraints on means hold with confidence {self.selection.confidence:g} "
                "(--confidence)"
            )
        return "\n".join(lines)


Estimated: TypeAlias = Estimation | Ranking | MachineComparison | TablePrediction
"""What `estimate` gives: one plan, a sweep, a comparison of machines, or a table."""


def estimate(request: Estimate | str, /, **options: Any) -> Estimated:
    """What a model can do on a machine: fit, latency, throughput, limits and cost.

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
    asked = request_of(Estimate, request, options)
    asked.drafts.require_known_method()
    _require_read(asked)
    kept = asked.correction.kept()
    if asked.plot is not None:
        require_plottable(asked.plot)
    if asked.estimator != "servetune":
        require_installed()
    if asked.batch is not None:
        return predict_file(
            asked.batch,
            asked.out,
            TableOptions(
                models_dir=asked.models,
                calibration=kept,
                anchors=read_table(asked.anchors) if asked.anchors is not None else None,
                estimator=asked.estimator,
                convention=asked.convention,
            ),
        )
    if asked.model is None:
        raise InputError("estimate needs a model", hint="name one with --model Qwen/Qwen3-4B")
    return _of_model(asked, asked.model, kept)


def _of_model(asked: Estimate, model: str, kept: KeptCalibration | None) -> Estimated:
    limits = parse_constraints(asked.limits.constraints or "")
    everywhere = asked.everywhere()
    nodes = _machines(asked) if everywhere else [asked.machine.node(service=asked.service)]
    shape = load_shape(model)
    fixed = Fixed(asked.input_tokens, asked.output_tokens)
    lengths = SHAREGPT if asked.dataset == "sharegpt" else fixed
    workload = Workload(lengths=lengths, request_count=1000, dataset=asked.dataset)
    selection = Selection(
        plan=Plan(
            model=model,
            engine=asked.engine,
            quantization=asked.quantization,
            kv_cache_dtype=asked.kv_cache_dtype,
            max_model_len=asked.max_model_len,
            draft_tokens=asked.drafts.draft_tokens,
            draft_method=asked.drafts.draft_method,
            draft_acceptance_fraction=asked.drafts.draft_acceptance_fraction,
        ),
        shape=shape,
        workload=workload,
        limits=limits,
        confidence=choosing.confidence_wanted(
            asked.confidence, calibrated=kept is not None and not everywhere
        ),
        target=asked.target,
        top=asked.top,
        tensor_parallel=asked.tensor_parallel,
    )
    if everywhere or asked.sweep:
        roomy = msgspec.structs.replace(
            selection, plan=_long_enough(selection.plan, shape, workload)
        )
        return _ranking(roomy, nodes, kept) if asked.sweep else _comparison(roomy, nodes, kept)
    correction = kept.require_for(shape=shape, node=nodes[0]) if kept else None
    return _estimation(asked, selection, nodes[0], correction)


def _estimation(
    asked: Estimate, selection: Selection, node: Node, correction: Calibration | None
) -> Estimation:
    """Every split of the machine, the details of the best, and commands to try it."""
    plan, shape, workload = selection.plan, selection.shape, selection.workload
    only = selection.tensor_parallel
    degrees = (only,) if only else possible_degrees(plan, shape, node)
    splits = [
        Split(plan=each, answer=priced(shape, node, each, workload, calibration=correction))
        for each in (laid_out(plan, shape, degree, node) for degree in degrees)
    ]
    fitting = [split for split in splits if split.answer.fits]
    if not fitting:
        _refuse(splits[-1])
    _require_room(workload, shape, plan, fitting)
    best = chosen_split(fitting, selection.target)
    points = curve(best, shape, node, workload, correction)
    opinions: list[Compared] = []
    if asked.estimator != "servetune":
        opinions = side_by_side(best, plan.model, shape, node, workload, correction)
    if asked.plot is not None:
        write_plot(asked.plot, roofline_figure(best, points, node, shape, workload))
        progress(f"plot       {asked.plot}")
    commands = {}
    if engine(plan.engine).simulated_as:
        commands = tune_commands(fitting, best, node, workload, asked.limits.constraints)
    judge = Judge(selection.limits, shape, selection.confidence)
    return Estimation(
        node=node,
        workload=workload,
        chosen=best,
        splits=tuple(splits),
        curve=tuple(points),
        second_opinion=tuple(opinions),
        constraints=_checked(best, judge, shape, node, workload, correction),
        tune_commands=commands,
        shown=Shown(shape=shape, estimator=asked.estimator, limited=bool(selection.limits)),
    )


def _word(name: str | None) -> str:
    return (name or "").strip().lower()


def _machines(asked: Estimate) -> list[Node]:
    """The machines to compare; a GPU beside `--instance all` leaves those that hold it."""
    if _word(asked.machine.instance) not in ("", "all"):
        raise InputError("--gpu all and --instance both name machines", hint="give one of the two")
    by_gpu = _word(asked.machine.gpu) if _word(asked.machine.gpu) != "all" else ""
    return choosing.machines(
        "instance" if asked.machine.instance else "gpu",
        asked.service or "sagemaker",
        device_name=device(by_gpu).name if by_gpu else None,
        device_count=asked.machine.num_gpus,
    )


def _comparison(
    selection: Selection, nodes: Sequence[Node], kept: KeptCalibration | None
) -> MachineComparison:
    """Which machine for this workload at least cost."""
    by_device = choosing.corrections(kept, selection.shape)
    found = choosing.offers(selection, nodes, by_device)
    return MachineComparison(selection=selection, offers=tuple(found))


def _ranking(selection: Selection, nodes: Sequence[Node], kept: KeptCalibration | None) -> Ranking:
    """The best plans for these machines."""
    if len(nodes) == 1 and kept is not None:
        kept.require_for(shape=selection.shape, node=nodes[0])
    by_device = choosing.corrections(kept, selection.shape)
    ranked, chosen_from = ranked_plans(
        selection, nodes, lambda node: by_device.get(node.device.name)
    )
    if not chosen_from.count:
        _refuse_all(selection, nodes[-1])
    return Ranking(
        nodes=tuple(nodes), selection=selection, ranked=tuple(ranked), priced=chosen_from
    )


#: Options beside a table, whose rows have all others as columns.
_BESIDE_A_TABLE = frozenset(
    {"batch", "out", "models", "anchors", "calibration", "estimator", "convention"}
)

_TABLES_ALONE = "it goes with --batch"
_ONE_PLAN = "it is about one plan: leave --sweep and 'all' out beside it"

#: form -> option -> why that form says nothing to it.
_UNREAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "one plan": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "top": "one plan is shown: add --sweep, --gpu all or --instance all",
        },
        "a sweep": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
        },
        "a comparison of machines": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "target": "machines are ordered by cost: add --sweep to order their plans",
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
        "a sweep over machines": {
            "out": _TABLES_ALONE,
            "models": _TABLES_ALONE,
            "anchors": _TABLES_ALONE,
            "plot": _ONE_PLAN,
            "estimator": _ONE_PLAN,
            "price_per_hour_usd": "machines have prices of their own: name one machine for it",
        },
    }
)


def _require_read(asked: Estimate) -> None:
    """Refuse options that were given and would be passed over.

    Raises:
        InputError: With the first such option and why.
    """
    spelled = {field.name: field.names[0] for field in given(asked)}
    if asked.batch is not None:
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
    }[asked.sweep, asked.everywhere()]
    for name, why in _UNREAD[form].items():
        if name in spelled:
            raise InputError(f"{spelled[name]} says nothing to {form}", hint=why)


def _long_enough(plan: Plan, shape: NetworkShape, workload: Workload) -> Plan:
    """The plan with room for the workload's longest request and no more, unless it says.

    A model's full context (131,072 tokens, say) would shut out machines that serve this
    workload well.
    """
    if plan.max_model_len is not None:
        return plan
    longest = length_moments(workload.lengths).longest_tokens
    rounded = 1024 * math.ceil(longest / 1024)
    return msgspec.structs.replace(plan, max_model_len=min(shape.max_context_tokens, rounded))


def possible_degrees(plan: Plan, shape: NetworkShape, node: Node) -> tuple[int, ...]:
    """Degrees of tensor parallelism that divide the node's devices and the model.

    Experts that do not divide are placed whole, where that lets a degree run.
    """
    degrees = [
        degree for degree in range(1, node.device_count + 1) if not node.device_count % degree
    ]
    return tuple(
        degree for degree in degrees if _divides(laid_out(plan, shape, degree, node), shape)
    ) or (1,)


def _divides(plan: Plan, shape: NetworkShape) -> bool:
    try:
        check_parallel(plan, shape)
    except PlanError:
        return False
    return True


def laid_out(plan: Plan, shape: NetworkShape, degree: int, node: Node) -> Plan:
    """The plan at this degree, with as many copies as the devices hold."""
    copies = max(1, node.device_count // degree)
    split = msgspec.structs.replace(plan, tensor_parallel=degree, replicas=copies)
    return with_whole_experts(split, shape)


def chosen_split(fitting: list[Split], target: str) -> Split:
    """The split with the largest throughput, or the shortest answer when alone."""

    def merit(split: Split) -> float:
        latency, throughput = split.answer.best_latency, split.answer.best_throughput
        assert latency is not None
        assert throughput is not None
        return -latency.e2e_ms if target == "latency" else throughput.output_tokens_per_s

    return max(fitting, key=merit)


def _require_room(
    workload: Workload, shape: NetworkShape, plan: Plan, fitting: list[Split]
) -> None:
    """Refuse a request that is longer than the model's context, or than any cache.

    Raises:
        PlanError: With both lengths.
    """
    longest = workload.longest_tokens()
    context = plan.max_model_len or shape.max_context_tokens
    if longest > context:
        raise PlanError(
            f"the longest request has {longest:,} tokens, prompt and answer, and the longest "
            f"sequence is {context:,}",
            hint="lower --input-len or --output-len"
            + (", or raise --max-model-len" if plan.max_model_len else ""),
        )
    if all(split.answer.limits is None or not split.answer.limits.memory for split in fitting):
        raise PlanError(
            f"the cache does not hold one request of {longest:,} tokens",
            hint="name more or larger GPUs, or a quantisation with --quantization",
        )


def _refuse(split: Split) -> None:
    memory = split.answer.memory
    message, _, hint = (split.answer.misfit or "the model does not fit").partition("; ")
    raise DoesNotFit(
        message,
        needed_bytes=memory.needed_bytes,
        available_bytes=memory.usable_bytes,
        hint=hint or "name more or larger GPUs, or a quantisation with --quantization",
    )


def _refuse_all(selection: Selection, node: Node) -> None:
    """Say what the widest split lacks, where no plan of a sweep could be priced."""
    degree = (
        selection.tensor_parallel or possible_degrees(selection.plan, selection.shape, node)[-1]
    )
    widest = laid_out(selection.plan, selection.shape, degree, node)
    split = Split(plan=widest, answer=priced(selection.shape, node, widest, selection.workload))
    if not split.answer.fits:
        _refuse(split)


def _checked(
    best: Split,
    judge: Judge,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    correction: Calibration | None,
) -> dict[str, Any]:
    """The highest concurrency up to the best that holds all limits a steady state can judge."""
    silent = [limit.label for limit in judge.others]
    throughput = best.answer.best_throughput
    if not judge.means or throughput is None:
        return {"judged": [], "by_simulation_only": silent, "concurrency": None}
    corrections = LocalCorrections(correction, best.plan, shape, length_moments(workload.lengths))
    holding = None
    for concurrency in _concurrencies(throughput.concurrency):
        point = performance_at(
            shape, node, best.plan, workload, concurrency, calibration=correction
        )
        if judge.holds(node, best.plan, point, corrections.at(concurrency)):
            holding = point
    judged_at = corrections.at(holding.concurrency if holding else throughput.concurrency)
    return {
        "judged": [limit.label for limit in judge.means],
        "by_simulation_only": silent,
        "concurrency": holding.concurrency if holding else None,
        "point": holding,
        "caution": judge.caution(node, best.plan, judged_at),
    }


def _concurrencies(most: int) -> list[int]:
    steps = {1, most} | {
        round(2 ** (k / 2)) for k in range(2 * max(1, math.ceil(math.log2(most + 1))))
    }
    return sorted(c for c in steps if c <= most)
