"""Measured rows of a table as anchors, which correct the predictions of other rows.

A measured row corrects the rows of the same model on the same kind of device, under any engine
and with any weights; the more similar a row is, the more (`perf.roofline.similarity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from servetune.errors import InputError, ServetuneError
from servetune.models import NetworkShape
from servetune.perf import Anchor, Calibration, RunFeatures, calibrated, run_features
from servetune.perf.roofline import (
    PlannedRun,
    RunPoint,
    predict_runs,
    requests_in_flight,
)
from servetune.prediction.calibrations import KeptCalibration
from servetune.prediction.conventions import Convention
from servetune.prediction.rows import run_of
from servetune.units import MS_PER_S

#: Columns of measured times and rates, of which a row has one at least. Where a run of one batch or
#: one list has no time per token, its whole time or its rate tells of the same steps.
MEASURED = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")
_AT_ONCE = ("static", "offline")
#: Ratio of predicted and measured time beyond which a time is taken to be in another unit.
_UNITS = 100

#: Logarithms of factors on steps that are tried for an open loop, as near as runs vary by chance.
_STEP_LOGS = np.linspace(-0.7, 0.7, 71)

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
            measured.append({name: _measured(row, name) for name in MEASURED})
            if not _tells(runs[-1], measured[-1]):
                raise InputError("neither ttft_ms nor tpot_ms has a measured time")
        except ServetuneError as error:
            raise InputError(
                f"anchor {number}: {error.message}", hint=error.hint or "correct or remove that row"
            ) from None
    found: dict[tuple[str, str], list[Anchor]] = {}
    predicted = predict_runs(runs)
    places = run_features(runs, in_flight=requests_in_flight(runs, predicted))
    points = [priced.point for priced in predicted]
    factors, points = _as_steps(runs, points, [times["tpot_ms"] for times in measured])
    lines = zip(runs, points, measured, places, factors, strict=True)
    for number, (run, point, times, place, factor) in enumerate(lines, start=1):
        predicted_ms, measured_ms = _step_times_ms(run, point, times)
        _plausible(number, measured_ms, predicted_ms)
        anchor = Anchor(
            predicted_ttft_ms=point.ttft_ms / factor,
            predicted_tpot_ms=predicted_ms / factor,
            measured_ttft_ms=times["ttft_ms"],
            measured_tpot_ms=measured_ms,
            place=place,
        )
        found.setdefault(_group(run), []).append(anchor)
    return found


def _as_steps(
    runs: Sequence[PlannedRun], points: Sequence[RunPoint], tpot_ms: Sequence[float | None]
) -> tuple[list[float], list[RunPoint]]:
    """Factors on all times of runs with which open loops have their measured time per token.

    Slower steps keep more requests in flight, so that its times are off by more than steps are.

    Args:
        runs: Runs of any protocol.
        points: Their predictions.
        tpot_ms: Their measured times per token.

    Returns:
        Factors, and the predictions with them; one and `points` of other runs, and where no time
        per token was measured.
    """
    factors, found = [1.0] * len(runs), list(points)
    open_loops = {
        number: measured_ms
        for number, (run, measured_ms) in enumerate(zip(runs, tpot_ms, strict=True))
        if run.protocol == "open" and measured_ms is not None
    }
    mine = [runs[number] for number in open_loops]
    tried = [
        [each.point for each in predict_runs(mine, [Calibration(tpot_factor=factor)] * len(mine))]
        for factor in (np.exp(_STEP_LOGS).tolist() if mine else ())
    ]
    for place, (number, measured_ms) in enumerate(open_loops.items()):
        of_run = [each[place] for each in tried]
        nearest = min(of_run, key=lambda point: abs(math.log(point.tpot_ms / measured_ms)))
        factors[number], found[number] = math.exp(_STEP_LOGS[of_run.index(nearest)]), nearest
    return factors, found


def _plausible(number: int, measured_ms: float | None, predicted_ms: float) -> None:
    """Stop at a time per token in another unit; first tokens may be predicted in a long queue.

    Raises:
        InputError: The time is less than a hundredth or more than a hundred times the predicted.
    """
    if measured_ms is None or predicted_ms / _UNITS <= measured_ms <= predicted_ms * _UNITS:
        return
    less = measured_ms < predicted_ms
    raise InputError(
        f"anchor {number}: time per token of {measured_ms:g} ms is "
        f"{'less than a hundredth of' if less else 'more than a hundred times'} the predicted "
        f"{predicted_ms:.3g} ms",
        hint="times are in milliseconds; "
        f"{'multiply those in seconds by' if less else 'divide those in microseconds by'} 1000",
    )


def _tells(run: PlannedRun, times: Mapping[str, float | None]) -> bool:
    whole = run.protocol in _AT_ONCE and (times["e2e_ms"] or times["output_tokens_per_s"])
    return bool(times["ttft_ms"] or times["tpot_ms"] or whole)


def _step_times_ms(
    run: PlannedRun, point: RunPoint, times: Mapping[str, float | None]
) -> tuple[float, float | None]:
    """Predicted and measured time that tells of steps: per token, or of all tokens together."""
    if times["tpot_ms"] is not None or run.protocol not in _AT_ONCE:
        return point.tpot_ms, times["tpot_ms"]
    if run.protocol == "static" and times["e2e_ms"] is not None:
        return point.e2e_ms, times["e2e_ms"]
    rate = times["output_tokens_per_s"]
    return MS_PER_S / point.output_tokens_per_s, None if rate is None else MS_PER_S / rate


def corrected_by_rows(runs: Sequence[PlannedRun], anchors: AnchorsOf) -> list[Calibration | None]:
    """Correction of each run by anchors; `None` where none is of its model and device."""
    found: list[Calibration | None] = [None] * len(runs)
    for group, measured in anchors.items():
        mine = [number for number, run in enumerate(runs) if _group(run) == group]
        corrections = calibrated(measured).at(*_places([runs[number] for number in mine]))
        for number, correction in zip(mine, corrections, strict=True):
            found[number] = correction
    return found


def corrected_by_kept(
    runs: Sequence[PlannedRun], kept: KeptCalibration
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
    corrections = kept.calibration.at(*_places([runs[number] for number in mine]))
    for number, correction in zip(mine, corrections, strict=True):
        found[number] = correction
    return found


def _places(runs: Sequence[PlannedRun]) -> list[RunFeatures]:
    """Features of runs, those of open loops at what they keep in flight."""
    if not any(run.protocol == "open" for run in runs):
        return run_features(runs)
    return run_features(runs, in_flight=requests_in_flight(runs, predict_runs(runs)))


def _group(run: PlannedRun) -> tuple[str, str]:
    return run.shape.name, run.node.device.name


def _measured(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        unit = "milliseconds" if name.endswith("_ms") else "tokens per second"
        raise InputError(f"{name} must be a positive number of {unit}, got '{text}'")
    return value
