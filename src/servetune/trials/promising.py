"""Choice of the next trial when only a few shall run: the most promising one.

Every trial is predicted in virtual time. `search.Forecasts` then picks the one whose probability to
hold the constraints, times its expected gain, is largest, and learns from what was measured of it.
`benchmarks/prediction/choosing.py` shows how good two or three such trials are.
"""

from __future__ import annotations

from collections.abc import Sequence

from servetune.errors import InputError, PlanError, UnknownName
from servetune.metrics import Constraint, value_of
from servetune.search import OBJECTIVES, Forecast, Forecasts
from servetune.store import Results, TrialRecord
from servetune.trials.record import percentiles_of
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import StudyContext, Trial


class Promising:
    """Trials of a study with their forecasts; a trial that cannot run has none.

    The objective is `recommend`'s throughput. A trial is limited by the constraint that it comes
    nearest to, or misses most, in proportion; constraints without a proportion (`==`) are left to
    the measurement.

    Args:
        trials: Trials to choose from.
        study: Settings that all trials have in common.

    Raises:
        InputError: Nothing can be predicted: model or machine are not known.
    """

    def __init__(self, trials: Sequence[Trial], study: StudyContext) -> None:
        self._constraints = study.constraints
        self._forecasts: dict[str, Forecast] = {}
        self._trials = {trial.key: trial for trial in trials}
        for trial in trials:
            predicted = _predicted(trial, study)
            objective = _objective(predicted)
            if objective is None:
                continue
            plan = trial.plan
            self._forecasts[trial.key] = Forecast(
                objective=objective,
                limit_ratio=_limit_ratio(self._constraints, predicted),
                storage=(plan.engine, plan.quantization, plan.kv_cache_dtype),
                layout=(plan.tensor_parallel, plan.data_parallel, plan.expert_parallel),
                concurrency=trial.workload.concurrency or 1,
            )

    def next(self, records: Sequence[TrialRecord]) -> Trial | None:
        """Trial to run after these; `None` when no other one is promising.

        Trials that failed are not chosen again.
        """
        results = {record.key: record.results for record in records if record.status == "ok"}
        failed = {record.key for record in records} - results.keys()
        keys = [key for key in self._forecasts if key not in failed]
        forecasts = Forecasts([self._forecasts[key] for key in keys])
        for place, key in enumerate(keys):
            objective = _objective(results.get(key, Results()))
            if objective is not None:
                forecasts.tell(
                    place,
                    objective=objective,
                    limit_ratio=_limit_ratio(self._constraints, results[key]),
                )
        chosen = forecasts.ask()
        return None if chosen is None else self._trials[keys[chosen]]


def _predicted(trial: Trial, study: StudyContext) -> Results:
    """Results that the simulator predicts; empty where the plan cannot run."""
    if study.shape is None or study.node is None:
        raise InputError(
            "nothing can be predicted without the model's configuration and the machine",
            hint="leave --measure out: then every trial runs",
        )
    try:
        return simulated_results(
            trial.plan,
            study.shape,
            study.node,
            trial.workload,
            request_limits=study.request_limits,
            percentiles=percentiles_of(study.constraints),
            calibration=study.calibration.calibration if study.calibration else None,
            request_timeout_s=study.request_timeout_s,
        )
    except (PlanError, UnknownName):
        return Results()


def _objective(results: Results) -> float | None:
    """Objective, larger is better; `None` where the results do not have it."""
    value = OBJECTIVES["throughput"].value(results)
    return value if value is not None and value > 0 else None


def _limit_ratio(constraints: Sequence[Constraint], results: Results) -> float:
    """Share of the tightest constraint that is used up; above 1 it is missed.

    A constraint whose metric the results lack, or that has no proportion, is left out.
    """
    used = [_LEAST]
    for constraint in constraints:
        value = value_of(results, constraint.metric, constraint.statistic)
        if value is None or not (value > 0 and constraint.value > 0):
            continue
        if constraint.op in ("<", "<="):
            used.append(value / constraint.value)
        elif constraint.op in (">", ">="):
            used.append(constraint.value / value)
    return max(used)


#: Share without any constraint: every trial holds.
_LEAST = 1e-6
