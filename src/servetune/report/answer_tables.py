"""Tables of answers to queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from servetune.report.tables import as_text
from servetune.visible import visible

#: Width up to which an answer's text is a table.
_WIDTH = 120


def answer_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Answer to a query as text: a table, or one value per line where that is wider."""
    lines = [columns, *([answer_cell(value) for value in row] for row in rows)]
    width = sum(max(map(len, each)) + 1 for each in zip(*lines, strict=True))
    if width <= _WIDTH:
        return as_text(answer_table(columns, rows))
    longest = max(len(visible(name)) for name in columns)
    text = []
    for number, row in enumerate(lines[1:], 1):
        text.append(f"row {number:,}")
        text += [f"  {visible(n):<{longest}}  {v}" for n, v in zip(columns, row, strict=True)]
    return "\n".join(text)


def answer_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Answer to a query, a line per row."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(columns):
        values = [row[place] for row in rows if row[place] is not None]
        numbers = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(Text(visible(name)), justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(answer_cell(value)) for value in row))
    return table


def answer_cell(value: object) -> str:
    """Value of an answer in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return visible(str(value))
