"""Which scheduler plays which config."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines import engine
from servetune.errors import NotSimulated, PlanError
from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.prefill_first import InterruptingScheduler, SglangScheduler
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.speculative import SpeculativeScheduler
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant, SchedulerVariant
from servetune.plan import Plan, Setting

#: How well each scheduler was compared with the engine's own; figures of
#: `benchmarks/simulation/README.md`.
_CHECKED: Mapping[str, str] = MappingProxyType(
    {
        "mixed": "vLLM 0.32 schedules: 752,319 random steps beside its own class, all identical",
        "prefill_first": "SGLang 0.5.23 schedules without overlap: 723,595 random steps beside "
        "its own classes, 98.2% identical",
        "interrupting": "text-generation-inference 1.x and 2.x schedules: read from its router's "
        "source, not compared step by step",
    }
)
_DRAFTING = "; drafted tokens are beyond that comparison"


def describe_scheduler(plan: Plan) -> str:
    """Scheduler that simulates a plan, and how well it was checked, for a reader."""
    said = _CHECKED[engine(plan.engine).behaviour.scheduler]
    return said + (_DRAFTING if plan.draft_tokens else "")


def scheduler_for(config: SchedulerConfig, law: StepLaw) -> Scheduler:
    """A scheduler under these config, with nothing to do."""
    if isinstance(config.variant, PrefillFirstVariant):
        return SglangScheduler(config, law)
    if isinstance(config.variant, InterruptingVariant):
        return InterruptingScheduler(config, law)
    return SpeculativeScheduler(config, law) if config.draft_tokens else Scheduler(config, law)


def variant_of(plan: Plan, *, ignore_eos: bool = False) -> SchedulerVariant | None:
    """Scheduler variant of a plan's engine and settings; `None` for vLLM's.

    Args:
        plan: Plan whose engine and further settings are read.
        ignore_eos: Whether requests say that answers have their whole length.

    Raises:
        PlanError: A setting is none that is played, or not of its kind.
    """
    said = {name.replace("-", "_"): value for name, value in plan.extra}
    scheduler = engine(plan.engine).behaviour.scheduler
    if scheduler == "prefill_first":
        policy = said.get("schedule_policy", "fcfs")
        if policy not in ("fcfs", "lpm"):
            raise NotSimulated(
                f"schedule_policy {policy} of SGLang is not simulated", hint="take fcfs or lpm"
            )
        return PrefillFirstVariant(
            max_prefill_tokens=int(_number(said, "max_prefill_tokens", 16_384)),
            conservativeness=_number(said, "schedule_conservativeness", 1.0),
            longest_prefix_first=policy == "lpm",
            mixed_chunk=said.get("enable_mixed_chunk") is True,
            ignore_eos=ignore_eos,
        )
    if scheduler == "interrupting":
        most_tokens = _number(said, "max_batch_total_tokens", 0)
        return InterruptingVariant(
            waiting_served_ratio=_number(said, "waiting_served_ratio", 1.2),
            max_waiting_tokens=int(_number(said, "max_waiting_tokens", 20)),
            max_batch_total_tokens=int(most_tokens) or None,
        )
    return None


def _number(said: Mapping[str, Setting], name: str, usual: float) -> float:
    value = said.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise PlanError(f"{name} must be a number of 0 or more, got {value!r}")
    return value
