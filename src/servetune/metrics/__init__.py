"""What requests did, and what that makes of a trial: pure functions of records."""

from servetune.metrics.record import Outcome, Record
from servetune.metrics.slo import (
    LATENCIES,
    METRICS,
    Constraint,
    constraint_from_json,
    parse_constraints,
    unmet,
    value_of,
)
from servetune.metrics.summary import summarize

__all__ = [
    "LATENCIES",
    "METRICS",
    "Constraint",
    "Outcome",
    "Record",
    "constraint_from_json",
    "parse_constraints",
    "summarize",
    "unmet",
    "value_of",
]
