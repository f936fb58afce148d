"""Waiting of closed loops that the scheduler does not explain."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several

import msgspec
import numpy as np

from servetune.engines import Memory
from servetune.perf.roofline.clumps import waiting_prompts
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.steady_state import workload_moments
from servetune.perf.roofline.step import StepLaw
from servetune.plan import Plan
from servetune.workload.request import Request
from servetune.workload.workload import Workload


class ClosedLoopWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting of a closed loop's prompts before the engine's queue; measured, not simulated.

    Attributes:
        warm_up_s: Wait of the first prompts of a run that begins cold: kernels compiled on first
            use.
        intake_s: Further wait for each prompt that arrived at the same time before.
        clump_s: Mean wait of every prompt after its user's first, beyond the scheduler's:
            prompts clump, and under a prefill-first engine users stay in step although their
            answers differ; see `roofline.run_formulas`.
    """

    warm_up_s: float = 0.0
    intake_s: float = 0.0
    clump_s: float = 0.0


def closed_loop_waits(
    workload: Workload,
    requests: Several[Request],
    plan: Plan,
    divided: Memory,
    law: StepLaw,
    c: Coefficients,
) -> ClosedLoopWaits:
    """Waiting of a workload; none in an open loop, whose arrivals do not follow from answers."""
    if not (workload.closed_loop and workload.concurrency):
        return ClosedLoopWaits()
    prompt_tokens = float(np.mean([request.input_tokens for request in requests]))
    answers = np.array([request.output_tokens for request in requests], dtype=float)
    users = workload.concurrency / (plan.replicas * plan.data_parallel)
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    if workload.shared_prefix() is not None:  # those ahead find their beginnings, too
        moments = workload_moments(workload, plan, divided)
        found = moments.found_fraction(divided.kv_tokens_at(moments.context_tokens))
        prompt_tokens -= found * moments.shared_tokens
        pairs -= found * moments.shared_pairs
    budget = plan.max_num_batched_tokens or math.inf
    taken = max(1.0, budget // prompt_tokens)
    clump, in_step = waiting_prompts(c, users, float(answers.mean()), float(answers.std()), taken)
    together = min(max(1.0, in_step), taken)

    def each_s(group: float) -> float:
        return law.seconds(group * prompt_tokens, group * pairs, group, 0, 0.0) / group

    return ClosedLoopWaits(
        warm_up_s=0.0 if workload.warmup_count else c.closed_loop.warm_up_s,
        intake_s=c.closed_loop.intake_s,
        clump_s=clump * each_s(1.0) + in_step * each_s(together),
    )
