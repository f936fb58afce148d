"""Measured rows of a table as anchors of others: what `estimate --batch --anchors` rests on.

A measured row corrects the rows of the same model on the same kind of device, under any engine
and with any weights: those that are like it most (`perf.roofline.similarity`).
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
from servetune.prediction.rows import run_of
from servetune.workload import Lengths

__all__ = ["MEASURED", "AnchorsOf", "anchors_of", "corrected_by_kept", "corrected_by_rows"]

#: Columns of what was measured; a row may lack one of them.
MEASURED = ("ttft_ms", "tpot_ms")

#: Model and kind of device to the runs that were measured of them.
AnchorsOf: TypeAlias = Mapping[tuple[str, str], Sequence[Anchor]]


def anchors_of(
    rows: Sequence[Mapping[str, str]], shape_of: Callable[[str], NetworkShape]
) -> AnchorsOf:
    """Measured rows beside their predictions, by what they are of.

    Raises:
        InputError: A row cannot be read, or says nothing that was measured: one anchor fewer
            than its user believes is worse than none.
    """
    runs, measured = [], []
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(run_of(row, shape_of))
            measured.append({name: _time_ms(row, name) for name in MEASURED})
            if not any(measured[-1].values()):
                raise InputError(f"neither {' nor '.join(MEASURED)} says what was measured")
        except ServetuneError as error:
            raise InputError(
                f"anchor {number}: {error.message}", hint=error.hint or "mend or remove that row"
            ) from None
    found: dict[tuple[str, str], list[Anchor]] = {}
    for run, priced, times in zip(runs, predict_runs(runs), measured, strict=True):
        anchor = Anchor(
            predicted_ttft_ms=priced.point.ttft_ms,
            predicted_tpot_ms=priced.point.tpot_ms,
            measured_ttft_ms=times["ttft_ms"],
            measured_tpot_ms=times["tpot_ms"],
            place=_place(run),
        )
        found.setdefault(_of(run), []).append(anchor)
    return found


def corrected_by_rows(
    runs: Sequence[ClosedLoopRun], anchors: AnchorsOf
) -> list[Calibration | None]:
    """What the anchors say of each run; `None` where none is of its model and device."""
    found: list[Calibration | None] = [None] * len(runs)
    for of, measured in anchors.items():
        mine = [number for number, run in enumerate(runs) if _of(run) == of]
        there = calibrated(measured).at(*(_place(runs[number]) for number in mine))
        for number, correction in zip(mine, there, strict=True):
            found[number] = correction
    return found


def corrected_by_kept(
    runs: Sequence[ClosedLoopRun], kept: KeptCalibration
) -> list[Calibration | None]:
    """What a kept calibration says of each run; `None` where it is of another."""
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
    there = kept.calibration.at(*(_place(runs[number]) for number in mine))
    for number, correction in zip(mine, there, strict=True):
        found[number] = correction
    return found


def _of(run: ClosedLoopRun) -> tuple[str, str]:
    return run.shape.name, run.node.device.name


def _place(run: ClosedLoopRun) -> RunFeatures:
    place = run_features(run.plan, run.shape, _moments(run.lengths), run.concurrency)
    return msgspec.structs.replace(place, engine=run.engine) if run.engine else place


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
