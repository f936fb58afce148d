"""What a finished run leaves: summary, dashboard and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    timeline: dict[str, Any] | None = None,
) -> None:
    """Make the summary and the dashboard; equal records make equal files."""
    write_text(artifacts.summary, summary_json(records, constraints).decode())
    page = dashboard_html(
        records,
        constraints,
        title=artifacts.summary.stem,
        comparison=compared,
        timeline=timeline,
    )
    write_text(artifacts.dashboard, page)


def print_outcome(
    artifacts: Artifacts,
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    compared: Sequence[TrialRecord] = (),
    journal: Path | None = None,
) -> None:
    """The ranked table, the comparison where there is one, and where the files are."""
    terminal = console()
    terminal.print(ranking_table(records, constraints))
    if compared:
        terminal.print()
        terminal.print(comparison_table(records, compared))
    for name, path in (
        ("journal", journal or artifacts.journal),
        ("summary", artifacts.summary),
        ("dashboard", artifacts.dashboard),
    ):
        echo(f"{name:<10} {path}")
