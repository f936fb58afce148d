"""Guided search over the trials of a study, all predicted, with what their errors share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError
from servetune.models.counting import weight_bytes
from servetune.models.shape import NetworkShape
from servetune.perf import run_features
from servetune.perf.roofline import PlannedRun
from servetune.prediction.forecasts import Quantity, forecast_of
from servetune.search.beliefs import Forecast
from servetune.search.objectives import Objective, objective_of
from servetune.search.outcome import outcome_of
from servetune.search.strategies import Point
from servetune.search.strategies.guided import Guided
from servetune.search.strategies.guided_set import GuidedSet
from servetune.store import Results
from servetune.trials.outcomes import objectives_of
from servetune.trials.predictions import PredictedTrials, shape_of
from servetune.trials.trial import StudyContext, Trial
from servetune.units import MS_PER_S

Array = NDArray[np.float64]

#: Start of a server without its weights, and bytes of weights that it reads per second, until
#: starts were measured. Judgements: engines import, compile and capture graphs for a minute or two.
_START_S, _READ_BYTES_PER_S = 60.0, 1e9
#: Standard deviation of the logarithm of a percentile over its mean, beyond its prediction: an
#: error that like trials share (`prediction.forecasts`).
_TAIL_SD = {"p90": 0.06, "p95": 0.08, "p99": 0.12, "p99.9": 0.2}
_RATES = ("throughput", "goodput")


def require_predictable(study: StudyContext) -> None:
    """Refuse a study whose trials cannot be predicted.

    Raises:
        InputError: Model or machine are not known, or the objective has no prediction.
    """
    if study.shape is None or study.node is None:
        raise InputError(
            "nothing can be predicted without the model's configuration and the machine",
            hint="choose --strategy grid or random, which need no prediction",
        )
    if any(each.metric == "energy_per_token_j" for each in searched_objectives(study)):
        raise InputError(
            "energy is not predicted, and a guided search goes by predictions of the objective",
            hint="choose --strategy grid, random, tpe or nsga2",
        )


def searched_objectives(study: StudyContext) -> tuple[Objective, ...]:
    """Objectives of a guided search: the study's where it has several, else the first."""
    return objectives_of(study)[: max(1, len(study.objectives))]


def guided_search(
    points: Sequence[Point],
    trials: Sequence[Trial],
    study: StudyContext,
    objectives: Sequence[Objective],
    *,
    seed: int = 0,
    margin: float,
    confidence: float,
    predicted: PredictedTrials | None = None,
) -> Guided:
    """Search of a study's trials by predictions that each measurement corrects.

    Args:
        points: Point of each trial.
        trials: Trials to choose from.
        study: Settings that all trials have in common.
        objectives: What is maximised or minimised; several for the set of trials that are best.
        seed: Seed of its draws.
        margin: Share of its worth by which a trial is better than another.
        confidence: Probability of a pick within the margin at which the search ends.
        predicted: The trials with what each is predicted to do; predicted here if omitted.

    Raises:
        InputError: Nothing can be predicted: model or machine are not known.
    """
    require_predictable(study)
    predicted = predicted or PredictedTrials(trials, study)

    def closer(index: int) -> Array:
        return _logs(predicted.closer(index), study, objectives)

    kind = Guided if len(objectives) == 1 else GuidedSet
    return kind(
        points,
        _forecast(predicted, study, objectives),
        start_s=np.array([_start_s(shape_of(trial, study)) for trial in trials]),
        load_s=np.array([each.duration_s or 60.0 for each in predicted.results]),
        checkpoints=[study.model_of(trial.plan) for trial in trials],
        closer=closer,
        seed=seed,
        margin=margin,
        confidence=confidence,
    )


def attainable_search(
    points: Sequence[Point],
    trials: Sequence[Trial],
    study: StudyContext,
    *,
    seed: int = 0,
    margin: float,
    confidence: float,
) -> tuple[Guided, StudyContext]:
    """Guided search of a study, and the study with the constraints that the search goes by.

    Of a ladder those are the first rungs that some trial is likely to hold; the objective is then
    to come nearest to the next one.

    Raises:
        InputError: Nothing can be predicted: model or machine are not known.
    """
    require_predictable(study)
    predicted = PredictedTrials(trials, study)
    for goal in _goals(study):
        search = guided_search(
            points,
            trials,
            goal,
            searched_objectives(goal),
            seed=seed,
            margin=margin,
            confidence=confidence,
            predicted=predicted,
        )
        if search.ask() is not None:
            break
    return search, goal


