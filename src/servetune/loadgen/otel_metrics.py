"""Metrics of requests: OpenTelemetry's histograms for generative AI, made of a run's records.

The histograms are counted by NumPy from the records once the run is over and sent in one message: a
run of millions of tokens costs a fraction of a second, and nothing while load is sent. Names and
boundaries are those of OpenTelemetry's conventions for generative AI of 2026-11 (in development),
for clients; times to the first token on the server are the server's own metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from servetune import __version__
from servetune.errors import LoadError
from servetune.loadgen.otel import (
    METRICS,
    TRACES,
    SentRequests,
    error_type,
    operation_of,
    require_otel,
    resource,
    unix_ns,
)
from servetune.loadgen.target import Target
from servetune.metrics.record import Record

#: Boundaries of buckets; a value on one is in the bucket below it.
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**power for power in range(14))


class _Instrument(NamedTuple):
    name: str
    unit: str
    description: str
    boundaries: Sequence[float]


_DURATION = _Instrument(
    "gen_ai.client.operation.duration", "s", "GenAI operation duration.", SECONDS
)
_USAGE = _Instrument(
    "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", TOKENS
)
_FIRST = _Instrument(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "Time to receive the first chunk, from when the request was sent.",
    SECONDS,
)
_GAP = _Instrument(
    "gen_ai.client.operation.time_per_output_chunk",
    "s",
    "Time from one chunk of an answer to the next.",
    SECONDS,
)

_Key = tuple[_Instrument, tuple[tuple[str, str | int], ...]]


def otlp_metrics_endpoint(traces: str) -> str | None:
    """Endpoint for metrics beside one for spans; `None` where that is not the collector's usual."""
    return traces.removesuffix(TRACES) + METRICS if traces.endswith(TRACES) else None


def export_metrics(
    records: Sequence[Record],
    sent: SentRequests,
    *,
    endpoint: str,
    timeout_s: float = 10.0,
) -> int:
    """Send a run's histograms to a collector; the number of their series.

    Args:
        records: Records of the run.
        sent: How its requests were sent.
        endpoint: Endpoint from `otlp_metrics_endpoint`.
        timeout_s: Time limit of the message.

    Raises:
        InputError: OpenTelemetry's SDK is not installed.
        LoadError: The collector did not take them.
    """
    require_otel()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    data = metrics_of(records, sent)
    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=timeout_s)  # type: ignore[arg-type,unused-ignore]
    try:
        if exporter.export(data) is not MetricExportResult.SUCCESS:
            raise LoadError(
                f"the collector at {endpoint} did not take the metrics",
                hint="is it running, and does it speak OTLP over HTTP?",
            )
    finally:
        exporter.shutdown()
    [scope] = data.resource_metrics[0].scope_metrics
    return sum(len(metric.data.data_points) for metric in scope.metrics)


def metrics_of(records: Sequence[Record], sent: SentRequests) -> Any:
    """A run's histograms as the SDK's `MetricsData`."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricsData,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    values: dict[_Key, list[np.ndarray[Any, Any]]] = {}
    for record in records:
        target = sent.targets[record.target]
        for instrument, further, found in _measured(record, target):
            attributes = (*_attributes(record, target, sent.api, sent.provider), *further)
            values.setdefault((instrument, attributes), []).append(found)
    start_ns = unix_ns(sent.started_unix_s)
    end_ns = start_ns + int(max((record.end_s for record in records), default=0.0) * 1e9)
    points: dict[_Instrument, list[Any]] = {}
    for (instrument, attributes), parts in values.items():
        joined = np.concatenate(parts)
        if not len(joined):
            continue
        bounds = instrument.boundaries
        places = np.searchsorted(bounds, joined, side="left")
        point = HistogramDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=start_ns,
            time_unix_nano=end_ns,
            count=len(joined),
            sum=float(joined.sum()),
            bucket_counts=np.bincount(places, minlength=len(bounds) + 1).tolist(),
            explicit_bounds=list(bounds),
            min=float(joined.min()),
            max=float(joined.max()),
        )
        points.setdefault(instrument, []).append(point)
    metrics = [
        Metric(
            name=instrument.name,
            description=instrument.description,
            unit=instrument.unit,
            data=Histogram(each, AggregationTemporality.CUMULATIVE),
        )
        for instrument, each in points.items()
    ]
    scope = ScopeMetrics(InstrumentationScope("servetune.loadgen", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource(sent.run_id), [scope], "")])


def _measured(
    record: Record, target: Target
) -> Iterator[tuple[_Instrument, tuple[tuple[str, str | int], ...], np.ndarray[Any, Any]]]:
    """Values of one request: instrument, further attributes, values."""
    error = () if record.outcome == "ok" else (("error.type", error_type(record)),)
    yield _DURATION, error, np.array([record.end_s - record.sent_s])
    if error:
        return
    for kind, count in (("input", record.input_tokens), ("output", record.output_tokens)):
        yield _USAGE, (("gen_ai.token.type", kind),), np.array([count])
    if target.stream and len(record.chunk_times_s):
        times_s = np.asarray(record.chunk_times_s)
        yield _FIRST, (), times_s[:1] - record.sent_s
        yield _GAP, (), np.diff(times_s)


def _attributes(
    record: Record, target: Target, api: str, provider: str
) -> tuple[tuple[str, str | int], ...]:
    return (
        ("gen_ai.operation.name", operation_of(target.api or api)),
        ("gen_ai.provider.name", provider),
        ("gen_ai.request.model", record.model or target.model),
        ("server.address", target.origin.host),
        ("server.port", target.origin.port),
    )
