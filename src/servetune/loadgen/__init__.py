"""Load generator: requests are prepared and sent, answers become records."""

from servetune.loadgen.bodies import request_text
from servetune.loadgen.fetch import fetch, fetch_blocking
from servetune.loadgen.instrument import Instrument, Verdict, verdict_of
from servetune.loadgen.otel import export_spans, otlp_endpoint, require_otel
from servetune.loadgen.run import (
    CredentialSource,
    LoadHooks,
    LoadResult,
    LoadSettings,
    Progress,
    Routing,
    run_load,
    run_load_blocking,
)
from servetune.loadgen.sagemaker import invocation_account
from servetune.loadgen.sampler import (
    Sampler,
    models_are_simulated,
    parse_metrics,
    parse_models,
    parse_speed,
    server_metrics,
)
from servetune.loadgen.sender_pool import NodeShare, SenderSource
from servetune.loadgen.server_side import Series, ServerMetrics, ServerSide
from servetune.loadgen.target import Origin, Target

__all__ = [
    "CredentialSource",
    "Instrument",
    "LoadHooks",
    "LoadResult",
    "LoadSettings",
    "NodeShare",
    "Origin",
    "Progress",
    "Routing",
    "Sampler",
    "SenderSource",
    "Series",
    "ServerMetrics",
    "ServerSide",
    "Target",
    "Verdict",
    "export_spans",
    "fetch",
    "fetch_blocking",
    "invocation_account",
    "models_are_simulated",
    "otlp_endpoint",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "request_text",
    "require_otel",
    "run_load",
    "run_load_blocking",
    "server_metrics",
    "verdict_of",
]
