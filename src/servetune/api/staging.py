"""Staging: a model's files in S3, once and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.api.waiting import aws_in, completed, role_of
from servetune.deploy.aws.waiting import WaitOptions
from servetune.deploy.names import require_region, require_secret
from servetune.deploy.staging import (
    HubModel,
    ModelFile,
    Place,
    Staged,
    download_job,
    model_files,
    place,
    run_job,
)
from servetune.deploy.staging import stage as upload
from servetune.errors import InputError, ServetuneError
from servetune.models import cached_snapshot, load_shape, weight_bytes
from servetune.option import NonNegative, argument, option

#: Longest wait for a job; SageMaker stops it after 12 h.
JOB_TIMEOUT_S = 13 * 3600.0

PartCount = Annotated[int, msgspec.Meta(ge=1, le=64)]


class Staging(Request, frozen=True, kw_only=True):
    """A model to put into S3."""

    verb: ClassVar[str] = "stage"

    model: Annotated[
        str, argument("Folder, or hub id of a model in this disk's cache.", metavar="MODEL")
    ]
    where: Annotated[str, argument("Prefix in S3 for the files.", metavar="s3://BUCKET/PREFIX/")]
    region: Annotated[str | None, REGION] = None
    model_id: Annotated[
        str | None, option("Hub id of a local folder, for its tokenizer.", metavar="HUB_ID")
    ] = None
    exclude: Annotated[
        tuple[str, ...], option("Pattern of files to leave out; repeatable.", metavar="PATTERN")
    ] = ()
    jobs: Annotated[
        PartCount,
        option("Number of parts sent at once, each in memory once.", "--parts", "--jobs"),
    ] = 4
    dry_run: Annotated[
        bool, option("Preview of the files, or of the job's request; nothing is sent.")
    ] = False
    as_job: Annotated[
        bool, option("Processing job that fetches the model from the hub.", group="With --as-job")
    ] = False
    role_arn: Annotated[
        str | None,
        option(
            "ARN of the job's role.",
            metavar="ARN",
            default="SAGEMAKER_ROLE_ARN",
            group="With --as-job",
        ),
    ] = None
    revision: Annotated[
        str | None,
        option("Branch, tag or commit.", metavar="NAME", group="With --as-job"),
    ] = None
    hf_token_secret: Annotated[
        str | None,
        option(
            "ARN of the secret in Secrets Manager that holds the hub's token.",
            metavar="ARN",
            group="With --as-job",
        ),
    ] = None
    poll_s: Annotated[
        NonNegative,
        option(
            "Seconds between two looks at AWS.", "--poll-s", "--poll-every", group="With --as-job"
        ),
    ] = 15.0


class StagingPlan(Tabular, frozen=True, kw_only=True):
    """Files that staging would send.

    Attributes:
        where: Prefix in S3.
        region: AWS region of bucket and job.
        files: Files of the model; empty for a job.
        revision: Revision of the files in the hub, where it is known.
        job: Request of the processing job, `None` where the files leave this disk.
    """

    where: Place
    region: str
    files: tuple[ModelFile, ...] = ()
    revision: str | None = None
    job: dict[str, Any] | None = None

    def as_rows(self) -> Iterable[TableRow]:
        """One row per file."""
        return self.files

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(each.size_bytes for each in self.files)


def plan_staging(request: Staging | str | None = None, /, **options: object) -> StagingPlan:
    """Files that `stage` would send; nothing is sent.

    Args:
        request: The request, or the model.
        options: Fields of `Staging`.

    Raises:
        InputError: The model is not on this disk, or is not whole, or an option is wrong.
    """
    request = request_of(Staging, request, options)
    where = place(request.where)
    if request.hf_token_secret is not None:
        require_secret(request.hf_token_secret)
    region = require_region(region_of(request.region))
    if request.as_job:
        role = role_of(request.role_arn)
        job = download_job(_hub_model(request), where, region=region, role_arn=role)
        return StagingPlan(where=where, region=region, job=job)
    folder, revision = _folder_of(request.model)
    files = model_files(folder, exclude=request.exclude)
    return StagingPlan(where=where, region=region, files=files, revision=revision)


def stage(
    request: Staging | str | None = None,
    /,
    *,
    on_progress: Callable[[str], None] | None = None,
    **options: object,
) -> Staged:
    """Put a model's files into S3, or let a job in AWS do it.

    What is there with the same size and checksum is not sent again, and an upload that
    stopped half-way goes on.

    Args:
        request: The request, or the model.
        on_progress: Called with each line of progress; the logger where `None`.
        options: Fields of `Staging`.

    Raises:
        InputError: The model is not on this disk, or is not whole, or an option is wrong.
        DeployError: AWS refused, or the job failed.
    """
    request = request_of(Staging, request, options)
    plan = plan_staging(request)
    if plan.job is not None:
        source, aws = _hub_model(request), aws_in(plan.region)
        wait = WaitOptions(poll_s=request.poll_s, timeout_s=JOB_TIMEOUT_S)
        completed(
            run_job(
                source, plan.where, aws, plan.job, wait=wait, on_progress=on_progress or progress
            )
        )
        return Staged(uri=plan.where.uri, by_job=True)
    return completed(
        upload(
            plan.files,
            plan.where,
            aws_in(plan.region, threads=True),
            model=request.model_id or request.model,
            revision=plan.revision,
            on_progress=on_progress or progress,
            jobs=request.jobs,
        )
    )


def _hub_model(request: Staging) -> HubModel:
    try:
        size: float | None = weight_bytes(load_shape(request.model, catalogue_first=True))
    except ServetuneError:  # a model that nobody here knows still can be fetched
        size = None
    return HubModel(
        model=request.model,
        revision=request.revision,
        secret_arn=request.hf_token_secret,
        weights_bytes=size,
        exclude=request.exclude,
    )


def _folder_of(model: str) -> tuple[Path, str | None]:
    """A model's folder and its revision, where the hub's cache has it."""
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
