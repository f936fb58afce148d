"""Comparison of two sides of finished runs, and a gate on what they may differ by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.inputs import journals_below, named_files, read_records
from servetune.api.notes import note, progress
from servetune.api.request import Request, request_of
from servetune.errors import ExitStatus, InputError, SchemaTooNew, ServetuneError, StoreError
from servetune.json_value import JsonObject
from servetune.metrics import Record, summarize
from servetune.metrics.differences import LEAST_FREEDOM
from servetune.metrics.gate import USUAL, GateCondition, parse_gate
from servetune.metrics.resampled import resampled_reaches
from servetune.option import Positive, argument, option
from servetune.report import as_text, text_html
from servetune.report.alignment import align
from servetune.report.changes import TOLERANCE
from servetune.report.comparison_page import comparison_page, failure_page
from servetune.report.comparison_text import (
    comparison_junit,
    comparison_markdown,
    comparison_view,
    failure_junit,
    failure_markdown,
    run_length_text,
)
from servetune.report.run_comparison import (
    ComparedRun,
    RunComparison,
    RunLength,
    compare_runs,
    failed_configurations,
    plan_run,
    require_one_kind,
)
from servetune.store import (
    REQUESTS,
    SCHEMA,
    Artifacts,
    Results,
    TrialConfig,
    TrialRecord,
    is_report,
    read_requests,
    require_regular,
    write_text,
)

#: Runs of one side from which on they show well how far runs differ.
_PILOT = 10
#: What a side of a comparison may be.
Side = str | Path | Sequence[str | Path]


#: Endings of files that hold data, never a comparison.
_DATA = frozenset({".json", ".jsonl", ".parquet", ".csv", ".toml", ".db", ".sqlite"})


class Compare(Request, frozen=True, kw_only=True):
    """Comparison of two sides of finished runs, and a gate on what they may differ by."""

    verb: ClassVar[str] = "compare"
    first: ClassVar[str] = "base"
    group: ClassVar[str] = "Comparison"

    base: Annotated[
        str,
        argument(
            "Runs before: journal (.jsonl), summary, record (.json), requests of bench "
            "(.requests.jsonl), or a folder of these or of repeats; several by commas or a pattern "
            "in quotes.",
            metavar="BASE",
        ),
    ]
    new: Annotated[
        str | None, argument("Runs now, likewise; --plan-run can do without.", metavar="[NEW]")
    ] = None
    fail_on: Annotated[
        str | None,
        option(
            f"Differences that fail, with exit status 1: {USUAL}. Relative with %, else in the "
            "metric's unit.",
            metavar="CONDITIONS",
            default="none",
        ),
    ] = None
    strict: Annotated[
        bool, option("Failure also where the runs cannot tell about a condition of --fail-on.")
    ] = False
    tolerance: Annotated[
        Positive | None,
        option(
            "Relative difference treated as noise.",
            metavar="FRACTION",
            default=f"{TOLERANCE:g} for one run a side, none for repeated runs",
        ),
    ] = None
    ignore_workload: Annotated[bool, option("Permission to compare runs of different loads.")] = (
        False
    )
    plan_run: Annotated[
        bool,
        option(
            "Number of runs and requests that tells the differences of --fail-on in 90% of "
            "comparisons, by how far the runs of BASE differ, or those of BASE and NEW with equal "
            "seeds; nothing is judged."
        ),
    ] = False
    junit: Annotated[Path | None, option("File of the verdicts as JUnit XML.", metavar="FILE")] = (
        None
    )
    markdown: Annotated[
        Path | None,
        option("File of the comparison as Markdown; - for standard output.", metavar="FILE|-"),
    ] = None
    out: Annotated[
        Path | None,
        option("Page (.html) of the comparison, readable without a network.", metavar="FILE"),
    ] = None


class Compared(Tabular, frozen=True, kw_only=True):
    """Result of a comparison.

    Attributes:
        comparison: Comparison; `None` where only a run length was asked for.
        run_lengths: Numbers of runs and requests that tell the conditions' differences.
        strict: Whether what the runs cannot tell fails.
        base: Name of the base.
        new: Name of the new side.
    """

    comparison: RunComparison | None = None
    run_lengths: tuple[RunLength, ...] = ()
    strict: bool = False
    base: str = ""
    new: str = ""

    @property
    def status(self) -> int:
        """Exit status: 1 where the gate failed, or cannot tell and is strict; else 0."""
        found = self.comparison
        missed = found is not None and (found.failed or (self.strict and found.undecided))
        return ExitStatus.TARGET_MISSED if missed else ExitStatus.DONE

    def as_rows(self) -> Iterable[TableRow]:
        """One row per configuration and metric."""
        for each in self.comparison.configurations if self.comparison else ():
            for row in each.rows:
                raw: JsonObject = msgspec.to_builtins(row)
                raw.pop("before_ends"), raw.pop("now_ends")
                yield {"configuration": each.label, **raw}

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        if self.comparison is None:
            return {"run_lengths": msgspec.to_builtins(self.run_lengths)}
        return self.comparison.to_json()

    def to_markdown(self) -> str:
        """Comparison as GitHub's Markdown."""
        if self.comparison is None:
            return f"{self}\n"
        return comparison_markdown(self.comparison, base=self.base, new=self.new)

    def page(self) -> str:
        """Comparison as an HTML page.

        Raises:
            InputError: Nothing was compared.
        """
        if self.comparison is None:
            raise InputError("a run length has no page", hint="leave --plan-run out")
        return comparison_page(self.comparison, base=self.base, new=self.new)

    def to_junit(self) -> str:
        """Verdicts as JUnit XML.

        Raises:
            InputError: Nothing was compared.
        """
        if self.comparison is None:
            raise InputError("a run length has no verdicts", hint="leave --plan-run out")
        return comparison_junit(self.comparison, strict=self.strict)

    def __str__(self) -> str:
        if self.comparison is None:
            return f"runs that tell, in 90% of comparisons:\n{run_length_text(self.run_lengths)}"
        return as_text(comparison_view(self.comparison))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return text_html(str(self))


