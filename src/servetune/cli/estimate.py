"""`servetune estimate`: what a model can do on a machine, from their data alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from servetune.api.inputs import chosen_node
from servetune.cli import advice, options
from servetune.cli.batch import predict_rows
from servetune.cli.estimate_commands import tune_commands
from servetune.cli.estimate_plot import curve, require_plottable, roofline_figure, write_plot
from servetune.cli.estimate_scope import require_read
from servetune.cli.estimate_text import Split, estimate_text
from servetune.cli.opinions import opinion_text, side_by_side
from servetune.cli.output import echo, print_json
from servetune.cli.ranking import ranked_plans, sweep_text
from servetune.engines import check_parallel, engines_with_defaults, with_whole_experts
from servetune.errors import DoesNotFit, InputError, PlanError
from servetune.hardware import Node, device
from servetune.metrics import parse_constraints
from servetune.models import NetworkShape, load_shape
from servetune.perf import Calibration
from servetune.perf.roofline import estimate as priced
from servetune.perf.roofline import length_moments, performance_at
from servetune.perf.roofline.local_corrections import LocalCorrections
from servetune.plan import Plan
from servetune.prediction.aiconfigurator import require_installed
from servetune.prediction.calibrations import KeptCalibration, calibration_named
from servetune.prediction.tables import CONVENTIONS, TableOptions, read_table
from servetune.workload import SHAREGPT, Fixed, Workload

__all__ = ["estimate"]

#: Engines whose defaults and overheads are known.
ENGINES = tuple(name for name in engines_with_defaults() if name != "simulated")


@click.command()
@click.option("--model", default=None, help="Hub id, local folder, or a name of the catalogue.")
@options.machine
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="vllm",
    show_default=True,
    help="Whose kernels, defaults and overheads. tgi is that of 2023.",
)
@click.option(
    "--input-len",
    "input_tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="TOKENS",
)
@click.option(
    "--output-len",
    "output_tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="TOKENS",
)
@click.option(
    "--dataset",
    type=click.Choice(("random", "sharegpt")),
    default="random",
    show_default=True,
    help="sharegpt: its published lengths instead of fixed ones.",
)
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=None,
    help="Only this degree. [default: every split of the GPUs]",
)
@click.option(
    "--quantization",
    "--precision",
    "quantization",
    default=None,
    help="Weights as loaded, such as fp8. [default: the checkpoint's]",
)
@click.option("--kv-cache-dtype", default=None, help="[default: the model's]")
@click.option("--max-model-len", type=click.IntRange(min=1), default=None, metavar="TOKENS")
@options.drafts
@options.constraints
@options.confidence
@options.calibration
@options.estimator
@click.option(
    "--service",
    type=click.Choice(("sagemaker", "ec2", "all")),
    default=None,
    help="Whose machines and prices. [default: sagemaker, or whose the --instance is]",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Draw the chosen plan's roofline and curves, as .svg or .html.",
)
@click.option(
    "--target",
    type=click.Choice(("throughput", "latency")),
    default="throughput",
    show_default=True,
    help="Which split the details are of.",
)
@click.option(
    "--sweep",
    "sweeping",
    is_flag=True,
    help="Rank every plan that fits the machine: splits, batch limits, quantisations.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="How many plans or machines to list.",
)
@click.option(
    "--batch",
    "batch_rows",
    type=click.Path(path_type=Path),
    default=None,
    metavar="CSV",
    help="Predict every row of a table instead; see docs/guides/batch.md.",
)
@click.option(
    "--out",
    "batch_out",
    type=click.Path(path_type=Path),
    default=None,
    metavar="CSV",
    help="Where the predictions of --batch go.",
)
@click.option(
    "--models",
    "models_dir",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="With --batch: configurations as org--name_config.json.",
)
@click.option(
    "--anchors",
    "batch_anchors",
    type=click.Path(path_type=Path),
    default=None,
    metavar="CSV",
    help="With --batch: measured rows, which correct others of their model and GPU.",
)
@click.option(
    "--as",
    "convention",
    type=click.Choice(tuple(CONVENTIONS)),
    default=None,
    help="With --batch: benchmark whose server settings apply where its rows state none. "
    "[default: each row as it stands]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def estimate(
    *,
    model: str | None,
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    price_per_hour_usd: float | None,
    engine: str,
    input_tokens: int,
    output_tokens: int,
    dataset: str,
    tensor_parallel: int | None,
    quantization: str | None,
    kv_cache_dtype: str | None,
    max_model_len: int | None,
    draft_tokens: int | None,
    draft_method: str | None,
    draft_acceptance_fraction: float | None,
    constraints: str | None,
    confidence: float | None,
    calibration_name: str | None,
    estimator: str,
    service: str | None,
    plot: Path | None,
    target: str,
    sweeping: bool,
    top: int,
    batch_rows: Path | None,
    batch_out: Path | None,
    models_dir: Path | None,
    batch_anchors: Path | None,
    convention: str | None,
    as_json: bool,
) -> int:
    """What a model can do on a machine: fit, latency, throughput, limits and cost.

    Nothing is run or downloaded where the catalogue, a folder or the hub's cache has the model.
    `--gpu all` and `--instance all` compare machines instead, of SageMaker or EC2 by `--service`.
    """
    kept = calibration_named(calibration_name) if calibration_name else None
    everywhere = "all" in (_word(gpu), _word(instance_name))
    require_read(batch=batch_rows is not None, sweeping=sweeping, everywhere=everywhere)
    if plot is not None:
        require_plottable(plot)
    if estimator != "servetune":
        require_installed()
    if batch_rows is not None:
        return predict_rows(
            batch_rows,
            batch_out,
            TableOptions(
                models_dir=models_dir,
                calibration=kept,
                anchors=read_table(batch_anchors) if batch_anchors is not None else None,
                estimator=estimator,
                convention=convention,
            ),
        )
    if model is None:
        raise click.UsageError("Missing option '--model'.")
    limits = parse_constraints(constraints or "")
    nodes = (
        _machines(gpu, num_gpus, instance_name, service)
        if everywhere
        else [
            chosen_node(
                gpu=gpu,
                num_gpus=num_gpus,
                instance_name=instance_name,
                price_per_hour_usd=price_per_hour_usd,
                service=service,
            )
        ]
    )
    shape = load_shape(model)
    lengths = SHAREGPT if dataset == "sharegpt" else Fixed(input_tokens, output_tokens)
    workload = Workload(lengths=lengths, request_count=1000, dataset=dataset)
    wanted = Plan(
        model=model,
        engine=engine,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        draft_tokens=draft_tokens,
        draft_method=draft_method,
        draft_acceptance_fraction=draft_acceptance_fraction,
    )
    asked = advice.Asked(
        plan=wanted,
        shape=shape,
        workload=workload,
        limits=limits,
        confidence=advice.confidence_wanted(
            confidence, calibrated=kept is not None and not everywhere
        ),
        target=target,
        top=top,
        tensor_parallel=tensor_parallel,
    )
    if everywhere or sweeping:
        roomy = msgspec.structs.replace(asked, plan=_long_enough(wanted, shape, workload))
        choose = _sweep if sweeping else _buying
        return choose(roomy, nodes, kept, as_json=as_json)
    correction = kept.require_for(shape=shape, node=nodes[0]) if kept else None
    return _one_plan(
        asked,
        nodes[0],
        correction,
        constraints=constraints,
        estimator=estimator,
        plot=plot,
        as_json=as_json,
    )


def _one_plan(
    asked: advice.Asked,
    node: Node,
    correction: Calibration | None,
    *,
    constraints: str | None,
    estimator: str,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Every split of the machine, the details of the best, and commands to try it."""
    wanted, shape, workload = asked.plan, asked.shape, asked.workload
    degrees = (
        (asked.tensor_parallel,) if asked.tensor_parallel else possible_degrees(wanted, shape, node)
    )
    splits = [
        Split(plan=plan, answer=priced(shape, node, plan, workload, calibration=correction))
        for plan in (laid_out(wanted, shape, degree, node) for degree in degrees)
    ]
    fitting = [split for split in splits if split.answer.fits]
    if not fitting:
        _refuse(splits[-1])
    _require_room(workload, shape, wanted, fitting)
    best = chosen_split(fitting, asked.target)
    points = curve(best, shape, node, workload, correction)
    opinions = (
        []
        if estimator == "servetune"
        else side_by_side(best, wanted.model, shape, node, workload, correction)
    )
    if plot is not None:
        write_plot(plot, roofline_figure(best, points, node, shape, workload))
        echo(f"plot       {plot}")
    if estimator == "aiconfigurator" and not as_json:
        for line in opinion_text(opinions, shape, node, alone=True):
            print(line)
        return 0
    commands = (
        tune_commands(fitting, best, node, workload, constraints) if wanted.engine == "vllm" else {}
    )
    judge = advice.Judge(asked.limits, shape, asked.confidence)
    checked = _checked(best, judge, shape, node, workload, correction)
    if as_json:
        print_json(
            {
                "node": node,
                "workload": workload,
                "chosen": best,
                "splits": splits,
                "curve": points,
                "second_opinion": opinions,
                "constraints": checked,
                "tune_commands": commands,
            }
        )
        return 0
    shown = checked if asked.limits else None
    for line in estimate_text(best, splits, node, shape, workload, shown, commands):
        print(line)
    if opinions:
        print()
        for line in opinion_text(opinions, shape, node, alone=False):
            print(line)
    return 0


