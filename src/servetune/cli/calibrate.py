"""`servetune calibrate`: let a few measured trials correct the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import click

from servetune.cli.inputs import chosen_node, read_records
from servetune.cli.output import echo, print_json
from servetune.errors import InputError
from servetune.hardware import Node, instances
from servetune.models import load_shape
from servetune.store import TrialRecord
from servetune.trials.calibrations import (
    KeptCalibration,
    calibration_named,
    calibration_names,
    from_trials,
    keep,
    remove,
)

__all__ = ["calibrate"]


@click.command()
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--name", default=None, help="Keep it under this name. [default: the journal's]")
@click.option("--list", "listing", is_flag=True, help="Name those that are kept.")
@click.option("--show", default=None, metavar="NAME", help="What one says and rests on.")
@click.option("--remove", "removed", default=None, metavar="NAME", help="Forget one.")
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def calibrate(
    *,
    source: Path | None,
    name: str | None,
    listing: bool,
    show: str | None,
    removed: str | None,
    as_json: bool,
) -> int:
    """Turn the measured trials of SOURCE (a journal or a summary) into a kept correction.

    Use it with --calibration NAME on estimate and on tune --engine simulated. One trial
    corrects a little, several correct more; it holds for that model on that kind of device.
    """
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
    elif source is None:
        raise InputError(
            "nothing to do", hint="give a journal, or --list, --show NAME or --remove NAME"
        )
    else:
        records = read_records(source)
        kept = from_trials(
            records,
            name=name or source.stem,
            shape=load_shape(_model_of(records)),
            node=_node_of(records),
        )
        echo(f"kept in {keep(kept)}")
    if as_json:
        print_json(kept)
    else:
        for line in _text(kept):
            print(line)
    return 0


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
