"""AWS's benchmark job for `bench`: the options that it takes, the job, its clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from servetune.api.aws_region import region_of
from servetune.api.bench_request import Bench, values_of
from servetune.errors import InputError

if TYPE_CHECKING:
    from servetune.deploy.aws.client import Boto3Client
    from servetune.deploy.aws.jobs import BenchmarkJob
    from servetune.store import TrialRecord

_ONLY_HERE = ("levels", "role_arn", "output_s3", "secret_arn", "only_status", "force", "clean")


#: What a job cannot be told, or is told by the workload.
_NOT_HERE = (
    "urls", "rate", "arrivals", "input_tokens", "output_tokens", "dataset", "trace", "against",
    "until", "duration_s", "adapters", "openai_route", "route",
)  # fmt: skip


def require_alone(request: Bench) -> None:
    """Refuse options that are for a job where there is none, and those that no job takes.

    Raises:
        InputError: They are.
    """
    if request.endpoint.via_aws_job or request.endpoint.recommendations:
        for name in _NOT_HERE:
            if values_of(request).get(name):
                raise InputError(
                    f"{_option(name)} is for our own load, not for AWS's job",
                    hint="leave it out, or leave --via-aws-job out",
                )
        return
    for name in _ONLY_HERE:
        if values_of(request).get(name):
            flag = name.removeprefix("only_").replace("_", "-")
            raise InputError(f"--{flag} is for --via-aws-job", hint="give --via-aws-job as well")


def _option(name: str) -> str:
    return "a URL" if name == "urls" else f"--{name.removesuffix('_s').replace('_', '-')}"


def job_of(request: Bench) -> tuple[BenchmarkJob, tuple[str, ...]]:
    """Job that the options name, and notes on what it cannot express.

    Raises:
        InputError: The options do not name a whole job.
    """
    from servetune.deploy.aws.jobs import BenchmarkJob, job_parameters
    from servetune.workload.presets import preset

    for name in ("sagemaker", "workload", "model", "role_arn", "output_s3"):
        if not values_of(request).get(name):
            raise InputError(
                f"--via-aws-job needs --{name.replace('_', '-')}",
                hint="--sagemaker ENDPOINT --workload NAME --model ID --role-arn ARN "
                "--output-s3 s3://bucket/prefix",
            )
    assert request.load.workload is not None
    assert request.endpoint.sagemaker is not None
    assert request.server.model is not None
    assert request.endpoint.role_arn is not None
    assert request.endpoint.output_s3 is not None
    workload = preset(request.load.workload)
    request.levels()
    levels = request.concurrency or (workload.concurrency or 1,)
    parameters, notes = job_parameters(
        workload,
        model=request.server.model,
        concurrencies=levels,
        request_count=request.load.requests,
    )
    component = request.endpoint.component or request.endpoint.adapter
    job = BenchmarkJob(
        endpoint=request.endpoint.sagemaker,
        components=(component,) if component else (),
        parameters=parameters,
        secret_arn=request.endpoint.secret_arn,
        concurrencies=levels,
        role_arn=request.endpoint.role_arn,
        output=request.endpoint.output_s3,
        model=request.server.model,
        workload=str(request.load.workload),
    )
    return job, notes


def clients_of(request: Bench) -> tuple[Boto3Client, Boto3Client]:
    """boto3's for SageMaker and S3, in a region that exists and with somebody's credentials."""
    from servetune.loadgen.sagemaker import aws_session

    profile = request.endpoint.profile
    session = aws_session(region=region_of(request.endpoint.region, profile), profile=profile)
    import boto3

    made = boto3.session.Session(profile_name=profile, region_name=session.region)
    return made.client("sagemaker"), made.client("s3")


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Errors of boto3 itself, before or instead of a call, as one line."""
    import botocore.exceptions

    from servetune.errors import LoadError

    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        raise LoadError(f"AWS cannot be asked: {error}") from None


def imported(request: Bench) -> list[TrialRecord]:
    """Records of the proposals of a recommendation job.

    Raises:
        InputError: No model is named.
        LoadError: The service refuses, or the job proposes nothing.
    """
    from servetune.deploy.aws.jobs import recommended_trials
    from servetune.deploy.containers import container_of_variables, parse_environment
    from servetune.plan import Plan

    model = request.server.model
    if not model:
        raise InputError("recommendations do not name their model", hint="give it with --model")

    def plan_of(_image: str, environment: Mapping[str, str]) -> Plan:
        container = container_of_variables(environment)
        return parse_environment(container.name, {container.model_key: model, **environment})

    client, _ = clients_of(request)
    with refusals():
        return recommended_trials(
            client, str(request.endpoint.recommendations), model=model, plan_of=plan_of
        )
