"""Measured rows of a table as anchors, which correct the predictions of other rows.

A measured row corrects the rows of the same model on the same kind of device, under any engine
and with any weights; the more similar a row is, the more (`perf.roofline.similarity`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from servetune.errors import InputError, ServetuneError
from servetune.models import NetworkShape
from servetune.perf import Anchor, Calibration, RunFeatures, calibrated, run_features
from servetune.perf.roofline import ClosedLoopRun, LengthMoments, length_moments, predict_runs
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.conventions import Convention
from servetune.prediction.rows import run_of
from servetune.workload import Lengths

#: Columns of measured times; a row may lack one of them.
MEASURED = ("ttft_ms", "tpot_ms")

#: Model and kind of device -> measured runs of both.
AnchorsOf: TypeAlias = Mapping[tuple[str, str], Sequence[Anchor]]


def anchors_of(
    rows: Sequence[Mapping[str, str]],
    shape_of: Callable[[str], NetworkShape],
    convention: Convention | None = None,
) -> AnchorsOf:
    """Measured rows with their predictions, by model and kind of device.

    Raises:
        InputError: A row cannot be read or has no measured time. It stops all, because an
            anchor that is silently left out would go unnoticed.
    """
    runs, measured = [], []
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(run_of(row, shape_of, convention))
            measured.append({name: _time_ms(row, name) for name in MEASURED})
            if not any(measured[-1].values()):
                raise InputError(f"neither {' nor '.join(MEASURED)} has a measured time")
        except ServetuneError as error:
            raise InputError(
                f"anchor {number}: {error.message}", hint=error.hint or "correct or remove that row"
            ) from None
    found: dict[tuple[str, str], list[Anchor]] = {}
    for run, priced, times in zip(runs, predict_runs(runs), measured, strict=True):
        anchor = Anchor(
            predicted_ttft_ms=priced.point.ttft_ms,
            predicted_tpot_ms=priced.point.tpot_ms,
            measured_ttft_ms=times["ttft_ms"],
            measured_tpot_ms=times["tpot_ms"],
            place=_features(run),
        )
        found.setdefault(_group(run), []).append(anchor)
    return found


def corrected_by_rows(
    runs: Sequence[ClosedLoopRun], anchors: AnchorsOf
) -> list[Calibration | None]:
    """Correction of each run by anchors; `None` where none is of its model and device."""
    found: list[Calibration | None] = [None] * len(runs)
    for group, measured in anchors.items():
        mine = [number for number, run in enumerate(runs) if _group(run) == group]
        corrections = calibrated(measured).at(*(_features(runs[number]) for number in mine))
        for number, correction in zip(mine, corrections, strict=True):
            found[number] = correction
    return found


def corrected_by_kept(
    runs: Sequence[ClosedLoopRun], kept: KeptCalibration
) -> list[Calibration | None]:
    """Correction of each run by a kept calibration; `None` where it is of another model."""
    mine = [
        number
        for number, run in enumerate(runs)
        if kept.covers(
            shape=run.shape,
            device_name=run.node.device.name,
            engine=run.engine or run.plan.engine,
        )
    ]
    found: list[Calibration | None] = [None] * len(runs)
    corrections = kept.calibration.at(*(_features(runs[number]) for number in mine))
    for number, correction in zip(mine, corrections, strict=True):
        found[number] = correction
    return found


def _group(run: ClosedLoopRun) -> tuple[str, str]:
    return run.shape.name, run.node.device.name


def _features(run: ClosedLoopRun) -> RunFeatures:
    features = run_features(run.plan, run.shape, _moments(run.lengths), run.concurrency)
    return msgspec.structs.replace(features, engine=run.engine) if run.engine else features


@functools.cache
def _moments(lengths: Lengths) -> LengthMoments:
    return length_moments(lengths)


def _time_ms(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number of milliseconds, got '{text}'")
    return value
