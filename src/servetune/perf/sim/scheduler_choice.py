"""Choice of the scheduler for a configuration."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines import ENGINES, engine
from servetune.errors import NotSimulated, PlanError
from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.kvcache import PagedCache
from servetune.perf.sim.prefill_first import InterruptingScheduler, PrefillFirstScheduler
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.speculative import (
    SpeculativeInterrupting,
    SpeculativePrefillFirst,
    SpeculativeScheduler,
)
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant, SchedulerVariant
from servetune.plan import Plan, Setting

_DRAFTING = "; drafted tokens are beyond that comparison"


def describe_scheduler(plan: Plan) -> str:
    """Scheduler that simulates a plan, and how well it was checked, for a reader."""
    comparison = _comparisons()[engine(plan.engine).behaviour.scheduler]
    return comparison + (_DRAFTING if plan.draft_tokens else "")


@functools.cache
def _comparisons() -> Mapping[str, str]:
    """Comparison of each scheduler with that of the engine that it was written after."""
    behaviours = (engine(name).behaviour for name in ENGINES)
    return {each.scheduler: each.comparison for each in behaviours if each.comparison}


def scheduler_for(
    config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
) -> Scheduler:
    """A scheduler under these config, with nothing to do.

    Args:
        config: Limits.
        law: Step times.
        cache: Cache that it shares with others; one of its own if omitted.
    """
    plain, drafting = _SCHEDULERS[type(config.variant)]
    return (drafting if config.draft_tokens else plain)(config, law, cache)


#: Schedulers of each variant, without drafted tokens and with them.
_SCHEDULERS: Mapping[type, tuple[type[Scheduler], type[Scheduler]]] = MappingProxyType(
    {
        type(None): (Scheduler, SpeculativeScheduler),
        PrefillFirstVariant: (PrefillFirstScheduler, SpeculativePrefillFirst),
        InterruptingVariant: (InterruptingScheduler, SpeculativeInterrupting),
    }
)


def variant_of(plan: Plan, *, ignore_eos: bool = False) -> SchedulerVariant | None:
    """Scheduler variant of a plan's engine and settings; `None` for mixed steps.

    Args:
        plan: Plan whose engine and further settings are read.
        ignore_eos: Whether requests say that answers have their whole length.

    Raises:
        PlanError: A setting is none that is played, or not of its kind.
    """
    settings = {name.replace("-", "_"): value for name, value in plan.extra}
    scheduler = engine(plan.engine).behaviour.scheduler
    if scheduler == "prefill_first":
        policy = settings.get("schedule_policy", "fcfs")
        if policy not in ("fcfs", "lpm"):
            raise NotSimulated(
                f"schedule_policy {policy} of {engine(plan.engine).title} is not simulated",
                hint="take fcfs or lpm",
            )
        return PrefillFirstVariant(
            max_prefill_tokens=int(_number(settings, "max_prefill_tokens", 16_384)),
            conservativeness=_number(settings, "schedule_conservativeness", 1.0),
            longest_prefix_first=policy == "lpm",
            mixed_chunk=settings.get("enable_mixed_chunk") is True and not plan.draft_tokens,
            ignore_eos=ignore_eos,
        )
    if scheduler == "interrupting":
        most_tokens = _number(settings, "max_batch_total_tokens", 0)
        return InterruptingVariant(
            waiting_served_ratio=_number(settings, "waiting_served_ratio", 1.2),
            max_waiting_tokens=int(_number(settings, "max_waiting_tokens", 20)),
            max_batch_total_tokens=int(most_tokens) or None,
        )
    return None


def _number(settings: Mapping[str, Setting], name: str, usual: float) -> float:
    value = settings.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise PlanError(f"{name} must be a number of 0 or more, got {value!r}")
    return value
