"""Endpoints in AWS: made, changed, watched and deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.api.waiting import Token, Waiting, aws_in, completed, now, role_of, with_token
from servetune.deploy import aws as live
from servetune.deploy.aws.check import require_go
from servetune.deploy.aws.resources import Change
from servetune.deploy.aws.status import Orphan, Row
from servetune.deploy.aws.teardown import delete_resource
from servetune.deploy.aws.waiting import WaitOptions
from servetune.deploy.deployment import DEPLOYMENT_FILE, Deployment, read_deployment, with_role
from servetune.deploy.names import require_name, require_region
from servetune.errors import InputError
from servetune.hardware import instances
from servetune.option import argument, option

OnProgress = Callable[[str], None]
LineCount = Annotated[int, msgspec.Meta(ge=1, le=10000)]


class Apply(Request, frozen=True, kw_only=True):
    """An endpoint to make from a bundle, or to go on with."""

    verb: ClassVar[str] = "deploy apply"

    bundle: Annotated[
        Path, argument("Folder that servetune deploy sagemaker wrote.", metavar="BUNDLE")
    ]
    role_arn: Annotated[
        str | None,
        option("ARN of the execution role.", metavar="ARN", default="SAGEMAKER_ROLE_ARN"),
    ] = None
    token: Token = Token()
    waiting: Waiting = Waiting()


class Update(Apply, frozen=True, kw_only=True):
    """A running endpoint to roll over to a bundle."""

    verb: ClassVar[str] = "deploy update"


class Target(Request, frozen=True, kw_only=True):
    """An endpoint, named by its bundle or by itself."""

    target: Annotated[
        str, argument("Folder of a bundle, or an endpoint's name.", metavar="BUNDLE|ENDPOINT")
    ]
    region: Annotated[str | None, REGION] = None


class Status(Target, frozen=True, kw_only=True):
    """An endpoint whose resources are listed."""

    verb: ClassVar[str] = "deploy status"


class Logs(Target, frozen=True, kw_only=True):
    """An endpoint whose containers' logs are read."""

    verb: ClassVar[str] = "deploy logs"

    lines: Annotated[LineCount, option("Number of last lines.", metavar="COUNT")] = 100
    containing: Annotated[
        str | None, option("Text that each line holds.", "--grep", metavar="TEXT")
    ] = None


class Delete(Target, frozen=True, kw_only=True):
    """An endpoint to delete with all that belongs to it."""

    verb: ClassVar[str] = "deploy delete"

    waiting: Waiting = Waiting()


class Orphans(Request, frozen=True, kw_only=True):
    """A region in which resources that nothing uses are looked for."""

    verb: ClassVar[str] = "deploy orphans"

    region: Annotated[str | None, REGION] = None
    delete: Annotated[bool, option("Permission to delete what is found.")] = False
    waiting: Waiting = Waiting()


