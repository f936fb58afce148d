"""`servetune runs sql`: queries over trials, by DuckDB or Athena."""

from __future__ import annotations

import re

import click
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from servetune import api
from servetune.cli.derive import DerivedCommand, verb
from servetune.cli.output import echo, print_json
from servetune.report import answer_cell, answer_table, console
from servetune.visible import visible

#: Width in which a table has all its text.
_UNBOUNDED = 1_000_000
#: Rows that a terminal shows.
MOST_ROWS = 1000
#: Begin of SQL with a comment; an option has no space before its value's `=`.
_COMMENT = re.compile(r"--[^=\s]*\s")


class SqlCommand(DerivedCommand):
    """Command whose SQL may begin with a comment, which looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, [f" {a}" if _COMMENT.match(a) else a for a in args])


@verb(api.QueryRuns, json=True, command=SqlCommand)
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
        show(answer, console())
    echo(answer.note())
    if request.out is not None:
        echo(f"{'answer':<10} {request.out}")
    return 0


def show(answer: api.QueryAnswer, to: Console) -> None:
    """Print a table; at a terminal one value per line where it is wider, and no more rows than
    anyone reads.
    """
    rows = answer.rows[:MOST_ROWS] if to.is_terminal else answer.rows
    table = answer_table(answer.columns, rows)
    width = Measurement.get(to, to.options.update(max_width=_UNBOUNDED), table).maximum
    if not to.is_terminal:
        to.width = max(to.width, width)
    if width <= to.width:
        to.print(table)
    else:
        longest = max(len(visible(name)) for name in answer.columns)
        for number, row in enumerate(rows, 1):
            to.print(Text(f"row {number:,}", style="bold"))
            for name, value in zip(answer.columns, row, strict=True):
                line = Text(f"  {visible(name):<{longest}}  {answer_cell(value)}")
                to.print(line, soft_wrap=True)
    if len(rows) < len(answer.rows):
        echo(f"the first {len(rows):,} of {len(answer.rows):,} rows; --out FILE has all of them")
