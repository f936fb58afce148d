"""`servetune bench --via-aws-job`: AWS's benchmark job instead of our own load."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servetune.api.bench_request import Bench, values_of
from servetune.api.benchmark import require_free
from servetune.cli.main import INTERRUPTED
from servetune.cli.output import echo, print_json
from servetune.errors import InputError

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


def run(request: Bench, *, as_json: bool) -> int:
    """Create, watch and read a job, or import recommendations.

    Raises:
        InputError: The options do not say a whole job.
        LoadError: The service refuses, or the job ends badly.
    """
    if request.results.out_dir is not None:
        require_free(request.results.out_dir)
    if request.endpoint.recommendations:
        return _import(request, as_json)
    job, notes = _job(request)
    client, s3 = _clients(request)
    with _refusals():
        return _work(request, as_json, job, notes, client, s3)


def _work(
    request: Bench, as_json: bool, job: Any, notes: tuple[str, ...], client: Any, s3: Any
) -> int:
    from servetune.deploy.aws import jobs

    if request.endpoint.clean:
        taken = jobs.clean(client, job.name, poll_s=request.endpoint.poll_every)
        print(f"took away {', '.join(taken)}" if taken else f"there is no job {job.name}")
        return 0
    if request.endpoint.only_status:
        return _print_status(jobs.describe(client, job.name), job.name)
    for each in notes:
        echo(f"note: {each}")
    poll_s = request.endpoint.poll_every
    created = jobs.start(client, job, force=request.endpoint.force, poll_s=poll_s)
    echo(f"job {job.name} {'was created' if created else 'exists already'}")
    try:
        described = jobs.wait(client, job.name, on_status=_Shown(), poll_s=poll_s)
    except KeyboardInterrupt:
        echo(f"job {job.name} goes on: repeat the command to wait, --status shows its state")
        return INTERRUPTED
    archive = jobs.fetch_archive(s3, described.output or job.prefix)
    records = jobs.trials_of(job, archive, arn=described.arn)
    return _show(request, as_json, records)


def _job(request: Bench) -> tuple[Any, tuple[str, ...]]:
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
    levels = _levels(request.endpoint.levels) or (
        request.load.concurrency or workload.concurrency or 1,
    )
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
        concurrencies=tuple(levels),
        role_arn=request.endpoint.role_arn,
        output=request.endpoint.output_s3,
        model=request.server.model,
        workload=str(request.load.workload),
    )
    return job, notes


def _levels(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--levels {text} is no list of concurrencies", hint="such as 1,8,32")
    levels = tuple(int(part) for part in parts)
    if len(set(levels)) != len(levels):
        raise InputError(f"--levels {text} names a concurrency twice")
    return levels


def _clients(request: Bench) -> tuple[Any, Any]:
    """boto3's for SageMaker and S3, in a region that exists and with somebody's credentials."""
    from servetune.loadgen.sagemaker import aws_session

    session = aws_session(region=request.endpoint.region, profile=request.endpoint.profile)
    import boto3

    made = boto3.session.Session(profile_name=request.endpoint.profile, region_name=session.region)
    return made.client("sagemaker"), made.client("s3")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Errors of boto3 itself, before or instead of a call, as one line."""
    import botocore.exceptions

    from servetune.errors import LoadError

    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        raise LoadError(f"AWS cannot be asked: {error}") from None


class _Shown:
    """A line for each new status."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, described: Any, waited_s: float) -> None:
        if described.status != self._last:
            self._last = described.status
            echo(f"{described.status} after {waited_s:.0f} s")


def _print_status(described: Any, name: str) -> int:
    from servetune.errors import LoadError

    if described is None:
        raise LoadError(f"there is no job {name}", hint="run without --status to create it")
    print(
        f"{described.name} {described.status}{f': {described.reason}' if described.reason else ''}"
    )
    return 0


def _import(request: Bench, as_json: bool) -> int:
    from servetune.deploy.aws.jobs import recommended_trials
    from servetune.deploy.containers import container_of_variables, parse_environment
    from servetune.plan import Plan

    model = request.server.model
    if not model:
        raise InputError("recommendations do not name their model", hint="give it with --model")

    def plan_of(_image: str, environment: Mapping[str, str]) -> Plan:
        container = container_of_variables(environment)
        return parse_environment(container.name, {container.model_key: model, **environment})

    client, _ = _clients(request)
    with _refusals():
        records = recommended_trials(
            client, str(request.endpoint.recommendations), model=model, plan_of=plan_of
        )
    return _show(request, as_json, records)


def _show(request: Bench, as_json: bool, records: list[Any]) -> int:
    from servetune.report.quantities import quantity_value, shown
    from servetune.store import Artifacts, Journal

    out_dir: Path | None = request.results.out_dir
    if out_dir is not None:
        out_dir.mkdir(parents=True, exist_ok=True)
        artifacts = Artifacts(out_dir, "bench")
        with Journal(artifacts.journal) as journal:
            for record in records:
                journal.append(record)
        echo(f"wrote {artifacts.journal}")
    if as_json:
        print_json(records)
        return 0
    for record in records:
        results = record.results
        head = record.plan.label if record.plan else f"concurrency {results['max_concurrency']}"
        figures = [
            ("output", shown(quantity_value(results, "output_throughput"), "tokens/s")),
            ("TTFT mean", shown(quantity_value(results, "ttft", "mean"), "ms")),
            ("p99", shown(quantity_value(results, "ttft", "p99"), "ms")),
            ("E2E p99", shown(quantity_value(results, "e2e_latency", "p99"), "ms")),
            ("failed", shown(quantity_value(results, "error_rate"), "fraction")),
        ]
        print(f"{head}: " + ", ".join(f"{name} {text}" for name, text in figures))
    sys.stdout.flush()
    return 0
