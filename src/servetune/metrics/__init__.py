"""Request records and the metrics of a trial, as pure functions of those records."""

from servetune.metrics.acceptance import MAX_ERROR_RATE, MAX_WRONG_LENGTH, Acceptance, failure_name
from servetune.metrics.lengths import RequestedLengths, short_texts
from servetune.metrics.other_tools import TOOLS, compat_results
from servetune.metrics.overload import saturation
from servetune.metrics.precision import PrecisionTarget
from servetune.metrics.record import Record
from servetune.metrics.slo import (
    LARGER_IS_BETTER,
    LATENCIES,
    METRICS,
    Constraint,
    constraint_from_json,
    interval_of,
    parse_constraints,
    parse_metric,
    unmet,
    value_of,
)
from servetune.metrics.steady import steady_window
from servetune.metrics.summary import summarize

__all__ = [
    "LARGER_IS_BETTER",
    "LATENCIES",
    "MAX_ERROR_RATE",
    "MAX_WRONG_LENGTH",
    "METRICS",
    "TOOLS",
    "Acceptance",
    "Constraint",
    "PrecisionTarget",
    "Record",
    "RequestedLengths",
    "compat_results",
    "constraint_from_json",
    "failure_name",
    "interval_of",
    "parse_constraints",
    "parse_metric",
    "saturation",
    "short_texts",
    "steady_window",
    "summarize",
    "unmet",
    "value_of",
]
