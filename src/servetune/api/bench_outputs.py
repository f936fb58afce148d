"""Files that a load test leaves, and spans that it exports."""

from __future__ import annotations

from pathlib import Path

import msgspec

from servetune.api.notes import note, progress
from servetune.api.reporting import write_artifacts
from servetune.errors import StoreError
from servetune.loadgen import export_spans, otlp_endpoint
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


def write_outputs(folder: Path, request: Bench, benched: Benched) -> None:
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


def export(named: str, request: Bench, benched: Benched) -> None:
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
