"""Guided search over the trials of a study, all predicted, with what their errors share.

Trials are predicted by formula, the leading ones and a spread of the rest in virtual time, too, as
limits on percentiles need every request. A trial that was not simulated has the results of the most
similar one that was, scaled by the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError, PlanError, UnknownName
from servetune.models.counting import weight_bytes
from servetune.models.shape import NetworkShape
from servetune.perf import run_features
from servetune.perf.roofline import PlannedRun, RunPoint, predict_runs
from servetune.prediction.forecasts import NOISE, Quantity, forecast_of
from servetune.search.beliefs import Forecast
from servetune.search.objectives import Objective, objective_of
from servetune.search.outcome import outcome_of
from servetune.search.strategies import Point
from servetune.search.strategies.guided import Guided
from servetune.search.strategies.guided_set import GuidedSet
from servetune.store import Results
from servetune.trials.outcomes import objectives_of
from servetune.trials.record import trial_results
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import StudyContext, Trial
from servetune.units import MS_PER_S
from servetune.workload import Workload

Array = NDArray[np.float64]

#: Trials that are simulated, and the share of them that lead by formula.
_SIMULATED, _LEADING = 192, 0.67
#: Start of a server without its weights, and bytes of weights that it reads per second, until
#: starts were measured. Judgements: engines import, compile and capture graphs for a minute or two.
_START_S, _READ_BYTES_PER_S = 60.0, 1e9
#: Standard deviation of the logarithm of a percentile over its mean, beyond its prediction.
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
    results: Sequence[Results] = (),
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
        results: Results that each trial is predicted to have; predicted here if omitted.

    Raises:
        InputError: Nothing can be predicted: model or machine are not known.
    """
    require_predictable(study)
    runs = _runs(trials, study)
    results = results or _predicted(trials, runs, study)
    load_s = [each.duration_s or 60.0 for each in results]
    kind = Guided if len(objectives) == 1 else GuidedSet
    return kind(
        points,
        _forecast(trials, runs, results, study, objectives),
        start_s=np.array([_start_s(_shape(trial, study)) for trial in trials]),
        load_s=np.array(load_s),
        checkpoints=[study.model_of(trial.plan) for trial in trials],
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
    results = _predicted(trials, _runs(trials, study), study)
    for goal in _goals(study):
        search = guided_search(
            points,
            trials,
            goal,
            searched_objectives(goal),
            seed=seed,
            margin=margin,
            confidence=confidence,
            results=results,
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


def _runs(trials: Sequence[Trial], study: StudyContext) -> list[PlannedRun]:
    """Each trial as a run of the formulas."""
    assert study.node is not None
    rates: dict[int, float] = {}
    runs = []
    for trial in trials:
        workload = trial.workload
        if not workload.closed_loop and id(workload) not in rates:
            rates[id(workload)] = _rate_per_s(workload)
        runs.append(
            PlannedRun(
                shape=_shape(trial, study),
                node=study.node,
                plan=msgspec.structs.replace(trial.plan, prefill_replicas=None),
                lengths=workload.lengths,
                concurrency=workload.concurrency or workload.request_count,
                request_count=workload.request_count,
                protocol="closed" if workload.closed_loop else "open",
                rate_per_s=rates.get(id(workload), 0.0),
                capped=not workload.closed_loop and workload.concurrency is not None,
                warmed=workload.warmup_count > 0,
            )
        )
    return runs


def _rate_per_s(workload: Workload) -> float:
    requests = workload.requests()
    lasted_s = requests[-1].due_s - requests[0].due_s
    return (len(requests) - 1) / lasted_s if lasted_s > 0 else float(len(requests))


def _predicted(
    trials: Sequence[Trial], runs: Sequence[PlannedRun], study: StudyContext
) -> list[Results]:
    """Results that each trial is predicted to have; empty where its plan cannot run."""
    points = _by_formula(runs)
    simulated: dict[int, Results] = {}
    for index in _to_simulate(points):
        found = _simulated(trials[index], study)
        if found:
            simulated[index] = found
    if not simulated:
        return [Results() for _ in trials]
    numbers = list(simulated)
    kinds = [_kind(trial) for trial in trials]
    users = np.log2([max(1, run.concurrency) for run in runs])
    rates = np.log2([max(1e-9, run.rate_per_s) for run in runs])
    results = []
    for index, point in enumerate(points):
        if index in simulated:
            results.append(simulated[index])
        elif point is None:
            results.append(Results())
        else:
            apart = np.abs(users[numbers] - users[index]) + np.abs(rates[numbers] - rates[index])
            apart += [_difference(kinds[index], kinds[other]) for other in numbers]
            like = numbers[int(np.argmin(apart))]
            base = points[like]
            scaled = _scaled(simulated[like], base, point) if base else simulated[like]
            results.append(trial_results(trials[index], study, scaled))
    return results


def _by_formula(runs: Sequence[PlannedRun]) -> list[RunPoint | None]:
    """Formula's point of each run; `None` where its plan cannot run, or where there is none."""
    try:
        predicted = predict_runs(runs)
    except (PlanError, UnknownName):
        return [None] * len(runs)
    return [None if each.misfit else each.point for each in predicted]


def _to_simulate(points: Sequence[RunPoint | None]) -> list[int]:
    """Trials to simulate: those of most tokens per second by formula, and a spread of the rest."""
    able = [index for index, point in enumerate(points) if point is not None]
    if len(able) <= _SIMULATED:
        return able or list(range(len(points)))
    ranked = sorted(able, key=lambda index: -_rate(points[index]))
    leading = ranked[: int(_LEADING * _SIMULATED)]
    rest = ranked[len(leading) :]
    spread = np.linspace(0, len(rest) - 1, _SIMULATED - len(leading)).astype(int)
    return sorted({*leading, *(rest[place] for place in spread)})


def _rate(point: RunPoint | None) -> float:
    return point.output_tokens_per_s if point else 0.0


def _simulated(trial: Trial, study: StudyContext) -> Results:
    assert study.node is not None
    try:
        results = simulated_results(
            trial.plan,
            _shape(trial, study),
            study.node,
            trial.workload,
            request_limits=study.request_limits,
            percentiles=study.percentiles,
            calibration=study.calibration.calibration if study.calibration else None,
            request_timeout_s=study.request_timeout_s,
        )
    except (PlanError, UnknownName):
        return Results()
    return trial_results(trial, study, results)


def _kind(trial: Trial) -> tuple[object, ...]:
    plan = trial.plan
    return (
        (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel, plan.replicas),
        (plan.model, plan.quantization, plan.kv_cache_dtype),
        (plan.max_num_seqs, plan.max_num_batched_tokens),
    )


def _difference(one: tuple[object, ...], other: tuple[object, ...]) -> float:
    """Distance of two plans, in doublings of users: other layouts differ most."""
    return sum(
        far for far, mine, its in zip((8.0, 4.0, 1.0), one, other, strict=True) if mine != its
    )


def _scaled(results: Results, base: RunPoint, point: RunPoint) -> Results:
    """Results with every time and rate in proportion to the formula's."""
    times = {
        "_ttft_ms": point.ttft_ms / base.ttft_ms,
        "_tpot_ms": point.tpot_ms / base.tpot_ms if base.tpot_ms else 1.0,
        "_itl_ms": point.tpot_ms / base.tpot_ms if base.tpot_ms else 1.0,
        "_e2e_latency_ms": point.e2e_ms / base.e2e_ms,
        "throughput": point.output_tokens_per_s / base.output_tokens_per_s,
        "goodput": point.output_tokens_per_s / base.output_tokens_per_s,
    }
    changed = {
        name: value * by
        for name, value in results.items()
        for ending, by in times.items()
        if name.endswith(ending) and isinstance(value, int | float)
    }
    duration_s = results.duration_s
    if duration_s:
        changed["duration"] = duration_s * point.e2e_ms / base.e2e_ms
    return results.with_fields(**changed)


def _shape(trial: Trial, study: StudyContext) -> NetworkShape:
    shape = study.shape_of(trial.plan)
    assert shape is not None
    return shape


def _start_s(shape: NetworkShape) -> float:
    """Seconds that the start of a server is assumed to take."""
    return _START_S + weight_bytes(shape) / _READ_BYTES_PER_S


def _forecast(
    trials: Sequence[Trial],
    runs: Sequence[PlannedRun],
    results: Sequence[Results],
    study: StudyContext,
    objectives: Sequence[Objective],
) -> Forecast:
    limits = study.constraints
    outcomes = [outcome_of(each, limits, objectives, predicted=True) for each in results]
    logs = np.full((len(objectives) + len(limits), len(trials)), np.nan)
    for index, outcome in enumerate(outcomes):
        if outcome.counts:
            logs[:, index] = np.log([*outcome.objectives, *outcome.limit_ratios])
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
            noise_sd=_noise_sd(each.statistic),
        )
        for place, each in enumerate(objectives)
    ]
    for place, limit in enumerate(limits, start=len(objectives)):
        up = 1.0 if limit.op in ("<", "<=") else -1.0
        quantities.append(
            Quantity(
                logs=logs[place],
                weights=up * _weights(limit.metric, first, open_loop),
                noise_sd=_noise_sd(limit.statistic),
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


def _noise_sd(statistic: str) -> float:
    return float(np.hypot(NOISE, _TAIL_SD.get(statistic, 0.0)))
