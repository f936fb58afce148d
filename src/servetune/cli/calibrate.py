"""`servetune calibrate`: let a few measured trials correct the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from servetune.api.inputs import chosen_node, read_records
from servetune.cli import options
from servetune.cli.output import echo, print_json
from servetune.cli.suggest import tell_suggestion
from servetune.errors import InputError
from servetune.hardware import Node, instances
from servetune.models import load_shape
from servetune.prediction.calibrations import (
    KeptCalibration,
    calibration_named,
    calibration_names,
    from_trials,
    keep,
    remove,
)
from servetune.store import TrialRecord
from servetune.workload import Fixed, Workload

__all__ = ["calibrate"]

_OF_SUGGEST = {
    "run_count": "--runs",
    "model": "--model",
    "gpu": "--gpu",
    "num_gpus": "--num-gpus",
    "instance_name": "--instance",
    "input_tokens": "--input-len",
    "output_tokens": "--output-len",
    "most_users": "--max-concurrency",
    "quantizations": "--quantization",
}


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=click.Path(path_type=Path))
@click.option("--name", default=None, help="Keep it under this name. [default: the journal's]")
@click.option("--list", "listing", is_flag=True, help="Name those that are kept.")
@click.option("--show", default=None, metavar="NAME", help="What one says and rests on.")
@click.option("--remove", "removed", default=None, metavar="NAME", help="Forget one.")
@click.option(
    "--suggest",
    is_flag=True,
    help="Name the runs to measure first, with the commands; needs --model.",
)
@click.option(
    "--runs",
    "run_count",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="With --suggest: how many.",
)
@click.option(
    "--model", default=None, help="With --suggest: hub id, folder, or a name of the catalogue."
)
@options.devices
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
    "--max-concurrency",
    "most_users",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="USERS",
    help="With --suggest: nobody will serve more at once.",
)
@click.option(
    "--quantization",
    "quantizations",
    multiple=True,
    metavar="NAME",
    help="With --suggest: weights that may be served, once for each. [default: the checkpoint's]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def calibrate(
    *,
    sources: tuple[Path, ...],
    name: str | None,
    listing: bool,
    show: str | None,
    removed: str | None,
    suggest: bool,
    run_count: int,
    model: str | None,
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    input_tokens: int,
    output_tokens: int,
    most_users: int,
    quantizations: tuple[str, ...],
    as_json: bool,
) -> int:
    """Turn the measured trials of SOURCE (journals or summaries) into a kept correction.

    Use it with --calibration NAME on estimate and on tune --engine simulated. One trial
    corrects a little, several correct more; it holds for that model on that kind of device.
    `--suggest` says which to measure where none is yet: those after which least is in doubt.
    """
    if suggest:
        if sources or listing or show or removed:
            raise InputError(
                "--suggest names runs to measure", hint="give --model and the machine with it"
            )
        machine = chosen_node(
            gpu=gpu,
            num_gpus=num_gpus,
            instance_name=instance_name,
            price_per_hour_usd=None,
            or_cpu=True,
        )
        return tell_suggestion(
            model,
            machine,
            Workload(lengths=Fixed(input_tokens, output_tokens), request_count=1000),
            quantizations=quantizations,
            most_users=most_users,
            count=run_count,
            name=name,
            as_json=as_json,
        )
    _require_nothing_for_suggest()
    if listing:
        names = calibration_names()
        if as_json:
            print_json(names)
        else:
            print("\n".join(names) if names else "no calibration is kept")
        return 0
    if removed is not None:
        remove(removed)
        echo(f"{removed} is forgotten")
        return 0
    if show is not None:
        kept = calibration_named(show)
    elif not sources:
        raise InputError(
            "nothing to do",
            hint="give a journal, or --suggest, --list, --show NAME or --remove NAME",
        )
    else:
        records = [record for source in sources for record in read_records(source)]
        kept = from_trials(
            records,
            name=name or sources[0].stem,
            shape=load_shape(_model_of(records)),
            node=_node_of(records),
        )
        echo(f"kept in {keep(kept)}")
    _tell(kept, as_json=as_json)
    return 0


def _tell(kept: KeptCalibration, *, as_json: bool) -> None:
    if as_json:
        print_json(kept)
        return
    for line in _text(kept):
        print(line)


def _require_nothing_for_suggest() -> None:
    """Refuse options that only `--suggest` reads, where somebody gave them.

    Raises:
        InputError: With the first of them.
    """
    context = click.get_current_context()
    for name, option in _OF_SUGGEST.items():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(
                f"{option} is read by --suggest alone",
                hint="a journal says what was measured, and on what",
            )


def _model_of(records: list[TrialRecord]) -> str:
    models = sorted({str(record.metadata.get("model_tag")) for record in records})
    if len(models) != 1:
        raise InputError(
            f"the journal holds {len(models)} models: {', '.join(models)}",
            hint="calibrate from a journal of one",
        )
    return models[0]


def _node_of(records: list[TrialRecord]) -> Node:
    metadata = records[0].metadata
    named = str(metadata.get("instance_type") or "")
    on_instance = named in instances("sagemaker") or named in instances("ec2")
    gpu = str(metadata.get("gpu_type") or "")
    if not on_instance and gpu in ("", "unknown"):
        raise InputError("the journal does not name its machine (metadata.gpu_type)")
    if gpu.lower().endswith("cpu"):
        return chosen_node(
            gpu=None, num_gpus=None, instance_name=None, price_per_hour_usd=None, or_cpu=True
        )
    return chosen_node(
        gpu=None if on_instance else gpu,
        num_gpus=metadata.get("gpu_count"),
        instance_name=named if on_instance else None,
        price_per_hour_usd=None,
    )


def _text(kept: KeptCalibration) -> Iterator[str]:
    found = kept.calibration
    yield f"{kept.name}: {kept.model} on {kept.device}, {kept.engine}, made {kept.made_at}"
    yield (
        f"  times per token x {found.tpot_factor:.3f} (from {found.tpot_anchors} trials), "
        f"first tokens x {found.ttft_factor:.3f} (from {found.ttft_anchors})"
    )
    if found.learned:
        factors = ", ".join(f"{knob} x {math.exp(by):.2f}" for knob, by in found.learned.items())
        yield f"  the law itself, which nobody had fitted here: {factors}"
    for one in kept.anchors:
        anchor = one.anchor
        tpot = (anchor.measured_tpot_ms or 0.0) / anchor.predicted_tpot_ms - 1
        yield (
            f"  {one.plan}, {one.concurrency} users: TPOT measured {anchor.measured_tpot_ms:.2f} "
            f"ms, predicted {anchor.predicted_tpot_ms:.2f} ({tpot:+.0%})"
        )
