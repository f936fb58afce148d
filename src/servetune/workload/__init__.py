"""Requests to a server and their arrival."""

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
    arrivals_of,
    format_arrivals,
    parse_arrivals,
)
from servetune.workload.client_args import (
    CLIENT_ARGS,
    client_arg_of,
    load_options,
    same_client_args,
    workload_from_client_args,
)
from servetune.workload.lengths import SHAREGPT, LengthLaws, Lengths, Observed
from servetune.workload.options import LoadOptions
from servetune.workload.request import Request
from servetune.workload.traces import read_trace
from servetune.workload.workload import Workload

__all__ = [
    "CLIENT_ARGS",
    "SHAREGPT",
    "AllAtOnce",
    "Arrivals",
    "Constant",
    "Gamma",
    "LengthLaws",
    "Lengths",
    "LoadOptions",
    "MarkovBursts",
    "Observed",
    "Piecewise",
    "Poisson",
    "Ramp",
    "Request",
    "Scheduled",
    "Sine",
    "Workload",
    "arrivals_of",
    "client_arg_of",
    "format_arrivals",
    "load_options",
    "parse_arrivals",
    "read_trace",
    "same_client_args",
    "workload_from_client_args",
]
