"""Plans: how a model is served, in words of no engine; what engines add; what fits."""

from servetune.plan.defaults import DEFAULTS, STARTED_VERSIONS, resolved
from servetune.plan.dialects import DIALECTS, plan_from_settings, settings_of
from servetune.plan.limits import (
    WIDEST_FRACTION,
    Memory,
    check_fits,
    concurrent_sequences,
    memory,
    rank_weights_bytes,
    with_useful_places,
    with_wider_share,
)
from servetune.plan.parallel import (
    check_parallel,
    expert_ways,
    layer_share,
    possible_tensor_parallel,
    stage_layers,
    with_whole_experts,
)
from servetune.plan.plan import Plan, Setting
from servetune.plan.refusals import check_starts

__all__ = [
    "DEFAULTS",
    "DIALECTS",
    "STARTED_VERSIONS",
    "WIDEST_FRACTION",
    "Memory",
    "Plan",
    "Setting",
    "check_fits",
    "check_parallel",
    "check_starts",
    "concurrent_sequences",
    "expert_ways",
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
]
