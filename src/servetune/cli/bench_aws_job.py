"""`servetune bench --via-aws-job`: AWS's benchmark job instead of our own load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from servetune.api.bench_aws_job import clients_of, imported, job_of, refusals
from servetune.api.bench_request import Bench
from servetune.api.benchmark import require_free
from servetune.cli.output import echo, print_json
from servetune.errors import ExitStatus

if TYPE_CHECKING:
    from servetune.deploy.aws.client import Boto3Client
    from servetune.deploy.aws.jobs import BenchmarkJob, JobStatus
    from servetune.store import TrialRecord


def run(request: Bench, *, as_json: bool) -> int:
    """Create, watch and read a job, or import recommendations.

    Raises:
        InputError: The options do not say a whole job.
        LoadError: The service refuses, or the job ends badly.
    """
    if request.results.out is not None:
        require_free(request.results.out)
    if request.endpoint.recommendations:
        return _show(request, as_json, imported(request))
    job, notes = job_of(request)
    client, s3 = clients_of(request)
    with refusals():
        return _work(request, as_json, job, notes, client, s3)


def _work(
    request: Bench,
    as_json: bool,
    job: BenchmarkJob,
    notes: tuple[str, ...],
    client: Boto3Client,
    s3: Boto3Client,
) -> int:
    from servetune.deploy.aws import jobs

    if request.endpoint.clean:
        taken = jobs.clean(client, job.name, poll_s=request.endpoint.poll_s)
        print(f"took away {', '.join(taken)}" if taken else f"there is no job {job.name}")
        return 0
    if request.endpoint.only_status:
        described = jobs.describe(client, job.name)
        if described is None or described.status != "Completed":
            return _print_status(described, job.name)
        if not as_json:
            _print_status(described, job.name)
        archive = jobs.fetch_archive(s3, described.output or job.prefix)
        return _show(request, as_json, jobs.trials_of(job, archive, arn=described.arn))
    if hidden := jobs.require_bucket(s3, job.output):
        echo(f"note: {hidden}")
    for each in notes:
        echo(f"note: {each}")
    poll_s = request.endpoint.poll_s
    created = jobs.start(client, job, force=request.endpoint.force, poll_s=poll_s)
    echo(f"job {job.name} {'was created' if created else 'exists already'}")
    try:
        described = jobs.wait(client, job.name, on_status=_Shown(), poll_s=poll_s)
    except KeyboardInterrupt:
        echo(f"job {job.name} goes on: repeat the command to wait, --status shows its state")
        return ExitStatus.INTERRUPTED
    archive = jobs.fetch_archive(s3, described.output or job.prefix)
    records = jobs.trials_of(job, archive, arn=described.arn)
    return _show(request, as_json, records)


class _Shown:
    """A line for each new status."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, described: JobStatus, waited_s: float) -> None:
        if described.status != self._last:
            self._last = described.status
            echo(f"{described.status} after {waited_s:.0f} s")


def _print_status(described: JobStatus | None, name: str) -> int:
    from servetune.errors import LoadError

    if described is None:
        raise LoadError(f"there is no job {name}", hint="run without --status to create it")
    print(
        f"{described.name} {described.status}{f': {described.reason}' if described.reason else ''}"
    )
    return 0


def _show(request: Bench, as_json: bool, records: list[TrialRecord]) -> int:
    from servetune.api.registration import RegisteredRun
    from servetune.report.quantities import quantity_value, shown
    from servetune.store import Artifacts, Journal
    from servetune.store.register import run_to_continue

    out_dir: Path | None = request.results.out
    if out_dir is not None:
        out_dir.mkdir(parents=True, exist_ok=True)
        artifacts = Artifacts(out_dir, "bench")
        run = run_to_continue(artifacts.journal)
        with (
            Journal(artifacts.journal, run=run) as journal,
            RegisteredRun(run, journal.path, "bench", records=lambda: journal.records) as entry,
        ):
            for record in records:
                entry.begin(
                    model=record.metadata.model or "",
                    engine=record.metadata.engine or "external",
                    client_args=record.config.client_args,
                )
                journal.append(record)
        echo(f"wrote {artifacts.journal}")
    acceptance = request.answers.acceptance()
    refusals_of = [acceptance.refusal(record.results) for record in records]
    status = ExitStatus.SERVER if any(refusals_of) else ExitStatus.DONE
    if as_json:
        print_json(records)
        return status
    for record, refused in zip(records, refusals_of, strict=True):
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
        if refused is not None:
            print(f"  FAILED: {refused.reason}")
    sys.stdout.flush()
    return status
