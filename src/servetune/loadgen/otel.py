"""Traces of requests: W3C's header on each request, OpenTelemetry's spans after the run.

A request's ids follow from the run's id and its index alone, so that the header can be built before
the clock starts, and the span, made long after, is the parent of the server's own spans. Nothing is
exported while load is sent. The SDK is an extra, `servetune[otel]`.

Names are those of OpenTelemetry's conventions for generative AI as of 1.41 (in development);
attributes without a name there begin with `servetune.`.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

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


class SpanDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is to be sent.

    Attributes:
        name: Name, of which there are few.
        trace_id: Trace, 128 bits.
        span_id: The span's own, 64 bits.
        parent_id: Span of the same trace above it; 0 for none.
        begin_ns: Start in nanoseconds since 1970.
        end_ns: End in nanoseconds since 1970.
        attributes: Attributes by name.
        events: Events: name and time in nanoseconds since 1970.
        client: Whether it is a request's.
        error: Reason why it failed; `None` where it did not.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int = 0
    begin_ns: int
    end_ns: int
    attributes: JsonObject = {}
    events: tuple[tuple[str, int], ...] = ()
    client: bool = False
    error: str | None = None


class SentRequests(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of a run were sent.

    Attributes:
        run_id: Id of the run, as in the headers that were sent.
        started_unix_s: Wall-clock time of the start.
        targets: Servers, as `Record.target` numbers them.
        api: Route of the run, where a target does not name its own.
        provider: Provider of the model; `openai` for any server with OpenAI's protocol.
        trace_id: Trace of all requests, 32 hex digits; empty for one of each.
    """

    run_id: str
    started_unix_s: float
    targets: tuple[Target, ...]
    api: str = "chat"
    provider: str = "openai"
    trace_id: str = ""


def request_spans(
    records: Sequence[Record], sent: SentRequests, *, parent_id: int = 0
) -> Iterator[SpanDraft]:
    """One span per request: from when it was due to its end, with events where it was sent and
    where its first and last token came.
    """
    start_ns = unix_ns(sent.started_unix_s)
    for record in records:
        target = sent.targets[record.target]
        operation = operation_of(target.api or sent.api)
        model = record.model or target.model
        trace_id, span_id = trace_ids(sent.run_id, record.index, sent.trace_id)
        times = [("sent", record.sent_s)]
        if len(record.chunk_times_s):
            times.append(("first_token", record.chunk_times_s[0]))
            times.append(("last_token", record.chunk_times_s[-1]))
        yield SpanDraft(
            name=f"{operation} {model}",
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            begin_ns=start_ns + round(record.due_s * 1e9),
            end_ns=start_ns + round(record.end_s * 1e9),
            attributes=_attributes(record, target, operation, model, sent.provider),
            events=tuple((name, start_ns + round(at_s * 1e9)) for name, at_s in times),
            client=True,
            error=None if record.outcome == "ok" else record.detail or record.outcome,
        )


def unix_ns(at_s: float) -> int:
    """Nanoseconds since 1970 of seconds since then."""
    whole_s, part_s = divmod(at_s, 1.0)  # 1.8e18 ns exceed a float's precision
    return int(whole_s) * 1_000_000_000 + round(part_s * 1e9)


def export_spans(
    spans: Iterable[SpanDraft], *, endpoint: str, run_id: str, timeout_s: float = 10.0
) -> int:
    """Send spans to a collector, in batches; the number of spans that it took.

    Args:
        spans: Spans.
        endpoint: Endpoint from `otlp_endpoint`. Headers and certificates come from OpenTelemetry's
            environment variables.
        run_id: Id of the run, an attribute of the resource.
        timeout_s: Time limit of each batch.

    Raises:
        InputError: OpenTelemetry's SDK is not installed.
        LoadError: The collector did not take them.
    """
    require_otel()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)  # type: ignore[arg-type,unused-ignore]
    made, sent, waiting = _Made(run_id), 0, iter(spans)
    try:
        while batch := [made.span(draft) for draft in itertools.islice(waiting, _BATCH)]:
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                left = len(batch) + sum(1 for _ in waiting)
                raise LoadError(
                    f"the collector at {endpoint} took {sent} of {sent + left} spans",
                    hint="is it running, and does it speak OTLP over HTTP?",
                )
            sent += len(batch)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call,unused-ignore]
    return sent


class _Made:
    """Maker of the SDK's spans, by its own tracer with given ids and times."""

    def __init__(self, run_id: str) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._ids = _Ids()
        provider = TracerProvider(
            resource=resource(run_id),
            sampler=ALWAYS_ON,
            id_generator=self._ids,  # type: ignore[arg-type,unused-ignore]
            shutdown_on_exit=False,
        )
        self._tracer = provider.get_tracer("servetune.loadgen", __version__)

    def span(self, draft: SpanDraft) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            SpanKind,
            Status,
            StatusCode,
            TraceFlags,
            set_span_in_context,
        )

        self._ids.next_ids = draft.trace_id, draft.span_id
        context = Context()  # whatever trace this process is in
        if draft.parent_id:
            flags = TraceFlags(TraceFlags.SAMPLED)
            above = SpanContext(draft.trace_id, draft.parent_id, False, flags)
            context = set_span_in_context(NonRecordingSpan(above), context)
        span = self._tracer.start_span(
            draft.name,
            context=context,
            kind=SpanKind.CLIENT if draft.client else SpanKind.INTERNAL,
            attributes=draft.attributes,
            start_time=draft.begin_ns,
        )
        for name, at_ns in draft.events:
            span.add_event(name, timestamp=at_ns)
        if draft.error is not None:
            span.set_status(Status(StatusCode.ERROR, draft.error))
        span.end(draft.end_ns)
        return span


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
