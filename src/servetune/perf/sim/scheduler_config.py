"""Scheduler configuration of a plan and its engine's settings."""

from __future__ import annotations

import math
from typing import get_args

import msgspec

from servetune.engines import DEFAULT_ENGINE, Memory, caches_prefixes, engine
from servetune.errors import NotSimulated, PlanError, UnknownName
from servetune.perf.roofline.drafting import acceptance_of, drafts_on_device
from servetune.perf.sim.router import CopyRouting, Routing
from servetune.perf.sim.scheduler_choice import variant_of
from servetune.perf.sim.sequence import QueueOrder, SchedulerConfig
from servetune.plan import Plan, Setting

#: Settings of `Plan.extra` that are read, here and in `scheduler_choice`.
_READ_SETTINGS = frozenset(
    {
        "enable_mixed_chunk",
        "load_balance_method",
        "max_batch_total_tokens",
        "max_prefill_tokens",
        "max_waiting_tokens",
        "num_gpu_blocks_override",
        "schedule_conservativeness",
        "schedule_policy",
        "scheduling_policy",
        "waiting_served_ratio",
    }
)


def scheduler_config_of(
    plan: Plan,
    divided: Memory,
    *,
    seed: int = 1,
    ignore_eos: bool = False,
    composes_ahead: bool = False,
) -> SchedulerConfig:
    """Limits of the scheduler of a resolved Plan.

    Args:
        plan: Resolved plan.
        divided: Division of its memory.
        seed: Seed of the draws that accept drafts.
        ignore_eos: Whether requests set it, so that the engine knows the length of answers.
        composes_ahead: Whether steps are composed while the one before runs, where the plan
            does not say.

    Raises:
        PlanError: Two of its settings are not simulated together.
    """
    plan = divided.served(plan)
    assert plan.max_num_seqs is not None
    assert plan.max_num_batched_tokens is not None
    assert plan.block_tokens is not None
    # Settings that have no neutral name, as the user spelt them.
    further = {name.lstrip("-").replace("-", "_"): value for name, value in plan.extra}
    if further.get("scheduling_policy") not in (None, "fcfs", "priority"):
        raise UnknownName(
            "scheduling_policy", str(further["scheduling_policy"]), ("fcfs", "priority")
        )
    policy: QueueOrder = "priority" if further.get("scheduling_policy") == "priority" else "fcfs"
    told = engine(plan.engine).behaviour.told_ahead(plan)
    if plan.draft_tokens and (policy == "priority" or told):
        raise NotSimulated(
            f"drafted tokens are not simulated with "
            f"{'scheduling_policy=priority' if policy == 'priority' else 'async_scheduling'}: "
            "the next step is scheduled before the tokens of a draft are counted, and "
            "preemption is by order of arrival",
            hint="leave that setting out, or draft_tokens; the other is simulated by itself",
        )
    variant = variant_of(plan, ignore_eos=ignore_eos)
    if variant is not None and plan.prefill_replicas:
        raise NotSimulated(
            f"prefill servers are simulated with {engine(DEFAULT_ENGINE).title}'s scheduler, not "
            f"with {plan.engine}'s",
            hint=f"take engine {DEFAULT_ENGINE}, or leave prefill_replicas out",
        )
    if variant is not None and policy == "priority":
        raise NotSimulated(
            f"an order by priority is not simulated with {plan.engine}'s scheduler",
            hint=f"leave scheduling_policy out, or take engine {DEFAULT_ENGINE}",
        )
    block_bytes = plan.block_tokens * divided.kv_bytes_per_token
    apart = divided.most_sequences is not None
    state_blocks = 0 if apart else math.ceil(divided.state_bytes_per_sequence / block_bytes)
    return SchedulerConfig(
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        block_tokens=plan.block_tokens,
        capacity_blocks=_block_count(further.get("num_gpu_blocks_override"))
        or divided.kv_tokens_per_engine // plan.block_tokens,
        chunked_prefill=bool(plan.chunked_prefill),
        state_blocks=state_blocks,
        prefix_caching=caches_prefixes(plan, divided),
        policy=policy,
        async_scheduling=composes_ahead if told is None else told,
        draft_tokens=plan.draft_tokens or 0,
        draft_acceptance_fraction=acceptance_of(plan) if plan.draft_tokens else 0.0,
        lookahead_tokens=drafts_on_device(plan),
        seed=seed,
        variant=variant,
    )


