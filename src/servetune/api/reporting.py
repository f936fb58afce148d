"""Report: summary and dashboard from finished trials alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.inputs import read_records
from servetune.api.request import Request, request_of
from servetune.api.shared_options import Limits
from servetune.api.trials import Rent, Trials, read
from servetune.errors import InputError
from servetune.metrics import Constraint
from servetune.option import argument, option
from servetune.report import dashboard_html, summary_json
from servetune.store import Artifacts, TrialRecord, write_text


class Report(Request, frozen=True, kw_only=True):
    """Summary and dashboard of finished trials."""

    verb: ClassVar[str] = "report"

    source: Annotated[
        Path,
        argument("Journal (.jsonl), summary or single record (.json).", metavar="SOURCE"),
    ]
    compare: Annotated[
        Path | None,
        option("Measured or published records shown beside these.", metavar="FILE"),
    ] = None
    output_json: Annotated[
        Path | None,
        option(
            "Summary file; the dashboard is beside it.", metavar="FILE", default="beside SOURCE"
        ),
    ] = None
    force: Annotated[bool, option("Permission to write over files that are there.")] = False
    limits: Limits = Limits()
    rent: Rent = Rent()


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What a report was made of, and where it is.

    Attributes:
        trials: Trials and their constraints.
        compared: Records beside them.
        artifacts: Paths of summary and dashboard.
    """

    trials: Trials
    compared: tuple[TrialRecord, ...]
    artifacts: Artifacts


def write_report(request: Report | str | Path, /, **options: object) -> Reported:
    """Make the summary and the dashboard of a journal, a summary or a record.

    Args:
        request: The request, or the file.
        options: Fields of `Report`.

    Raises:
        StoreError: The file is not there or holds no trial.
        InputError: A file would be written over.
    """
    request = request_of(Report, request, options)
    trials = read(request.source, request.limits.constraints, rent=request.rent)
    compared = tuple(read_records(request.compare)) if request.compare else ()
    artifacts = Artifacts.at(request.output_json or request.source.with_suffix(".json"))
    if not request.force:
        _require_free(artifacts, request.source)
    if artifacts.summary.resolve() == request.source.resolve():
        raise InputError(
            f"{request.source} would be overwritten by its own report",
            hint="give another name with --output-json",
        )
    write_artifacts(artifacts, trials.records, trials.constraints, compared=compared)
    return Reported(trials=trials, compared=compared, artifacts=artifacts)


def write_artifacts(
    artifacts: Artifacts,
    records: tuple[TrialRecord, ...] | list[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    compared: tuple[TrialRecord, ...] | list[TrialRecord] = (),
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


def _require_free(artifacts: Artifacts, source: Path) -> None:
    """Refuse to renew files other than those that the same journal made."""
    if artifacts.journal == source:
        return
    for path in (artifacts.summary, artifacts.dashboard):
        if path.exists():
            raise InputError(
                f"{path} exists already", hint="choose another --output-json, or use --force"
            )
