"""What is asked of a server, and when."""

from servetune.workload.arrival_grammar import arrivals_of, format_arrivals, parse_arrivals
from servetune.workload.arrivals import (
    AllAtOnce,
    Arrivals,
    Constant,
    Gamma,
    MarkovBursts,
    Piecewise,
    Poisson,
    Ramp,
    Scheduled,
    Sine,
)
from servetune.workload.client_args import CLIENT_ARGS, workload_from_client_args
from servetune.workload.lengths import SHAREGPT, Fixed, Lengths, Observed, Quantiles, UniformRange
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
    "Gamma",
    "Lengths",
    "MarkovBursts",
    "Observed",
    "Piecewise",
    "Poisson",
    "Quantiles",
    "Ramp",
    "Request",
    "Scheduled",
    "Sine",
    "Trace",
    "UniformRange",
    "Workload",
    "arrivals_of",
    "format_arrivals",
    "parse_arrivals",
    "read_trace",
    "workload_from_client_args",
]
