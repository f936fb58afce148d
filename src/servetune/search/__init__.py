"""Search spaces of settings, and the choice among tried configurations."""

from servetune.search.candidate import Candidate
from servetune.search.conditions import Combination, Condition, Value
from servetune.search.grammar import fixed_settings, parse_combination, parse_settings, setting_text
from servetune.search.objectives import (
    NAMED,
    OBJECTIVES,
    Goal,
    Objective,
    parse_objectives,
    parse_sla,
    stated_goal,
)
from servetune.search.outcome import outcome_of
from servetune.search.recommend import (
    TOLERATED_ERROR_RATE,
    Recommendation,
    exceeds_error_tolerance,
    failed_requests,
    pareto_keys,
    recommend,
    set_reasons,
)
from servetune.search.space import Axis, Space
from servetune.search.summary import CauseFound, PickDoubt, Rival, SearchSummary, SetDoubt

__all__ = [
    "NAMED",
    "OBJECTIVES",
    "TOLERATED_ERROR_RATE",
    "Axis",
    "Candidate",
    "CauseFound",
    "Combination",
    "Condition",
    "Goal",
    "Objective",
    "PickDoubt",
    "Recommendation",
    "Rival",
    "SearchSummary",
    "SetDoubt",
    "Space",
    "Value",
    "exceeds_error_tolerance",
    "failed_requests",
    "fixed_settings",
    "outcome_of",
    "pareto_keys",
    "parse_combination",
    "parse_objectives",
    "parse_settings",
    "parse_sla",
    "recommend",
    "set_reasons",
    "setting_text",
    "stated_goal",
]
