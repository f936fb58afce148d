"""Search spaces of settings, and the choice among tried configurations."""

from servetune.search.conditions import Combination, Condition, Value
from servetune.search.grammar import parse_combination, parse_settings, setting_text
from servetune.search.recommend import (
    OBJECTIVES,
    TOLERATED_ERROR_RATE,
    Candidate,
    Recommendation,
    exceeds_error_tolerance,
    failed_requests,
    pareto_keys,
    recommend,
)
from servetune.search.space import Axis, Space

__all__ = [
    "OBJECTIVES",
    "TOLERATED_ERROR_RATE",
    "Axis",
    "Candidate",
    "Combination",
    "Condition",
    "Recommendation",
    "Space",
    "Value",
    "exceeds_error_tolerance",
    "failed_requests",
    "pareto_keys",
    "parse_combination",
    "parse_settings",
    "recommend",
    "setting_text",
]
