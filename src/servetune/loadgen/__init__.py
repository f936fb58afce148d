"""The only room that sends requests: load out, records back."""

from servetune.loadgen.connection import Origin
from servetune.loadgen.instrument import Instrument
from servetune.loadgen.otel import export_spans, otlp_endpoint, require_otel, traceparent
from servetune.loadgen.run import LoadResult, Progress, run_load, run_load_blocking
from servetune.loadgen.sampler import Sampler
from servetune.loadgen.scrape import (
    fetch,
    fetch_blocking,
    models_are_simulated,
    parse_metrics,
    parse_models,
    parse_speed,
    server_metrics,
)
from servetune.loadgen.server_side import Series, ServerMetrics, ServerSide
from servetune.loadgen.target import Api, Target

__all__ = [
    "Api",
    "Instrument",
    "LoadResult",
    "Origin",
    "Progress",
    "Sampler",
    "Series",
    "ServerMetrics",
    "ServerSide",
    "Target",
    "export_spans",
    "fetch",
    "fetch_blocking",
    "models_are_simulated",
    "otlp_endpoint",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "require_otel",
    "run_load",
    "run_load_blocking",
    "server_metrics",
    "traceparent",
]
