"""The names of `transformers serve` for a Plan's fields (5.x, with continuous batching)."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.words import FREE_MEMORY_HINT, Settings, Words
from servetune.plan.plan import Plan


def _graphs(plan: Plan) -> Settings:
    return {"cb_use_cuda_graph": not plan.enforce_eager}


WORDS = Words(
    fields=MappingProxyType(
        {
            "cb_max_batch_tokens": "max_num_batched_tokens",
            "cb_block_size": "block_tokens",
            "dtype": "dtype",
            "quantization": "quantization",
        }
    ),
    otherwise=MappingProxyType({"enforce_eager": _graphs}),
    instead=MappingProxyType(
        {"gpu_memory_fraction": FREE_MEMORY_HINT.format("cb_max_memory_percent")}
    ),
)
