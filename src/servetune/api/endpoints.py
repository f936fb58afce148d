"""Endpoints in AWS: made, changed, watched and deleted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Protocol

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular
from servetune.api.noted_deployments import note_deleted, noted
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.api.spending import Confirm, Spending
from servetune.api.waiting import Token, Waiting, aws_in, completed, now, role_of, with_token
from servetune.deploy import aws as live
from servetune.deploy.aws.check import check_rollout, cost_findings, gated, require_go
from servetune.deploy.aws.orphans import Orphan
from servetune.deploy.aws.resources import Change
from servetune.deploy.aws.status import Row
from servetune.deploy.aws.teardown import delete_resource
from servetune.deploy.aws.waiting import WaitOptions
from servetune.deploy.cost import Cost, cost_of
from servetune.deploy.deployment import (
    DEPLOYMENT_FILE,
    Deployment,
    read_deployment,
    with_role,
    with_tags,
)
from servetune.deploy.names import account_of, require_name, require_region
from servetune.errors import InputError
from servetune.hardware import Price, instances
from servetune.option import argument, option
from servetune.units import format_usd

OnProgress = Callable[[str], None]
CanaryPercent = Annotated[int, msgspec.Meta(ge=1, le=50)]
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
    spending: Spending = Spending()
    token: Token = Token()
    waiting: Waiting = Waiting()


class Update(Apply, frozen=True, kw_only=True):
    """A running endpoint to roll over to a bundle."""

    verb: ClassVar[str] = "deploy update"

    canary: Annotated[
        CanaryPercent | None,
        option(
            "Percent of the traffic that goes to new instances first, the rest five minutes later.",
            metavar="PERCENT",
            default="batches of at most half of the instances",
        ),
    ] = None


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
    """A region in which resources that were asked to end, or that nothing uses, are looked for."""

    verb: ClassVar[str] = "deploy orphans"

    region: Annotated[str | None, REGION] = None
    delete: Annotated[
        bool, option("Permission to delete your own ones that are not in service.")
    ] = False
    name: Annotated[
        tuple[str, ...],
        option(
            "Name of one to delete although it is in service or somebody else's; repeatable.",
            metavar="NAME",
        ),
    ] = ()
    waiting: Waiting = Waiting()


class EndpointChange(Tabular, frozen=True, kw_only=True):
    """Changes that were made to an endpoint.

    Attributes:
        endpoint: Name of the endpoint.
        changes: A line for each; empty where nothing was to change.
        unseen: Resources that a deletion could not look at or delete for want of a permission, a
            line each.
    """

    endpoint: str
    changes: tuple[str, ...]
    unseen: tuple[str, ...] = ()

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
        """Whether every resource is there, in service, and as the bundle says."""
        return bool(self.rows) and all(row.serves for row in self.rows)

    @property
    def drifted(self) -> bool:
        """Whether something is otherwise than the bundle says."""
        return any(row.drift for row in self.rows)


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
    confirm: Confirm | None = None,
    **options: object,
) -> Deployment:
    """Make the endpoint of a bundle, or go on where an earlier run stopped.

    Args:
        request: The request, or the bundle's folder.
        on_progress: Called with each line of progress; the logger where `None`.
        confirm: Asked whether an endpoint of the cost that was told is to be made, and whether
            one that somebody changed is to be changed back; without it, `yes` must be given.
        options: Fields of `Apply`.

    Raises:
        InputError: Something would fail, by what AWS says, or nobody agreed to the cost; nothing
            was made.
        DeployError: AWS refused, or the endpoint failed.
    """
    request = request_of(Apply, request, options)
    deployment = _with_role(request)
    _tell_of_scaling(live.StateFile(request.bundle).state, request.bundle, on_progress or progress)
    findings, listed = completed(
        live.check_live(
            deployment,
            aws_in(deployment.region),
            now=now(),
            hours=request.spending.hours or 1,
            secret_arn=request.token.hf_token_secret,
        )
    )
    cost, costs = _cost(deployment, request.spending, listed)
    findings += [*gated(deployment, has_token=request.token.given), *costs]
    require_go(live.Report(findings=tuple(findings)))
    for each in findings:
        if each.level == "note" and each.topic != "endpoint":
            (on_progress or progress)(f"note: {each.topic}: {each.message}")
    make_endpoint(deployment, request.bundle, request, cost, confirm, on_progress)
    return deployment


class Making(Protocol):
    """Options of a request that makes an endpoint."""

    @property
    def spending(self) -> Spending: ...
    @property
    def token(self) -> Token: ...
    @property
    def waiting(self) -> Waiting: ...


def make_endpoint(
    deployment: Deployment,
    folder: Path,
    options: Making,
    cost: Cost,
    confirm: Confirm | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Make what a checked deployment says; its state is noted in the folder.

    Raises:
        InputError: Nobody agreed to the cost; nothing was made.
    """
    tell = on_progress or progress
    for line in cost.lines:
        tell(line)
    drifted = False
    if completed(live.stands(deployment, aws_in(deployment.region))):
        drifted = _agree_to_mend(deployment, options.spending, confirm, tell)
    else:
        options.spending.require_consent(cost.lines[0], confirm)

    async def work() -> None:
        aws, secrets = await with_token(deployment.region, options.token)
        change = _change(aws, live.StateFile(folder), tell, options.waiting.wait(deployment))
        tagged = await _tagged(deployment, aws, options.spending, tell)
        when = now().isoformat()
        if drifted:
            for line in await live.mend(tagged, change, now=when, secrets=secrets):
                tell(line)
        else:
            await live.apply(tagged, change, now=when, secrets=secrets)

    going_on = _interruptible(deployment, folder, cost, tell)
    with going_on, noted(folder, "serving", _account(deployment)):
        completed(work())


