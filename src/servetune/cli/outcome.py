"""Table of a finished run on the terminal, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from servetune.cli.output import echo
from servetune.metrics import Constraint
from servetune.report import comparison_table, console, front_chart, ranking_table
from servetune.search import Recommendation
from servetune.store import Artifacts, TrialRecord


def print_outcome(
    artifacts: Artifacts,
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    chosen: Mapping[str, Recommendation] | None = None,
    compared: Sequence[TrialRecord] = (),
    journal: Path | None = None,
    chart: bool = False,
) -> None:
    """The ranked table, the chart and the comparison where asked for, and where the files are."""
    terminal = console()
    if chart:
        terminal.print(front_chart(records, constraints, chosen or {}))
        terminal.print()
    terminal.print(ranking_table(records, constraints, chosen))
    if compared:
        terminal.print()
        terminal.print(comparison_table(records, compared))
    for name, path in (
        ("journal", journal or artifacts.journal),
        ("summary", artifacts.summary),
        ("dashboard", artifacts.dashboard),
    ):
        echo(f"{name:<10} {path}")
