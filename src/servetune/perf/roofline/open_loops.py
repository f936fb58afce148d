"""Open loops by formula: requests that come by chance, at a rate.

`run_formulas` has the symbols and `open_steps` what a request meets. Nobody is in step, as users of
closed loops are, but a queue of prompts or of places may grow with the run.
"""

from __future__ import annotations

import numpy as np

from servetune.perf.roofline.filling import filling_of
from servetune.perf.roofline.open_steps import (
    GatheredSteps,
    MixedSteps,
    OpenSteps,
    OpenTimes,
    PrefillFirstSteps,
)
from servetune.perf.roofline.queues import all_taken, queue_s
from servetune.perf.roofline.runs import FEWEST, Mask, Runs, RunTimes
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Halvings by which the number that decodes is found.
_ROUNDS = 12
#: Share of places that is still free when an open loop counts as settled.
_LATE = 0.02


def open_loops(runs: Runs, laws: StepLaws) -> tuple[RunTimes, Array]:
    """Runs at a rate: requests in flight by Little's law, fewer while a short run fills.

    The number that decodes is between the bounds of a bisection: near saturation each round
    of a fixed point would shrink the error by next to nothing.

    Returns:
        The runs, and how many requests would be in flight at the end.
    """
    rate = np.maximum(runs.rate_per_s, 1e-9)
    long_s = runs.requests / rate
    places = runs.most_placed(laws.c)
    gathers = runs.gathers(laws.c)
    most = np.minimum(places, runs.decoding_beside(laws.c))
    most = np.where(gathers, np.minimum(most, runs.gathering(laws.c).most_running), most)
    apart = runs.apart(laws.c)
    kinds: list[tuple[Mask, type[OpenSteps]]] = [
        (~apart, MixedSteps),
        (apart & ~gathers, PrefillFirstSteps),
        (gathers, GatheredSteps),
    ]
    steps = [(mask, kind(runs, laws, rate, most)) for mask, kind in kinds if mask.any()]

    def times(running: Array, *, lasting: bool = False) -> OpenTimes:
        (_, first), *others = steps
        found = first.times(running, lasting=lasting)
        for mask, other in others:
            both = zip(other.times(running, lasting=lasting), found, strict=True)
            found = OpenTimes(*(np.where(mask, a, b) for a, b in both))
        return found

    low, high = np.full_like(rate, np.log(FEWEST)), np.log(most)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        running = np.exp(middle)
        found = times(running)
        first_s, queued_s, tau_s = found.first_s, found.queue_s, found.tau_s
        decode_s = runs.steps * tau_s
        e2e_s = first_s + queued_s + decode_s
        more = rate * _seen_s(runs, long_s, e2e_s) * decode_s / e2e_s > running
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    # Places are short while requests come. Who waits for one has passed the queue of prompts.
    lasting_s, full = times(running, lasting=True).tau_s, times(most, lasting=True)
    # A place is taken again in the next step, where prompts are gathered in the next group's.
    again = np.where(gathers, 0.0, 1 - 1 / places)
    held_s, full_s = (
        each.own_s
        + again * (each.first_s - runs.request_s(laws) - each.own_s)
        + runs.answer_steps * each.tau_s
        for each in (found, full)
    )
    # Below saturation the steady state says how busy places are; beyond it those who are inside by
    # the end of the run, as a short one never has a steady state.
    lone_s = runs.prompts_s(laws, np.ones_like(rate))
    wanted = rate * runs.answer_steps * lasting_s / most
    wanted = np.maximum(wanted, rate * (lone_s + runs.answer_steps * lasting_s) / places)
    busy = np.maximum(wanted, np.minimum(1.0, rate * full_s / places))
    taken = all_taken(rate * held_s, rate * full_s, places)
    chance = (1 + runs.varied) * np.minimum(taken, busy)
    # Those who come first find one: as many as there are of equal answers, more of others.
    first = runs.varied * (busy * -np.log(np.maximum(_LATE, 1 - 1 / busy)) - 1) + 1
    left = np.maximum(0.0, 1 - most / runs.requests * first)
    waited_s = left * queue_s(runs.requests, busy, rate, chance / busy)
    # An answer of one token ends with its prompt.
    queued_s = np.where(runs.answer_steps > 0, np.maximum(queued_s, waited_s), queued_s)
    ttft_s = first_s + queued_s
    e2e_s = ttft_s + runs.answer_steps * tau_s
    # The last request waits twice the mean, and nobody's prompt is computed after its own.
    filling = filling_of(running, runs.requests)
    growth = runs.decode_s(laws, filling.most) / runs.decode_s(laws, np.ones_like(rate))
    beside, spread = filling.last(growth)
    # Where answers differ the end of a run is counted elsewhere (`endings`).
    beside, spread = np.where(runs.equal, (beside, spread), (running, 0 * running))
    plain_s = runs.decode_s(laws, np.maximum(1.0, beside), spread)
    whole_s = long_s + ttft_s + queued_s + runs.answer_steps * plain_s
    in_flight = rate * np.minimum(long_s, e2e_s)
    served = runs.requests / whole_s
    return RunTimes(ttft_s, tau_s, running, served, e2e_s, ttft_s), in_flight


def _seen_s(runs: Runs, long_s: Array, e2e_s: Array) -> Array:
    """Time in which those come whom a token sees, on average, while a run fills and empties.

    Each second counts by the tokens that are decoded in it: that is the integral of the square
    of the number inside over the integral of the number. For times inside that are all equal,
    and for those with an exponential law.
    """
    short = np.minimum(long_s, e2e_s) / np.maximum(long_s, e2e_s)
    equal_s = np.minimum(long_s, e2e_s) * (1 - short / 3)
    varied_s = e2e_s * (1 + np.expm1(-long_s / e2e_s) * e2e_s / long_s)
    return np.asarray(equal_s + runs.varied * (varied_s - equal_s))
