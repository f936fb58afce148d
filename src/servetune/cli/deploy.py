"""`servetune deploy`: render what was found for a target."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import msgspec

from servetune.cli import deploy_live, options
from servetune.cli.deploy_study import study
from servetune.cli.inputs import constraints_of, read_records
from servetune.cli.output import echo
from servetune.cli.sagemaker_options import Wanted, hosting_options
from servetune.deploy import CONTAINERS, Evidence, render_sagemaker, write
from servetune.errors import DeployError, InputError
from servetune.hardware import Node, cheapest_instance_with, device, instance, instances
from servetune.models import load_shape, weight_bytes
from servetune.plan import Plan, plan_from_settings, resolved
from servetune.report import candidates_of
from servetune.search import OBJECTIVES, failed_requests, recommend
from servetune.store import TrialRecord

__all__ = ["deploy"]


@click.group()
def deploy() -> None:
    """Render what was found for a target, and run it."""


for command in (*deploy_live.COMMANDS, study):
    deploy.add_command(command)


@deploy.command()
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
    default="lmi",
    show_default=True,
    help="Which of SageMaker's containers.",
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
    container: str,
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
    records = read_records(source)
    record = _chosen(records, key=key, objective=objective, constraints=constraints)
    measured = _for_container(_plan_of(record), container)
    plan = deploy_live.one_copy(measured, wanted.copies)
    node = instance(instance_name, service="sagemaker") if instance_name else _instance_of(record)
    shape = load_shape(plan.model)
    given: dict[str, Any] = {"role_arn": role_arn} if role_arn else {}
    # The cache's block size is the attention kernel's to choose: what nobody set stays open.
    explicit = msgspec.structs.replace(
        resolved(plan, shape, node.device), block_tokens=plan.block_tokens
    )
    nodes = deploy_live.wanted_nodes(node, wanted)
    hosting = deploy_live.hosting_of(
        wanted,
        explicit,
        nodes,
        knee=deploy_live.measured_knee(
            records,
            record,
            constraints_of(constraints, records),
            copies=1 if wanted.copies is None else measured.replicas * measured.data_parallel,
        ),
    )
    bundle = render_sagemaker(
        explicit,
        instance=node,
        region=region,
        container=container,
        model_source=model_source,
        endpoint_name=endpoint_name,
        evidence=_evidence(record, source),
        model_bytes=weight_bytes(shape),
        image_tag=image_tag,
        startup_timeout_s=wanted.startup_timeout_s,
        copies=hosting.copies,
        copies_per_instance=hosting.copies_per_instance,
        **given,
    )
    if dry_run:
        print(bundle.text("environment.json"))
        return 0
    rendered = deploy_live.Rendered(
        trial=record,
        bundle=bundle,
        hosting=hosting,
        wanted=wanted,
        plan=explicit,
        shape=shape,
        nodes=nodes,
        container=container,
        weights_bytes=weight_bytes(shape),
    )
    if plan_only:
        return rendered.report(ask_aws=ask_aws)
    assert out_dir is not None
    if apply_now:
        return rendered.apply(out_dir, role_arn=role_arn)
    write(rendered.with_deployment(), out_dir)
    print(f"bundle of {plan.label} for {node.name} in {out_dir}")
    failing = failed_requests(record.results)
    if failing:
        print(f"  ! {failing.sentence}")
    for warning in bundle.warnings:
        print(f"  ! {warning}")
    script = out_dir / "deploy.py"
    echo(f"next: read {out_dir / 'README.md'}, then python {shlex.quote(str(script))} plan")
    return 0


def _chosen(
    records: list[TrialRecord], *, key: str | None, objective: str, constraints: str | None
) -> TrialRecord:
    if key is not None:
        for record in records:
            if record.key == key:
                if record.status == "failed":
                    raise DeployError(f"trial {key} failed and cannot be deployed")
                return record
        raise InputError(f"no trial has the key {key}", hint="keys stand in the journal")
    choice = recommend(candidates_of(records), constraints_of(constraints, records), objective)
    if choice.chosen is None or not choice.feasible:
        nearest = f"; nearest is {choice.chosen.key}" if choice.chosen else ""
        raise DeployError(
            f"no trial meets every constraint{nearest}",
            hint="relax --constraints, or name a trial with --key",
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


# the targets of another file; they choose a trial with what stands here
from servetune.cli.deploy_targets import TARGETS  # noqa: E402

for _target in TARGETS:
    deploy.add_command(_target)
