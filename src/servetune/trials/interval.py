"""Interval of a trial's predicted results, as its record keeps it."""

from __future__ import annotations

from servetune.engines import resolved
from servetune.errors import ServetuneError
from servetune.perf.roofline import Interval, interval_of
from servetune.perf.roofline.accuracy import Ran
from servetune.store import PredictionInterval, Results
from servetune.trials.trial import StudyContext, Trial


def interval_of_trial(trial: Trial, study: StudyContext, predicted: Results) -> Interval:
    """Interval of what is predicted for a trial, by what its plan and machine have in common with
    measured runs.

    Raises:
        ServetuneError: The engine's defaults on the machine are not known.
    """
    shape = study.shape_of(trial.plan)
    assert shape is not None
    assert study.node is not None
    return interval_of(
        study.node,
        resolved(trial.plan, shape, study.node.device),
        shape,
        study.calibration.calibration if study.calibration else None,
        Ran(protocol="closed" if trial.workload.closed_loop else "open"),
        output_tokens_per_s=predicted.output_throughput or 0.0,
    )


def recorded_interval(
    trial: Trial, study: StudyContext, predicted: Results
) -> PredictionInterval | None:
    """Interval as a record keeps it; `None` where nothing is predicted."""
    if not predicted or study.shape_of(trial.plan) is None or study.node is None:
        return None
    try:
        found = interval_of_trial(trial, study, predicted)
    except ServetuneError:
        return None
    return PredictionInterval(
        low_factor=found.low_factor,
        high_factor=found.high_factor,
        ttft_low_factor=found.ttft_low_factor,
        ttft_high_factor=found.ttft_high_factor,
        extrapolation=found.extrapolation,
        basis=found.basis,
        accuracy=found.accuracy.sentence,
    )
