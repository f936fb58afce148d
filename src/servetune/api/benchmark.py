"""Bench: load on running servers, timed to the token, and its files."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from servetune.api.bench_progress import done_fraction, level_of, progress_rows
from servetune.api.bench_request import Baseline, Bench
from servetune.api.bench_setup import dry_run_text, prepared_load
from servetune.api.frames import TableRow, Tabular
from servetune.api.measured_deployments import deployment_under_load, note_measured
from servetune.api.mlflow_logging import MlflowLogger, require_mlflow
from servetune.api.notebook import NotebookBar, notebook_bar
from servetune.api.notes import note, progress
from servetune.api.registration import RegisteredRun
from servetune.api.request import request_of, write_repeating
from servetune.api.telemetry import export_run
from servetune.api.timelines import timeline_of_requests
from servetune.api.trials import Trials, run_html, write_artifacts
from servetune.errors import ExitStatus, InputError, ServerRefused, ServetuneError, StoreError
from servetune.loadgen import (
    LoadResult,
    Progress,
)
from servetune.metrics import Constraint, parse_constraints, unmet
from servetune.report import text_html
from servetune.report.baseline import BaselineComparison
from servetune.report.levels import knee, largest
from servetune.search import Goal
from servetune.secret import redacted_text
from servetune.store import (
    Artifacts,
    Journal,
    RunStatus,
    TrialRecord,
    has_parquet,
    write_record,
    write_requests,
    write_requests_csv,
    write_requests_parquet,
    write_text,
)
from servetune.store.register import new_run
from servetune.trials import Bench as PreparedLoad
from servetune.trials import Benched, RunWatch, measured_requests
from servetune.trials import bench as send

#: Statuses that may mean a route that is not there, or a model that is not.
NO_SUCH_ROUTE = (404, 405, 501)

OnProgress = Callable[[PreparedLoad, Progress | None], None]


class BenchResult(Tabular, frozen=True, kw_only=True):
    """Result of a load test.

    Attributes:
        record: Record as the journal has it; `None` after a dry run.
        load: Every request, and the load generator's own error; `None` after a dry run.
        constraints: Limits that the run is judged by.
        comparison: Comparison with the baseline, where one was given.
        planned: First request as text and what would follow, after a dry run.
    """

    record: TrialRecord | None = None
    load: LoadResult | None = None
    constraints: tuple[Constraint, ...] = ()
    comparison: BaselineComparison | None = None
    planned: str = ""

    def __str__(self) -> str:
        from servetune.report import as_text, bench_table

        return as_text(bench_table(self.record, self.constraints)) if self.record else self.planned

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 a constraint or the baseline is missed; 3 given up; 130
        interrupted.
        """
        if self.record is None or self.load is None:
            return ExitStatus.DONE
        if self.load.interrupted:
            return ExitStatus.INTERRUPTED
        if self.record.status != "ok" or self.load.aborted_reason:
            return ExitStatus.SERVER
        missed = self.comparison is not None and self.comparison.missed
        missed = missed or bool(self.constraints and unmet(self.constraints, self.record.results))
        return ExitStatus.TARGET_MISSED if missed else ExitStatus.DONE

    def as_rows(self) -> Iterable[TableRow]:
        """One row per request."""
        return self.load.records if self.load else ()

    def _repr_html_(self) -> str:
        if self.record is None or self.load is None:
            return text_html(self.planned)
        run = Trials(records=(self.record,), constraints=self.constraints)
        requests = measured_requests(self.record.key, self.load)
        return run_html(run, requests if self.load.records else None)


class BenchLevels(Tabular, frozen=True, kw_only=True):
    """Results of a load test at several levels.

    Attributes:
        levels: Result of each level that ran, in order.
        asked: Number of levels that were asked for.
        constraints: Limits that the levels are judged by.
    """

    levels: tuple[BenchResult, ...]
    asked: int
    constraints: tuple[Constraint, ...] = ()

    def __str__(self) -> str:
        from servetune.report import as_text, levels_table

        return as_text(levels_table(self.records, self.constraints, asked=self.asked))

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Records of the levels, as the journal has them."""
        return tuple(level.record for level in self.levels if level.record is not None)

    @property
    def trials(self) -> Trials:
        """The levels as trials of one run."""
        return Trials(records=self.records, constraints=self.constraints)

    def _repr_html_(self) -> str:
        return self.trials._repr_html_()

    @property
    def knee(self) -> TrialRecord | None:
        """The level with the largest ratio of throughput to latency; `None` where none ended."""
        return knee(self.records)

    @property
    def largest(self) -> TrialRecord | None:
        """The largest level within the constraints; `None` where none is."""
        return largest(self.records, self.constraints)

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 no level is within the constraints; 3 a level was given up; 130
        interrupted.
        """
        if any(level.status == ExitStatus.INTERRUPTED for level in self.levels):
            return ExitStatus.INTERRUPTED
        # A load that the server cannot bear is a finding where it bears another.
        bears_any = any(record.status == "ok" for record in self.records)
        for level in self.levels:
            failure = level.record.failure if level.record else None
            overloaded = failure is not None and failure.kind == "error_rate"
            if level.status == ExitStatus.SERVER and not (overloaded and bears_any):
                return ExitStatus.SERVER
        missed = self.constraints and self.largest is None
        return ExitStatus.TARGET_MISSED if missed else ExitStatus.DONE

    def as_rows(self) -> Iterable[TableRow]:
        """One row per level: settings of the load, then results."""
        return self.trials.as_rows()


