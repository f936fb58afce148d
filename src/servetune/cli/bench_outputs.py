"""What `servetune bench` shows while it runs, and what it leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from servetune.cli.output import echo
from servetune.errors import StoreError
from servetune.loadgen import Progress, export_spans, otlp_endpoint
from servetune.store import (
    Artifacts,
    Journal,
    has_parquet,
    write_requests,
    write_requests_csv,
    write_requests_parquet,
    write_text,
)
from servetune.trials import Bench, Benched
from servetune.units import format_seconds

__all__ = ["Live", "export", "require_free", "write_outputs"]

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
            raise StoreError(f"{path} is there already", hint="choose another --out")


def write_outputs(folder: Path, asked: Bench, benched: Benched) -> None:
    """Journal, summary, dashboard, and every request in as many forms as can be written."""
    # Imported when the load is over: nothing of it is needed before the first request.
    from servetune.api.reporting import write_artifacts
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
            echo("note: no Parquet without pyarrow: pip install 'servetune[parquet]'")
        timeline = timeline_of(records, sent_s, _kv_use(benched), seen_by_client=True)
        write_artifacts(artifacts, [benched.record], asked.constraints, timeline=timeline)
        written += [artifacts.summary, artifacts.dashboard]
    if benched.result.side is not None and benched.result.side.series:
        series = folder / f"{STEM}.server.json"
        write_text(series, msgspec.json.encode(benched.result.side).decode())
        written.append(series)
    for path in written:
        echo(f"wrote {path}")


def export(named: str, asked: Bench, benched: Benched) -> None:
    """Send each request to a collector as a span; the results are kept whatever it says."""
    endpoint = otlp_endpoint(named)
    assert endpoint is not None
    result = benched.result
    sent = export_spans(
        result.records,
        endpoint=endpoint,
        run_id=asked.settings.run_id,
        started_unix_s=result.started_unix_s,
        targets=asked.targets,
        api=asked.workload.api,
    )
    echo(f"sent {sent:,} spans to {endpoint}")


def _kv_use(benched: Benched) -> list[tuple[float, float]]:
    if benched.result.side is None:
        return []
    for series in benched.result.side.series:
        values = series.values.get("kv_usage_fraction")
        if values is not None:
            pairs = zip(series.times_s, values, strict=True)
            return [(at_s, value) for at_s, value in pairs if value is not None]
    return []


class Live:
    """A few lines about the run on the terminal, twice a second; nothing where there is none."""

    def __init__(self, asked: Bench, *, enabled: bool) -> None:
        self._shown = enabled and sys.stderr.isatty()
        self._asked = asked
        self._display: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.live import Live as Display

            self._display = Display(
                console=Console(stderr=True), transient=True, auto_refresh=False
            )
            self._display.start()
            self._display.update("warming up", refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def show(self, progress: Progress) -> None:
        """What is done, what failed, what is on its way, how fast."""
        if self._display is None:
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        rate = progress.output_tokens / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
        duration_s, until = self._asked.workload.duration_s, self._asked.until
        elapsed, ended = format_seconds(progress.elapsed_s), f"{progress.finished_count:,}"
        if duration_s is not None:
            elapsed += f" of {format_seconds(duration_s)}"
        elif until is not None:
            ended += f", until {until.label}"
        else:
            ended += f" of {progress.request_count:,}"
        table.add_row("elapsed", elapsed)
        table.add_row("ended", ended)
        table.add_row("in flight", f"{progress.in_flight_count:,}")
        table.add_row("failed", f"{progress.failed_count:,}")
        table.add_row("output tokens/s", f"{rate:,.0f}")
        self._display.update(table, refresh=True)
