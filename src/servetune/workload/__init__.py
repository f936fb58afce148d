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
    arrivals_from,
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
from servetune.workload.laws import Law, format_length, parse_law
from servetune.workload.lengths import SHAREGPT, LengthLaws, Lengths, Observed
from servetune.workload.options import LoadOptions
from servetune.workload.request import Request
from servetune.workload.traces import Trace, read_trace
from servetune.workload.workload import TraceFile, Workload, read_workload, workload_of

__all__ = [
    "CLIENT_ARGS",
    "SHAREGPT",
    "AllAtOnce",
    "Arrivals",
    "Constant",
    "Gamma",
    "Law",
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
    "Trace",
    "TraceFile",
    "Workload",
    "arrivals_from",
    "arrivals_of",
    "client_arg_of",
    "format_arrivals",
    "format_length",
    "load_options",
    "parse_arrivals",
    "parse_law",
    "read_trace",
    "read_workload",
    "same_client_args",
    "workload_from_client_args",
    "workload_of",
]
