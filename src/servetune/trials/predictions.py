"""Results that trials are predicted to have: by formula, the leading ones in virtual time, too.

Limits on percentiles need every request, which only the simulator has. A trial that was not
simulated has the results of the most similar one that was, scaled by the formula; before it is
measured it is simulated itself (`PredictedTrials.closer`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.errors import PlanError, UnknownName
from servetune.models.shape import NetworkShape
from servetune.perf.roofline import PlannedRun, RunPoint, predict_runs
from servetune.store import Results
from servetune.trials.record import trial_results
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import StudyContext, Trial
from servetune.workload import Constant, Gamma, Workload

#: Trials that are simulated beforehand, and the share of them that lead by formula.
_SIMULATED, _LEADING = 128, 0.5
#: Distance of two trials per doubling of users or rate, beside those of `_difference`: percentiles
#: over means depend on the load more than on all else.
_PER_DOUBLING = 16.0


class PredictedTrials:
    """Trials with the results that each is predicted to have.

    Args:
        trials: Trials of a study.
        study: Settings that all trials have in common.
        simulated: Results of each trial in virtual time, where they are known already.

    Attributes:
        runs: Each trial as a run of the formulas.
        results: Results of each; empty where its plan cannot run.
    """

    def __init__(
        self, trials: Sequence[Trial], study: StudyContext, simulated: Sequence[Results] = ()
    ) -> None:
        self.runs = _runs(trials, study)
        self._trials, self._study = trials, study
        self._simulated = dict(enumerate(simulated))
        if simulated:
            self.results = list(simulated)
            return
        points = _by_formula(self.runs)
        kinds = [_kind(trial) for trial in trials]
        groups = [
            (kind[0], run.concurrency, run.rate_per_s)
            for kind, run in zip(kinds, self.runs, strict=True)
        ]
        for index in _to_simulate(points, groups):
            self._simulate(index)
        self.results = self._scaled(points, kinds)

    def closer(self, index: int) -> Results:
        """Results of a trial in virtual time, which take a fraction of a second; empty if none."""
        if index not in self._simulated:
            self._simulate(index)
        return self._simulated.get(index, Results())

    def _simulate(self, index: int) -> None:
        found = _simulated(self._trials[index], self._study)
        if found:
            self._simulated[index] = found

    def _scaled(
        self, points: Sequence[RunPoint | None], kinds: Sequence[tuple[object, ...]]
    ) -> list[Results]:
        """Results of all, those that were not simulated after the most similar one that was."""
        if not self._simulated:
            return [Results() for _ in self._trials]
        numbers = list(self._simulated)
        users = np.log2([max(1, run.concurrency) for run in self.runs])
        rates = np.log2([max(1e-9, run.rate_per_s) for run in self.runs])
        results = []
        for index, point in enumerate(points):
            if index in self._simulated:
                results.append(self._simulated[index])
            elif point is None:
                results.append(Results())
            else:
                load = np.abs(users[numbers] - users[index]) + np.abs(rates[numbers] - rates[index])
                plan = [_difference(kinds[index], kinds[other]) for other in numbers]
                like = numbers[int(np.argmin(_PER_DOUBLING * load + plan))]
                base, found = points[like], self._simulated[like]
                found = _scaled(found, base, point) if base else found
                results.append(trial_results(self._trials[index], self._study, found))
        return results


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
                shape=shape_of(trial, study),
                node=study.node,
                plan=msgspec.structs.replace(trial.plan, prefill_replicas=None),
                lengths=workload.lengths,
                concurrency=workload.concurrency or workload.request_count,
                request_count=workload.request_count,
                protocol="closed" if workload.closed_loop else "open",
                rate_per_s=rates.get(id(workload), 0.0),
                dispersion=_dispersion(workload),
                capped=not workload.closed_loop and workload.concurrency is not None,
                warmed=workload.warmup_count > 0,
            )
        )
    return runs


def _rate_per_s(workload: Workload) -> float:
    requests = workload.requests()
    lasted_s = requests[-1].due_s - requests[0].due_s
    return (len(requests) - 1) / lasted_s if lasted_s > 0 else float(len(requests))


def _dispersion(workload: Workload) -> float:
    """Dispersion of independent gaps; others are taken as if requests came by chance."""
    arrivals = workload.arrivals
    return arrivals.dispersion if isinstance(arrivals, Constant | Gamma) else 1.0


def _by_formula(runs: Sequence[PlannedRun]) -> list[RunPoint | None]:
    """Formula's point of each run; `None` where its plan cannot run, or where there is none."""
    try:
        predicted = predict_runs(runs)
    except (PlanError, UnknownName):
        return [None] * len(runs)
    return [None if each.misfit else each.point for each in predicted]


def _to_simulate(
    points: Sequence[RunPoint | None], groups: Sequence[tuple[object, ...]]
) -> list[int]:
    """Trials to simulate: those of most tokens per second by formula, and of each group some.

    Groups are of one layout under one load, whose percentiles are alike; of each the leading one
    and an even spread of the others are taken, in turn until all simulations are given out.
    """
    able = [index for index, point in enumerate(points) if point is not None]
    if len(able) <= _SIMULATED:
        return able or list(range(len(points)))
    ranked = sorted(able, key=lambda index: -_rate(points[index]))
    chosen = dict.fromkeys(ranked[: int(_LEADING * _SIMULATED)])
    members: dict[tuple[object, ...], list[int]] = {}
    for index in ranked:
        members.setdefault(groups[index], []).append(index)
    each = -(-(_SIMULATED - len(chosen)) // len(members))
    for turn in range(each):
        for group in members.values():
            place = round(turn * (len(group) - 1) / max(1, each - 1))
            if len(chosen) < _SIMULATED:
                chosen.setdefault(group[place])
    return sorted(chosen)


def _rate(point: RunPoint | None) -> float:
    return point.output_tokens_per_s if point else 0.0


def _simulated(trial: Trial, study: StudyContext) -> Results:
    assert study.node is not None
    try:
        results = simulated_results(
            trial.plan,
            shape_of(trial, study),
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
    copies = plan.data_parallel * plan.replicas  # of one server or of several: much the same
    return (
        (plan.tensor_parallel, plan.pipeline_parallel, copies),
        (plan.model, plan.quantization, plan.kv_cache_dtype, plan.draft_method, plan.draft_tokens),
        (plan.max_num_seqs, plan.max_num_batched_tokens),
    )


def _difference(one: tuple[object, ...], other: tuple[object, ...]) -> float:
    """Distance of two plans: other layouts differ most."""
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


def shape_of(trial: Trial, study: StudyContext) -> NetworkShape:
    """Dimensions of the model that a trial serves."""
    shape = study.shape_of(trial.plan)
    assert shape is not None
    return shape
