"""Comparison of measured trials with their simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.inputs import read_records, with_server_args
from servetune.errors import InputError, PlanError, ServetuneError
from servetune.hardware import Node, detect_cpu, instance, instances, node
from servetune.json_value import JsonObject
from servetune.metrics import Acceptance
from servetune.models import load_shape
from servetune.prediction.calibrations import KeptCalibration
from servetune.report import PredictionPair, label_of, median_errors, quantity_errors, varying
from servetune.store import TrialRecord
from servetune.trials import StudyContext, simulated_again


class LeftOut(msgspec.Struct, frozen=True):
    """Trial that cannot be simulated, and the reason."""

    label: str
    reason: str
    hint: str = ""


class SimulationComparison(Tabular, frozen=True, kw_only=True):
    """Measured trials and their simulation.

    Attributes:
        source: File of the measured trials.
        pairs: Simulated and measured results of each trial.
        left_out: Trials that cannot be simulated.
    """

    source: Path
    pairs: tuple[PredictionPair, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def feasible(self) -> bool:
        """Always true: a comparison has no constraints."""
        return True

    def as_rows(self) -> Iterable[TableRow]:
        """One row per trial and quantity: predicted, measured, error."""
        return (
            {"trial": pair.label, "key": pair.key, **msgspec.structs.asdict(each)}
            for pair in self.pairs
            for each in quantity_errors(pair)
        )

    def to_json(self) -> JsonObject:
        """Errors of each trial and their medians, as data."""
        return {
            "simulated": True,
            "trials": [
                {
                    "label": pair.label,
                    "key": pair.key,
                    "gaps": [msgspec.to_builtins(each) for each in quantity_errors(pair)],
                }
                for pair in self.pairs
            ],
            "median_absolute_errors": [
                {"quantity": quantity, "statistic": statistic, "error_fraction": error}
                for (quantity, statistic), error in median_errors(list(self.pairs)).items()
            ],
            "left_out": [{"label": each.label, "reason": each.reason} for each in self.left_out],
        }


def compare_with_simulation(
    path: Path,
    model: str | None,
    machine: Node | None,
    server_args: Sequence[str],
    kept: KeptCalibration | None,
    ended: Callable[[int, int], None],
) -> SimulationComparison:
    """Simulate the measured trials of a file.

    Args:
        path: Journal of measured trials, published records, or a report of inference-perf.
        model: Model; that of each record if `None`.
        machine: Machine; that of each record if `None`.
        server_args: Settings of the server, where the records do not have them.
        kept: Calibration that corrects the simulation.
        ended: Called after each trial with the number of trials so far, and of all.

    Raises:
        InputError: The file holds no measured trial that can be simulated.
    """
    found = with_server_args(read_records(path), server_args)
    records = [one for one in found if one.status == "ok" and not one.simulated]
    if not records:
        raise InputError(
            f"{path} holds no trial that was measured and ended well",
            hint="give the journal of a run on a real engine, or published records",
        )
    names = varying(records)
    pairs: list[PredictionPair] = []
    left_out: list[LeftOut] = []
    for number, measured in enumerate(records):
        if number:
            ended(number, len(records))
        label = label_of(measured, names)
        try:
            again = simulated_again(measured, _context_of(measured, model, machine, kept))
        except (InputError, PlanError) as error:
            left_out.append(_left_out(label, error))
            continue
        pairs.append(
            PredictionPair(
                label=label, key=measured.key, predicted=again.results, measured=measured.results
            )
        )
    ended(len(records), len(records))
    if not pairs:
        first = left_out[0]
        raise InputError(
            f"no trial of {path} can be simulated, {first.label}: {first.reason}", hint=first.hint
        )
    return SimulationComparison(source=path, pairs=tuple(pairs), left_out=tuple(left_out))


def _left_out(label: str, error: ServetuneError) -> LeftOut:
    return LeftOut(label, error.message, error.hint or "")


def _context_of(
    measured: TrialRecord,
    model: str | None,
    machine: Node | None,
    kept: KeptCalibration | None,
) -> StudyContext:
    name = model or measured.metadata.model
    if not name:
        raise InputError("the record does not name its model", hint="name it with --model")
    shape = load_shape(str(name))
    node_of = machine or _machine_of(measured)
    if kept:
        kept.require_for(shape=shape, node=node_of)
    return StudyContext(
        model=str(name),
        engine="simulated",
        simulated=True,
        shape=shape,
        node=node_of,
        calibration=kept,
        acceptance=Acceptance(error_rate=1.0),  # what failed is compared as well
    )


def _machine_of(measured: TrialRecord) -> Node:
    """Machine of a measured trial, from its metadata.

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
            "the record does not name its GPU", hint="name it with --gpu L4 --num-gpus 4"
        )
    return node(gpu=name, count=int(metadata.get("gpu_count") or 1))