def compare(
    request: Compare | Side | None = None, new: Side | None = None, /, **options: Any
) -> Compared:
    """Compare two sides of finished runs, metric by metric, each change with its doubt.

    Args:
        request: The request, or the runs before: a file, a folder or several.
        new: The runs now.
        options: Fields of `Compare`.

    Raises:
        StoreError: A file is not there or holds no trial.
        InputError: The sides have nothing in common, or are the same runs.

    Example:
        ```python
        st.compare("base", "new", fail_on="ttft:p99>+10%;output_throughput<-5%").status
        ```
    """
    if request is not None and not isinstance(request, Compare):
        options["base"], request = _joined(request), None
    if new is not None:
        options["new"] = _joined(new)
    request = request_of(Compare, request, options)
    _require_used(request)
    conditions = parse_gate(request.fail_on) if request.fail_on is not None else ()
    if request.plan_run:
        return _planned(request, conditions)
    if request.new is None:
        raise InputError(
            "a comparison needs two sides",
            hint="servetune compare BASE NEW, or servetune compare BASE --plan-run",
        )
    try:
        found = _compared(request, conditions)
    except (InputError, StoreError) as error:
        _write_failure(request, error, conditions)
        raise
    compared = Compared(
        comparison=found,
        run_lengths=found.run_lengths,
        strict=request.strict,
        base=request.base,
        new=request.new,
    )
    _write(request, compared.to_junit, compared.to_markdown, compared.page)
    return compared


def _write_failure(
    request: Compare, error: ServetuneError, conditions: Sequence[GateCondition]
) -> None:
    """Write that the sides could not be compared, such as where a server was down, for CI."""
    about = error.message, error.hint
    labels = [condition.label for condition in conditions]
    sides = {"base": request.base, "new": request.new or ""}
    _write(
        request,
        junit=lambda: failure_junit(*about, labels),
        markdown=lambda: failure_markdown(*about, **sides),
        page=lambda: failure_page(*about, **sides),
    )


