"""Settings in an engine's own words as a plan."""

from __future__ import annotations

import pytest

from servetune.engines import plan_from_settings
from servetune.errors import PlanError


def test_the_negative_of_a_switch_is_the_switch_turned_off() -> None:
    for name in ("no_enable_prefix_caching", "no-enable-prefix-caching"):
        plan = plan_from_settings("vllm", "m", {name: True})
        assert plan.prefix_caching is False
        assert plan.extra == ()
    assert plan_from_settings("vllm", "m", {"no_enable_prefix_caching": False}).prefix_caching


def test_only_a_switch_has_a_negative() -> None:
    plan = plan_from_settings("vllm", "m", {"no_such_setting": True, "no_max_model_len": 3})
    assert dict(plan.extra) == {"no_such_setting": True, "no_max_model_len": 3}


def test_a_switch_that_is_both_on_and_off_is_refused() -> None:
    with pytest.raises(PlanError, match="enable_prefix_caching is both false and true"):
        plan_from_settings(
            "vllm", "m", {"no_enable_prefix_caching": True, "enable_prefix_caching": True}
        )
