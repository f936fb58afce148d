"""`servetune runs sql`: queries over trials, by DuckDB or Athena."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.output import echo, print_json
from servetune.report import console
from servetune.visible import visible


@verb(api.QueryRuns, json=True)
def sql(request: api.QueryRuns, *, as_json: bool) -> int:
    """Answer SQL over trials of journals, exported Parquet files and prefixes in S3.

    The table results has a row per trial, simulated ones (column kind) included; requests has the
    requests that are kept beside the journals. Only reads.

    \b
    servetune runs sql "SELECT kind, count(*) FROM results GROUP BY kind" out lake
    servetune runs sql "DESCRIBE results" results
    servetune runs sql "SELECT count(*) FROM benchmark_results" --athena
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    answer = api.query_runs(request)
    if as_json:
        print_json(list(answer.as_rows()))
    elif request.out is None:
        console().print(_table(answer))
    echo(answer.note())
    if request.out is not None:
        echo(f"{'answer':<10} {request.out}")
    return 0


def _table(answer: api.QueryAnswer) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(answer.columns):
        values = [row[place] for row in answer.rows if row[place] is not None]
        numbers = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(Text(visible(name)), justify="right" if numbers else "left")
    for row in answer.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    return table


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return visible(str(value))
