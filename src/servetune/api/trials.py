"""Trials of one or several runs, read from journals and summaries.

The verbs `recommend` (the best trial, and why) and `report` (summary and dashboard) need nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from servetune.api.frames import TableRow, Tabular, columns_of, json_object
from servetune.api.inputs import journals_in, note_unknown_limits, read_records, records_of
from servetune.api.light import Lightener, whole_record
from servetune.api.request import Request, request_of
from servetune.api.run_names import journal_of
from servetune.api.shared_options import GoalOptions
from servetune.api.timelines import (
    WhichTimelines,
    timeline_files_of,
    timeline_of_requests,
    timelines_for_page,
)
from servetune.errors import InputError
from servetune.hardware import cost_per_million_tokens_usd, instance
from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.option import NonNegative, argument, option
from servetune.report import (
    Digest,
    candidates_of,
    check_constraints,
    choice_json,
    dashboard_html,
    digest_html,
    digest_markdown,
    digest_of,
    digest_of_pick,
    picks,
    price_lines,
    recommendation_text,
    results_of,
    search_in_summary,
    summary_pieces,
    timeline_in,
    timeline_of,
)
from servetune.search import Goal, Objective, Recommendation, SearchSummary, stated_goal
from servetune.search import recommend as recommended
from servetune.store import (
    Artifacts,
    TrialRecord,
    is_report,
    read_requests,
    write_csv,
    write_parquet,
    write_pieces,
    write_text,
)
from servetune.trials import TrialRequests


class Trials(Tabular, frozen=True, kw_only=True):
    """Trials that ended, well or not.

    Attributes:
        records: One record per trial, as its journal has it.
        constraints: Limits that a choice among them must hold.
        objectives: Objectives of a choice; the throughput where empty.
        ladder: Whether `constraints` are in order of importance.
        source: First file or folder that they were read from; `None` where they were not.
        search: Summary of the search that chose them, where their summary file has it and the goal
            is its own.
    """

    records: tuple[TrialRecord, ...]
    constraints: tuple[Constraint, ...] = ()
    objectives: tuple[Objective, ...] = ()
    ladder: bool = False
    source: Path | None = None
    search: SearchSummary | None = None

    def __str__(self) -> str:
        from servetune.report import as_text, ranking_table

        return as_text(ranking_table(self.records, self.constraints, self.picks()))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[TrialRecord]:
        return iter(self.records)

    def as_rows(self) -> Iterable[TableRow]:
        """One row per trial: what it is, settings of server and load, results, why it failed."""
        return (_row(record, self.constraints) for record in self.records)

    def digest(self, further: Sequence[str] = ()) -> Digest:
        """The run in words: picks and how sure they are, the best trials, failures.

        Args:
            further: Further lines on what the run found.
        """
        return digest_of(self.records, self.constraints, self.picks(), self.search, further=further)

    def to_markdown(self) -> str:
        """Summary in Markdown, as `servetune report --export FILE.md` writes it."""
        return digest_markdown(self.digest(), source=str(self.source or ""))

    def export(self, path: str | Path) -> None:
        """Write a row per trial as CSV or Parquet, or the summary as Markdown; a file is replaced.

        Args:
            path: File whose ending says what: `.csv`, `.parquet` or `.md`.

        Raises:
            InputError: It has another ending.
            StoreError: It could not be written, or pyarrow is not installed.
        """
        path = Path(path)
        kind = export_kind(path)
        if kind == ".md":
            write_text(path, self.to_markdown())
        elif kind == ".csv":
            write_csv(path, columns_of(self.as_rows()))
        else:
            write_parquet(path, columns_of(self.as_rows()))

    def page(self) -> str:
        """Dashboard of these trials as one HTML page, with the timelines beside their journal."""
        chosen = self.picks()
        files = timeline_files_of([self.source]) if self.source else []
        return dashboard_html(
            self.records,
            self.constraints,
            title=self.source.stem if self.source else "trials",
            timelines=timelines_for_page(
                files, self.records, chosen, most_bytes=_MOST_TIMELINE_BYTES_IN_NOTEBOOK
            ),
            chosen=chosen,
            search=self.search,
        )

    def _repr_html_(self) -> str:
        return digest_html(self.digest(), self.page() if self.records else "")

    def recommend(
        self,
        objective: str | Sequence[str] | None = None,
        constraints: str | None = None,
        sla: str | None = None,
    ) -> Recommendation:
        """The best trial among those that hold the constraints, and why.

        Args:
            objective: Objective in place of the run's own, such as `cost` or `ttft:p99`; several
                for the Pareto set.
            constraints: Limits in place of the run's own.
            sla: Limits in order of importance, then an objective, in place of both.

        Raises:
            InputError: One cannot be read, or `sla` contradicts another one.
        """
        names = [objective] if isinstance(objective, str) else list(objective or ())
        stated = stated_goal(constraints, names, sla)
        own_limits = constraints is None and sla is None
        return recommended(
            candidates_of(self.records),
            self.constraints if own_limits else stated.constraints,
            stated.objectives or Goal(objectives=self.objectives).wanted,
            ladder=self.ladder if own_limits else stated.ladder,
        )

    def picks(self) -> dict[str, Recommendation]:
        """Recommendation for each objective by its name, of several first the knee of all.

        Without objectives those for throughput, latency and cost.
        """
        return picks(self.records, self.constraints, self.objectives, ladder=self.ladder)

    def record(self, key: str) -> TrialRecord:
        """The trial of that key, such as the one that `recommend` chose.

        Raises:
            KeyError: There is none.
        """
        for each in self.records:
            if each.key == key:
                return each
        raise KeyError(key)


def run_html(run: Trials, requests: TrialRequests | None, lines: Sequence[str] = ()) -> str:
    """HTML of a single trial for a notebook: its results, then the page with its timeline.

    Args:
        run: The trial.
        requests: Its requests, where it sent any.
        lines: Further lines on it.
    """
    page = dashboard_html(
        run.records,
        run.constraints,
        title="run",
        timeline=timeline_of_requests(requests) if requests else None,
        chosen=run.picks(),
    )
    return digest_html(run.digest([line for line in lines if line]), page)


class Rent(msgspec.Struct, frozen=True, kw_only=True):
    """Price of the machine that finished trials ran on, where their records have none."""

    group: ClassVar[str] = "Machine"

    instance: Annotated[
        str | None,
        option("Instance type whose price per hour costs are of.", metavar="NAME"),
    ] = None
    price_per_hour_usd: Annotated[
        NonNegative | None,
        option(
            "Price of the whole machine, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the records'",
        ),
    ] = None

    def applied(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """The records at this price; as they are where none is named.

        Raises:
            UnknownName: There is no such instance.
            InputError: The catalogue has no price of it.
        """
        usd, source = self.price_per_hour_usd, "given by the user"
        if usd is None:
            if self.instance is None:
                return tuple(records)
            price = instance(self.instance).price
            if price is None:
                raise InputError(
                    f"the price of {self.instance} is not known", hint="give --price-per-hour"
                )
            usd, source = price.usd_per_hour, f"{price.source}, {price.date}"
        return tuple(_at_price(record, usd, source, self.instance) for record in records)


def _at_price(
    record: TrialRecord, usd_per_hour: float, source: str, instance_type: str | None
) -> TrialRecord:
    results, about = record.results, {"price_per_hour_usd": usd_per_hour, "price_source": source}
    if instance_type is not None:
        about["instance_type"] = instance_type
    if results:
        usd = cost_per_million_tokens_usd(usd_per_hour, results.output_throughput)
        results = results.with_fields(cost_per_million_tokens=usd, cost_per_hour=usd_per_hour)
    return msgspec.structs.replace(
        record, results=results, metadata=record.metadata.with_fields(**about)
    )


def read(
    source: str | Path | Sequence[str | Path],
    constraints: str | None = None,
    *,
    objective: str | Sequence[str] = (),
    sla: str | None = None,
    rent: Rent | None = None,
) -> Trials:
    """Trials of a journal (`.jsonl`), a summary or a single record (`.json`).

    llm-optimizer's journals and summaries are read, too.

    Args:
        source: The file, a folder of journals, or several of these.
        constraints: Limits in place of those that the run was given.
        objective: Objective in place of the run's own; several for a Pareto set.
        sla: Limits in order of importance, then an objective, in place of both.
        rent: Price of the machine in place of the records' own.

    Raises:
        StoreError: It is not there or holds no trial.
        InputError: The constraints or the objective cannot be read.
    """
    names = (objective,) if isinstance(objective, str) else tuple(objective)
    return read_with_goal(
        source, GoalOptions(constraints=constraints, objective=names, sla=sla), rent
    )


def read_with_goal(
    source: str | Path | Sequence[str | Path],
    goal_options: GoalOptions,
    rent: Rent | None = None,
) -> Trials:
    """Trials of a file, a folder or several of these, with the goal of a choice among them."""
    sources = [source] if isinstance(source, str | Path) else source
    try:
        paths = [journal_of(Path(each)) for each in sources]
    except TypeError:
        raise InputError(
            f"a {type(source).__name__} is no file of trials", hint="give a path, or a list of them"
        ) from None
    goal_options.stated()  # refused before a long journal is read
    records = records_of(paths)
    priced = rent.applied(records) if rent else tuple(records)
    found = _trials(priced, goal_options, source=paths[0])
    return msgspec.structs.replace(found, search=search_of(paths, goal_options, len(records)))


#: Characters of a summary that are read for what it says beside its trials.
_HEAD = 1 << 22


def search_of(
    paths: Sequence[Path], goal_options: GoalOptions, record_count: int
) -> SearchSummary | None:
    """What the search of one journal or summary did, by the summary; `None` for another goal."""
    stated = goal_options.stated()
    if len(paths) != 1 or stated.constraints or stated.objectives:
        return None
    summarized = paths[0].suffix == ".json"
    path = paths[0] if summarized else paths[0].with_suffix(".json")
    if not path.is_file() or not paths[0].is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(_HEAD)
    return search_in_summary(head, None if summarized else record_count)


def _trials(
    records: Sequence[TrialRecord], goal_options: GoalOptions, source: Path | None = None
) -> Trials:
    """Trials with the goal of a choice among them.

    Raises:
        InputError: An objective of the options has no value in any trial that ran.
    """
    goal = goal_options.goal(records)
    if goal_options.constraints is None and goal_options.sla is None:
        note_unknown_limits(records)
    ran = [results_of(record) for record in records if record.status == "ok"]
    for each in goal_options.stated().objectives:
        # Without a price the report says that there is no cost, and the other picks stand.
        if ran and each.name != "cost" and all(each.value(results) is None for results in ran):
            raise InputError(
                f"no trial has a value for the {each.title}",
                hint=each.needs or f"choose another objective than {each.name}",
            )
    return Trials(
        records=tuple(records),
        constraints=goal.constraints,
        objectives=goal.objectives,
        ladder=goal.ladder,
        source=source,
    )


EXPORTS = (".csv", ".parquet", ".md")
"""Endings of files that trials are exported to."""

#: Timelines that a notebook saves with a page of trials.
_MOST_TIMELINE_BYTES_IN_NOTEBOOK = 1_000_000


def export_kind(path: Path) -> str:
    """Ending of a file of an export.

    Raises:
        InputError: It is none of `EXPORTS`.
    """
    if path.suffix not in EXPORTS:
        raise InputError(
            f"'{path}' says no format of an export", hint=f"end it with one of {', '.join(EXPORTS)}"
        )
    return path.suffix


def _row(record: TrialRecord, constraints: tuple[Constraint, ...]) -> JsonObject:
    """One flat row: plain values only, settings prefixed where two sides share a name."""
    config = record.config
    sides: Sequence[tuple[str, JsonObject]] = (
        ("server.", config.server_args),
        ("client.", config.client_args),
        ("", record.results),
    )
    row: JsonObject = {
        "key": record.key,
        "status": record.status,
        "simulated": record.simulated,
        "meets_constraints": check_constraints(record, constraints).meets_all
        if constraints
        else None,
        "model": record.metadata.model,
        "engine": record.metadata.engine,
        "gpu": record.metadata.gpu_type,
        "gpus_used": record.metadata.gpus_used,
    }
    for prefix, values in sides:
        row |= {
            prefix + name: value
            for name, value in values.items()
            if value is None or isinstance(value, bool | int | float | str)
        }
    failure = record.failure
    return row | {
        "failure_kind": failure.kind if failure else None,
        "failure_reason": failure.reason if failure else None,
        "cmd": record.cmd,
    }


class Recommend(Request, frozen=True, kw_only=True):
    """A pick among finished trials."""

    verb: ClassVar[str] = "recommend"

    source: Annotated[
        Path,
        argument(
            "Journal (.jsonl), summary (.json) or name of a run.", metavar="SOURCE", of_run=True
        ),
    ]
    limits: GoalOptions = GoalOptions()
    rent: Rent = Rent()


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """Recommended trial.

    Attributes:
        objective: Objective in the grammar, several joined by commas.
        constraints: Limits that the pick holds.
        choice: Choice of the trial: whether one holds all constraints, the pick, and the reasons.
        record: The picked trial; `None` where none was tried.
        pareto: Trials of the Pareto set of several objectives, by the first of them.
        search: Summary of the search that chose the trials, where that is known.
    """

    objective: str
    constraints: tuple[Constraint, ...]
    choice: Recommendation
    record: TrialRecord | None
    pareto: tuple[TrialRecord, ...] = ()
    search: SearchSummary | None = None

    @property
    def feasible(self) -> bool:
        """Whether a trial holds every constraint."""
        return self.choice.feasible

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(
            {
                "objective": self.objective,
                "constraints": [limit.to_json() for limit in self.constraints],
                "feasible": self.choice.feasible,
                "reasons": self.choice.reasons,
                "unmet": [limit.to_json() for limit in self.choice.unmet],
                "record": self.record,
                **choice_json(self.choice, {record.key: record for record in self.pareto}),
                **({"search": self.search.to_json()} if self.search else {}),
            }
        )

    def _repr_html_(self) -> str:
        return digest_html(digest_of_pick(self.choice, self.record, self.search))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [recommendation_text(self.choice)]
        if self.record is not None:
            lines += [f"  - {text}" for text in price_lines([self.record])]
            if self.record.simulated:
                lines.append("  - SIMULATED: no model ran; measure it before you rely on it")
            if self.search:
                lines += [f"  - {line}" for line in self.search.lines()]
            if self.record.cmd:
                lines.append(f"\n{self.record.cmd}")
        return "\n".join(lines)


def recommend(request: Recommend | str | Path | None = None, /, **options: object) -> Pick:
    """The best configuration of a journal or summary, and why.

    Args:
        request: The request, or the file.
        options: Fields of `Recommend`.

    Raises:
        StoreError: The file is not there or holds no trial.
        InputError: An option or a constraint cannot be read.
    """
    request = request_of(Recommend, request, options)
    source = request.source
    if source.suffix != ".jsonl" or not source.is_file():
        return pick_from(read_with_goal(source, request.limits, request.rent))
    request.limits.stated()
    light = read_records(source, Lightener(request.limits.goal))
    trials = _trials(request.rent.applied(light), request.limits)
    search = search_of([source], request.limits, len(light))
    pick = pick_from(msgspec.structs.replace(trials, search=search))
    if pick.record is None:
        return pick
    chosen = whole_record(source, pick.record.key)
    return msgspec.structs.replace(pick, record=request.rent.applied([chosen])[0])


def pick_from(trials: Trials, objective: str | Sequence[str] | None = None) -> Pick:
    """The best of these trials among those that hold their constraints, and why.

    Args:
        trials: Trials to choose from.
        objective: Objective in place of the trials' own; several for the Pareto set.
    """
    choice = trials.recommend(objective)
    return Pick(
        objective=choice.objective,
        constraints=trials.constraints,
        choice=choice,
        record=trials.record(choice.chosen.key) if choice.chosen else None,
        pareto=tuple(trials.record(member.key) for member in choice.pareto),
        search=trials.search if objective is None else None,
    )


class Report(Request, frozen=True, kw_only=True):
    """Summary and dashboard of finished trials."""

    verb: ClassVar[str] = "report"

    sources: Annotated[
        tuple[Path, ...],
        argument(
            "Journals (.jsonl), summaries or records (.json), folders of these, or names of runs.",
            metavar="SOURCE...",
            of_run=True,
        ),
    ]
    compare: Annotated[
        Path | None,
        option("Measured or published records shown beside these.", metavar="FILE", of_run=True),
    ] = None
    output_json: Annotated[
        Path | None,
        option(
            "Summary file; the dashboard is beside it.",
            metavar="FILE",
            default="beside SOURCE; report.json for several",
        ),
    ] = None
    export: Annotated[
        tuple[Path, ...],
        option(
            "File of the trials besides, by its ending: .csv and .parquet have a row per trial, "
            ".md is a summary for a pull request; repeated for several.",
            metavar="FILE",
        ),
    ] = ()
    force: Annotated[bool, option("Permission to write over files that are there.")] = False
    page_timelines: Annotated[
        WhichTimelines,
        option("Trials whose timelines the page has; picks are with the Pareto front, up to 4 MB."),
    ] = "picks"
    limits: GoalOptions = GoalOptions()
    rent: Rent = Rent()


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Source and files of a report.

    Attributes:
        trials: Trials and their constraints.
        compared: Records beside them.
        artifacts: Paths of summary and dashboard.
        exports: Files that the trials were exported to.
    """

    trials: Trials
    compared: tuple[TrialRecord, ...]
    artifacts: Artifacts
    exports: tuple[Path, ...] = ()


