"""`servetune deploy`: render what was found for a target."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec

from servetune.api.inputs import constraints_of, read_records
from servetune.cli import deploy_live, options
from servetune.cli.deploy_study import study
from servetune.cli.deploy_targets import TARGETS, explicit
from servetune.cli.output import echo
from servetune.cli.sagemaker_options import Wanted, hosting_options
from servetune.deploy import (
    CONTAINERS,
    EndpointOptions,
    Evidence,
    endpoint_of,
    usual_container,
    write,
)
from servetune.deploy.aws.state import STATE_FILE
from servetune.deploy.bundle import json_text
from servetune.deploy.endpoint import image_for
from servetune.deploy.images import named_image
from servetune.deploy.names import require_name, require_region, require_role
from servetune.engines import engine, plan_from_settings
from servetune.errors import CannotRender, InputError
from servetune.hardware import Node, cheapest_instance_with, device, instance, instances
from servetune.models import load_shape, weight_bytes
from servetune.plan import Plan
from servetune.report import candidates_of
from servetune.search import OBJECTIVES, failed_requests, recommend
from servetune.store import TrialRecord

__all__ = ["deploy"]


@click.group()
def deploy() -> None:
    """Render what was found for a target, and run it."""


for command in (*deploy_live.COMMANDS, study, *TARGETS):
    deploy.add_command(command)


@deploy.command(short_help="Render a bundle for Amazon SageMaker.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out",
    "out_dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for the bundle; an earlier bundle in it is renewed.",
)
@options.constraints
@click.option(
    "--objective",
    type=click.Choice(tuple(OBJECTIVES)),
    default="throughput",
    show_default=True,
    help="Which trial to deploy, among those that meet the constraints.",
)
@click.option("--key", default=None, help="Deploy this trial instead of the recommended one.")
@click.option(
    "--container",
    type=click.Choice(tuple(CONTAINERS)),
    default=None,
    help="Which of SageMaker's containers. [default: lmi for vLLM, else the engine's own]",
)
@click.option(
    "--instance",
    "instance_name",
    default=None,
    help="Instance type. [default: the one that was measured, else the cheapest like it]",
)
@click.option("--region", default="us-east-1", show_default=True)
@click.option("--role-arn", default=None, help="Execution role. [default: asked for on deploying]")
@click.option("--endpoint-name", default=None, help="[default: from the model's name]")
@click.option(
    "--model-source",
    default=None,
    metavar="HUB_ID|s3://..",
    help="Where the endpoint loads the model from. [default: the trial's model]",
)
@click.option(
    "--image-tag", default=None, help="A certain image. [default: nearest to the trial's]"
)
@hosting_options
@click.option("--dry-run", is_flag=True, help="Print the container's environment, write nothing.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Check everything before spending; make nothing."
)
@click.option(
    "--ask-aws", is_flag=True, help="Let --plan ask AWS too (it only reads): quota, price, names."
)
@click.option(
    "--apply", "apply_now", is_flag=True, help="Write the bundle, check it, and make the endpoint."
)
def sagemaker(
    *,
    source: Path,
    out_dir: Path | None,
    constraints: str | None,
    objective: str,
    key: str | None,
    container: str | None,
    instance_name: str | None,
    region: str,
    role_arn: str | None,
    endpoint_name: str | None,
    model_source: str | None,
    image_tag: str | None,
    wanted: Wanted,
    dry_run: bool,
    plan_only: bool,
    ask_aws: bool,
    apply_now: bool,
) -> int:
    """Render a bundle for Amazon SageMaker from SOURCE (.json or .jsonl of a run).

    The bundle holds the container's environment, the requests that make an endpoint, a
    script that sends the simple ones, and a page that says what it rests on. Nothing is
    created without --apply.
    """
    if apply_now + plan_only + dry_run > 1:
        raise InputError("--plan, --apply and --dry-run exclude each other", hint="give one")
    if out_dir is None and not (dry_run or plan_only):
        raise InputError("the bundle needs a folder", hint="give --out FOLDER, or --plan")
    deploy_live.require_token(wanted.hf_token_secret, from_env=wanted.hf_token_from_env)
    env_role = os.environ.get("SAGEMAKER_ROLE_ARN") if plan_only or apply_now else None
    require_region(region)
    if role_arn or env_role:
        require_role(role_arn or env_role or "")
    if endpoint_name:
        require_name(endpoint_name)
    records = read_records(source)
    record = _chosen(records, key=key, objective=objective, constraints=constraints)
    found = _plan_of(record)
    container = container or usual_container(found.engine)
    measured = _for_container(found, container)
    plan = _with_adapters(deploy_live.one_copy(measured, wanted.copies), wanted)
    node = instance(instance_name, service="sagemaker") if instance_name else _instance_of(record)
    if image_tag:
        named_image(container, image_tag)
    shape = load_shape(plan.model)
    evidence = _evidence(record, source)
    shipped, _ = image_for(plan, container, evidence, image_tag)
    version = shipped.engine_version or engine(plan.engine).assumed_version
    explicit_plan = explicit(plan, shape, node.device, version, record)
    nodes = deploy_live.wanted_nodes(node, wanted)
    hosting = deploy_live.hosting_of(
        wanted,
        explicit_plan,
        nodes,
        knee=deploy_live.measured_knee(
            records,
            record,
            constraints_of(constraints, records),
            copies=1 if wanted.copies is None else measured.replicas * measured.data_parallel,
        ),
    )
    endpoint = endpoint_of(
        explicit_plan,
        EndpointOptions(
            nodes=nodes,
            hosting=hosting,
            region=region,
            container=container,
            model_source=model_source,
            endpoint_name=endpoint_name,
            role_arn=role_arn,
            image_tag=image_tag,
            weights_bytes=weight_bytes(shape),
            startup_timeout_s=wanted.startup_timeout_s,
            delete_after=deploy_live.delete_after(wanted.hours),
        ),
        evidence,
    )
    if dry_run:
        print(json_text(endpoint.environment))
        return 0
    rendered = deploy_live.Rendered(
        trial=record, endpoint=endpoint, wanted=wanted, plan=explicit_plan, shape=shape
    )
    if plan_only:
        return rendered.report(ask_aws=ask_aws)
    assert out_dir is not None
    if apply_now:
        return rendered.apply(out_dir, role_arn=role_arn)
    if wanted.max_cost is not None:
        rendered.require_affordable()
    write(rendered.bundle, out_dir)
    print(f"bundle of {plan.label} for {node.name} in {out_dir}")
    failing = failed_requests(record.results)
    if failing:
        print(f"  ! {failing.sentence}")
    for warning in endpoint.warnings:
        print(f"  ! {warning}")
    folder = shlex.quote(str(out_dir))
    verb = "update" if (out_dir / STATE_FILE).exists() else "apply"  # something stands already
    echo(f"next: read {folder}/README.md, then servetune deploy {verb} {folder}")
    return 0


def _chosen(
    records: list[TrialRecord], *, key: str | None, objective: str, constraints: str | None
) -> TrialRecord:
    if key is not None:
        for record in records:
            if record.key == key:
                if record.status == "failed":
                    raise CannotRender(f"trial {key} failed and cannot be deployed")
                return record
        raise InputError(f"no trial has the key {key}", hint="keys stand in the journal")
    choice = recommend(candidates_of(records), constraints_of(constraints, records), objective)
    if choice.chosen is None or not choice.feasible:
        nearest = f"; {choice.chosen.label} comes nearest" if choice.chosen else ""
        raise CannotRender(
            f"no trial meets every constraint{nearest}",
            hint="relax --constraints, or name a trial with --key"
            + (f" {choice.chosen.key}" if choice.chosen else ""),
        )
    return next(record for record in records if record.key == choice.chosen.key)


def _plan_of(record: TrialRecord) -> Plan:
    if record.plan is not None:
        return record.plan
    model = record.metadata.get("model_tag")
    if not model:
        raise InputError("the record does not name its model (metadata.model_tag)")
    engine_name = str(record.metadata.get("framework") or record.results.get("backend") or "vllm")
    return plan_from_settings(engine_name, str(model), record.config.server_args)


def _for_container(plan: Plan, container: str) -> Plan:
    """LMI has no data parallelism, but starts copies, which for whole models is the same."""
    if container != "lmi" or plan.data_parallel == 1 or plan.expert_parallel:
        return plan
    echo(
        f"LMI has no data parallelism: {plan.data_parallel} engines behind one address become as "
        "many copies of the model"
    )
    return msgspec.structs.replace(
        plan, data_parallel=1, replicas=plan.replicas * plan.data_parallel
    )


#: Larger than most adapters' rank; vLLM's default of 16 refuses many.
LORA_RANK = 64


def _with_adapters(plan: Plan, wanted: Wanted) -> Plan:
    """A base model that takes LoRA adapters, where the endpoint shall have some.

    Raises:
        InputError: The engine has no adapters here.
    """
    chosen = dict(plan.extra)
    if not wanted.adapter or "enable_lora" in chosen:
        return plan
    switch = engine(plan.engine).lora_settings
    if not switch:
        raise InputError(
            f"adapters on {plan.engine} need its own settings for LoRA",
            hint="sweep with enable_lora=true, so that what is measured takes them",
        )
    added: dict[str, Any] = {
        **switch,
        "max_loras": len(wanted.adapter),
        "max_lora_rank": LORA_RANK,
    }
    told = ", ".join(f"{name}={value}" for name, value in (added | chosen).items() if name in added)
    echo(f"the trial took no adapters; written for them: {told}. Expect other figures")
    return msgspec.structs.replace(plan, extra=tuple(sorted((added | chosen).items())))


def _instance_of(record: TrialRecord) -> Node:
    """The instance that was measured, else the cheapest with as many such devices."""
    named = record.metadata.get("instance_type")
    for name in (str(named), f"ml.{named}"):  # an EC2 type is hosted under SageMaker's name
        if name in instances("sagemaker"):
            return instance(name, service="sagemaker")
    gpu = str(record.metadata.get("gpu_type") or "")
    count = int(record.metadata.get("gpu_count") or 1)
    offer = cheapest_instance_with(device(gpu), count) if gpu and gpu != "unknown" else None
    if offer is None:
        raise InputError(
            f"no SageMaker instance in the catalogue has {count}x {gpu or 'unknown device'}",
            hint="name one with --instance, such as ml.g6.12xlarge",
        )
    return offer


def _evidence(record: TrialRecord, source: Path) -> Evidence:
    metadata, results = record.metadata, record.results
    concurrency = results.get("max_concurrency")
    dataset = results.get("dataset_name") or "random"
    return Evidence(
        results=results,
        simulated=record.simulated,
        concurrency=int(concurrency) if concurrency else None,
        engine=str(metadata.get("framework") or results.get("backend") or "vllm"),
        engine_version=record.provenance.get("engine_version"),
        hardware=f"{metadata.get('gpu_count')}x {metadata.get('gpu_type')}",
        workload=f"{dataset}, {results.get('completed')} requests",
        source=f"{source.name}, trial {record.key}",
    )
