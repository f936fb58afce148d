"""`servetune stage`: a model's files into S3, once and checked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from servetune.cli.output import echo, print_json
from servetune.cli.sagemaker_plan import require_token
from servetune.clock import MonotonicClock
from servetune.deploy.aws import Aws
from servetune.deploy.aws.looking import staged_model
from servetune.deploy.aws.waiting import Patience, Seen, until_rest
from servetune.deploy.names import require_region
from servetune.deploy.staging import Place, download_job, model_files, place
from servetune.deploy.staging import stage as stage_files
from servetune.errors import DeployError, InputError, ServetuneError
from servetune.models import cached_snapshot, load_shape, weight_bytes
from servetune.units import format_bytes

__all__ = ["stage"]


@click.command()
@click.argument("model")
@click.argument("where", metavar="s3://BUCKET/PREFIX/")
@click.option("--region", default="us-east-1", show_default=True)
@click.option("--model-id", default=None, help="Hub id of a local folder, for its tokenizer.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files to leave out; repeatable.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--dry-run", is_flag=True, help="Show files, or the job's request; send nothing.")
@click.option("--as-job", is_flag=True, help="Let a processing job fetch it from the hub.")
@click.option("--role-arn", default=None, help="For --as-job. [default: SAGEMAKER_ROLE_ARN]")
@click.option("--revision", default=None, help="For --as-job: branch, tag or commit.")
@click.option("--hf-token-secret", default=None, metavar="ARN", help="For --as-job.")
@click.option("--poll-s", type=click.FloatRange(0), default=30.0, show_default=True)
def stage(
    *,
    model: str,
    where: str,
    region: str,
    model_id: str | None,
    exclude: tuple[str, ...],
    jobs: int,
    dry_run: bool,
    as_job: bool,
    role_arn: str | None,
    revision: str | None,
    hf_token_secret: str | None,
    poll_s: float,
) -> int:
    """Put MODEL (a folder, or a hub id in this disk's cache) into S3.

    What is there with the same size and checksum is not sent again, and an upload that
    stopped half-way goes on.
    """
    target = place(where)
    require_token(hf_token_secret)
    require_region(region)
    if as_job:
        return _job(
            model, target, region, role_arn, revision, hf_token_secret, dry_run=dry_run,
            poll_s=poll_s,
        )  # fmt: skip
    folder, found_revision = _folder_of(model)
    files = model_files(folder, exclude=exclude)
    if dry_run:
        for each in files:
            print(f"{format_bytes(each.size_bytes):>12}  {target.uri}{each.path}")
        echo(f"{format_bytes(sum(each.size_bytes for each in files))} in all; nothing was sent")
        return 0
    done = asyncio.run(
        stage_files(
            files,
            target,
            Aws(region, clock=MonotonicClock(), threads=True),
            model=model_id or model,
            revision=found_revision,
            tell=echo,
            jobs=jobs,
        )
    )
    print(
        f"{format_bytes(done.total_bytes)} of {model} in {done.uri} "
        f"({format_bytes(done.sent_bytes)} sent, {done.same_files} files were there)"
    )
    echo(f"next: servetune deploy sagemaker RESULTS --out bundle --model-source {done.uri}")
    return 0


def _folder_of(model: str) -> tuple[Path, str | None]:
    """A model's folder and its revision, where the hub's cache tells."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder, None
    cached = cached_snapshot(model)
    if cached is None:
        raise InputError(
            f"'{model}' is neither a folder nor in the hub's cache on this disk",
            hint=f"fetch it with hf download {model}, or let AWS do it with --as-job",
        )
    return cached, cached.name


def _job(
    model: str,
    target: Place,
    region: str,
    role_arn: str | None,
    revision: str | None,
    secret_arn: str | None,
    *,
    dry_run: bool,
    poll_s: float,
) -> int:
    role = role_arn or os.environ.get("SAGEMAKER_ROLE_ARN")
    if role is None:
        raise InputError("no execution role", hint="give --role-arn, or set SAGEMAKER_ROLE_ARN")
    try:
        size: float | None = weight_bytes(load_shape(model, catalogue_first=True))
    except ServetuneError:  # a model that nobody here knows still can be fetched
        size = None
    request = download_job(
        model=model,
        where=target,
        region=region,
        role_arn=role,
        model_bytes=size,
        revision=revision,
        secret_arn=secret_arn,
    )
    if dry_run:
        print_json(request)
        return 0
    wanted = (model, revision)
    asyncio.run(_run_job(request, Aws(region, clock=MonotonicClock()), poll_s, target, wanted))
    print(f"{model} is in {target.uri}")
    echo(f"next: servetune deploy sagemaker RESULTS --out bundle --model-source {target.uri}")
    return 0


async def _run_job(
    request: dict[str, object],
    aws: Aws,
    poll_s: float,
    target: Place,
    wanted: tuple[str, str | None],
) -> None:
    """Start the job, or wait on with one that an earlier run started."""
    name, found = await _free_name(str(request["ProcessingJobName"]), aws, target, wanted)
    if not found:
        await aws.ask("sagemaker", "CreateProcessingJob", **(request | {"ProcessingJobName": name}))
        echo(f"started processing job {name}")
    patience = Patience(poll_s=poll_s, timeout_s=13 * 3600)
    seen = await until_rest(f"job {name}", lambda: _seen(name, aws), aws.clock, patience, echo)
    if seen.status != "Completed":
        raise DeployError(
            f"job {name} is {seen.status}: {seen.reason or 'AWS gives no reason'}",
            hint="its log group is /aws/sagemaker/ProcessingJobs; a gated model needs "
            "--hf-token-secret; the same command starts another",
        )


async def _free_name(
    name: str, aws: Aws, target: Place, wanted: tuple[str, str | None]
) -> tuple[str, bool]:
    """The job's name, and whether it runs or is done; one that failed keeps its name.

    So does one that is done, where what it made has been taken away or replaced since.
    """
    for attempt in range(1, 100):
        tried = name if attempt == 1 else f"{name[:60]}-{attempt}"
        seen = await _seen(tried, aws)
        if seen.status in ("Failed", "Stopped"):
            continue
        if seen.status == "Completed" and await staged_model(target.uri, aws) != wanted:
            continue
        return tried, seen.status != "gone"
    raise DeployError(f"99 jobs like {name} have ended", hint="choose another prefix")


async def _seen(name: str, aws: Aws) -> Seen:
    said = await aws.ask_or_none("sagemaker", "DescribeProcessingJob", ProcessingJobName=name)
    if said is None:
        return Seen(status="gone", moving=False)
    status = str(said["ProcessingJobStatus"])
    reason = str(said.get("FailureReason") or said.get("ExitMessage") or "")
    return Seen(
        status=status, moving=status in ("InProgress", "Stopping"), reason=aws.scrubbed(reason)
    )
