"""The only room that sends requests: load out, records back."""

from servetune.loadgen.fetch import fetch, fetch_blocking
from servetune.loadgen.instrument import Instrument
from servetune.loadgen.origin import Origin
from servetune.loadgen.run import LoadResult, Progress, run_load, run_load_blocking
from servetune.loadgen.scrape import (
    ServerMetrics,
    models_are_simulated,
    parse_metrics,
    parse_models,
    parse_speed,
    server_metrics,
)
from servetune.loadgen.target import Api, Target

__all__ = [
    "Api",
    "Instrument",
    "LoadResult",
    "Origin",
    "Progress",
    "ServerMetrics",
    "Target",
    "fetch",
    "fetch_blocking",
    "models_are_simulated",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "run_load",
    "run_load_blocking",
    "server_metrics",
]
