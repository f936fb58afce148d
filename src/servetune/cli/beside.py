"""`servetune simulate --compare`: every measured trial of a file beside its simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from servetune.api.inputs import chosen_node, read_records
from servetune.cli.output import echo, print_json
from servetune.errors import InputError, PlanError, ServetuneError
from servetune.hardware import Node, detect_cpu, instance, instances, node
from servetune.models import load_shape
from servetune.prediction.calibrations import calibration_named
from servetune.report import (
    PredictionPair,
    console,
    label_of,
    median_errors,
    pairs_table,
    quantity_errors,
    varying,
)
from servetune.store import TrialRecord
from servetune.trials import StudyContext, simulated_again

__all__ = ["compare"]


def compare(
    path: Path,
    *,
    model: str | None,
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    calibration_name: str | None,
    as_json: bool,
) -> int:
    """Simulate what a file's records say was measured; model and machine are theirs unless given.

    Raises:
        InputError: The file holds no trial that was measured and can be simulated.
    """
    records = [one for one in read_records(path) if one.status == "ok" and not one.simulated]
    if not records:
        raise InputError(
            f"{path} holds no trial that was measured and ended well",
            hint="give the journal of a run on a real engine, or published records",
        )
    given = (
        chosen_node(
            gpu=gpu, num_gpus=num_gpus, instance_name=instance_name, price_per_hour_usd=None
        )
        if gpu or instance_name
        else None
    )
    names = varying(records)
    pairs: list[PredictionPair] = []
    left_out: list[tuple[str, ServetuneError]] = []
    for measured in records:
        label = label_of(measured, names)
        try:
            run = _run_of(measured, model, given, calibration_name)
            again = simulated_again(measured, run)
        except (InputError, PlanError) as error:
            left_out.append((label, error))
            continue
        pairs.append(
            PredictionPair(
                label=label, key=measured.key, predicted=again.results, measured=measured.results
            )
        )
    if not pairs:
        label, why = left_out[0]
        raise InputError(
            f"no trial of {path} can be simulated, {label}: {why.message}", hint=why.hint
        )
    if as_json:
        print_json(_as_data(pairs, left_out))
        return 0
    terminal = console()
    terminal.print(
        Text(
            f"SIMULATED: {len(pairs)} measured trials of {path} were played again in virtual time",
            style="bold yellow",
        )
    )
    terminal.print(
        pairs_table(pairs, title="Simulated and measured", predicted="simulated", medians=True)
    )
    for label, why in left_out:
        echo(f"left out {label}: {why.message}" + (f"; {why.hint}" if why.hint else ""))
    return 0


def _run_of(
    measured: TrialRecord, model: str | None, given: Node | None, calibration_name: str | None
) -> StudyContext:
    name = model or measured.metadata.model
    if not name:
        raise InputError("the record does not say which model", hint="name it with --model")
    shape = load_shape(str(name))
    machine = given or _machine_of(measured)
    kept = calibration_named(calibration_name) if calibration_name else None
    if kept:
        kept.require_for(shape=shape, node=machine)
    return StudyContext(
        model=str(name),
        engine="simulated",
        simulated=True,
        shape=shape,
        node=machine,
        calibration=kept,
    )


def _machine_of(measured: TrialRecord) -> Node:
    """Where it was measured, as its metadata says.

    Raises:
        InputError: It does not say, or names what the catalogue does not know.
    """
    metadata = measured.metadata
    rented = metadata.get("instance_type")
    if rented in instances("sagemaker") or rented in instances("ec2"):
        return instance(str(rented))
    name = str(metadata.get("gpu_type") or "unknown")
    here = detect_cpu()
    if name == f"{here.device.vendor} {here.device.name}".strip():
        return here
    if name == "unknown":
        raise InputError(
            "the record does not say on which GPU", hint="name it with --gpu L4 --num-gpus 4"
        )
    return node(gpu=name, count=int(metadata.get("gpu_count") or 1))


def _as_data(
    pairs: list[PredictionPair], left_out: list[tuple[str, ServetuneError]]
) -> dict[str, Any]:
    return {
        "simulated": True,
        "trials": [
            {"label": pair.label, "key": pair.key, "gaps": [msgspec.to_builtins(g) for g in gaps]}
            for pair in pairs
            for gaps in [quantity_errors(pair)]
        ],
        "median_absolute_errors": [
            {"quantity": quantity, "statistic": statistic, "error_fraction": error}
            for (quantity, statistic), error in median_errors(pairs).items()
        ],
        "left_out": [{"label": label, "reason": why.message} for label, why in left_out],
    }
