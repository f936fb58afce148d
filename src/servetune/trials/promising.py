"""Strategy `guided`: the next trial is the one that promises most.

Every trial is predicted in virtual time. `search.Forecasts` then picks the one whose probability to
hold the constraints, times its expected gain, is largest, and learns from what was measured of it.
`benchmarks/prediction/choosing.py` shows how good two or three such trials are.
"""

from __future__ import annotations

from collections.abc import Sequence

from servetune.errors import InputError, PlanError, UnknownName
from servetune.metrics import value_of
from servetune.search import Forecast, Forecasts
from servetune.search.strategies import ALL_MEASURED, Outcome, Stop
from servetune.store import Results
from servetune.trials.outcomes import outcome_of_results
from servetune.trials.record import percentiles_of
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import StudyContext, Trial

#: Share of a constraint that is used up where there is none: every trial holds.
_LEAST = 1e-6


def require_predictable(study: StudyContext) -> None:
    """Refuse a study whose trials cannot be predicted.

    Raises:
        InputError: Model or machine are not known.
    """
    if study.shape is None or study.node is None:
        raise InputError(
            "nothing can be predicted without the model's configuration and the machine",
            hint="choose --strategy grid or random, which need no prediction",
        )


class Promising:
    """Trials of a study with their forecasts; a trial that cannot run has none.

    The objective is `recommend`'s throughput. A trial is limited by the constraint that it comes
    nearest to, or misses most, in proportion.

    Args:
        trials: Trials to choose from.
        study: Settings that all trials have in common.

    Raises:
        InputError: Nothing can be predicted: model or machine are not known.
    """

    def __init__(self, trials: Sequence[Trial], study: StudyContext) -> None:
        require_predictable(study)
        self._forecasts: dict[int, Forecast] = {}
        self._told: dict[int, Outcome] = {}
        self._trial_count = len(trials)
        for index, trial in enumerate(trials):
            predicted = _predicted(trial, study)
            if not predicted.counts or predicted.objectives[0] <= 0:
                continue
            plan = trial.plan
            self._forecasts[index] = Forecast(
                objective=predicted.objectives[0],
                limit_ratio=_largest(predicted),
                storage=(plan.engine, plan.quantization, plan.kv_cache_dtype),
                layout=(plan.tensor_parallel, plan.data_parallel, plan.expert_parallel),
                concurrency=trial.workload.concurrency or 1,
            )

    @property
    def stop(self) -> Stop | None:
        if len(self._told) == self._trial_count:
            return ALL_MEASURED
        if self.ask() is not None:
            return None
        return Stop("settled", "no other trial is likely to do better")

    def ask(self) -> int | None:
        failed = {index for index, outcome in self._told.items() if not outcome.counts}
        indexes = [index for index in self._forecasts if index not in failed]
        forecasts = Forecasts([self._forecasts[index] for index in indexes])
        places = {index: place for place, index in enumerate(indexes)}
        for index, outcome in self._told.items():
            if index in places:
                forecasts.tell(
                    places[index], objective=outcome.objectives[0], limit_ratio=_largest(outcome)
                )
        chosen = forecasts.ask()
        return None if chosen is None else indexes[chosen]

    def tell(self, index: int, outcome: Outcome) -> None:
        self._told[index] = outcome


def _predicted(trial: Trial, study: StudyContext) -> Outcome:
    """Outcome that the simulator predicts; failed where the plan cannot run."""
    assert study.shape is not None
    assert study.node is not None
    try:
        results = simulated_results(
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
        results = Results()
    known = [
        limit
        for limit in study.constraints
        if value_of(results, limit.metric, limit.statistic) is not None
    ]
    return outcome_of_results(results, known)


def _largest(outcome: Outcome) -> float:
    return max((_LEAST, *outcome.limit_ratios))
