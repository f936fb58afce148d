"""From a trial and options to a bundle, its deployment, and what is known before spending."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from servetune.cli.sagemaker_options import Wanted, split_adapter, split_scale
from servetune.deploy.aws import Report
from servetune.deploy.bundle import PLAN_FILE, Bundle, json_text
from servetune.deploy.deployment import Deployment
from servetune.deploy.hosting import Adapter, Hosting, Scaling, parse_routing
from servetune.deploy.knee import HEADROOM, Knee, Level, knee_of
from servetune.deploy.names import require_role, require_secret
from servetune.errors import InputError
from servetune.hardware import Node, instance
from servetune.metrics import Constraint
from servetune.plan import Plan
from servetune.report import check_constraints
from servetune.store import TrialRecord
from servetune.units import MIB

__all__ = [
    "TRIAL_FILE",
    "hosting_of",
    "measured_knee",
    "one_copy",
    "print_report",
    "role_of",
    "wanted_nodes",
    "with_trial",
]

#: By which the knee is found, as for other targets.
_LATENCY = "median_e2e_latency_ms"

#: Share of an instance's memory that copies may reserve; SageMaker's agents take some.
RESERVABLE = 0.85


def one_copy(plan: Plan, copies: int | None) -> Plan:
    """The Plan of one component's copy; as it is where there are no components."""
    if copies is None or plan.expert_parallel:
        return plan
    return msgspec.structs.replace(plan, replicas=1, data_parallel=1)


def wanted_nodes(first: Node, wanted: Wanted) -> tuple[Node, ...]:
    return (first, *(instance(name, service="sagemaker") for name in wanted.fallback))


def hosting_of(
    wanted: Wanted, plan: Plan, nodes: tuple[Node, ...], *, knee: Knee | None
) -> Hosting:
    """The Hosting that the options ask for.

    Args:
        wanted: The options.
        plan: Of one instance, or of one copy where there are components.
        nodes: Instance types, the wanted one first.
        knee: Measured, per what scaling adds: a copy, or an instance without components.

    Raises:
        InputError: Options contradict, or a number is missing that nothing tells.
    """
    per_instance = min(node.device_count // plan.device_count for node in nodes) or 1
    copies = wanted.copies
    instances = wanted.instances
    if copies is not None:
        instances = max(instances, -(-copies // per_instance))
    adapters = [split_adapter(text) for text in wanted.adapter]
    return Hosting(
        instance_types=tuple(node.name for node in nodes),
        instance_count=instances,
        copies=copies,
        devices_per_copy=plan.devices_per_replica,
        copies_per_instance=per_instance if copies is not None else 1,
        memory_mib_per_copy={} if copies is None else _memory(wanted, nodes, per_instance),
        adapters=tuple(Adapter(name=name, artifact_url=place) for name, place in adapters),
        scaling=_scaling(wanted, knee),
        routing=parse_routing(wanted.routing),
        reservation_arn=wanted.reservation_arn,
        provision_timeout_s=wanted.provision_timeout_s,
    )


def _memory(wanted: Wanted, nodes: tuple[Node, ...], per_instance: int) -> dict[str, int]:
    return {
        node.name: wanted.memory_mib
        or int(RESERVABLE * (node.memory_bytes or 16 * 2**30) / MIB / per_instance)
        for node in nodes
    }


def _scaling(wanted: Wanted, knee: Knee | None) -> Scaling | None:
    if wanted.scale is None:
        if wanted.requests_per_copy is not None:
            raise InputError(
                "--requests-per-copy is for autoscaling", hint="give --scale MIN:MAX beside it"
            )
        return None
    least, most = split_scale(wanted.scale)
    target = wanted.requests_per_copy
    if target is None:
        if knee is None:
            raise InputError(
                "the trial says no concurrency, so there is no knee to scale by",
                hint="give --requests-per-copy",
            )
        target = max(1.0, round((1 - HEADROOM) * knee.per_copy, 1))
    return Scaling(minimum=least, maximum=most, requests_per_copy=target)


def measured_knee(
    records: Sequence[TrialRecord],
    chosen: TrialRecord,
    constraints: tuple[Constraint, ...],
    *,
    copies: int,
) -> Knee | None:
    """The knee of the chosen settings over the concurrencies that were tried with them.

    Args:
        records: Of the whole sweep.
        chosen: The trial that is deployed.
        constraints: What a good trial meets.
        copies: That shared each trial's requests.
    """
    levels = []
    for record in records:
        results = record.results
        concurrency, latency_ms = results.get("max_concurrency"), results.get(_LATENCY)
        same = record.config.server_args == chosen.config.server_args
        if same and record.status == "ok" and concurrency and latency_ms is not None:
            good = check_constraints(record, constraints).meets_all if constraints else None
            levels.append(Level(int(concurrency), float(latency_ms), good))
    return knee_of(levels, copies)


#: The trial that a bundle rests on, as its journal has it.
TRIAL_FILE = "trial.jsonl"


def with_trial(bundle: Bundle, trial: TrialRecord) -> Bundle:
    """The bundle with the trial that `bench --against` proves."""
    about = bundle.json(PLAN_FILE)
    if "files" in about:
        about["files"].append(TRIAL_FILE)
    texts: dict[str, str] = dict(bundle.files)
    texts[PLAN_FILE] = json_text(about)
    texts[TRIAL_FILE] = trial.to_json().decode() + "\n"
    return msgspec.structs.replace(bundle, files=tuple(texts.items()))


def role_of(given: str | None, deployment: Deployment) -> str:
    """The execution role: the option, else SAGEMAKER_ROLE_ARN, else what was rendered.

    Raises:
        InputError: Nobody says one, or it is none.
    """
    rendered = deployment.only("model").request.get("ExecutionRoleArn")
    role = given or os.environ.get("SAGEMAKER_ROLE_ARN") or rendered
    if role is None or role.startswith("${"):  # a placeholder of bundles before 0.4
        raise InputError("no execution role", hint="give --role-arn, or set SAGEMAKER_ROLE_ARN")
    return require_role(role)


def require_token(secret_arn: str | None, *, from_env: bool = False) -> None:
    """Raise unless a token that is asked for can be had, before anything starts.

    Raises:
        InputError: It has two sources, the variable is not set, or what should be a secret's
            ARN is something else, a token above all.
    """
    if secret_arn is not None:
        require_secret(secret_arn)
    if secret_arn is not None and from_env:
        raise InputError("the token has two sources", hint="give one of the two options")
    if from_env and not os.environ.get("HF_TOKEN"):
        raise InputError("HF_TOKEN is not set", hint="export it, or use --hf-token-secret ARN")


def print_report(report: Report) -> None:
    """What was looked at, a line each."""
    words = {"ok": "ok  ", "note": "note", "stop": "STOP"}
    for finding in report.findings:
        print(f"{words[finding.level]}  {finding.topic:<12} {finding.said}")
        if finding.hint and finding.level != "ok":
            print(f"      {'':<12} -> {finding.hint}")


def today_prices(wanted: Wanted, nodes: tuple[Node, ...], asked: dict[str, Any]) -> dict[str, Any]:
    """Prices by type: the user's word first, then what AWS was asked today."""
    from servetune.hardware import Price

    if wanted.price_per_hour is None:
        return asked
    given = Price(
        usd_per_hour=wanted.price_per_hour, region="", source="given by the user", date=""
    )
    return {node.name: given for node in nodes}
