"""Batches, lists and bursts by formula: all requests come at once."""

from __future__ import annotations

import numpy as np

from servetune.perf.roofline.runs import Runs, RunTimes
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Batches from which a fraction of one takes that fraction of the time.
_MANY_BATCHES = 4


def batches(runs: Runs, laws: StepLaws) -> RunTimes:
    """Runs whose requests all come at once: those who have a place form a batch.

    Those without one follow as places become free, a batch after the other. Prompts of a
    mixing engine are computed beside the answers that have begun.
    """
    wanting = np.where(runs.requests > runs.users, runs.requests, runs.users)
    placed = np.minimum(wanting, runs.placed(laws.c))
    placed = np.where(runs.requests > runs.users, np.minimum(placed, runs.users), placed)
    batches = np.floor(wanting / placed)
    rest = wanting - batches * placed
    ttft_s, burst_s, tau_s, later_s = _batch(runs, laws, placed)
    *_, rest_s = _batch(runs, laws, np.maximum(1.0, rest))
    first_s = burst_s + runs.answer_steps * runs.decode_s(laws, placed)
    # Many batches run into each other: a fraction of one takes that fraction of the time.
    steady = batches >= _MANY_BATCHES
    last_s = np.where(steady, rest / placed * later_s, np.where(rest >= 1, rest_s, 0.0))
    whole_s = runs.request_s(laws) + first_s + (batches - 1) * later_s + last_s
    # They are taken in one after another.
    whole_s = whole_s + laws.c["closed_loop.intake_s"] * placed / 2
    # A batch waits for all before it.
    waiting_s = (batches * (batches - 1) / 2 * placed + batches * rest) / wanting * later_s
    running = np.minimum(placed, placed * runs.steps * tau_s / (burst_s + runs.steps * tau_s))
    ttft_s = ttft_s + waiting_s
    e2e_s = np.where(runs.timed_each, ttft_s + runs.answer_steps * tau_s, whole_s)
    return RunTimes(ttft_s, tau_s, running, wanting / whole_s, e2e_s)


def _batch(runs: Runs, laws: StepLaws, users: Array) -> tuple[Array, Array, Array, Array]:
    """Mean time to first token, length of the prompts, mean gap, length of a later batch."""
    intake_s = laws.c["closed_loop.intake_s"] * users / 2
    taken = np.clip(runs.budget / runs.inputs, 1.0, users)
    steps = users / taken
    apart = runs.apart(laws.c)
    # A prompt longer than the budget takes several steps, in each of which all others decode.
    parts = np.where(apart, 1.0, np.maximum(1.0, runs.inputs / runs.budget))
    decoding = np.minimum(users / 2 * (1 - 1 / steps), taken * runs.steps / parts)
    beside = np.where(apart, 0.0, decoding)
    prompts_s = runs.mixed_s(laws, taken, beside)
    plain_s = runs.decode_s(laws, users)
    riding = np.minimum(runs.steps / parts, (steps - 1) / 2)
    mixing_s = np.where(apart, prompts_s, np.maximum(0.0, prompts_s - parts * plain_s))
    tau_s = plain_s + riding * mixing_s / runs.steps
    ttft_s = runs.request_s(laws) + intake_s + prompts_s * (steps + 1) / 2
    # Steps of prompts beyond those in which the answers decode.
    alone = np.where(apart, 0.0, np.maximum(0.0, steps - runs.answer_steps / parts))
    later_s = runs.answer_steps * plain_s + (steps - alone) * mixing_s + alone * prompts_s
    return ttft_s, steps * prompts_s, tau_s, later_s