def _agree_to_mend(
    deployment: Deployment, spending: Spending, confirm: Confirm | None, tell: OnProgress
) -> bool:
    """Whether the endpoint stands otherwise than its bundle says, and shall be changed back."""
    ours = []
    for each in completed(live.drift(deployment, aws_in(deployment.region))):
        if each.gone or each.hidden:
            continue  # what is gone is made anyway
        tell(f"{each.kind} {each.name} {each.message}{'; it is left' if each.others else ''}")
        ours += [] if each.others else [each]
    if ours:
        planned = _planned_update(deployment, spending, tell)
        about = f"{deployment.endpoint} is otherwise than its bundle says"
        if planned.cost.beside:
            about = f"{about}; {planned.cost.lines[-1]}"
        spending.require_consent(about, confirm, "Change it back?")
    return bool(ours)


def update(
    request: Update | str | Path | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    confirm: Confirm | None = None,
    **options: object,
) -> EndpointChange:
    """Roll a running endpoint over to its bundle, a batch at a time.

    Args:
        request: The request, or the bundle's folder.
        on_progress: Called with each line of progress; the logger where `None`.
        confirm: Asked where it would cost more than now, also while it goes on; without it, `yes`
            must be given then.
        options: Fields of `Update`.

    Raises:
        InputError: Nobody agreed to the cost; nothing was changed.
        DeployError: There is no such endpoint, or SageMaker rolled back.
    """
    request = request_of(Update, request, options)
    deployment = _with_role(request)
    tell = on_progress or progress
    cost = _agree_to_update(deployment, request.spending, confirm, tell, request.canary)

    async def work() -> list[str]:
        aws, secrets = await with_token(deployment.region, request.token)
        wait = request.waiting.wait(deployment)
        change = _change(aws, live.StateFile(request.bundle), tell, wait)
        tagged = await _tagged(deployment, aws, request.spending, tell)
        return await live.update(
            tagged,
            change,
            now=now().isoformat(),
            secrets=secrets,
            canary_percent=request.canary,
        )

    going_on = _interruptible(deployment, request.bundle, cost, tell, stands=True)
    with going_on, noted(request.bundle, "updated", _account(deployment)):
        changes = completed(work())
    return EndpointChange(endpoint=deployment.endpoint, changes=tuple(changes))


class _PlannedUpdate(NamedTuple):
    """What an update costs afterwards and meanwhile, and what it exchanges."""

    cost: Cost
    rollout: live.Rollout | None
    usd_per_hour_before: float | None


