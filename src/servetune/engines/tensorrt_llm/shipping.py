"""Deployment of TensorRT-LLM in NVIDIA's release image.

Sources: containers page and quick start of TensorRT-LLM's documentation (1.3); tags
1.2.0 and 1.2.1 of `nvcr.io/nvidia/tensorrt-llm/release` as others pin them (November 2026). Its
metrics are no counters, so no autoscaler can ask for the requests in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.shipping import Build, Shipping, whole_experts
from servetune.engines.words import Settings
from servetune.plan.plan import Plan, Setting


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """Prompts are cut only where its switch is there."""
    return msgspec.structs.replace(plan, chunked_prefill=plan.chunked_prefill is True), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    cut = settings.get("enable_chunked_prefill") is True
    return {"chunked_prefill": cut, **whole_experts(settings, "ep_size", settings.get("tp_size"))}


#: "Supported GPUs" of its documentation: compute capability 8.0 and later.
_ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "blackwell-gb10")

SHIPPING = Shipping(
    builds=(
        Build(
            kind="cuda",
            repository="nvcr.io/nvidia/tensorrt-llm/release",
            tag=str,
            architectures=_ARCHITECTURES,
        ),
    ),
    usual_version="1.2.0",
    ulimits=MappingProxyType({"memlock": -1, "stack": 64 << 20}),
    fill=_fill,
    read=_read,
)
