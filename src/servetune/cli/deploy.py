"""`servetune deploy`: render what was found for a target, and run it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
import msgspec

from servetune import api
from servetune.api.aws_region import region_of
from servetune.api.spending import Confirm
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.deploy.aws.check import Report
from servetune.deploy.aws.orphans import Orphan
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
        rendered.apply(on_report=_print_report, confirm=_asking())
        return _print_applied(rendered.endpoint.name, rendered.folder)
    _print_rendered(rendered, f"{rendered.plan.label} for {rendered.endpoint.node.name}")
    assert rendered.folder is not None
    folder = shlex.quote(str(rendered.folder))
    if request.form == "cloudformation":
        echo(f"next: read {folder}/README.md, which has the commands of the stack")
        return 0
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


def _agreed(question: str) -> bool:
    """The answer of whoever sits at the terminal to what was told, such as a cost."""
    return click.confirm(question, default=False, err=True)


def _asking() -> Confirm | None:
    """The function that asks; `None` where there is no terminal."""
    return _agreed if _at_terminal() else None


def _at_terminal() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty())


def _named(orphan: Orphan) -> bool:
    """Whether the user types the name of an orphan that is in service."""
    name = orphan.resource.name
    echo(f"{orphan.resource.kind} {name} is in service: {orphan.reason}")
    typed = click.prompt(
        "Its name, to delete it", default="", show_default=False, err=True, type=str
    )
    return bool(typed == name)


def _print_applied(endpoint: str, folder: Path | None) -> int:
    print(f"{endpoint} is in service")
    if folder and (folder / TRIAL_FILE).exists():
        echo(f"compare it with its trial: servetune bench --against {folder}")
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
    deployment = api.apply(request, confirm=_asking())
    return _print_applied(deployment.endpoint, request.bundle)


@verb(api.Update)
def update(request: api.Update) -> int:
    """Roll the running endpoint over to BUNDLE, a batch at a time."""
    updated = api.update(request, confirm=_asking())
    for line in updated.changes or (f"{updated.endpoint} is so already",):
        print(line)
    return 0


@verb(api.Status, json=True)
def status(request: api.Status, *, as_json: bool) -> int:
    """List the resources of an endpoint; exit status 1 unless all serve as the bundle says.

    What is otherwise than the bundle has a line each that begins with DRIFT.
    """
    found = api.status(request)
    if as_json:
        print_json(found.rows)
    else:
        for row in found.rows:
            print(f"{row.kind:<16} {row.name:<50} {row.status:<12} {row.detail}".rstrip())
        for row in found.rows:
            for line in row.drift:
                print(f"DRIFT {row.kind} {row.name} {line}")
        if found.drifted:
            other = any(
                row.kind == "endpoint" and "configuration" in line
                for row in found.rows
                for line in row.drift
            )
            echo(
                "servetune deploy update makes it what its bundle says"
                if other
                else "servetune deploy apply changes it back"
            )
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
    """Delete all resources of an endpoint, in the order that SageMaker allows.

    Exit status 1 where something beside it could not be looked at for want of a permission.
    """
    deleted = api.delete(request)
    for line in deleted.changes:
        print(line)
    if deleted.unseen:
        print(f"endpoint {deleted.endpoint} is gone; what stood beside it may be left:")
        for line in deleted.unseen:
            print(f"  {line}")
        return 1
    print(f"nothing of {deleted.endpoint} is left")
    return 0


@verb(api.Orphans, json=True)
def orphans(request: api.Orphans, *, as_json: bool) -> int:
    """List resources that were asked to end or that nothing uses; exit status 1 where some stand.

    Yours come first. --delete deletes those of yours that are not in service; what is in service
    or somebody else's is deleted by --name, or after you typed its name.
    """
    region = region_of(request.region)
    found = api.orphans(
        msgspec.structs.replace(request, region=region), confirm=_named if _at_terminal() else None
    )
    left = [orphan for orphan in found if not orphan.deleted]
    if as_json:
        print_json(found)
        return 1 if left else 0
    for orphan in (each for each in found if each.own):
        _print_orphan(orphan)
    others = [each for each in found if not each.own]
    if others:
        print("made by others, or by nobody that their tags name:")
        for orphan in others:
            _print_orphan(orphan, orphan.owner)
    if not found:
        print(f"nothing of servetune's is left over in {region}")
    elif left and request.delete:
        echo(f"{len(left)} stand still; --delete --name NAME deletes one by its name")
    return 1 if left else 0


def _print_orphan(orphan: Orphan, owner: str = "") -> None:
    cost = "price unknown" if orphan.usd_per_hour is None else ""
    if orphan.usd_per_hour:
        cost = f"{format_usd(orphan.usd_per_hour)} an hour"
    state = "deleted" if orphan.deleted else "in service" if orphan.in_service else ""
    about = "; ".join(filter(None, (orphan.reason, cost, state, owner)))
    print(f"{orphan.resource.kind:<16} {orphan.resource.name:<50} {about}")


for each in (
    *(sagemaker, kubernetes, kserve, compose, systemd, command, bentoml, study),
    *(apply, update, status, logs, delete, orphans),
):
    deploy.add_command(each)
