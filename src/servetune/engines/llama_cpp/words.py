"""llama.cpp's names for a Plan's fields: `llama-server`'s options."""

from __future__ import annotations

from servetune.engines.words import Settings, words_of
from servetune.plan.plan import Plan


def _context(plan: Plan) -> Settings:
    """Its context is that of all slots together: without a number of slots they share one."""
    return {"ctx_size": (plan.max_model_len or 0) * (plan.max_num_seqs or 1)}


def _cache_type(plan: Plan) -> Settings:
    return {"cache_type_k": plan.kv_cache_dtype, "cache_type_v": plan.kv_cache_dtype}


def _rows(plan: Plan) -> Settings:
    return {"split_mode": "row"} if plan.tensor_parallel > 1 else {}


def _layers(_plan: Plan) -> Settings:
    return {"split_mode": "layer"}


WORDS = words_of(
    "llama.cpp",
    otherwise={
        "tensor_parallel": _rows,
        "pipeline_parallel": _layers,
        "max_model_len": _context,
        "kv_cache_dtype": _cache_type,
    },
)
