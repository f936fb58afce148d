"""`servetune deploy ...` on what runs: apply, update, status, logs, delete, orphans."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from servetune.cli.output import echo, print_json
from servetune.cli.sagemaker_options import Wanted
from servetune.cli.sagemaker_plan import (
    TRIAL_FILE,
    hosting_of,
    measured_knee,
    one_copy,
    print_report,
    require_token,
    role_of,
    today_prices,
    wanted_nodes,
    with_trial,
)
from servetune.clock import MonotonicClock
from servetune.deploy import Bundle, Endpoint, render_sagemaker, write
from servetune.deploy.aws import (
    Aws,
    Logs,
    Report,
    StateFile,
    apply,
    check,
    check_live,
    delete,
    logs,
    orphans,
    status,
    update,
)
from servetune.deploy.aws.check import Budget, Facts, require_go
from servetune.deploy.aws.teardown import delete_thing
from servetune.deploy.aws.waiting import Patience
from servetune.deploy.deployment import (
    DEPLOYMENT_FILE,
    Deployment,
    deployment_of,
    read_deployment,
    with_role,
)
from servetune.deploy.names import require_name, require_region
from servetune.errors import InputError
from servetune.hardware import instances
from servetune.models import NetworkShape
from servetune.plan import Plan
from servetune.store import TrialRecord
from servetune.units import format_usd

__all__ = [
    "COMMANDS",
    "Rendered",
    "delete_after",
    "hosting_of",
    "measured_knee",
    "one_copy",
    "require_token",
    "wanted_nodes",
]


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered bundle, and what is known of it, ready to be checked or made."""

    trial: TrialRecord
    endpoint: Endpoint
    wanted: Wanted
    plan: Plan
    shape: NetworkShape

    @property
    def deployment(self) -> Deployment:
        return deployment_of(self.endpoint)

    @property
    def bundle(self) -> Bundle:
        """The files of the endpoint, with the trial that it rests on."""
        return with_trial(render_sagemaker(self.endpoint), self.trial)

    def report(self, *, ask_aws: bool) -> int:
        """Print all findings; 1 where one of them would stop it."""
        report = self.checked(asyncio.run(self._asked()) if ask_aws else ([], {}))
        for warning in self.endpoint.warnings:
            print(f"note  {'evidence':<12} {warning}")
        print_report(report)
        if not ask_aws:
            echo("quota, names and reservations are AWS's to say: --ask-aws asks (it only reads)")
        echo("nothing was made")
        return 1 if report.stops else 0

    def checked(self, asked: tuple[list[Any], dict[str, Any]]) -> Report:
        findings, prices = asked
        facts = Facts(
            plan=self.plan,
            shape=self.shape,
            nodes=self.endpoint.options.nodes,
            container=self.endpoint.options.container,
            image_tag=self.endpoint.image.tag,
            weights_bytes=self.endpoint.options.weights_bytes or 0.0,
        )
        budget = Budget(
            hours=self.wanted.hours,
            max_cost_usd=self.wanted.max_cost,
            prices=today_prices(self.wanted, self.endpoint.options.nodes, prices),
        )
        report = check(self.deployment, facts, budget, today=_now().date())
        return msgspec.structs.replace(report, findings=(*report.findings, *findings))

    def require_affordable(self) -> None:
        """Raise where it would cost more than --max-cost, or what it costs is not known."""
        report = self.checked(([], {}))
        costly = tuple(found for found in report.stops if found.topic in ("cost", "price"))
        require_go(msgspec.structs.replace(report, findings=costly))

    def apply(self, out_dir: Path, *, role_arn: str | None) -> int:
        """Write the bundle, check all of it, ask AWS, and make the endpoint."""
        deployment = with_role(self.deployment, role_of(role_arn, self.deployment))
        require_go(self.checked(([], {})))
        write(self.bundle, out_dir)
        report = self.checked(asyncio.run(self._asked()))
        print_report(report)
        require_go(report)
        patience = _patience(self.wanted.poll_s, self.wanted.timeout_min, deployment)
        return _apply(deployment, out_dir, self.wanted, patience=patience)

    async def _asked(self) -> tuple[list[Any], dict[str, Any]]:
        return await check_live(
            self.deployment,
            _door(self.deployment.region),
            now=_now(),
            hours=self.wanted.hours,
            secret_arn=self.wanted.hf_token_secret,
        )


class _Endpoint(NamedTuple):
    """What a command is about: a bundle's folder, or a name alone."""

    name: str
    region: str
    deployment: Deployment | None
    state: StateFile


