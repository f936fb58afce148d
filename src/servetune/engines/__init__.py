"""Inference engines, one folder each: settings, command line, log. Nothing here starts anything."""

from servetune.engines.cause import Cause
from servetune.engines.command.engine import filled_command, words_of
from servetune.engines.defaults import DEFAULTS, STARTED_VERSIONS, resolved
from servetune.engines.engine import ENGINES, Engine, FirstCompletion, engine
from servetune.engines.log import LogReading
from servetune.engines.memory import (
    WIDEST_FRACTION,
    Memory,
    check_fits,
    concurrent_sequences,
    memory,
    rank_weights_bytes,
    with_useful_places,
    with_wider_share,
)
from servetune.engines.parallel import (
    check_parallel,
    expert_ways,
    layer_share,
    possible_tensor_parallel,
    stage_layers,
    with_whole_experts,
)
from servetune.engines.refusals import check_starts
from servetune.engines.settings import SettingSpec, SettingTable
from servetune.engines.words import DIALECTS, FIELD_TYPES, plan_from_settings, settings_of

__all__ = [
    "DEFAULTS",
    "DIALECTS",
    "ENGINES",
    "FIELD_TYPES",
    "STARTED_VERSIONS",
    "WIDEST_FRACTION",
    "Cause",
    "Engine",
    "FirstCompletion",
    "LogReading",
    "Memory",
    "SettingSpec",
    "SettingTable",
    "check_fits",
    "check_parallel",
    "check_starts",
    "concurrent_sequences",
    "engine",
    "expert_ways",
    "filled_command",
    "layer_share",
    "memory",
    "plan_from_settings",
    "possible_tensor_parallel",
    "rank_weights_bytes",
    "resolved",
    "settings_of",
    "stage_layers",
    "with_useful_places",
    "with_whole_experts",
    "with_wider_share",
    "words_of",
]
