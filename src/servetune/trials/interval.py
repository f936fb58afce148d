"""Interval of a trial's predicted results, as its record keeps it."""

from __future__ import annotations

from servetune.engines import memory, resolved
from servetune.errors import ServetuneError
from servetune.metrics import value_of
from servetune.perf import Calibration
from servetune.perf.roofline import Interval, interval_of
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.roofline.local_corrections import LocalCorrections
from servetune.perf.roofline.steady_state import workload_moments
from servetune.plan import Plan
from servetune.store import PredictionInterval, Results
from servetune.trials.trial import StudyContext, Trial
from servetune.units import MS_PER_S


def interval_of_trial(trial: Trial, study: StudyContext, predicted: Results) -> Interval:
    """Interval of what is predicted for a trial, by what its plan and machine have in common with
    measured runs.

    Raises:
        ServetuneError: The engine's defaults on the machine are not known.
    """
    shape = study.shape_of(trial.plan)
    assert shape is not None
    assert study.node is not None
    plan = resolved(trial.plan, shape, study.node.device)
    return interval_of(
        study.node,
        plan,
        shape,
        _calibration_at(trial, plan, study, predicted),
        Ran.of(trial.workload.lengths, "closed" if trial.workload.closed_loop else "open"),
        output_tokens_per_s=predicted.output_throughput or 0.0,
    )


def _calibration_at(
    trial: Trial, plan: Plan, study: StudyContext, predicted: Results
) -> Calibration | None:
    """The study's calibration where the trial is: at the number of requests in flight."""
    if study.calibration is None:
        return None
    shape, node = study.shape_of(plan), study.node
    assert shape is not None
    assert node is not None
    moments = workload_moments(trial.workload, plan, memory(plan, shape, node.device))
    users = float(trial.workload.concurrency or 1)
    rate, e2e_ms = (value_of(predicted, name) for name in ("request_throughput", "e2e_latency"))
    if not trial.workload.closed_loop and rate and e2e_ms:
        users = rate * e2e_ms / MS_PER_S
    corrections = LocalCorrections(study.calibration.calibration, plan, shape, moments, node)
    return corrections.at(max(1, round(users)))


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
