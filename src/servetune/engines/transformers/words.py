"""The names of `transformers serve` for a Plan's fields (5.x, with continuous batching)."""

from __future__ import annotations

from servetune.engines.words import Settings, words_of
from servetune.plan.plan import Plan


def _graphs(plan: Plan) -> Settings:
    return {"cb_use_cuda_graph": not plan.enforce_eager}


WORDS = words_of("transformers", otherwise={"enforce_eager": _graphs})
