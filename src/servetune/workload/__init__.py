"""What is asked of a server, and when."""

from servetune.workload.arrivals import AllAtOnce, Arrivals, Constant, Poisson, Scheduled
from servetune.workload.client_args import CLIENT_ARGS, workload_from_client_args
from servetune.workload.lengths import (
    SHAREGPT,
    Fixed,
    Lengths,
    Normal,
    Observed,
    Quantiles,
    UniformRange,
)
from servetune.workload.prefixes import SharedPrefixes
from servetune.workload.request import Request
from servetune.workload.traces import Trace, read_trace
from servetune.workload.workload import Workload

__all__ = [
    "CLIENT_ARGS",
    "SHAREGPT",
    "AllAtOnce",
    "Arrivals",
    "Constant",
    "Fixed",
    "Lengths",
    "Normal",
    "Observed",
    "Poisson",
    "Quantiles",
    "Request",
    "Scheduled",
    "SharedPrefixes",
    "Trace",
    "UniformRange",
    "Workload",
    "read_trace",
    "workload_from_client_args",
]
