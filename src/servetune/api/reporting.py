"""Report: summary and dashboard from finished trials alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.inputs import journals_in, read_records
from servetune.api.request import Request, request_of
from servetune.api.shared_options import Limits
from servetune.api.trials import Rent, Trials, read
from servetune.errors import InputError
from servetune.metrics import Constraint
from servetune.metrics.results import JsonObject
from servetune.option import argument, option
from servetune.report import dashboard_html, summary_json, timeline_in, timeline_of
from servetune.store import Artifacts, TrialRecord, read_requests, write_text


class Report(Request, frozen=True, kw_only=True):
    """Summary and dashboard of finished trials."""

    verb: ClassVar[str] = "report"

    sources: Annotated[
        tuple[Path, ...],
        argument(
            "Journals (.jsonl), summaries or records (.json), or folders of journals.",
            metavar="SOURCE...",
        ),
    ]
    compare: Annotated[
        Path | None,
        option("Measured or published records shown beside these.", metavar="FILE"),
    ] = None
    output_json: Annotated[
        Path | None,
        option(
            "Summary file; the dashboard is beside it.",
            metavar="FILE",
            default="beside SOURCE; report.json for several",
        ),
    ] = None
    force: Annotated[bool, option("Permission to write over files that are there.")] = False
    limits: Limits = Limits()
    rent: Rent = Rent()


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Source and files of a report.

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
    if not request.sources:
        raise InputError("a report needs a source", hint="give the .jsonl of a run, or its folder")
    trials = read(request.sources, request.limits.constraints, rent=request.rent)
    compared = tuple(read_records(request.compare)) if request.compare else ()
    artifacts = Artifacts.at(request.output_json or _summary_of(request.sources))
    if not request.force:
        _require_free(artifacts, request.sources[0])
    for source in request.sources:
        if artifacts.summary.resolve() == source.resolve():
            raise InputError(
                f"{source} would be overwritten by its own report",
                hint="give another name with --output-json",
            )
    write_artifacts(
        artifacts,
        trials.records,
        trials.constraints,
        compared=compared,
        timeline=_timeline_beside(request.sources, trials),
    )
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


def _summary_of(sources: Sequence[Path]) -> Path:
    """Summary's file where none is named: beside a single source, else in the first's folder."""
    first = sources[0]
    if first.is_dir():
        return first / "report.json"
    return first.with_suffix(".json") if len(sources) == 1 else first.with_name("report.json")


def _timeline_beside(sources: Sequence[Path], trials: Trials) -> JsonObject | None:
    """Timeline of a single trial: that of its page, else made of its file of requests."""
    if len(sources) != 1 or len(trials) != 1:
        return None
    beside = [sources[0]] if sources[0].is_file() else journals_in(sources[0])
    run = Artifacts.at(beside[0].with_suffix(".json"))
    if run.dashboard.is_file():
        kept = timeline_in(run.dashboard.read_text(encoding="utf-8"))
        if kept is not None:
            return kept
    if not run.requests.is_file():
        return None
    records, admitted_s = read_requests(run.requests)
    return timeline_of(
        records, admitted_s, kv_use=(), seen_by_client=not trials.records[0].simulated
    )


def _require_free(artifacts: Artifacts, source: Path) -> None:
    """Refuse to renew files other than those that the same journal made."""
    if artifacts.journal == source:
        return
    for path in (artifacts.summary, artifacts.dashboard):
        if path.exists():
            raise InputError(
                f"{path} exists already", hint="choose another --output-json, or use --force"
            )