def _agree_to_update(
    deployment: Deployment,
    spending: Spending,
    confirm: Confirm | None,
    tell: OnProgress,
    canary_percent: int | None,
) -> Cost:
    """Hold an update against limits and quota, and ask where it costs more than what runs."""
    cost, rollout, before = _planned_update(deployment, spending, tell, canary_percent)
    for line in cost.lines:
        tell(line)
    if (rollout is not None and rollout.instances) or cost.beside:
        after = cost.usd_per_hour
        if cost.beside or before is None or after is None or after > before:
            about = "; ".join(dict.fromkeys((cost.lines[0], cost.lines[-1])))
            spending.require_consent(about, confirm, "Change it?")
    return cost


def _planned_update(
    deployment: Deployment,
    spending: Spending,
    tell: OnProgress,
    canary_percent: int | None = None,
) -> _PlannedUpdate:
    """Cost and exchanges of an update.

    Raises:
        InputError: It costs more than is allowed, or there is no place for it; nothing was changed.
    """

    async def looked() -> tuple[dict[str, Price], live.Running | None]:
        aws = aws_in(deployment.region)
        types, today = deployment.hosting.instance_types, now().date().isoformat()
        listed: dict[str, Price] = {}
        try:
            queued = deployment.hosting.queued
            listed = await live.listed_prices(aws, types, today=today, queued=queued)
        except live.AwsError as error:
            tell(f"the Price List cannot be read: {error.message}")
        return listed, await live.running(deployment, aws)

    listed, running = completed(looked())
    budget = spending.budget(deployment.hosting.instance_types, listed)
    cost, _ = _cost(deployment, spending, listed)
    rollout, before, findings = None, None, []
    if running is not None:
        rollout = live.rollout_of(deployment, running, canary_percent)
        own = {name: price.usd_per_hour for name, price in budget.prices.items()}
        before = running.usd_per_hour(_catalogue_prices() | own)
        each_usd = cost.price.usd_per_hour if cost.price else None
        each_usd = 0.0 if cost.reservation_arn else each_usd
        meanwhile = rollout.peak_usd_per_hour(before, each_usd)
        cost = msgspec.structs.replace(
            cost, beside=rollout.beside, meanwhile_usd_per_hour=meanwhile
        )
        if rollout.beside:
            aws = aws_in(deployment.region)
            findings = completed(check_rollout(deployment, rollout, running, aws))
    findings += cost_findings(cost, budget)
    require_go(live.Report(findings=tuple(findings)))
    for each in findings:
        if each.level == "note" and each.topic == "quota":
            tell(f"note: quota: {each.message}")
    return _PlannedUpdate(cost, rollout, before)


def _cost(
    deployment: Deployment, spending: Spending, listed: Mapping[str, Price]
) -> tuple[Cost, list[live.Finding]]:
    """The price of a deployment's instances, and whether it is within the limits."""
    catalogue = instances("sagemaker")
    types = deployment.hosting.instance_types
    nodes = tuple(catalogue[name] for name in types if name in catalogue)
    budget = spending.budget(types, listed)
    prices: dict[str, Price | None] = {node.name: node.price for node in nodes}
    cost = cost_of(deployment.hosting, prices | budget.prices)
    return cost, list(cost_findings(cost, budget))


async def _tagged(
    deployment: Deployment, aws: live.AwsClient, spending: Spending, tell: OnProgress
) -> Deployment:
    """The deployment with its maker, and the time at which it shall end where there is one."""
    ends = spending.delete_after
    if ends:
        tell(f"{deployment.endpoint} shall end at {ends}: deploy orphans lists it from then on")
    return with_tags(deployment, owner=await live.caller(aws), delete_after=ends)


@contextmanager
def _interruptible(
    deployment: Deployment,
    folder: Path,
    cost: Cost,
    tell: OnProgress,
    *,
    stands: bool = False,
) -> Iterator[None]:
    """Say what goes on and costs money where Ctrl-C ends the command alone.

    `stands` is for an endpoint that was there before; else the state tells whether it was begun.
    """
    try:
        yield
    except KeyboardInterrupt:
        state = live.StateFile(folder).state
        if stands or any(entry.kind == "endpoint" for entry in state.entries):
            per_hour = cost.usd_per_hour
            costs = "money" if per_hour is None else f"{format_usd(per_hour)} an hour"
            costs = "its reservation" if cost.reservation_arn else costs
            tell(
                f"{deployment.endpoint} goes on without this command, and costs {costs} until you "
                f"run: servetune deploy delete {shlex.quote(str(folder))}"
            )
        raise
    finally:
        _tell_of_scaling(live.StateFile(folder).state, folder, tell)


