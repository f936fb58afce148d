"""`servetune deploy`: render what was found for a target, and run it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import msgspec

from servetune import api
from servetune.api.aws_region import region_of
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.deploy.aws.check import Report
from servetune.deploy.aws.state import STATE_FILE
from servetune.deploy.bundle import json_text
from servetune.deploy.from_trial import TRIAL_FILE
from servetune.report import console, replica_table
from servetune.units import format_usd


@click.group()
def deploy() -> None:
    """Render what was found for a target, and run it."""


@verb(api.SageMakerDeployment)
def sagemaker(request: api.SageMakerDeployment) -> int:
    """Render a bundle for Amazon SageMaker from SOURCE, a run's .json or .jsonl.

    The bundle holds the container's environment, the requests that make an endpoint, and a
    page that says what it rests on. Nothing is created without --apply.
    """
    rendered = api.render(request)
    assert isinstance(rendered, api.RenderedEndpoint)
    if request.dry_run:
        print(json_text(rendered.endpoint.environment))
        return 0
    if request.plan:
        return _print_plan(rendered)
    if request.apply:
        rendered.apply(on_report=_print_report)
        return _print_applied(rendered.endpoint.name, rendered.folder)
    _print_rendered(rendered, f"{rendered.plan.label} for {rendered.endpoint.node.name}")
    assert rendered.folder is not None
    folder = shlex.quote(str(rendered.folder))
    following = "update" if (rendered.folder / STATE_FILE).exists() else "apply"  # it stands
    echo(f"next: read {folder}/README.md, then servetune deploy {following} {folder}")
    return 0


def _print_plan(rendered: api.RenderedEndpoint) -> int:
    report = rendered.report(ask_aws=rendered.request.ask_aws)
    for warning in rendered.bundle.warnings:
        print(f"note  {'evidence':<12} {warning}")
    _print_report(report)
    if not rendered.request.ask_aws:
        echo("quota, names and reservations are not checked; --ask-aws reads them from AWS")
    echo("nothing was made")
    return 1 if report.stops else 0


def _print_report(report: Report) -> None:
    words = {"ok": "ok  ", "note": "note", "stop": "STOP"}
    for finding in report.findings:
        print(f"{words[finding.level]}  {finding.topic:<12} {finding.message}")
        if finding.hint and finding.level != "ok":
            print(f"      {'':<12} -> {finding.hint}")


def _print_rendered(rendered: api.Rendered, label: str) -> None:
    print(f"bundle of {label} in {rendered.folder}")
    for warning in rendered.warnings:
        print(f"  ! {warning}")


def _print_applied(endpoint: str, folder: Path | None) -> int:
    print(f"{endpoint} is in service")
    if folder and (folder / TRIAL_FILE).exists():
        echo(f"compare with the measured trial: servetune bench --against {folder}")
    echo(f"it costs money until you run servetune deploy delete {folder}")
    return 0


def _service(request: api.ServiceDeployment) -> int:
    rendered = api.render(request)
    if request.dry_run:
        for path, text in rendered.bundle.files:
            print(f"# {path}\n{text}")
        return 0
    _print_rendered(rendered, rendered.plan.label)
    echo(f"next: read {shlex.quote(f'{rendered.folder}/README.md')}")
    return 0


@verb(api.KubernetesDeployment)
def kubernetes(request: api.KubernetesDeployment) -> int:
    """Render a Kubernetes Deployment, its Service and an autoscaler from SOURCE."""
    return _service(request)


@verb(api.KserveDeployment)
def kserve(request: api.KserveDeployment) -> int:
    """Render a KServe InferenceService, scaled at the measured saturation point, from SOURCE."""
    return _service(request)


@verb(api.ComposeDeployment)
def compose(request: api.ComposeDeployment) -> int:
    """Render a Docker Compose file, one service for each copy, from SOURCE."""
    return _service(request)


@verb(api.SystemdDeployment)
def systemd(request: api.SystemdDeployment) -> int:
    """Render units of systemd, one for each copy, from SOURCE."""
    return _service(request)


@verb(api.CommandDeployment)
def command(request: api.CommandDeployment) -> int:
    """Render the plain command, as a script, from SOURCE."""
    return _service(request)


@verb(api.BentomlDeployment)
def bentoml(request: api.BentomlDeployment) -> int:
    """Render a BentoML service from SOURCE."""
    return _service(request)


@verb(api.StudyLayouts, json=True)
def study(request: api.StudyLayouts, *, as_json: bool) -> int:
    """Compare tensor parallelism with copies at equal accelerators, and instance counts.

    SOURCE is a sweep (.json or .jsonl) over tensor_parallel_size, its copies, or both.
    """
    layouts = api.study_layouts(request)
    if as_json:
        print_json(layouts.rows)
    else:
        console().print(replica_table(list(layouts.rows), layouts.node))
    return 0


@verb(api.Apply)
def apply(request: api.Apply) -> int:
    """Make the endpoint of BUNDLE, or go on where an earlier run stopped."""
    deployment = api.apply(request)
    return _print_applied(deployment.endpoint, request.bundle)


@verb(api.Update)
def update(request: api.Update) -> int:
    """Roll the running endpoint over to BUNDLE, a batch at a time."""
    updated = api.update(request)
    for line in updated.changes or (f"{updated.endpoint} is so already",):
        print(line)
    return 0


@verb(api.Status, json=True)
def status(request: api.Status, *, as_json: bool) -> int:
    """List the resources of an endpoint; exit status 1 unless all of them serve."""
    found = api.status(request)
    if as_json:
        print_json(found.rows)
    else:
        for row in found.rows:
            print(f"{row.kind:<16} {row.name:<50} {row.status:<12} {row.detail}".rstrip())
        if not found.rows:
            print(f"nothing of '{found.endpoint}' is in {found.region}")
    return 0 if found.serves else 1


@verb(api.Logs)
def logs(request: api.Logs) -> int:
    """Print the last lines of an endpoint's containers, credentials taken out."""
    for line in api.logs(request):
        print(line)
    return 0


@verb(api.Delete)
def delete(request: api.Delete) -> int:
    """Delete all resources of an endpoint, in the order that SageMaker allows."""
    deleted = api.delete(request)
    for line in deleted.changes:
        print(line)
    print(f"nothing of {deleted.endpoint} is left")
    return 0


@verb(api.Orphans, json=True)
def orphans(request: api.Orphans, *, as_json: bool) -> int:
    """List resources that servetune made and nothing uses; exit status 1 where some are left."""
    region = region_of(request.region)
    found = api.orphans(msgspec.structs.replace(request, region=region))
    if as_json:
        print_json(found)
        return 1 if found and not request.delete else 0
    for orphan in found:
        cost = "price unknown" if orphan.usd_per_hour is None else ""
        if orphan.usd_per_hour:
            cost = f"{format_usd(orphan.usd_per_hour)} an hour"
        print(
            f"{orphan.resource.kind:<16} {orphan.resource.name:<50} {orphan.reason} {cost}".rstrip()
        )
    if not found:
        print(f"nothing of servetune's is left over in {region}")
    elif request.delete:
        print("deleted them")
    return 1 if found and not request.delete else 0


for each in (
    *(sagemaker, kubernetes, kserve, compose, systemd, command, bentoml, study),
    *(apply, update, status, logs, delete, orphans),
):
    deploy.add_command(each)
