"""Simulated trials with every request's record, and measured trials simulated again."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from servetune.engines import DEFAULT_ENGINE, engine, plan_from_settings
from servetune.errors import InputError
from servetune.perf.sim import SimulatedRun
from servetune.plan import Plan
from servetune.store import TrialRecord, trial_key
from servetune.trials.launch import DEFAULT_PORT
from servetune.trials.record import Outcome, record_of
from servetune.trials.simulated import simulation_of
from servetune.trials.trial import REPLICAS, StudyContext, Trial
from servetune.workload import CLIENT_ARGS, workload_from_client_args

#: Settings of a deployment around engines; no engine is started with them.
_DEPLOYMENT_SETTINGS = (REPLICAS, "prefill_replicas", "kv_link")
#: Settings that an engine's command has under other names.
_DRAFT_SETTINGS = ("draft_tokens", "draft_method", "draft_acceptance_fraction")


def simulated_with_requests(trial: Trial, study: StudyContext) -> tuple[TrialRecord, SimulatedRun]:
    """Trial in virtual time: its record, and the records of its requests.

    Raises:
        PlanError: The plan cannot run, or a request can never be served by it.
        InputError: No request is due.
    """
    results, simulation = simulation_of(trial, study)
    one = _one_engine(trial.plan)
    silent = (*_DEPLOYMENT_SETTINGS, *_DRAFT_SETTINGS)
    settings = {k: v for k, v in trial.server_args.items() if k not in silent}
    named = engine(study.engine)
    shown = engine(named.ships_as) if named.ships_as else named
    words = shown.server_cmd_args(settings)
    command = shown.command(one, host="127.0.0.1", port=DEFAULT_PORT)
    outcome = Outcome(cmd=shlex.join(command), server_cmd_args=words, results=results)
    record = record_of(trial, study, outcome)
    return record, simulation


def _one_engine(plan: Plan) -> Plan:
    """Plan of each of the engines, without the roles of disaggregated prefill."""
    extra = tuple(setting for setting in plan.extra if setting[0] not in _DEPLOYMENT_SETTINGS)
    return msgspec.structs.replace(plan, prefill_replicas=None, extra=extra)


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
        Outcome(cmd=measured.cmd, server_cmd_args=config.server_cmd_args, results=results),
    )


def _typed(client_args: dict[str, Any]) -> dict[str, Any]:
    """Arguments with numbers as numbers: other tools' records may hold them as text.

    Raises:
        InputError: A value is not of its argument's type.
    """
    typed: dict[str, Any] = {}
    for name, value in client_args.items():
        kind = CLIENT_ARGS.get(name)
        if value is None:
            continue
        try:
            typed[name] = kind(value) if kind in (int, float) else value
        except (TypeError, ValueError):
            raise InputError(f"client argument {name} is {value!r} in the record") from None
    return typed
