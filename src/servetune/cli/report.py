"""`servetune report`: summary and dashboard from a journal alone."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.cli import options
from servetune.cli.inputs import constraints_of, read_records
from servetune.cli.outcome import print_outcome, write_artifacts
from servetune.errors import InputError
from servetune.store import Artifacts

__all__ = ["report"]


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@options.constraints
@click.option(
    "--compare",
    "compare_with",
    type=click.Path(path_type=Path),
    default=None,
    help="Measured or published records to set beside these.",
)
@click.option(
    "--output-json",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the summary goes. [default: beside SOURCE]",
)
@click.option("--force", is_flag=True, help="Write over a summary or dashboard that is there.")
def report(
    *,
    source: Path,
    constraints: str | None,
    compare_with: Path | None,
    output_json: Path | None,
    force: bool,
) -> int:
    """Make summary and dashboard from SOURCE: a journal (.jsonl), a summary or a record (.json).

    Journals and summaries of llm-optimizer are read, too.
    """
    records = read_records(source)
    limits = constraints_of(constraints, records)
    compared = read_records(compare_with) if compare_with else []
    artifacts = Artifacts.at(output_json or source.with_suffix(".json"))
    if not force:
        _require_free(artifacts, source)
    if artifacts.summary.resolve() == source.resolve():
        raise InputError(
            f"{source} would be overwritten by its own report",
            hint="give another name with --output-json",
        )
    write_artifacts(artifacts, records, limits, compared=compared)
    print_outcome(artifacts, records, limits, compared=compared, journal=source)
    return 0


def _require_free(artifacts: Artifacts, source: Path) -> None:
    """A report may renew what the same journal made, not somebody else's files."""
    ours = artifacts.journal == source
    if ours:
        return
    for path in (artifacts.summary, artifacts.dashboard):
        if path.exists():
            raise InputError(
                f"{path} is there already", hint="choose another --output-json, or use --force"
            )
