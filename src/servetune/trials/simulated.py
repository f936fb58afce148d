"""Trials in virtual time: no server, no clock, the same results every time."""

from __future__ import annotations

import msgspec

from servetune.errors import InputError, PlanError
from servetune.hardware.device import Node
from servetune.metrics import Constraint
from servetune.models.shape import NetworkShape
from servetune.perf import Calibration
from servetune.perf.sim import SimulatedRun, describe_scheduler, simulate
from servetune.plan.plan import Plan
from servetune.store import Failure, Results, TrialRecord
from servetune.trials.record import Outcome, percentiles_of, record_of, simulation_results
from servetune.trials.trial import StudyContext, Trial
from servetune.workload import Workload

#: More requests than memory holds, or anyone would wait for.
MOST_REQUESTS = 1_000_000

#: Above this number a request keeps its first and last token's times alone, so that a million
#: requests fit in memory. Gaps between tokens are each request's mean gap then.
MOST_WITH_EACH_TOKEN = 200_000


def simulated_results(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    request_limits: tuple[Constraint, ...] = (),
    percentiles: tuple[float, ...] = (),
    calibration: Calibration | None = None,
) -> Results:
    """Results that the simulator predicts for a plan under a workload.

    Raises:
        PlanError: The plan does not fit the model or the machine.
    """
    simulation = simulate(plan, shape, node, workload, calibration=calibration)
    return simulation_results(simulation, request_limits=request_limits, percentiles=percentiles)


def simulation_of(trial: Trial, study: StudyContext) -> tuple[Results, SimulatedRun]:
    """Results of a trial, and the simulation with the records of its requests.

    A workload with a duration and no number of requests gets as many as the duration needs.

    Raises:
        PlanError: The plan cannot run, or a request can never be served by it.
        InputError: No request is due, or far too many.
    """
    assert study.shape is not None
    assert study.node is not None
    calibration = study.calibration.calibration if study.calibration else None
    workload = trial.workload
    # What a closed loop was given for its duration may be too little; a number that the user
    # chose, a trace and a data set are all that there is.
    counted = {"num_prompts", "requests", "workload"} & trial.client_args.keys()
    open_ended = workload.duration_s is not None and workload.closed_loop and not counted
    if open_ended and workload.concurrency is None:
        raise InputError(
            "a duration needs arrivals over time, and these requests are all sent at once",
            hint="give the number of users or of requests, or the rate at which they come",
        )
    _require_bearable(workload.request_count)
    while True:
        simulation = simulate(
            trial.plan,
            study.shape,
            study.node,
            workload,
            calibration=calibration,
            each_token=workload.request_count <= MOST_WITH_EACH_TOKEN,
        )
        if not (open_ended and _ran_out(simulation, workload)):
            break
        workload = _with_requests(workload, 2 * workload.request_count)
    results = simulation_results(
        simulation,
        request_limits=study.request_limits,
        percentiles=percentiles_of(study.constraints),
    )
    server = {**(results.server or {}), "scheduler": describe_scheduler(trial.plan)}
    results = results.with_fields(server=server)
    return results, simulation


def _with_requests(workload: Workload, count: int) -> Workload:
    _require_bearable(count)
    return msgspec.structs.replace(workload, request_count=count)


def _require_bearable(count: int) -> None:
    if count > MOST_REQUESTS:
        raise InputError(
            f"a run of {count:,} requests does not fit in memory",
            hint=f"at most {MOST_REQUESTS:,}: a lower rate, a shorter duration, fewer requests",
        )


def _ran_out(simulation: SimulatedRun, workload: Workload) -> bool:
    """Whether every request was answered before the time was over."""
    return len(simulation.records) == workload.request_count and all(
        record.outcome == "ok" for record in simulation.records
    )


def simulate_trial(
    trial: Trial, study: StudyContext, *, cmd: str, server_cmd_args: list[str]
) -> TrialRecord:
    """Record of a trial run in virtual time; a plan that cannot run becomes a failed record."""
    results = Results()
    failure: Failure | None = None
    try:
        results, _ = simulation_of(trial, study)
    except PlanError as error:
        failure = Failure(kind="does_not_fit", reason=error.message)
    outcome = Outcome(cmd=cmd, server_cmd_args=server_cmd_args, results=results, failure=failure)
    return record_of(trial, study, outcome)