def write_report(request: Report | str | Path | None = None, /, **options: object) -> Reported:
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
    for path in request.export:
        export_kind(path)
        if path.exists() and not request.force:
            raise InputError(f"{path} exists already", hint="choose another --export, or --force")
    trials = read_with_goal(request.sources, request.limits, request.rent)
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
    chosen = trials.picks()
    files = timeline_files_of(request.sources)
    write_artifacts(
        artifacts,
        trials.records,
        trials.constraints,
        compared=compared,
        timeline=timeline_beside(request.sources, trials),
        timelines=timelines_for_page(files, trials.records, chosen, request.page_timelines),
        chosen=chosen,
        search=trials.search,
    )
    for path in request.export:
        trials.export(path)
    return Reported(trials=trials, compared=compared, artifacts=artifacts, exports=request.export)


def write_artifacts(
    artifacts: Artifacts,
    records: tuple[TrialRecord, ...] | list[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    compared: tuple[TrialRecord, ...] | list[TrialRecord] = (),
    timeline: JsonObject | None = None,
    timelines: Mapping[str, JsonObject] | None = None,
    chosen: Mapping[str, Recommendation] | None = None,
    search: SearchSummary | None = None,
) -> None:
    """Make the summary and the dashboard; equal records make equal files.

    Args:
        artifacts: Paths of both.
        records: Trials of the run in order.
        constraints: Constraints of the run.
        compared: Records shown beside them.
        timeline: Request timeline of a single trial.
        timelines: Request timelines of trials by their keys.
        chosen: Picks of the run; for throughput, latency and cost where not given.
        search: What the search of the run did, where there was one.
    """
    chosen = picks(records, constraints) if chosen is None else chosen
    timelines = dict(timelines or {})
    if timeline is None and len(records) == 1:
        timeline = timelines.pop(records[0].key, None)
    write_pieces(artifacts.summary, summary_pieces(records, constraints, chosen, search))
    page = dashboard_html(
        records,
        constraints,
        title=artifacts.summary.stem,
        comparison=compared,
        timeline=timeline,
        timelines=timelines,
        chosen=chosen,
        search=search,
    )
    write_text(artifacts.dashboard, page)


def _summary_of(sources: Sequence[Path]) -> Path:
    """Summary's file where none is named: beside a single source, else in the first's folder."""
    first = sources[0]
    if first.is_dir():
        return first / "report.json"
    return first.with_suffix(".json") if len(sources) == 1 else first.with_name("report.json")


def timeline_beside(sources: Sequence[Path], trials: Trials) -> JsonObject | None:
    """Timeline of a single trial: that of its page, else made of its file of requests."""
    if len(sources) != 1 or len(trials) != 1 or is_report(sources[0]):
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
