"""`servetune stage`: a model's files into S3, once and checked."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.units import format_bytes


@verb(api.Staging)
def stage(request: api.Staging) -> int:
    """Put MODEL into S3: a folder, or a hub id in this disk's cache.

    What is there with the same size and checksum is not sent again, and an upload that
    stopped half-way goes on.
    """
    if request.dry_run:
        return _print_plan(api.plan_staging(request))
    staged = api.stage(request)
    if staged.by_job:
        print(f"{request.model} is in {staged.uri}")
    else:
        print(
            f"{format_bytes(staged.total_bytes)} of {request.model} in {staged.uri} "
            f"({format_bytes(staged.sent_bytes)} sent, {staged.same_files} files were there)"
        )
    echo(f"next: servetune deploy sagemaker RESULTS --out bundle --model-source {staged.uri}")
    return 0


def _print_plan(plan: api.StagingPlan) -> int:
    if plan.job is not None:
        print_json(plan.job)
        return 0
    for each in plan.files:
        print(f"{format_bytes(each.size_bytes):>12}  {plan.where.uri}{each.path}")
    echo(f"{format_bytes(plan.total_bytes)} in all; nothing was sent")
    return 0
