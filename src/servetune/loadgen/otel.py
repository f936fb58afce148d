"""Traces of requests: W3C's header on each request, OpenTelemetry's spans after the run.

A request's ids follow from the run's id and its index alone, so that the header can be built before
the clock starts, and the span, made long after, is the parent of the server's own spans. Nothing is
exported while load is sent. The SDK is an extra, `servetune[otel]`.

Names are those of OpenTelemetry's conventions for generative AI as of 1.41 (in development);
attributes without a name there begin with `servetune.`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from servetune import __version__
from servetune.errors import InputError, LoadError
from servetune.json_value import JsonObject
from servetune.loadgen.target import Target
from servetune.metrics.record import Record
from servetune.traffic.messages import trace_ids

_BATCH = 512
_OPERATIONS = {"chat": "chat", "completions": "text_completion", "embeddings": "embeddings"}
#: Routes of a collector.
TRACES, METRICS = "/v1/traces", "/v1/metrics"


def otlp_endpoint(given: str | None = None) -> str | None:
    """Endpoint for spans: the address given, else that of OpenTelemetry's environment variables.

    An address without a path, like `OTEL_EXPORTER_OTLP_ENDPOINT`, is the collector's, and its route
    for traces is added; `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is taken as it is.

    Raises:
        InputError: It is no http address.
    """
    traces = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    general = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    named = given or traces or general
    if not named:
        return None
    parts = urlsplit(named)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            f"'{named}' is not where spans can be sent",
            hint="name an OTLP/HTTP collector, such as http://127.0.0.1:4318",
        )
    if named == general and not given and not traces:
        return f"{named.rstrip('/')}{TRACES}"
    return f"{named.rstrip('/')}{TRACES}" if parts.path in {"", "/"} else named


def require_otel() -> None:
    """Check before the load that spans can be written after it.

    Raises:
        InputError: OpenTelemetry's SDK is not installed.
    """
    for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise InputError(
                "OpenTelemetry's SDK is not installed", hint="pip install 'servetune[otel]'"
            )


def resource(run_id: str) -> Any:
    """Attributes of all that a run exports; those of `OTEL_RESOURCE_ATTRIBUTES` are among them."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "servetune"),
            "service.version": __version__,
            "servetune.run_id": run_id,
        }
    )


def operation_of(api: str) -> str:
    """Operation in the words of the conventions; a route that they do not have is its own word."""
    return _OPERATIONS.get(api, api)


def error_type(record: Record) -> str:
    """Class of a failed request's error: the status of an answer, else the outcome."""
    has_status = record.outcome == "http_status" and record.status is not None
    return str(record.status) if has_status else record.outcome


def export_spans(
    records: Sequence[Record],
    *,
    endpoint: str,
    run_id: str,
    started_unix_s: float,
    targets: Sequence[Target],
    api: str = "chat",
    provider: str = "openai",
    timeout_s: float = 10.0,
) -> int:
    """Send one span per request to a collector; the number of spans that it took.

    A span lasts from when its request was due to its end, with events where it was sent and where
    its first and last token came.

    Args:
        endpoint: Endpoint from `otlp_endpoint`. Headers and certificates come from OpenTelemetry's
            environment variables.
        records: Records of the run.
        run_id: Id of the run, as in the headers that were sent.
        started_unix_s: Wall-clock time of the start.
        targets: Servers, as `Record.target` numbers them.
        api: Route of the run, where a target does not name its own.
        provider: Provider of the model; `openai` for any server with OpenAI's protocol.

    Raises:
        InputError: OpenTelemetry's SDK is not installed.
        LoadError: The collector did not take them.
    """
    require_otel()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)  # type: ignore[arg-type,unused-ignore]
    traced = _Traced(run_id, started_unix_s)
    sent = 0
    try:
        for first in range(0, len(records), _BATCH):
            for record in records[first : first + _BATCH]:
                traced.add(record, targets[record.target], api=api, provider=provider)
            batch = traced.taken()
            if batch and exporter.export(batch) is not SpanExportResult.SUCCESS:
                raise LoadError(
                    f"the collector at {endpoint} took {sent} of {len(records)} spans",
                    hint="is it running, and does it speak OTLP over HTTP?",
                )
            sent += len(batch)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call,unused-ignore]
    return sent


class _Traced:
    """Maker of spans from records, by the SDK's own tracer with given ids and times."""

    def __init__(self, run_id: str, started_unix_s: float) -> None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        spans: list[Any] = []

        class Keep(SpanProcessor):  # type: ignore[misc,unused-ignore]
            def on_end(self, span: object) -> None:
                spans.append(span)

        self._spans = spans
        self._ids = _Ids()
        provider = TracerProvider(
            resource=resource(run_id),
            sampler=ALWAYS_ON,
            id_generator=self._ids,  # type: ignore[arg-type,unused-ignore]
            shutdown_on_exit=False,
        )
        provider.add_span_processor(Keep())
        self._tracer = provider.get_tracer("servetune.loadgen", __version__)
        self._run_id = run_id
        whole_s, part_s = divmod(started_unix_s, 1.0)  # 1.8e18 ns exceed a float's precision
        self._start_ns = int(whole_s) * 1_000_000_000 + round(part_s * 1e9)

    def add(self, record: Record, target: Target, *, api: str, provider: str) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._ids.next_ids = trace_ids(self._run_id, record.index)
        operation = operation_of(target.api or api)
        model = record.model or target.model
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=Context(),  # a root span, whatever trace this process is in
            kind=SpanKind.CLIENT,
            attributes=_attributes(record, target, operation, model, provider),
            start_time=self._unix_ns(record.due_s),
        )
        span.add_event("sent", timestamp=self._unix_ns(record.sent_s))
        if len(record.chunk_times_s):
            span.add_event("first_token", timestamp=self._unix_ns(record.chunk_times_s[0]))
            span.add_event("last_token", timestamp=self._unix_ns(record.chunk_times_s[-1]))
        if record.outcome != "ok":
            span.set_status(Status(StatusCode.ERROR, record.detail or record.outcome))
        span.end(self._unix_ns(record.end_s))

    def taken(self) -> list[Any]:
        """Spans made since the last call."""
        taken = self._spans[:]
        self._spans.clear()
        return taken

    def _unix_ns(self, at_s: float) -> int:
        return self._start_ns + round(at_s * 1e9)


class _Ids:
    """Generator of ids for the SDK (`IdGenerator`): the ids are known before."""

    next_ids = (1, 1)

    def generate_trace_id(self) -> int:
        return self.next_ids[0]

    def generate_span_id(self) -> int:
        return self.next_ids[1]

    def is_trace_id_random(self) -> bool:
        """A hash's bits are as random as the SDK's ids."""
        return True


def _attributes(
    record: Record, target: Target, operation: str, model: str, provider: str
) -> JsonObject:
    origin = target.origin
    named: JsonObject = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.request.stream": target.stream,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "server.address": origin.host,
        "server.port": origin.port,
        "servetune.index": record.index,
        "servetune.outcome": record.outcome,
        "servetune.due_s": record.due_s,
        "servetune.sent_s": record.sent_s,
        "servetune.end_s": record.end_s,
    }
    if len(record.chunk_times_s):
        first_s = record.chunk_times_s[0]
        named["gen_ai.response.time_to_first_chunk"] = first_s - record.sent_s
        named["servetune.ttft_s"] = first_s - record.due_s
    if record.session is not None:
        named["gen_ai.conversation.id"] = str(record.session)
        named["servetune.turn"] = record.turn
    if record.connect_s is not None:
        named["servetune.connect_s"] = record.connect_s
    if record.status is not None:
        named["http.response.status_code"] = record.status
    if record.outcome != "ok":
        named["error.type"] = error_type(record)
    return named