def _tell_of_scaling(state: live.State, folder: Path, tell: OnProgress) -> None:
    """Say that autoscaling is off, where an update took it off and did not end."""
    if state.scaling_note:
        again = f"servetune deploy update {shlex.quote(str(folder))}"
        tell(f"{state.scaling_note}: {again} puts it back")


def status(request: Status | str | None = None, /, **options: object) -> EndpointStatus:
    """The resources of an endpoint and how each is.

    Args:
        request: The request, or a bundle's folder, or an endpoint's name.
        options: Fields of `Status`.
    """
    about = _endpoint(request_of(Status, request, options))
    rows = completed(
        live.status(
            about.name,
            aws_in(about.region),
            deployment=about.deployment,
            state=about.state.state,
        )
    )
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
    aws = aws_in(about.region)
    change = _change(aws, about.state, on_progress, request.waiting.wait(None))
    ended = completed(live.delete(about.name, change, deployment=about.deployment))
    note_deleted(about.name, about.region, account_of(completed(live.caller(aws))))
    return EndpointChange(
        endpoint=about.name,
        changes=tuple(f"deleted {each}" for each in ended.deleted),
        unseen=ended.unseen,
    )


def orphans(
    request: Orphans | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    confirm: Callable[[Orphan], bool] | None = None,
    **options: object,
) -> tuple[Orphan, ...]:
    """Resources that servetune made in a region and that were asked to end or nothing uses.

    With `delete`, those that the caller made and that are not in service are deleted; others only
    by their names.

    Args:
        request: The request.
        on_progress: Called with each line of progress; the logger where `None`.
        confirm: Asked, with `delete`, about each own one in service; true where the user typed its
            name.
        options: Fields of `Orphans`.

    Returns:
        The caller's own, then all others, each with the dearest first.

    Raises:
        InputError: A name is that of none of them, or stands without `delete`; nothing was
            deleted.
    """
    request = request_of(Orphans, request or Orphans(), options)
    region = require_region(region_of(request.region))
    if request.name and not request.delete:
        raise InputError("--name is for --delete", hint="give both")

    async def found_ones() -> list[Orphan]:
        aws = aws_in(region)
        owner = await live.caller(aws)
        return await live.orphans(aws, now=now(), prices=_catalogue_prices(), owner=owner)

    async def deleted(orphan: Orphan) -> Orphan:
        change = _change(
            aws_in(region), live.StateFile(None), on_progress, request.waiting.wait(None)
        )
        if orphan.resource.kind == "endpoint":
            await live.delete(orphan.resource.name, change)
            account = account_of(await live.caller(change.aws))
            note_deleted(orphan.resource.name, region, account)
        else:
            await delete_resource(orphan.resource, change)
        return msgspec.structs.replace(orphan, deleted=True)

    found = completed(found_ones())
    unknown = set(request.name) - {orphan.resource.name for orphan in found}
    if unknown:
        raise InputError(
            f"'{min(unknown)}' is none of the {len(found)} orphans in {region}",
            hint=f"servetune deploy delete {min(unknown)} deletes an endpoint of that name",
        )

    def chosen(orphan: Orphan) -> bool:
        if not request.delete or orphan.resource.name in request.name:
            return request.delete
        if not orphan.own:
            return False
        return not orphan.in_service or (confirm is not None and confirm(orphan))

    return tuple(completed(deleted(each)) if chosen(each) else each for each in found)


def _catalogue_prices() -> dict[str, float | None]:
    return {
        name: node.price.usd_per_hour if node.price else None
        for name, node in instances("sagemaker").items()
    }


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


def _account(deployment: Deployment) -> str:
    """Account in which an endpoint is made: that of its role, which SageMaker wants in the same."""
    return account_of(str(deployment.only("model").request.get("ExecutionRoleArn", "")))


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