class EndpointChange(Tabular, frozen=True, kw_only=True):
    """Changes that were made to an endpoint.

    Attributes:
        endpoint: Name of the endpoint.
        changes: A line for each; empty where nothing was to change.
    """

    endpoint: str
    changes: tuple[str, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per change."""
        return ({"endpoint": self.endpoint, "change": each} for each in self.changes)


class EndpointStatus(Tabular, frozen=True, kw_only=True):
    """Resources of an endpoint.

    Attributes:
        endpoint: Name of the endpoint.
        region: AWS region.
        rows: Resources that stand, and those that its bundle has and that do not.
    """

    endpoint: str
    region: str
    rows: tuple[Row, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per resource."""
        return self.rows

    @property
    def serves(self) -> bool:
        """Whether every resource is there and in service."""
        return bool(self.rows) and all(row.serves for row in self.rows)


class _Endpoint(NamedTuple):
    """An endpoint's name and region, and its deployment where a bundle has it."""

    name: str
    region: str
    deployment: Deployment | None
    state: live.StateFile


def apply(
    request: Apply | str | Path | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: object,
) -> Deployment:
    """Make the endpoint of a bundle, or go on where an earlier run stopped.

    Args:
        request: The request, or the bundle's folder.
        on_progress: Called with each line of progress; the logger where `None`.
        options: Fields of `Apply`.

    Raises:
        InputError: Something would fail, by what AWS says; nothing was made.
        DeployError: AWS refused, or the endpoint failed.
    """
    request = request_of(Apply, request, options)
    deployment = _with_role(request)
    findings, _ = completed(
        live.check_live(
            deployment,
            aws_in(deployment.region),
            now=now(),
            hours=1,
            secret_arn=request.token.hf_token_secret,
        )
    )
    require_go(live.Report(findings=tuple(findings), usd_per_hour=None, hours=1, total_usd=None))
    wait = request.waiting.wait(deployment)
    make_endpoint(deployment, request.bundle, request.token, wait, on_progress)
    return deployment


def make_endpoint(
    deployment: Deployment,
    folder: Path,
    token: Token,
    wait: WaitOptions,
    on_progress: OnProgress | None = None,
) -> None:
    """Make what a checked deployment says; its state is noted in the folder."""

    async def work() -> None:
        aws, secrets = await with_token(deployment.region, token)
        change = _change(aws, live.StateFile(folder), on_progress, wait)
        await live.apply(deployment, change, now=now().isoformat(), secrets=secrets)

    completed(work())


def update(
    request: Update | str | Path | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: object,
) -> EndpointChange:
    """Roll a running endpoint over to its bundle, a batch at a time.

    Args:
        request: The request, or the bundle's folder.
        on_progress: Called with each line of progress; the logger where `None`.
        options: Fields of `Update`.

    Raises:
        DeployError: There is no such endpoint, or SageMaker rolled back.
    """
    request = request_of(Update, request, options)
    deployment = _with_role(request)

    async def work() -> list[str]:
        aws, secrets = await with_token(deployment.region, request.token)
        wait = request.waiting.wait(deployment)
        change = _change(aws, live.StateFile(request.bundle), on_progress, wait)
        return await live.update(deployment, change, now=now().isoformat(), secrets=secrets)

    return EndpointChange(endpoint=deployment.endpoint, changes=tuple(completed(work())))


def status(request: Status | str | None = None, /, **options: object) -> EndpointStatus:
    """The resources of an endpoint and how each is.

    Args:
        request: The request, or a bundle's folder, or an endpoint's name.
        options: Fields of `Status`.
    """
    about = _endpoint(request_of(Status, request, options))
    rows = completed(live.status(about.name, aws_in(about.region), deployment=about.deployment))
    return EndpointStatus(endpoint=about.name, region=about.region, rows=tuple(rows))


def logs(request: Logs | str | None = None, /, **options: object) -> tuple[str, ...]:
    """The last lines of an endpoint's containers, credentials taken out.

    Args:
        request: The request, or a bundle's folder, or an endpoint's name.
        options: Fields of `Logs`.

    Raises:
        DeployError: No container has written anything yet.
    """
    request = request_of(Logs, request, options)
    about = _endpoint(request)

    async def work() -> list[str]:
        aws = aws_in(about.region)
        rows = await live.status(about.name, aws, deployment=about.deployment)
        components = tuple(row.name for row in rows if row.kind == "component")
        groups = live.LogGroups(endpoint=about.name, components=components)
        return await live.logs(groups, aws, limit=request.lines, containing=request.containing)

    return tuple(completed(work()))


def delete(
    request: Delete | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: object,
) -> EndpointChange:
    """Delete all resources of an endpoint, in the order that SageMaker allows.

    Args:
        request: The request, or a bundle's folder, or an endpoint's name.
        on_progress: Called with each line of progress; the logger where `None`.
        options: Fields of `Delete`.

    Raises:
        DeployError: The endpoint is not ours, or something would not go in time.
    """
    request = request_of(Delete, request, options)
    about = _endpoint(request)
    change = _change(aws_in(about.region), about.state, on_progress, request.waiting.wait(None))
    ended = completed(live.delete(about.name, change, deployment=about.deployment))
    return EndpointChange(endpoint=about.name, changes=tuple(f"deleted {each}" for each in ended))


def orphans(
    request: Orphans | None = None, /, *, on_progress: OnProgress | None = None, **options: object
) -> tuple[Orphan, ...]:
    """Resources that servetune made in a region and nothing uses, dearest first.

    Args:
        request: The request.
        on_progress: Called with each line of progress; the logger where `None`.
        options: Fields of `Orphans`.
    """
    request = request_of(Orphans, request or Orphans(), options)
    region = require_region(region_of(request.region))
    prices = {
        name: node.price.usd_per_hour if node.price else None
        for name, node in instances("sagemaker").items()
    }

    async def work() -> list[Orphan]:
        aws = aws_in(region)
        change = _change(aws, live.StateFile(None), on_progress, request.waiting.wait(None))
        found = await live.orphans(aws, now=now(), prices=prices)
        for orphan in found if request.delete else ():
            if orphan.resource.kind == "endpoint":
                await live.delete(orphan.resource.name, change)
            else:
                await delete_resource(orphan.resource, change)
        return found

    return tuple(completed(work()))


def _change(
    aws: live.AwsClient, state: live.StateFile, on_progress: OnProgress | None, wait: WaitOptions
) -> Change:
    return Change(aws=aws, state=state, on_progress=on_progress or progress, wait=wait)


def _with_role(request: Apply) -> Deployment:
    """The deployment of a bundle with its role, once all of the request can be right."""
    request.token.require()
    deployment = _bundle(request.bundle)
    rendered = deployment.only("model").request.get("ExecutionRoleArn")
    return with_role(deployment, role_of(request.role_arn, rendered))


def _endpoint(request: Target) -> _Endpoint:
    """A folder that is a bundle, else an endpoint's name."""
    folder = Path(request.target)
    if folder.is_dir():
        held = _bundle(folder)
        return _Endpoint(held.endpoint, held.region, held, live.StateFile(folder))
    if os.sep in request.target:
        raise InputError(
            f"there is no bundle in '{request.target}'", hint="give a folder or a name"
        )
    name = require_name(request.target)
    region = require_region(region_of(request.region))
    return _Endpoint(name, region, None, live.StateFile(None))


def _bundle(folder: Path) -> Deployment:
    path = folder / DEPLOYMENT_FILE
    try:
        text = path.read_text("utf-8")
    except OSError:
        raise InputError(
            f"{path} is not there", hint="make it with servetune deploy sagemaker SOURCE --out DIR"
        ) from None
    return read_deployment(text)