def _word(name: str | None) -> str:
    return (name or "").strip().lower()


def _machines(
    gpu: str | None, num_gpus: int | None, instance_name: str | None, service: str | None
) -> list[Node]:
    """The machines to compare; a GPU beside `--instance all` leaves those that hold it."""
    if _word(instance_name) not in ("", "all"):
        raise InputError("--gpu all and --instance both name machines", hint="give one of the two")
    by_gpu = _word(gpu) if _word(gpu) != "all" else ""
    return advice.machines(
        "instance" if instance_name else "gpu",
        service or "sagemaker",
        device_name=device(by_gpu).name if by_gpu else None,
        device_count=num_gpus,
    )


def _buying(
    asked: advice.Asked, nodes: Sequence[Node], kept: KeptCalibration | None, *, as_json: bool
) -> int:
    """Which machine for this workload at least cost; 1 when none will do."""
    found = advice.offers(asked, nodes, advice.corrections(kept, asked.shape))
    usable = [offer for offer in found if offer.best is not None]
    if as_json:
        print_json(
            {
                "workload": asked.workload,
                "confidence": asked.confidence,
                "offers": usable[: asked.top],
            }
        )
    else:
        for line in advice.buying_text(found, asked):
            print(line)
        if asked.limits:
            print(f"constraints on means hold with confidence {asked.confidence:g} (--confidence)")
    return 0 if usable else 1


