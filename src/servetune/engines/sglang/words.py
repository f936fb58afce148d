"""SGLang's names for a Plan's fields (0.5), and the switches that it has only one way round."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.words import Settings, expert_groups, words_of
from servetune.plan.plan import Plan, Setting


def _prefix_caching(plan: Plan) -> Settings:
    return {} if plan.prefix_caching else {"disable_radix_cache": True}


def _chunked_prefill(plan: Plan) -> Settings:
    """The size of a chunk is the switch as well; whole prompts have a budget of another name."""
    if plan.chunked_prefill:
        return {}
    whole = plan.max_num_batched_tokens
    budget: Settings = {} if whole is None else {"max_prefill_tokens": whole}
    return {**budget, "chunked_prefill_size": -1}


def _enforce_eager(plan: Plan) -> Settings:
    return {"disable_cuda_graph": True} if plan.enforce_eager else {}


def _read(settings: Mapping[str, Setting]) -> Settings:
    """Fields that SGLang's settings say the other way round."""
    found: Settings = {}
    if isinstance(settings.get("disable_radix_cache"), bool):
        found["prefix_caching"] = not settings["disable_radix_cache"]
    if isinstance(settings.get("disable_cuda_graph"), bool):
        found["enforce_eager"] = settings["disable_cuda_graph"]
    return found


WORDS = words_of(
    "sglang",
    otherwise={
        "expert_parallel": expert_groups("ep_size"),
        "prefix_caching": _prefix_caching,
        "chunked_prefill": _chunked_prefill,
        "enforce_eager": _enforce_eager,
    },
    read=_read,
)