def _write(
    request: Compare,
    junit: Callable[[], str],
    markdown: Callable[[], str],
    page: Callable[[], str],
) -> None:
    """Write the files that were asked for; standard output is the command line's."""
    if request.junit is not None:
        write_text(request.junit, junit())
    if request.markdown is not None and str(request.markdown) != "-":
        write_text(request.markdown, markdown())
    if request.out is not None:
        write_text(request.out, page())
        progress(f"page       {request.out}")


def _require_used(request: Compare) -> None:
    """Refuse options that would do nothing.

    Raises:
        InputError: An option needs another, or excludes it.
    """
    if request.plan_run:
        for name, given in (
            ("--junit", request.junit),
            ("--markdown", request.markdown),
            ("--out", request.out),
            ("--strict", request.strict),
        ):
            if given:
                raise InputError(
                    f"--plan-run judges nothing that {name} could use",
                    hint=f"leave {name} out, or --plan-run",
                )
    if request.out is not None:
        if request.out.suffix.lower() != ".html":
            raise InputError(
                f"--out writes a page, and '{request.out}' does not end in .html",
                hint="name it compare.html",
            )
        require_regular(request.out)
    _require_no_data_lost(request)
    if request.strict and request.fail_on is None:
        raise InputError(
            "--strict is about the conditions of a gate, and there is none",
            hint=f"add --fail-on '{USUAL}'",
        )


def _require_no_data_lost(request: Compare) -> None:
    """Refuse files of output that would replace data or each other.

    Raises:
        InputError: One is there and holds data, by its ending, or two are one file.
    """
    taken: dict[Path, str] = {}
    for name, path in (
        ("--junit", request.junit), ("--markdown", request.markdown), ("--out", request.out)
    ):  # fmt: skip
        if path is None or str(path) == "-":
            continue
        if path.suffix.lower() in _DATA and path.exists():
            raise InputError(
                f"{name} would replace {path}, which holds data",
                hint="name another file, such as compare.xml, compare.md or compare.html",
            )
        earlier = taken.setdefault(path.absolute(), name)
        if earlier != name:
            raise InputError(
                f"{earlier} and {name} are one file, {path}", hint="give each a file of its own"
            )


def requests_beside(path: Path, records: Sequence[TrialRecord]) -> Mapping[str, Path]:
    """Files with the requests of some of a journal's records, by the key of the record.

    Args:
        path: Journal, summary or record.
        records: All its records.
    """
    if path.is_dir() or path.suffix not in (".json", ".jsonl"):
        return {}
    if len(records) == 1:
        beside = Artifacts.at(path.with_suffix(".json")).requests
        return {records[0].key: beside} if beside.is_file() else {}
    keys, found = {record.key for record in records}, {}
    for beside in sorted(path.parent.glob(f"*/*{REQUESTS}")):  # a folder of each level of a bench
        journal = beside.with_name(beside.name.removesuffix(REQUESTS) + ".jsonl")
        try:
            own = read_records(journal)
        except StoreError:  # not of this run
            continue
        if len(own) == 1 and own[0].key in keys:
            found[own[0].key] = beside
    return found


def reaches_of(path: Path | None) -> dict[str, float] | None:
    """Sampling reach of each metric by the requests of a run; `None` without requests.

    A file of requests that cannot be read, such as that of a killed run, is said and not used.
    """
    if path is None:
        return None
    try:
        records, _ = read_requests(path)
    except StoreError as error:
        note(f"note: the requests are not used: {error.message}")
        return None
    return reaches_of_requests(records)