def _sweep(
    asked: advice.Asked, nodes: Sequence[Node], kept: KeptCalibration | None, *, as_json: bool
) -> int:
    """The best plans for these machines; 1 when none holds the constraints."""
    if len(nodes) == 1 and kept is not None:
        kept.require_for(shape=asked.shape, node=nodes[0])
    by_device = advice.corrections(kept, asked.shape)
    ranked, priced = ranked_plans(asked, nodes, lambda node: by_device.get(node.device.name))
    if not priced.count:
        _refuse_all(asked, nodes[-1])
    if as_json:
        where = {"node": nodes[0]} if len(nodes) == 1 else {"nodes": nodes}
        print_json(
            {
                **where,
                "workload": asked.workload,
                "confidence": asked.confidence,
                "priced": priced.count,
                "at_face_value": priced.at_face_value,
                "ranked": ranked,
            }
        )
    else:
        for line in sweep_text(ranked, priced, nodes, asked):
            print(line)
    return 0 if ranked else 1


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


def _refuse_all(asked: advice.Asked, node: Node) -> None:
    """Say what the widest split lacks, where no plan of a sweep could be priced."""
    degree = asked.tensor_parallel or possible_degrees(asked.plan, asked.shape, node)[-1]
    widest = laid_out(asked.plan, asked.shape, degree, node)
    split = Split(plan=widest, answer=priced(asked.shape, node, widest, asked.workload))
    if not split.answer.fits:
        _refuse(split)


def _checked(
    best: Split,
    judge: advice.Judge,
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
