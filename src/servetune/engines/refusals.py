"""Plans that their engine refuses to start with, whatever the memory."""

from __future__ import annotations

from servetune.engines.defaults import resolved
from servetune.engines.engine import engine
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan


def check_starts(plan: Plan, shape: NetworkShape, device: Device) -> None:
    """Refuse settings that the plan's engine ends with at start.

    Raises:
        PlanError: In the engine's words.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B", max_num_seqs=64, max_num_batched_tokens=32)
        >>> check_starts(plan, load_shape(plan.model, catalogue_first=True), named("L4"))
        Traceback (most recent call last):
        ...
        servetune.errors.PlanError: ...max_num_batched_tokens (32) must be \
greater than or equal to max_num_seqs (64)
    """
    found = engine(plan.engine)
    if found.defaults:
        found.check_starts(resolved(plan, shape, device), shape, device)
