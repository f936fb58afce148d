"""`servetune runs export`: trials as Parquet files, on this disk or in S3."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.units import counted

_PREVIEW = {"written": "would write", "unchanged": "unchanged", "removed": "would remove"}


@verb(api.ExportRuns, json=True)
def export(request: api.ExportRuns, *, as_json: bool) -> int:
    """Write trials of journals (.jsonl) and folders as Parquet files with Hive partitions.

    Measured trials alone, unless --simulated. The same export again changes nothing, and a journal
    that grew renews its own files.

    \b
    servetune runs export results --to lake
    servetune runs export results/q.jsonl --to s3://bucket/results --glue mlcc_ci
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    done = api.export_runs(request)
    if as_json:
        print_json(done)
        return 0
    for each in done.files:
        state = _PREVIEW[each.state] if done.dry_run else each.state
        echo(f"{state:<12} {each.path} ({counted(each.rows, 'row')})")
    print(done)
    return 0
