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
from servetune.workload.laws import Law, parse_law
from servetune.workload.lengths import (
    SHAREGPT,
    Fixed,
    Independent,
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
    "Gamma",
    "Independent",
    "Law",
    "Lengths",
    "MarkovBursts",
    "Normal",
    "Observed",
    "Piecewise",
    "Poisson",
    "Quantiles",
    "Ramp",
    "Request",
    "Scheduled",
    "SharedPrefixes",
    "Sine",
    "Trace",
    "UniformRange",
    "Workload",
    "arrivals_of",
    "format_arrivals",
    "parse_arrivals",
    "parse_law",
    "read_trace",
    "workload_from_client_args",
]