_target = click.argument("target", metavar="BUNDLE|ENDPOINT")
_region = click.option(
    "--region", default=None, help="Where a bare endpoint name is. [default: us-east-1]"
)
_poll = click.option("--poll-s", type=click.FloatRange(0), default=15.0, show_default=True)
_timeout = click.option(
    "--timeout-min",
    type=click.FloatRange(0),
    default=None,
    help="Longest wait. [default: from the deployment's own time-outs]",
)
_role = click.option("--role-arn", default=None, help="[default: SAGEMAKER_ROLE_ARN]")
_secret = click.option("--hf-token-secret", default=None, metavar="ARN")
_from_env = click.option("--hf-token-from-env", is_flag=True, help="Take it from HF_TOKEN.")


@click.command("apply", short_help="Make the endpoint of BUNDLE, or go on with it.")
@click.argument("bundle", type=click.Path(path_type=Path))
@_role
@_secret
@_from_env
@_poll
@_timeout
def apply_command(
    *,
    bundle: Path,
    role_arn: str | None,
    hf_token_secret: str | None,
    hf_token_from_env: bool,
    poll_s: float,
    timeout_min: float | None,
) -> int:
    """Make the endpoint of BUNDLE, or go on where an earlier run stopped."""
    require_token(hf_token_secret, from_env=hf_token_from_env)
    target = _bundle(bundle)
    assert target.deployment
    deployment = with_role(target.deployment, role_of(role_arn, target.deployment))
    token = _TokenWish(hf_token_secret, hf_token_from_env)
    findings, _ = asyncio.run(
        check_live(
            deployment, _door(deployment.region), now=_now(), hours=1, secret_arn=hf_token_secret
        )
    )
    require_go(Report(findings=tuple(findings), usd_per_hour=None, hours=1, total_usd=None))
    return _apply(deployment, bundle, token, patience=_patience(poll_s, timeout_min, deployment))


@click.command("update", short_help="Roll the running endpoint over to BUNDLE.")
@click.argument("bundle", type=click.Path(path_type=Path))
@_role
@_secret
@_from_env
@_poll
@_timeout
def update_command(
    *,
    bundle: Path,
    role_arn: str | None,
    hf_token_secret: str | None,
    hf_token_from_env: bool,
    poll_s: float,
    timeout_min: float | None,
) -> int:
    """Roll the running endpoint over to what BUNDLE says, a batch at a time."""
    require_token(hf_token_secret, from_env=hf_token_from_env)
    target = _bundle(bundle)
    assert target.deployment
    deployment = with_role(target.deployment, role_of(role_arn, target.deployment))

    async def work() -> list[str]:
        aws, secrets = await _with_token(
            deployment.region, _TokenWish(hf_token_secret, hf_token_from_env)
        )
        return await update(
            deployment,
            aws,
            state=target.state,
            tell=echo,
            now=_now().isoformat(),
            patience=_patience(poll_s, timeout_min, deployment),
            secrets=secrets,
        )

    for line in asyncio.run(work()) or [f"{deployment.endpoint} is so already"]:
        print(line)
    return 0


@click.command("status")
@_target
@_region
@click.option("--json", "as_json", is_flag=True)
def status_command(*, target: str, region: str | None, as_json: bool) -> int:
    """What stands for an endpoint; 1 unless all of it serves."""
    about = _about(target, region)
    rows = asyncio.run(status(about.name, _door(about.region), deployment=about.deployment))
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            print(f"{row.kind:<16} {row.name:<50} {row.status:<12} {row.detail}".rstrip())
        if not rows:
            print(f"nothing of '{about.name}' is in {about.region}")
    return 0 if rows and all(row.status in ("there", "InService") for row in rows) else 1


@click.command("logs", short_help="The last lines of an endpoint's containers.")
@_target
@_region
@click.option("--lines", type=click.IntRange(1, 10000), default=100, show_default=True)
@click.option("--grep", "containing", default=None, help="Only lines with this text.")
def logs_command(*, target: str, region: str | None, lines: int, containing: str | None) -> int:
    """The last lines of an endpoint's containers, credentials taken out."""
    about = _about(target, region)

    async def work() -> list[str]:
        aws = _door(about.region)
        rows = await status(about.name, aws, deployment=about.deployment)
        components = tuple(row.name for row in rows if row.kind == "component")
        where = Logs(endpoint=about.name, components=components)
        return await logs(where, aws, limit=lines, containing=containing)

    for line in asyncio.run(work()):
        print(line)
    return 0


@click.command("delete", short_help="Delete all that stands for an endpoint.")
@_target
@_region
@_poll
@_timeout
def delete_command(
    *, target: str, region: str | None, poll_s: float, timeout_min: float | None
) -> int:
    """Delete all that stands for an endpoint, in the order that SageMaker allows."""
    about = _about(target, region)
    patience = Patience(poll_s=poll_s, timeout_s=(timeout_min or 90) * 60)
    gone = asyncio.run(
        delete(
            about.name,
            _door(about.region),
            state=about.state,
            tell=echo,
            patience=patience,
            deployment=about.deployment,
        )
    )
    for line in gone:
        print(f"deleted {line}")
    print(f"nothing of {about.name} is left")
    return 0


