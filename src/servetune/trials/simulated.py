"""Trials in virtual time: no server, no clock, the same results every time.

Measured trials can be simulated again, with every request's record.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec

from servetune.engines import DEFAULT_ENGINE, engine, plan_from_settings
from servetune.engines.words import without_drafts
from servetune.errors import InputError, PlanError
from servetune.hardware.device import Node
from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.metrics.record import Record
from servetune.models.shape import NetworkShape
from servetune.perf import Calibration
from servetune.perf.sim import RunOptions, SimulatedRun, describe_scheduler, simulate
from servetune.plan import Plan
from servetune.store import Failure, Results, TrialRecord, trial_key
from servetune.trials.failures import no_answer, not_accepted
from servetune.trials.interval import recorded_interval
from servetune.trials.launch import DEFAULT_PORT
from servetune.trials.record import Outcome, record_of, saturation_note, simulation_results
from servetune.trials.trial import RELEASE, REPLICAS, StudyContext, Trial
from servetune.trials.trial_requests import OnRequests, simulated_requests
from servetune.workload import CLIENT_ARGS, Workload, workload_from_client_args

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
    request_timeout_s: float | None = None,
) -> Results:
    """Results that the simulator predicts for a plan under a workload.

    Raises:
        PlanError: The plan does not fit the model or the machine.
    """
    simulation = simulate(
        plan,
        shape,
        node,
        workload,
        calibration=calibration,
        options=RunOptions(timeout_s=request_timeout_s),
    )
    return simulation_results(simulation, request_limits=request_limits, percentiles=percentiles)


def simulation_of(
    trial: Trial, study: StudyContext, on_record: Callable[[Record], None] | None = None
) -> tuple[Results, SimulatedRun]:
    """Results of a trial, and the simulation with the records of its requests.

    A workload with a duration and no number of requests gets as many as the duration needs.

    Raises:
        PlanError: The plan cannot run, or a request can never be served by it.
        InputError: No request is due, or far too many.
    """
    shape = study.shape_of(trial.plan)
    assert shape is not None
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
            shape,
            study.node,
            workload,
            calibration=calibration,
            options=RunOptions(
                timeout_s=study.request_timeout_s,
                each_token=workload.request_count <= MOST_WITH_EACH_TOKEN,
                on_record=on_record,
            ),
        )
        if not (open_ended and _ran_out(simulation, workload)):
            break
        workload = _with_requests(workload, 2 * workload.request_count)
    results = simulation_results(
        simulation,
        request_limits=study.request_limits,
        percentiles=study.percentiles,
    )
    server = {**(results.server or {}), "scheduler": describe_scheduler(trial.plan)}
    results = results.with_fields(server=server)
    verdict = saturation_note(workload, simulation.records)
    if verdict is not None:
        results = results.with_fields(saturation=verdict)
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
    """Whether every request was answered before the time was over.

    Users who are refused at once never run out of time, whatever the number of requests.
    """
    records = simulation.records
    refused = sum(record.outcome == "http_status" for record in records)
    return (
        len(records) == workload.request_count
        and 2 * refused < len(records)
        and all(record.outcome != "cancelled" for record in records)
    )


def simulate_trial(
    trial: Trial,
    study: StudyContext,
    *,
    cmd: str,
    server_cmd_args: list[str],
    requests: OnRequests | None = None,
) -> TrialRecord:
    """Record of a trial run in virtual time; a plan that cannot run becomes a failed record.

    Args:
        trial: Trial to run.
        study: Settings that all trials have in common.
        cmd: Command of the server that it stands for.
        server_cmd_args: Settings of that server, in its engine's words.
        requests: Takes the requests, where there are any.
    """
    results = Results()
    failure: Failure | None = None
    try:
        results, run = simulation_of(trial, study)
        failure = _failure_in(results, study)
        if requests is not None and run.records:
            requests(simulated_requests(trial.key, run))
    except PlanError as error:
        failure = Failure(kind="does_not_fit", reason=error.message)
    outcome = Outcome(
        cmd=cmd,
        server_cmd_args=server_cmd_args,
        results=results,
        interval=recorded_interval(trial, study, results),
        failure=failure,
    )
    return record_of(trial, study, outcome)


def _failure_in(results: Results, study: StudyContext) -> Failure | None:
    """Failure of a run that answered no request, or too few of them."""
    if results.failed and not results.completed:
        return no_answer(results)
    return not_accepted(results, study.acceptance, study.constraints)


#: Settings of a deployment around engines, and their release; no engine is started with them.
_DEPLOYMENT_SETTINGS = (REPLICAS, "prefill_replicas", "routing", "kv_link", RELEASE)
#: Settings that an engine's command has under other names.
_DRAFT_SETTINGS = ("draft_tokens", "draft_method", "draft_acceptance_fraction")


def simulated_with_requests(
    trial: Trial, study: StudyContext, on_record: Callable[[Record], None] | None = None
) -> tuple[TrialRecord, SimulatedRun]:
    """Trial in virtual time: its record, and the records of its requests.

    Raises:
        PlanError: The plan cannot run, or a request can never be served by it.
        InputError: No request is due.
    """
    results, simulation = simulation_of(trial, study, on_record)
    one = _one_engine(trial.plan)
    silent = (*_DEPLOYMENT_SETTINGS, *_DRAFT_SETTINGS)
    settings = {k: v for k, v in trial.settings.items() if k not in silent}
    named = engine(study.engine)
    shown = engine(named.ships_as) if named.ships_as else named
    words = shown.server_cmd_args(settings)
    if not shown.words.says_drafts(one):  # nothing is started, so its checkpoint has no name yet
        one = without_drafts(one)
    command = shown.command(one, host="127.0.0.1", port=DEFAULT_PORT)
    outcome = Outcome(
        cmd=shlex.join(command),
        server_cmd_args=words,
        results=results,
        interval=recorded_interval(trial, study, results),
        failure=_failure_in(results, study),
    )
    record = record_of(trial, study, outcome)
    return record, simulation


def _one_engine(plan: Plan) -> Plan:
    """Plan of each of the engines, without what is set of the deployment around them."""
    return msgspec.structs.replace(plan, prefill_replicas=None, routing=None, kv_link=None)


def simulated_again(measured: TrialRecord, study: StudyContext) -> TrialRecord:
    """Simulation of the plan and workload that a record says were measured.

    Records of other tools have no plan; theirs is read from their server's arguments.

    Raises:
        PlanError: The plan cannot run on the study's machine.
        InputError: The record does not say enough, or its data set is not here.
    """
    config = measured.config
    plan = measured.plan or plan_from_settings(
        str(measured.metadata.engine or DEFAULT_ENGINE), study.model, config.server_args
    )
    client_args = _typed(config.client_args)
    workload = workload_from_client_args(client_args, model=study.model)
    trial = Trial(
        key=trial_key(
            model=study.model,
            engine=study.engine,
            server_args=config.server_args,
            client_args=client_args,
            node=study.node.label if study.node else "",
            simulated=True,
        ),
        server_args=config.server_args,
        client_args=client_args,
        plan=plan,
        workload=workload,
    )
    results, _ = simulation_of(trial, study)
    return record_of(
        trial,
        study,
        Outcome(
            cmd=measured.cmd,
            server_cmd_args=config.server_cmd_args,
            results=results,
            interval=recorded_interval(trial, study, results),
        ),
    )


def _typed(client_args: JsonObject) -> JsonObject:
    """Arguments with numbers as numbers: other tools' records may hold them as text.

    Raises:
        InputError: A value is not of its argument's type.
    """
    typed: JsonObject = {}
    for name, value in client_args.items():
        kind = CLIENT_ARGS.get(name)
        if value is None:
            continue
        try:
            typed[name] = kind(value) if kind in (int, float) else value
        except (TypeError, ValueError):
            raise InputError(f"client argument {name} is {value!r} in the record") from None
    return typed
