"""Spaces of settings, and the choice among what was tried; knows nothing of servers."""

from servetune.search.grammar import parse_settings
from servetune.search.pareto import pareto_front
from servetune.search.recommend import (
    OBJECTIVES,
    Candidate,
    Recommendation,
    on_front,
    recommend,
)
from servetune.search.space import Axis, Space, Value

__all__ = [
    "OBJECTIVES",
    "Axis",
    "Candidate",
    "Recommendation",
    "Space",
    "Value",
    "on_front",
    "pareto_front",
    "parse_settings",
    "recommend",
]
