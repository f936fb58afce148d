"""What closed loops wait for besides the scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several

import msgspec
import numpy as np

from servetune.perf.roofline.closed_loop import clump_share
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.step import StepLaw
from servetune.plan import Plan
from servetune.workload.request import Request
from servetune.workload.workload import Workload

__all__ = ["ClosedLoopWaits", "closed_loop_waits"]


class ClosedLoopWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts of a closed loop wait for before the engine's queue; measured, not played.

    Attributes:
        warm_up_s: The first prompts of a run that begins cold: kernels compiled on first use.
        intake_s: Those behind it, for each prompt that comes at the same time.
        clump_s: Every prompt after its user's first, on average, beyond what the scheduler makes
            it wait: prompts clump, and under an engine that computes prompts first users stay
            in step although their answers differ; see `roofline.closed_loop`.
    """

    warm_up_s: float = 0.0
    intake_s: float = 0.0
    clump_s: float = 0.0


def closed_loop_waits(
    workload: Workload,
    requests: Several[Request],
    plan: Plan,
    law: StepLaw,
    c: Coefficients,
) -> ClosedLoopWaits:
    """None of them in an open loop: its arrivals do not follow from the answers."""
    if not (workload.closed_loop and workload.concurrency):
        return ClosedLoopWaits()
    prompt_tokens = float(np.mean([request.input_tokens for request in requests]))
    answers = np.array([request.output_tokens for request in requests], dtype=float)
    users = workload.concurrency / (plan.replicas * plan.data_parallel)
    prompts = c.closed_loop.clump_prompts * max(0.0, math.sqrt(users) - 1)
    prompts *= float(clump_share(answers.std() / answers.mean()))
    if c.scheduling.prefill_first and answers.std() > 0:  # equal answers stay in step by themselves
        window = math.sqrt(12) * answers.std()
        prompts += math.exp(-window / c.closed_loop.together_steps) * users / 2
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    return ClosedLoopWaits(
        warm_up_s=0.0 if workload.warmup_count else c.closed_loop.warm_up_s,
        intake_s=c.closed_loop.intake_s,
        clump_s=prompts * law.seconds(prompt_tokens, pairs, 1, 0, 0.0),
    )