def bench(
    request: Bench | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> BenchResult | BenchLevels:
    """Send load to servers that run already, and measure what they do.

    It blocks until the last answer; `await asyncio.to_thread(st.bench, ...)` does not.

    Args:
        request: The request, or the address of one server.
        on_progress: Called with the load and its progress twice a second; first with `None`,
            when it is prepared. Without it a notebook shows a bar.
        options: Fields of `Bench`.

    Returns:
        A `BenchResult`; with several levels of `concurrency` or `rate` a `BenchLevels`.

    Raises:
        InputError: Options contradict one another, or a file cannot be read.
        LoadError: The server cannot be reached.
        ServerRefused: The server refused the first request.
        StoreError: Results would be written over.

    Example:
        ```python
        found = st.bench("http://localhost:8000", concurrency=32, requests=1000)
        found.record.results.output_throughput
        ```
    """
    if isinstance(request, str):
        options["urls"] = (request, *options.get("urls", ()))
    request = request_of(Bench, request if isinstance(request, Bench) else Bench(), options)
    if request.endpoint.sagemaker and not request.results.dry_run:
        from servetune.api.bench_endpoint import with_endpoint

        request = with_endpoint(request)
    levels = request.levels()
    if request.results.out is not None:
        require_free(request.results.out)
        for each in levels if len(levels) > 1 else ():
            require_free(request.results.out / level_name(each))
    with notebook_bar(quiet=on_progress is not None) as bar:
        if bar is not None:
            on_progress = _shown_on(bar, len(levels))
        if len(levels) > 1:
            return _bench_levels(request, levels, on_progress)
        if request.results.dry_run:
            return _bench_one(levels[0], on_progress, RunWatch())
        done: list[BenchResult] = []
        with (
            _registered(request, done) as entry,
            _watch(request, levels, done) as watch,
            _mlflow(request, done),
        ):
            done.append(_bench_one(levels[0], on_progress, watch, entry))
            entry.interrupted = watch.interrupted
        return done[0]


def _registered(request: Bench, done: Sequence[BenchResult]) -> RegisteredRun:
    """The run in the register, where its results are kept; `done` has the levels that ended."""
    out = request.results.out
    return RegisteredRun(
        new_run() if out else "",
        Artifacts(out, STEM).journal if out else None,
        "bench",
        records=lambda: [level.record for level in done if level.record is not None],
        goal=lambda: Goal(constraints=parse_constraints(request.limits.constraints or "")),
    )


@contextmanager
def _mlflow(request: Bench, done: Sequence[BenchResult]) -> Iterator[None]:
    """Have the levels that ended logged to MLflow, where that was asked; once no load is sent."""
    if request.results.mlflow is not None:
        require_mlflow()
    try:
        yield
    finally:
        if request.results.mlflow is not None:
            logged = MlflowLogger(request.results.mlflow)
            records = [level.record for level in done if level.record is not None]
            for record in records:
                logged.log(record)
            out = request.results.out
            logged.finish(
                None if out is None else Artifacts(out, STEM),
                interrupted=any(level.status == ExitStatus.INTERRUPTED for level in done),
            )


def _watch(request: Bench, levels: Sequence[Bench], done: Sequence[BenchResult]) -> RunWatch:
    """Watch of the run; `done` has the levels that have ended."""

    def overview(status: RunStatus) -> RunStatus:
        model = redacted_text(request.server.model or "")
        return msgspec.structs.replace(
            status,
            verb="bench",
            model=model,
            done=len(done),
            of=len(levels),
            refuses_put_off="a load test has no other trial to run first",
        )

    out = request.results.out
    return RunWatch(None if out is None else Artifacts(out, STEM), overview=overview, say=progress)


def _shown_on(bar: NotebookBar, level_count: int) -> OnProgress:
    """Callback that shows each load and its progress in a notebook."""
    begun = itertools.count(1)
    level = ""

    def show(load: PreparedLoad, progress: Progress | None) -> None:
        nonlocal level
        if progress is None:
            if level_count > 1:
                level = f"level {next(begun)} of {level_count}, {level_of(load)}: "
            bar.show(None, f"{level}warming up", "")
            return
        ended = f"{progress.finished_count:,} of {progress.request_count:,} requests"
        rows = progress_rows(load, progress)
        words = "\n".join(f"{name:<16} {value}" for name, value in rows)
        bar.show(done_fraction(load, progress), level + ended, words)

    return show


def _bench_levels(
    request: Bench, levels: Sequence[Bench], on_progress: OnProgress | None
) -> BenchResult | BenchLevels:
    """Each level after the other, with prompts that no level before had; kept as they end."""
    _require_levels(request)
    if request.results.dry_run:
        return _bench_one(levels[0], on_progress, RunWatch())
    limits = parse_constraints(request.limits.constraints or "")
    seed = 1 + secrets.randbelow(2**31) if request.seed is None else request.seed
    done: list[BenchResult] = []
    try:
        with (
            _registered(request, done) as entry,
            _watch(request, levels, done) as watch,
            _mlflow(request, done),
        ):
            for place, each in enumerate(levels):
                out = request.results.out and request.results.out / level_name(each)
                files = msgspec.structs.replace(each.results, out=out)
                asked = msgspec.structs.replace(each, seed=seed + place, results=files)
                done.append(_bench_one(asked, on_progress, watch, entry))
                _append_level(request, done[-1])
                if done[-1].status == ExitStatus.INTERRUPTED:
                    entry.interrupted = True
                    break
    except BaseException:
        with suppress(StoreError):  # where there is no room, the first error says so
            _write_levels(request, done, limits)
        raise
    _write_levels(request, done, limits)
    return BenchLevels(levels=tuple(done), asked=len(levels), constraints=limits)


def level_name(level: Bench) -> str:
    """Name of a level's folder: `8-users` or `2.5-per-s`."""
    if level.load.rate is not None:
        return f"{level.load.rate:g}-per-s"
    return f"{level.load.concurrency}-users"


def _require_levels(request: Bench) -> None:
    """Refuse what asks one load, where several levels are given.

    Raises:
        InputError: There is such an option.
    """
    if request.baseline != Baseline():
        raise InputError(
            "--against compares one level with one trial",
            hint="give one value of --concurrency or --rate",
        )
    if request.results.compat is not None:
        raise InputError(
            "--compat gives one run in another tool's figures",
            hint="leave it out, or give one value of --concurrency or --rate",
        )
    if request.load.trace is not None:
        raise InputError(
            "a trace has its own times and prompts, and each level would send them again",
            hint="leave --trace out, or give one value of --concurrency",
        )


def _append_level(request: Bench, level: BenchResult) -> None:
    """Put a level into the journal of all as soon as it ends: a killed run keeps what it had."""
    if request.results.out is not None and level.record is not None:
        journal_path = Artifacts(request.results.out, STEM).journal
        with Journal(journal_path, resume=True) as journal:
            journal.append(level.record)


def _write_levels(
    request: Bench, done: Sequence[BenchResult], constraints: tuple[Constraint, ...]
) -> None:
    """Summary and dashboard of all levels; each has its requests in its own folder."""
    records = [level.record for level in done if level.record is not None]
    if request.results.out is None or not records:
        return
    artifacts = Artifacts(request.results.out, STEM)
    timelines = {
        level.record.key: timeline_of_requests(measured_requests(level.record.key, level.load))
        for level in done
        if level.record is not None and level.load is not None and level.load.records
    }
    write_artifacts(artifacts, records, constraints, timelines=timelines)
    write_repeating(request_of(Bench, request, {"out": None}), artifacts.configuration)
    for path in (artifacts.journal, artifacts.summary, artifacts.dashboard):
        progress(f"wrote {path}")


def _bench_one(
    request: Bench,
    on_progress: OnProgress | None,
    watch: RunWatch,
    entry: RegisteredRun | None = None,
) -> BenchResult:
    """One level, compared with a trial where one is named; `entry` is not for a dry run."""
    baseline, asked = None, request
    if request.baseline != Baseline():
        from servetune.api.bench_baseline import compare, reproducing

        request, baseline = reproducing(request)
        (request,) = request.levels()
    if request.results.dry_run:
        return BenchResult(planned=dry_run_text(prepared_load(request)))
    if request.seed is None:
        request = msgspec.structs.replace(request, seed=1 + secrets.randbelow(2**31))
    assert entry is not None
    prepared = prepared_load(request)
    deployment = deployment_under_load(asked, prepared.targets[0])
    prepared, benched = _sent(request, prepared, on_progress, watch, entry)
    watch.interrupted = benched.result.interrupted
    comparison = None
    if baseline is not None and benched.record.status == "ok":
        comparison, benched = compare(request, baseline, benched)
    if request.results.out is not None:
        write_outputs(request.results.out, prepared, benched)
        again = request_of(Bench, request, {"out": None})
        write_repeating(again, Artifacts(request.results.out, STEM).configuration)
    kept = request.results.out and Artifacts(request.results.out, STEM).journal
    if deployment is not None:
        note_measured(deployment, benched.record, comparison, kept)
    if request.results.otel_endpoint:
        export_run(request.results.otel_endpoint, prepared, benched.result)
    return BenchResult(
        record=benched.record,
        load=benched.result,
        constraints=prepared.constraints,
        comparison=comparison,
    )


def _sent(
    request: Bench,
    prepared: PreparedLoad,
    on_progress: OnProgress | None,
    watch: RunWatch,
    entry: RegisteredRun,
) -> tuple[PreparedLoad, Benched]:
    """Load that was sent and its results, over chat where no route is given and is no other."""

    def run(load: PreparedLoad) -> Benched:
        out = request.results.out
        artifacts = None if out is None else Artifacts(out, STEM)
        if on_progress is not None:
            on_progress(load, None)

        def report(progress: Progress) -> None:
            watch.progress("", progress)
            if on_progress is not None:
                on_progress(load, progress)

        entry.begin(
            model=load.targets[0].model,
            engine="external",
            client_args=load.client_args,
            seed=load.workload.seed,
        )
        load = msgspec.structs.replace(load, run=entry.run)
        watch.stage("", level_of(load), "warm-up")
        benched = send(load, on_progress=report, halt=watch.halt, artifacts=artifacts)
        watch.stage("", level_of(load), "evaluating")
        return benched

    try:
        return prepared, run(prepared)
    except ServerRefused as refusal:
        if refusal.status not in NO_SUCH_ROUTE:
            raise
        if (
            request.load.api is None
            and request.load.trace is None
            and prepared.workload.api == "completions"
        ):
            try:
                chat = prepared_load(request_of(Bench, request, {"api": "chat"}))
                benched = run(chat)
            except ServetuneError:  # it is something else, such as the model's name
                pass
            else:
                note("note: the server has no /v1/completions; requests go to /v1/chat/completions")
                return chat, benched
        routes = "--api says which route is asked (chat, completions, ...)"
        refusal.hint = f"{refusal.hint}; {routes}" if refusal.hint else routes
        raise refusal from None


STEM = "bench"


def require_free(folder: Path) -> None:
    """Refuse to begin where another run's results are.

    Raises:
        StoreError: The folder holds a run already, or is none.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is not a folder", hint="choose another --out")
    artifacts = Artifacts(folder, STEM)
    for path in (artifacts.journal, artifacts.summary, artifacts.requests):
        if path.exists():
            raise StoreError(f"{path} exists already", hint="choose another --out")


def write_outputs(folder: Path, request: PreparedLoad, benched: Benched) -> None:
    """Journal, summary, dashboard, and every request in as many forms as can be written."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts = Artifacts(folder, STEM)
    write_record(artifacts.journal, benched.record)
    records = benched.result.records
    written = [artifacts.journal]
    if records:
        sent_s = [record.sent_s for record in records]
        write_requests(artifacts.requests, records, sent_s, token_times=True)
        csv = folder / f"{STEM}.requests.csv"
        write_requests_csv(csv, records)
        written += [artifacts.requests, csv]
        if has_parquet():
            parquet = folder / f"{STEM}.requests.parquet"
            write_requests_parquet(parquet, records)
            written.append(parquet)
        else:
            note("note: no Parquet without pyarrow: pip install 'servetune[parquet]'")
        timeline = timeline_of_requests(measured_requests(benched.record.key, benched.result))
        write_artifacts(artifacts, [benched.record], request.constraints, timeline=timeline)
        written += [artifacts.summary, artifacts.dashboard]
    if benched.result.side is not None and benched.result.side.series:
        series = folder / f"{STEM}.server.json"
        write_text(series, msgspec.json.encode(benched.result.side).decode())
        written.append(series)
    for path in written:
        progress(f"wrote {path}")
