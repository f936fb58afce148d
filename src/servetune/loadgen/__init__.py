"""Load generator: requests are prepared and sent, answers become records."""

from servetune.loadgen.bodies import request_text
from servetune.loadgen.instrument import Instrument, verdict_of
from servetune.loadgen.otel import (
    SentRequests,
    SpanDraft,
    export_spans,
    otlp_endpoint,
    request_spans,
    require_otel,
    unix_ns,
)
from servetune.loadgen.otel_metrics import export_metrics, otlp_metrics_endpoint
from servetune.loadgen.run import (
    DEFAULT_GRACE_S,
    CredentialSource,
    LoadHooks,
    LoadResult,
    LoadSettings,
    Progress,
    run_load_blocking,
)
from servetune.loadgen.sagemaker import invocation_account
from servetune.loadgen.sampler import models_are_simulated, parse_metrics, parse_models, parse_speed
from servetune.loadgen.sender_pool import SenderSource
from servetune.loadgen.target import Target, decoded, fetch_blocking

__all__ = [
    "DEFAULT_GRACE_S",
    "CredentialSource",
    "Instrument",
    "LoadHooks",
    "LoadResult",
    "LoadSettings",
    "Progress",
    "SenderSource",
    "SentRequests",
    "SpanDraft",
    "Target",
    "decoded",
    "export_metrics",
    "export_spans",
    "fetch_blocking",
    "invocation_account",
    "models_are_simulated",
    "otlp_endpoint",
    "otlp_metrics_endpoint",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "request_spans",
    "request_text",
    "require_otel",
    "run_load_blocking",
    "unix_ns",
    "verdict_of",
]