@click.command("orphans", short_help="What servetune made and nothing uses any more.")
@_region
@click.option("--delete", "and_delete", is_flag=True, help="Delete what is found.")
@click.option("--json", "as_json", is_flag=True)
@_poll
def orphans_command(*, region: str | None, and_delete: bool, as_json: bool, poll_s: float) -> int:
    """What servetune made in a region and nothing uses any more; 1 where something is left."""
    where = require_region(region or "us-east-1")
    prices = {
        name: node.price.usd_per_hour if node.price else None
        for name, node in instances("sagemaker").items()
    }

    async def work() -> tuple[list[Any], int]:
        aws = _door(where)
        found = await orphans(aws, now=_now(), prices=prices)
        left = len(found)
        for orphan in found if and_delete else ():
            if orphan.thing.kind == "endpoint":
                await delete(orphan.thing.name, aws, state=StateFile(None), tell=echo,
                             patience=Patience(poll_s=poll_s))  # fmt: skip
            else:
                patience = Patience(poll_s=poll_s)
                await delete_thing(aws, orphan.thing, tell=echo, patience=patience)
            left -= 1
        return found, left

    found, left = asyncio.run(work())
    if as_json:
        print_json(found)
        return 1 if left else 0
    for orphan in found:
        cost = "price unknown" if orphan.usd_per_hour is None else ""
        if orphan.usd_per_hour:
            cost = f"{format_usd(orphan.usd_per_hour)} an hour"
        print(f"{orphan.thing.kind:<16} {orphan.thing.name:<50} {orphan.reason} {cost}".rstrip())
    if not found:
        print(f"nothing of servetune's is left over in {where}")
    elif and_delete:
        print("deleted them")
    return 1 if left else 0


COMMANDS = (
    apply_command,
    update_command,
    status_command,
    logs_command,
    delete_command,
    orphans_command,
)


class _TokenWish(NamedTuple):
    hf_token_secret: str | None
    hf_token_from_env: bool


def _apply(deployment: Deployment, folder: Path, token: Any, *, patience: Patience) -> int:
    async def work() -> None:
        aws, secrets = await _with_token(deployment.region, token)
        await apply(
            deployment,
            aws,
            state=StateFile(folder),
            tell=echo,
            now=_now().isoformat(),
            patience=patience,
            secrets=secrets,
        )

    asyncio.run(work())
    print(f"{deployment.endpoint} is in service")
    if (folder / TRIAL_FILE).exists():
        echo(f"does it do what was measured? servetune bench --against {folder}")
    echo(f"it costs money until: servetune deploy delete {folder}")
    return 0


async def _with_token(region: str, token: Any) -> tuple[Aws, dict[str, str]]:
    """A door that never repeats the token, and the variables that carry it."""
    value = None
    if token.hf_token_from_env:
        value = os.environ["HF_TOKEN"]
    elif token.hf_token_secret:
        answer = await _door(region).ask(
            "secretsmanager", "GetSecretValue", SecretId=token.hf_token_secret
        )
        value = str(answer["SecretString"])
    if value is None:
        return _door(region), {}
    echo("the token goes into the model's environment: who may describe the model can read it")
    return _door(region, hidden=(value,)), {"HF_TOKEN": value}


def _door(region: str, *, hidden: tuple[str, ...] = ()) -> Aws:
    return Aws(region, clock=MonotonicClock(), hidden=hidden)


def _patience(poll_s: float, timeout_min: float | None, deployment: Deployment) -> Patience:
    from servetune.deploy.aws.apply import patience_of

    own = patience_of(deployment)
    timeout_s = own.timeout_s if timeout_min is None else timeout_min * 60
    return Patience(poll_s=poll_s, timeout_s=timeout_s)


def _about(target: str, region: str | None) -> _Endpoint:
    """A folder that is a bundle, else an endpoint's name."""
    folder = Path(target)
    if folder.is_dir():
        return _bundle(folder)
    if os.sep in target:
        raise InputError(f"there is no bundle in '{target}'", hint="give a folder or a name")
    require_name(target)
    where = require_region(region or "us-east-1")
    return _Endpoint(target, where, None, StateFile(None))


def _bundle(folder: Path) -> _Endpoint:
    path = folder / DEPLOYMENT_FILE
    try:
        text = path.read_text("utf-8")
    except OSError:
        raise InputError(
            f"{path} is not there", hint="make it with servetune deploy sagemaker SOURCE --out DIR"
        ) from None
    deployment = read_deployment(text)
    return _Endpoint(deployment.endpoint, deployment.region, deployment, StateFile(folder))


def delete_after(hours: float) -> str:
    """ISO time for the tag: when the user meant to be done."""
    return (_now() + dt.timedelta(hours=hours)).replace(microsecond=0).isoformat()


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