def batch_in_flight(config: SchedulerConfig, plan: Plan) -> SchedulerConfig:
    """Limits of one of the batches that a pipeline has in flight, one for each stage.

    Sequences stay in their batch, which passes all stages before its next step: each batch is
    scheduled like a rank of its own with its part of the places. The cache is that of all.
    """
    places = math.ceil(config.max_num_seqs / plan.pipeline_parallel)
    return msgspec.structs.replace(config, max_num_seqs=places)


def routing_of(plan: Plan) -> Routing:
    """Choice of a plan's engine among its data-parallel ranks.

    That is what its setting `load_balance_method` says, in the words of the engine that has it or
    by `ROUTINGS`; without it `Behaviour.routing` counts.

    Raises:
        UnknownName: There is no such method, or it is not simulated.
    """
    usual: Routing = engine(plan.engine).behaviour.routing
    methods: dict[Setting, Routing] = {
        None: usual,
        "auto": usual,
        "total_requests": "shortest_queue",
        "waiting_first": "waiting_first",
        "cache_pressure": "cache_pressure",
        "round_robin": "round_robin",
        "shortest_queue": "shortest_queue",
    }
    method = dict(plan.extra).get("load_balance_method")
    if method not in methods:
        names = [str(name) for name in methods if name]
        raise UnknownName("load_balance_method", str(method), names)
    return methods[method]


def copy_routing_of(plan: Plan) -> CopyRouting:
    """Rule that chooses the copy for a request, by the plan's `routing`.

    Raises:
        UnknownName: There is no such rule.
    """
    rules: dict[str | None, CopyRouting] = {None: "round-robin"}
    rules |= {name: name for name in get_args(CopyRouting)}
    if plan.routing not in rules:
        raise UnknownName("routing", str(plan.routing), get_args(CopyRouting))
    return rules[plan.routing]


def _block_count(given: Setting) -> int | None:
    """Number of blocks by `num_gpu_blocks_override`, whatever the memory would hold."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given > 0):
        return given
    raise PlanError(f"num_gpu_blocks_override must be a number of 1 or more, got {given!r}")


def check_context_fits(plan: Plan, config: SchedulerConfig) -> None:
    """Refuse a cache that the longest sequence does not fit, as the engine does at start.

    Without `num_gpu_blocks_override`, `check_fits` has checked the memory already.

    Raises:
        PlanError: The cache is too small; the message is the engine's.
    """
    longest = plan.max_model_len or 0
    cache_tokens = max(0, config.capacity_blocks - config.state_blocks) * config.block_tokens
    if longest > cache_tokens:
        raise PlanError(
            f"{engine(plan.engine).title} refuses to start: the model's max seq len ({longest}) is "
            f"larger than the maximum number of tokens that can be stored in KV cache "
            f"({cache_tokens})",
            hint=f"lower max_model_len to {cache_tokens}, or give the cache more blocks",
        )


def without_effect(plan: Plan) -> tuple[str, ...]:
    """Names of a plan's further settings that no scheduler of the simulator reads."""
    served_by = engine(plan.engine)
    behaviour = served_by.behaviour
    read = _READ_SETTINGS | behaviour.priced_settings | served_by.words.drafts_beside(plan)
    read |= {each.setting for each in behaviour.admission}
    return tuple(name for name, _ in plan.extra if name.lstrip("-").replace("-", "_") not in read)
