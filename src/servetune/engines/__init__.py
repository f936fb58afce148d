"""Inference engines, one folder each: settings, command line, log. Nothing here starts anything."""

from servetune.engines.command.engine import filled_command, words_of
from servetune.engines.defaults import (
    engines_with_defaults,
    recorded_engine,
    resolved,
    simulated_engines,
    simulated_studies,
    study_engines,
)
from servetune.engines.engine import (
    Engine,
    FirstCompletion,
    behaviour_named,
    engine,
    facts_by_table_name,
    step_law_facts,
)
from servetune.engines.memory import (
    WIDEST_FRACTION,
    Memory,
    caches_prefixes,
    check_fits,
    check_resolved_fits,
    concurrent_sequences,
    memory,
    rank_weights_bytes,
    with_useful_places,
    with_usual_length,
    with_wider_share,
)
from servetune.engines.parallel import (
    check_parallel,
    layer_share,
    possible_tensor_parallel,
    stage_layers,
    with_whole_experts,
)
from servetune.engines.refusals import check_starts, check_weights, has_kernels
from servetune.engines.registry import ENGINES
from servetune.engines.release import PricedRelease, priced_release
from servetune.engines.translate import (
    fields_of,
    plan_from_settings,
    require_known_settings,
    require_own_words,
    settings_of,
)
from servetune.engines.words import Words
from servetune.plan.plan import DEFAULT_ENGINE

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "WIDEST_FRACTION",
    "Engine",
    "FirstCompletion",
    "Memory",
    "PricedRelease",
    "Words",
    "behaviour_named",
    "caches_prefixes",
    "check_fits",
    "check_parallel",
    "check_resolved_fits",
    "check_starts",
    "check_weights",
    "concurrent_sequences",
    "engine",
    "engines_with_defaults",
    "facts_by_table_name",
    "fields_of",
    "filled_command",
    "has_kernels",
    "layer_share",
    "memory",
    "plan_from_settings",
    "possible_tensor_parallel",
    "priced_release",
    "rank_weights_bytes",
    "recorded_engine",
    "require_known_settings",
    "require_own_words",
    "resolved",
    "settings_of",
    "simulated_engines",
    "simulated_studies",
    "stage_layers",
    "step_law_facts",
    "study_engines",
    "with_useful_places",
    "with_usual_length",
    "with_whole_experts",
    "with_wider_share",
    "words_of",
]
