"""`servetune bench`: send load to servers that run already, and print what they did."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import print_json


@verb(api.Bench, json=True)
def bench(request: api.Bench, *, as_json: bool) -> int:
    """Send load to servers that run already, timed to the token, and print what they did.

    \b
    servetune bench http://localhost:8000 -c 32 -n 1000 --input-len 1024
    servetune bench http://localhost:8000 -c 1,8,32 --slo "ttft<=500ms"
    servetune bench http://localhost:8000 --rate 4 --duration 300 --workload chat
    servetune bench --sagemaker my-endpoint --model Qwen/Qwen3-4B -c 64
    servetune bench --against bundle  # what a bundle deployed, against its trial
    servetune bench URL1 URL2 --routing least-outstanding --until "ttft:p99±5%"
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    from servetune.api.bench_aws_job import require_alone
    from servetune.cli import bench_aws_job

    require_alone(request)
    if request.endpoint.via_aws_job or request.endpoint.recommendations:
        return bench_aws_job.run(request, as_json=as_json)
    from servetune.cli.bench_live import Live
    from servetune.report import bench_table, console, levels_table
    from servetune.report.baseline import baseline_table

    shown = not request.results.quiet and not as_json
    with Live(enabled=shown, levels=len(request.levels())) as live:
        found = api.bench(request, on_progress=live.show)
    if isinstance(found, api.BenchLevels):
        if as_json:
            print_json(found.records)
        else:
            console().print(levels_table(found.records, found.constraints, asked=found.asked))
    elif found.record is None:
        print(found.planned)
    elif as_json:
        print_json(found.record)
    else:
        console().print(bench_table(found.record, found.constraints))
        if found.comparison is not None:
            console().print(baseline_table(found.comparison))
    return found.status