def reaches_of_requests(records: Sequence[Record]) -> dict[str, float] | None:
    """Sampling reach of each metric by requests; `None` of too few, and without scipy."""
    try:
        return resampled_reaches(records) or None
    except InputError as error:  # the sampling intervals of the record serve as well
        note(f"note: {error.message}: {error.hint}")
        return None


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a side.

    Attributes:
        files: Files that they were read from.
        records: All records.
        usable: Records of runs whose requests were all sent and of which some were answered.
        requests: Files of requests by the place of the record in `usable`.
    """

    files: tuple[Path, ...]
    records: tuple[TrialRecord, ...]
    usable: tuple[TrialRecord, ...]
    requests: dict[int, Path]


def _read(text: str, name: str) -> _Side:
    """Records of a side.

    Raises:
        StoreError: A file cannot be read; the message names the side.
    """
    try:
        return _side(text, name)
    except SchemaTooNew:
        raise
    except StoreError as error:
        message = f"{name}: {error.message}"
        if not _lacks_files(text):
            raise StoreError(message, hint=error.hint) from None
        raise StoreError(
            f"{message}; a run's journal (.jsonl), summary or requests were looked for",
            hint="a bench or tune that failed, such as of a server that was down, writes none: "
            f"look at its exit status and output; else {error.hint}",
        ) from None


def _lacks_files(text: str) -> bool:
    """Whether a part of a side is not there, or is a folder without a file of a run."""
    paths = [Path(part.strip()) for part in ([text] if Path(text).exists() else text.split(","))]
    return any(
        not path.exists() or (path.is_dir() and next(path.rglob("*.json*"), None) is None)
        for path in paths
    )


def _side(text: str, name: str) -> _Side:
    files = tuple(_files(text, name))
    records: list[TrialRecord] = []
    usable: list[TrialRecord] = []
    requests: dict[int, Path] = {}
    seen: set[object] = set()
    for path in files:
        own = _records(path)
        beside = {own[0].key: path} if _holds_requests(path) else requests_beside(path, own)
        for record in own:
            identity = _identity(record)
            if identity in seen:
                note(f"note: {name} has the run {record.key} twice; it counts once")
                continue
            seen.add(identity)
            records.append(record)
            if _is_usable(record):
                if record.key in beside:
                    requests[len(usable)] = beside[record.key]
                usable.append(record)
    failed = len(records) - len(usable)
    if failed and usable:
        note(f"note: {failed} of the runs of {name} failed and are left out")
    return _Side(files=files, records=tuple(records), usable=tuple(usable), requests=requests)


#: Kinds of failure that are judged of a load that was sent as a whole.
_JUDGED = ("error_rate", "wrong_length")


def _is_usable(record: TrialRecord) -> bool:
    if record.results.completed == 0:
        return False
    failure = record.failure
    return record.status == "ok" or (failure is not None and failure.kind in _JUDGED)


def _require_usable(side: _Side, name: str, text: str) -> None:
    """Refuse a side without a run that can be compared.

    Raises:
        InputError: No run of the side is usable.
    """
    if side.usable:
        return
    reason = next((each.failure.reason for each in side.records if each.failure), "")
    answered = any(record.results.completed for record in side.records)
    what = "ended well" if answered else "answered a request"
    raise InputError(
        f"no run of {name} ({text}) {what}{f': {reason}' if reason else ''}",
        hint="look at its failures with servetune report",
    )


def _files(text: str, name: str) -> Iterator[Path]:
    """Files of a side: those named, of a pattern, of a folder, or of the folders in it."""
    parts = [text] if Path(text).exists() else [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{name} names no file in '{text}'", hint="write it like a.jsonl,b.jsonl")
    for path in named_files([Path(part) for part in parts]):
        yield from _in_folder(path) if path.is_dir() else [path]


def _in_folder(folder: Path) -> list[Path]:
    """Journals of a folder or of the folders in it, which are repeats; a report is itself."""
    return [folder] if is_report(folder) else journals_below(folder)


def _holds_requests(path: Path) -> bool:
    return path.name.endswith(REQUESTS)


def _records(path: Path) -> list[TrialRecord]:
    """Records of a file; of a file of requests that of its journal, else one made of them."""
    if not _holds_requests(path):
        return read_records(path)
    journal = path.with_name(path.name.removesuffix(REQUESTS) + ".jsonl")
    if journal.is_file():
        return read_records(journal)[:1]
    requests, _ = read_requests(path)
    if not requests:
        raise StoreError(f"{path} holds no request", hint="give the .jsonl or .json of a run")
    lasted_s = max(record.end_s for record in requests)
    results = summarize(requests, duration_s=lasted_s)
    return [
        TrialRecord(
            config=TrialConfig(), results=Results(results), key=path.name, servetune_schema=SCHEMA
        )
    ]


def _identity(record: TrialRecord) -> object:
    started = record.provenance.get("started_at")
    return record.key, started, msgspec.json.encode(record.results)


def _require_apart(base: _Side, new: _Side) -> None:
    """Refuse to compare runs with themselves.

    Raises:
        InputError: A file or a run is on both sides.
    """
    shared = {path.resolve() for path in base.files} & {path.resolve() for path in new.files}
    runs = {_identity(each) for each in base.usable if not each.simulated}
    same = [each for each in new.usable if _identity(each) in runs]
    if shared or same:
        which = sorted(shared)[0].name if shared else f"the run {same[0].key}"
        raise InputError(
            f"{which} is on both sides, so that no difference can be seen",
            hint="give two runs; those of an unchanged server show what differs by chance",
        )


def _runs(side: _Side, resampled: set[int]) -> list[ComparedRun]:
    """Runs of a side; those in the given places with the doubt that their requests show."""
    return [
        ComparedRun(
            record=record,
            reaches=reaches_of(side.requests.get(place)) if place in resampled else None,
            has_requests=place in side.requests,
        )
        for place, record in enumerate(side.usable)
    ]


def _compared(request: Compare, conditions: tuple[GateCondition, ...]) -> RunComparison:
    """Comparison of the two sides of a request."""
    assert request.new is not None
    base, now = _read(request.base, "BASE"), _read(request.new, "NEW")
    _require_usable(base, "BASE", request.base)
    broken = tuple(failed_configurations(base.records, now.records))
    judged = bool(conditions) and not request.plan_run
    if judged and broken and not now.usable:  # a gate that nothing can pass
        return RunComparison(configurations=(), broken=broken, gated=True)
    _require_usable(now, "NEW", request.new)
    _require_apart(base, now)
    require_one_kind(base.usable, now.usable)
    records = [base.usable, now.usable]
    aligned = align(*records, ignore_workload=request.ignore_workload)
    single = [pair for pair in aligned.pairs if len(pair.base) + len(pair.new) - 2 < LEAST_FREEDOM]
    runs = [
        _runs(side, {place for pair in single for place in getattr(pair, name)})
        for side, name in ((base, "base"), (now, "new"))
    ]
    found = compare_runs(
        *runs,
        gate=conditions,
        tolerance=request.tolerance,
        ignore_workload=request.ignore_workload,
    )
    return msgspec.structs.replace(found, broken=broken)


def _planned(request: Compare, conditions: tuple[GateCondition, ...]) -> Compared:
    """Run lengths by the runs of one side, or by the pairs of two."""
    conditions = conditions or parse_gate(USUAL)
    if request.new is not None:
        found = _compared(request, conditions)
        return Compared(run_lengths=found.run_lengths, base=request.base, new=request.new)
    side = _read(request.base, "BASE")
    _require_usable(side, "BASE", request.base)
    alone = {0} if len(side.usable) == 1 else set()
    lengths = plan_run(_runs(side, alone), conditions)
    if 1 < len(side.usable) < _PILOT:
        note(
            f"note: {len(side.usable)} runs show little of how far runs differ, so that more are "
            f"planned: {_PILOT} or more runs of BASE make the plan shorter"
        )
    note(
        "note: equal seeds on both sides need fewer runs: with two runs of each seed of the same "
        "server, servetune compare FIRST SECOND --plan-run says how many"
    )
    return Compared(run_lengths=lengths, base=request.base)


def _joined(side: Side) -> str:
    if isinstance(side, str | Path):
        return str(side)
    return ",".join(map(str, side))
