"""Spans and histograms to an OpenTelemetry collector, of load tests and of studies.

Nothing is sent while load is. A collector that refuses, or that takes too long, costs one note.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

from servetune.api.notes import note, progress
from servetune.errors import ServetuneError
from servetune.json_value import JsonObject
from servetune.loadgen import (
    LoadResult,
    SentRequests,
    SpanDraft,
    export_metrics,
    export_spans,
    otlp_endpoint,
    otlp_metrics_endpoint,
    request_spans,
    require_otel,
    unix_ns,
)
from servetune.secret import redacted_text
from servetune.store import TrialRecord
from servetune.trials import Bench as PreparedLoad
from servetune.trials import ServerLife, TrialRequests

#: Seconds that a run's telemetry may take.
MOST_EXPORT_S = 60.0
#: Results of a trial that its span has.
_RESULTS = (
    "completed", "failed", "request_throughput", "output_throughput", "mean_ttft_ms",
    "p99_ttft_ms", "mean_itl_ms", "p99_e2e_latency_ms",
)  # fmt: skip


def export_run(named: str, request: PreparedLoad, result: LoadResult) -> None:
    """Send each request of a load test to a collector as a span, and the run's histograms.

    The run is over and kept by then.
    """
    endpoint = _endpoint(named)
    sent = SentRequests(
        run_id=request.settings.run_id,
        started_unix_s=result.started_unix_s,
        targets=request.targets,
        api=request.workload.api,
    )

    def send(told: Callable[[str], None]) -> None:
        spans = request_spans(result.records, sent)
        count = export_spans(spans, endpoint=endpoint, run_id=sent.run_id)
        told(f"sent {count:,} spans to {endpoint}")
        metrics = otlp_metrics_endpoint(endpoint)
        if metrics is not None:
            series = export_metrics(result.records, sent, endpoint=metrics)
            told(f"sent {series:,} histograms to {metrics}")

    _sent_aside(endpoint, send)


class _Ended(Protocol):
    """Event of a trial that ended."""

    @property
    def record(self) -> TrialRecord:
        """The trial."""
        ...


class StudySpans:
    """Spans of a study: one for each start of a server, below it its trials, and their requests.

    Those of a trial are sent when it has ended, before the next begins on that server. After the
    first refusal nothing more is sent.

    Args:
        named: Address of the collector.
        run: Identity of the study's run.

    Raises:
        InputError: It is no address, or OpenTelemetry's SDK is not installed.
    """

    def __init__(self, named: str, run: str) -> None:
        self._endpoint, self._run = _endpoint(named), run
        require_otel()
        self._requests: defaultdict[str, list[TrialRequests]] = defaultdict(list)
        self._servers: dict[str, ServerLife] = {}
        self._count, self._whole, self._lock = 0, True, threading.Lock()

    def began(self, key: str, server: ServerLife) -> None:
        """Take that a trial begins on a server, or waits for its start."""
        self._servers[key] = server

    def sent(self, requests: TrialRequests) -> None:
        """Take the requests of a trial, just before its record is made."""
        self._requests[requests.key].append(requests)

    def served(self, server: ServerLife) -> None:
        """Send the span of a server that ended."""
        self._send(lambda: iter((_server_span(server),)))

    def __call__(self, event: _Ended) -> None:
        """Send the spans of a trial that ended, and of its requests."""
        record = event.record
        server, tries = self._servers.get(record.key), self._requests.pop(record.key, [])
        self._send(lambda: _trial_spans(record, server, tries))

    def finish(self) -> None:
        """Say how many spans were sent."""
        if self._whole:
            progress(f"sent {self._count:,} spans to {self._endpoint}")

    def _send(self, spans: Callable[[], Iterator[SpanDraft]]) -> None:
        def send(_: Callable[[str], None]) -> None:
            self._count += export_spans(spans(), endpoint=self._endpoint, run_id=self._run)

        with self._lock:  # of servers side by side one after the other
            if self._whole:
                self._whole = _sent_aside(self._endpoint, send)


def _endpoint(named: str) -> str:
    endpoint = otlp_endpoint(named)
    assert endpoint is not None, "an address is given"
    return endpoint


def _server_span(server: ServerLife) -> SpanDraft:
    attributes = _named("servetune.server", server.server_args) | {
        "gen_ai.request.model": server.model,
        "servetune.engine": server.engine,
        "servetune.server.command": redacted_text(server.command),
    }
    events: tuple[tuple[str, int], ...] = ()
    if server.ready_s is not None:
        attributes["servetune.server.ready_s"] = server.ready_s
        events = (("ready", unix_ns(server.began_unix_s + server.ready_s)),)
    if server.failure is not None:
        attributes["error.type"] = server.failure.kind
    return SpanDraft(
        name="server",
        trace_id=int(server.trace_id, 16),
        span_id=int(server.span_id, 16),
        begin_ns=unix_ns(server.began_unix_s),
        end_ns=unix_ns(server.ended_unix_s),
        attributes=attributes,
        events=events,
        error=redacted_text(server.failure.reason) if server.failure else None,
    )


def _trial_spans(
    record: TrialRecord, server: ServerLife | None, tries: list[TrialRequests]
) -> Iterator[SpanDraft]:
    """Span of a trial, below that of its server, and those of its requests."""
    trace_id = server.trace_id if server else secrets.token_hex(16)
    span_id = int(secrets.token_hex(8), 16)
    attributes: JsonObject = {
        "gen_ai.request.model": record.metadata.model or "",
        "servetune.trial.key": record.key,
        "servetune.trial.status": record.status,
        "servetune.simulated": record.simulated,
        **_named("servetune.server", record.config.server_args),
        **_named("servetune.client", record.config.client_args),
        **_named("servetune.result", {name: record.results.get(name) for name in _RESULTS}),
    }
    failure = record.failure
    if failure is not None:
        attributes["error.type"] = failure.kind
    ended_s = time.time()
    yield SpanDraft(
        name="trial",
        trace_id=int(trace_id, 16),
        span_id=span_id,
        parent_id=int(server.span_id, 16) if server else 0,
        begin_ns=unix_ns(_started_s(record, ended_s)),
        end_ns=unix_ns(ended_s),
        attributes=attributes,
        error=redacted_text(failure.reason) if failure else None,
    )
    for each in tries:
        if each.sent is not None:
            yield from request_spans(each.records, each.sent, parent_id=span_id)


def _started_s(record: TrialRecord, otherwise_s: float) -> float:
    """Start of a trial in seconds since 1970, as its record has it."""
    try:
        return datetime.fromisoformat(str(record.provenance["started_at"])).timestamp()
    except (KeyError, ValueError):
        return otherwise_s


def _named(prefix: str, values: JsonObject) -> JsonObject:
    """Settings or results as attributes; what is no plain value is text, without secrets."""
    return {
        f"{prefix}.{name}": value
        if isinstance(value, bool | int | float)
        else redacted_text(str(value))
        for name, value in values.items()
        if value is not None
    }


def _sent_aside(endpoint: str, send: Callable[[Callable[[str], None]], None]) -> bool:
    """Whether something was sent within `MOST_EXPORT_S`, in a thread of its own.

    Args:
        endpoint: Endpoint, for the note.
        send: Function that sends, and gives lines of progress to its argument.
    """
    told: list[Callable[[], None]] = []
    done = False

    def work() -> None:
        nonlocal done
        sdk = logging.getLogger("opentelemetry.exporter")
        level = sdk.level
        sdk.setLevel(logging.CRITICAL)  # what it says of a refusal is in our note
        try:
            send(lambda line: told.append(lambda: progress(line)))
            done = True
        except ServetuneError as error:
            told.append(lambda error=error: note(f"note: {error.message}: {error.hint}"))  # type: ignore[misc]
        except Exception as error:  # the SDK's own, or an exporter's, which no result is lost for
            told.append(lambda error=error: note(f"note: no telemetry was sent: {error}"))  # type: ignore[misc]
        finally:
            sdk.setLevel(level)

    thread = threading.Thread(target=work, name="telemetry", daemon=True)
    thread.start()
    thread.join(MOST_EXPORT_S)
    if thread.is_alive():
        note(f"note: {endpoint} did not take all telemetry within {MOST_EXPORT_S:.0f} s")
    for tell in told:
        tell()
    return done
