"""LMDeploy's names for a Plan's fields: `lmdeploy serve api_server`, 0.10 and later."""

from __future__ import annotations

from servetune.engines.words import Settings, expert_groups, words_of
from servetune.plan.plan import Plan


def _cache_type(plan: Plan) -> Settings:
    """`--quant-policy` takes none, int4, int8, fp8 and fp8_e5m2 (0.16 to 0.18)."""
    return {"quant_policy": "none" if plan.kv_cache_dtype == "auto" else plan.kv_cache_dtype}


WORDS = words_of(
    "lmdeploy", otherwise={"expert_parallel": expert_groups("ep"), "kv_cache_dtype": _cache_type}
)
