"""What a finished run leaves: summary, dashboard and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from servetune.cli.output import echo
from servetune.metrics import Constraint
from servetune.report import (
    comparison_table,
    console,
    dashboard_html,
    ranking_table,
    summary_json,
)
from servetune.store import Artifacts, TrialRecord, write_text

__all__ = ["print_outcome", "write_artifacts"]


def write_artifacts(
    artifacts: Artifacts,
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    compared: Sequence[TrialRecord] = (),
) -> None:
    """Make the summary and the dashboard; equal records make equal files."""
    text = msgspec.json.format(summary_json(records, constraints), indent=2).decode()
    write_text(artifacts.summary, text + "\n")
    page = dashboard_html(records, constraints, title=artifacts.summary.stem, comparison=compared)
    write_text(artifacts.dashboard, page)


def print_outcome(
    artifacts: Artifacts,
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    compared: Sequence[TrialRecord] = (),
) -> None:
    """The ranked table, the comparison where there is one, and where the files are."""
    terminal = console()
    terminal.print(ranking_table(records, constraints))
    if compared:
        terminal.print()
        terminal.print(comparison_table(records, compared))
    for name, path in (
        ("journal", artifacts.journal),
        ("summary", artifacts.summary),
        ("dashboard", artifacts.dashboard),
    ):
        echo(f"{name:<10} {path}")
