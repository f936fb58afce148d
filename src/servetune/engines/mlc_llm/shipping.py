"""Deployment of MLC LLM: by its command, or in an image of the user's, as none is published."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.mlc_llm.words import OVERRIDES
from servetune.engines.shipping import Build, Shipping, with_settings
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.plan.plan import Plan, Setting


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """The mode that was measured, and the members of one option, which no semicolon may part."""
    for name, value in plan.extra:
        if name in OVERRIDES and ";" in str(value):
            raise CannotRender(f"'{name}' holds a semicolon, which ends a member of --overrides")
    return with_settings(plan, mode="server"), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    mode = settings.pop("prefix_cache_mode", None)
    return {} if mode is None else {"prefix_caching": mode == "radix"}


SHIPPING = Shipping(
    builds=(Build(kind="cuda"), Build(kind="rocm")),
    usual_version="0.20.0",
    hub_cache="/root/.cache/mlc_llm",
    name_setting="",  # the model is asked for as it was given
    fill=_fill,
    read=_read,
)
