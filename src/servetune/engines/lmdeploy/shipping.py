"""Deployment of LMDeploy in its image.

Sources: `.github/workflows/docker.yml` of InternLM/lmdeploy, which tags an image as each release;
`lmdeploy/cli/serve.py` of 0.18, whose switches have one way round (November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.engines.shipping import Build, Shipping, whole_experts, with_settings
from servetune.engines.words import Settings
from servetune.plan.plan import Plan, Setting

_SWITCHES = {"prefix_caching": "enable_prefix_caching", "enforce_eager": "eager_mode"}


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """The log level that was measured, and switches that are off where they are not there."""
    states = {field: getattr(plan, field) is True for field in _SWITCHES}
    return with_settings(msgspec.structs.replace(plan, **states), log_level="INFO"), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    fields: dict[str, Setting] = {
        field: settings.get(name) is True for field, name in _SWITCHES.items()
    }
    policy = settings.pop("quant_policy", None)
    if policy is not None:
        fields["kv_cache_dtype"] = "auto" if policy == "none" else policy
    return fields | whole_experts(settings, "ep", settings.get("tp"))


SHIPPING = Shipping(
    builds=(Build(kind="cuda", repository="openmmlab/lmdeploy"),),
    usual_version="0.18.0",
    in_flight="lmdeploy:num_requests_running + lmdeploy:num_requests_waiting",
    install="lmdeploy",
    api_key_word="--api-keys",
    name_setting="model_name",
    fill=_fill,
    read=_read,
)