def _goals(study: StudyContext) -> Iterator[StudyContext]:
    """The study; of a ladder also with ever fewer rungs, the next of which is the objective."""
    yield study
    if not study.ladder:
        return
    for count in reversed(range(len(study.constraints))):
        rung = study.constraints[count]
        nearest = msgspec.structs.replace(
            objective_of(rung.metric, rung.statistic), maximize=rung.op in (">", ">=")
        )
        yield msgspec.structs.replace(
            study, constraints=study.constraints[:count], objectives=(nearest,)
        )


def _start_s(shape: NetworkShape) -> float:
    """Seconds that the start of a server is assumed to take."""
    return _START_S + weight_bytes(shape) / _READ_BYTES_PER_S


def _logs(results: Results, study: StudyContext, objectives: Sequence[Objective]) -> Array:
    """Logarithms of objectives and limits' ratios, shape (Q,); NaN where there are no results."""
    outcome = outcome_of(results, study.constraints, objectives, predicted=True)
    if not outcome.counts:
        return np.full(len(objectives) + len(study.constraints), np.nan)
    return np.log([*outcome.objectives, *outcome.limit_ratios])


def _forecast(
    predicted: PredictedTrials, study: StudyContext, objectives: Sequence[Objective]
) -> Forecast:
    limits, runs, results = study.constraints, predicted.runs, predicted.results
    logs = np.stack([_logs(each, study, objectives) for each in results], axis=1)
    first = np.array([_first_share(each) for each in results])
    in_flight = [_in_flight(run, each) for run, each in zip(runs, results, strict=True)]
    features = run_features(
        [
            msgspec.structs.replace(run, protocol="closed", concurrency=max(1, round(users)))
            for run, users in zip(runs, in_flight, strict=True)
        ],
        in_flight=in_flight,
    )
    open_loop = np.array([run.protocol == "open" for run in runs])
    quantities = [
        Quantity(
            logs=logs[place],
            weights=(1.0 if each.maximize else -1.0) * _weights(each.metric, first, open_loop),
            tail_sd=_TAIL_SD.get(each.statistic, 0.0),
        )
        for place, each in enumerate(objectives)
    ]
    for place, limit in enumerate(limits, start=len(objectives)):
        up = 1.0 if limit.op in ("<", "<=") else -1.0
        quantities.append(
            Quantity(
                logs=logs[place],
                weights=up * _weights(limit.metric, first, open_loop),
                tail_sd=_TAIL_SD.get(limit.statistic, 0.0),
            )
        )
    return forecast_of(features, quantities, objective_count=len(objectives))


def _first_share(results: Results) -> float:
    """Share of the end-to-end latency that is spent waiting for the first token."""
    first_ms, whole_ms = results.mean_ttft_ms, results.mean_e2e_latency_ms
    return min(1.0, first_ms / whole_ms) if first_ms and whole_ms else 0.0


def _in_flight(run: PlannedRun, results: Results) -> float:
    if run.protocol == "closed" or not results.mean_e2e_latency_ms:
        return float(run.concurrency)
    rate = results.request_throughput or run.rate_per_s
    return min(float(run.concurrency), max(1.0, rate * results.mean_e2e_latency_ms / MS_PER_S))


def _weights(metric: str, first: Array, open_loop: NDArray[np.bool_]) -> Array:
    """Slope of a metric's logarithm by those of time per token and first token, shape (N, 2)."""
    if metric == "ttft":
        return np.tile([0.0, 1.0], (len(first), 1))
    if metric in ("tpot", "itl"):
        return np.tile([1.0, 0.0], (len(first), 1))
    whole = np.stack([1 - first, first], axis=1)
    if metric == "e2e_latency":
        return whole
    # What arrives at a rate is answered at that rate, whatever each request takes.
    rated = np.where(open_loop, 0.0, 1.0)[:, None] * whole
    if any(word in metric for word in _RATES):
        return -rated
    return rated if metric.startswith(("cost_per_million", "energy")) else 0 * whole
