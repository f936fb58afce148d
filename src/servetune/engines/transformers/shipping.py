"""Deployment of `transformers serve`: by its command, or in an image of the user's.

Hugging Face's images of transformers have no tag of a release 5 (November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.shipping import Build, Shipping, with_settings
from servetune.engines.transformers.words import WORDS
from servetune.engines.words import Settings
from servetune.plan.plan import Plan, Setting


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """Continuous batching as it was measured: on where one of its settings is there."""
    batched = any(name.startswith("cb_") for name in WORDS.settings(plan, plan.engine))
    return with_settings(plan, **({"continuous_batching": True} if batched else {})), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    graphs = settings.pop("cb_use_cuda_graph", None)
    return {} if graphs is None else {"enforce_eager": not graphs}


SHIPPING = Shipping(
    builds=(Build(kind="cuda"), Build(kind="rocm"), Build(kind="cpu")),
    usual_version="5.23.0",
    install="transformers[serving]",
    name_setting="",  # requests name the model as the server was given it
    fill=_fill,
    read=_read,
)
