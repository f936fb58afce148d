"""Bench: load on running servers, timed to the token, and its files."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.api.bench_request import Baseline, Bench
from servetune.api.bench_setup import dry_run_text, prepared_load
from servetune.api.notes import note, progress
from servetune.api.request import request_of, write_repeating
from servetune.api.trials import write_artifacts
from servetune.errors import ServerRefused, ServetuneError, StoreError
from servetune.loadgen import LoadResult, Progress, export_spans, otlp_endpoint
from servetune.metrics import Constraint, unmet
from servetune.report.baseline import BaselineComparison
from servetune.store import (
    Artifacts,
    Journal,
    TrialRecord,
    has_parquet,
    write_requests,
    write_requests_csv,
    write_requests_parquet,
    write_text,
)
from servetune.trials import Bench as PreparedLoad
from servetune.trials import Benched
from servetune.trials import bench as send

if TYPE_CHECKING:
    import pandas as pd


#: Exit status of a run that the user interrupted.
INTERRUPTED = 130
#: Statuses that may mean a route that is not there, or a model that is not.
NO_SUCH_ROUTE = (404, 405, 501)

OnProgress = Callable[[PreparedLoad, Progress | None], None]


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
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

    __repr__ = __str__

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 a constraint or the baseline is missed; 3 given up; 130
        interrupted.
        """
        if self.record is None or self.load is None:
            return 0
        if self.load.interrupted:
            return INTERRUPTED
        if self.record.status != "ok" or self.load.aborted_reason:
            return 3
        missed = self.comparison is not None and self.comparison.missed
        missed = missed or bool(self.constraints and unmet(self.constraints, self.record.results))
        return 1 if missed else 0

    @property
    def df(self) -> pd.DataFrame:
        """One row per request."""
        from servetune.api.frames import frame

        return frame(msgspec.to_builtins(self.load.records) if self.load else ())


def bench(
    request: Bench | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> BenchResult:
    """Send load to servers that run already, and measure what they do.

    It blocks until the last answer; `await asyncio.to_thread(st.bench, ...)` does not.

    Args:
        request: The request, or the address of one server.
        on_progress: Called with the load and its progress twice a second; first with `None`,
            when it is prepared.
        options: Fields of `Bench`.

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
    if request.results.out is not None:
        require_free(request.results.out)
    baseline = None
    if request.baseline != Baseline():
        from servetune.api.bench_baseline import compare, reproducing

        request, baseline = reproducing(request)
    if request.results.dry_run:
        return BenchResult(planned=dry_run_text(prepared_load(request)))
    if request.seed is None:
        request = msgspec.structs.replace(request, seed=1 + secrets.randbelow(2**31))
    prepared = prepared_load(request)
    prepared, benched = _sent(request, prepared, on_progress)
    comparison = None
    if baseline is not None and benched.record.status == "ok":
        comparison, benched = compare(request, baseline, benched)
    if request.results.out is not None:
        write_outputs(request.results.out, prepared, benched)
        again = request_of(Bench, request, {"out": None})
        write_repeating(again, Artifacts(request.results.out, STEM).configuration)
    if request.results.otel_endpoint:
        export(request.results.otel_endpoint, prepared, benched)
    return BenchResult(
        record=benched.record,
        load=benched.result,
        constraints=prepared.constraints,
        comparison=comparison,
    )


def _sent(
    request: Bench, prepared: PreparedLoad, on_progress: OnProgress | None
) -> tuple[PreparedLoad, Benched]:
    """Load that was sent and its results, over chat where no route is given and is no other."""

    def run(load: PreparedLoad) -> Benched:
        if on_progress is None:
            return send(load)
        on_progress(load, None)
        return send(load, on_progress=lambda progress: on_progress(load, progress))

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
    # Imported when the load is over: nothing of it is needed before the first request.
    from servetune.report import timeline_of

    folder.mkdir(parents=True, exist_ok=True)
    artifacts = Artifacts(folder, STEM)
    with Journal(artifacts.journal) as journal:
        journal.append(benched.record)
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
        timeline = timeline_of(records, sent_s, _kv_use(benched), seen_by_client=True)
        write_artifacts(artifacts, [benched.record], request.constraints, timeline=timeline)
        written += [artifacts.summary, artifacts.dashboard]
    if benched.result.side is not None and benched.result.side.series:
        series = folder / f"{STEM}.server.json"
        write_text(series, msgspec.json.encode(benched.result.side).decode())
        written.append(series)
    for path in written:
        progress(f"wrote {path}")


def export(named: str, request: PreparedLoad, benched: Benched) -> None:
    """Send each request to a collector as a span; the results are kept whatever it says."""
    endpoint = otlp_endpoint(named)
    assert endpoint is not None
    result = benched.result
    sent = export_spans(
        result.records,
        endpoint=endpoint,
        run_id=request.settings.run_id,
        started_unix_s=result.started_unix_s,
        targets=request.targets,
        api=request.workload.api,
    )
    progress(f"sent {sent:,} spans to {endpoint}")


def _kv_use(benched: Benched) -> list[tuple[float, float]]:
    if benched.result.side is None:
        return []
    for series in benched.result.side.series:
        values = series.values.get("kv_usage_fraction")
        if values is not None:
            pairs = zip(series.times_s, values, strict=True)
            return [(at_s, value) for at_s, value in pairs if value is not None]
    return []
