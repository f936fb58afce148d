"""Open loops by formula: requests that come by chance, at a rate.

`run_formulas` has the symbols. There are no clumps and nobody is in step, but a queue of prompts or
of places may grow with the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from servetune.perf.roofline.prefill_phases import phases
from servetune.perf.roofline.runs import FEWEST, Mask, Runs, RunTimes
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Halvings by which the number that decodes is found.
_ROUNDS = 12
#: Rounds in which groups of prompts that come while others are computed find their size.
_GROWING = 4
#: Share of places that are taken at most, as a chance that all are is computed below saturation.
_SATURATED = 0.98
#: Difference of two logarithms of numbers of requests at least.
_NEAR = 1e-6
#: Power of the number inside at most by which those inside slow each other down.
_MOST_GROWTH = 0.95
#: Clumped requests come, on average, within the time in which 1 / `_SOON` come by chance; who comes
#: within a prompt's time after one waits for `_LATER` of it. Read off gamma laws of a shape of 0.7.
_SOON, _LATER = 3.0, 0.7
#: Fewest requests that count as one where they come evenly.
_LEAST_CLUMP = 0.2
#: Bounds of the time of each further prompt of a step, over that of a lone one and over that in
#: which the next comes.
_LEAST_SLOPE, _MOST_LOAD = 0.02, 0.995
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
    kinds: list[tuple[Mask, Callable[[Array], _Times]]] = [
        (~apart, partial(_mixed, runs, laws, rate, most)),
        (apart & ~gathers, _PrefillFirst(runs, laws, rate, most).times),
        (gathers, partial(_gathered, runs, laws, rate, most)),
    ]
    kinds = [(mask, times) for mask, times in kinds if mask.any()]

    def times(running: Array) -> _Times:
        (_, first), *others = kinds
        found = first(running)
        for mask, other in others:
            both = zip(other(running), found, strict=True)
            found = _Times(*(np.where(mask, a, b) for a, b in both))
        return found

    low, high = np.full_like(rate, np.log(FEWEST)), np.log(most)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        running = np.exp(middle)
        found = times(running)
        first_s, queue_s, tau_s = found.first_s, found.queue_s, found.tau_s
        decode_s = runs.steps * tau_s
        e2e_s = first_s + queue_s + decode_s
        more = rate * _seen_s(runs, long_s, e2e_s) * decode_s / e2e_s > running
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    # Who waits for a place has passed the queue of prompts meanwhile.
    full = times(most)
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
    wanted = rate * runs.answer_steps * tau_s / most
    wanted = np.maximum(wanted, rate * (lone_s + runs.answer_steps * tau_s) / places)
    busy = np.maximum(wanted, np.minimum(1.0, rate * full_s / places))
    taken = _all_taken(rate * held_s, rate * full_s, places)
    chance = (1 + runs.varied) * np.minimum(taken, busy)
    # Those who come first find one: as many as there are of equal answers, more of others.
    first = runs.varied * (busy * -np.log(np.maximum(_LATE, 1 - 1 / busy)) - 1) + 1
    left = np.maximum(0.0, 1 - most / runs.requests * first)
    waited_s = left * _queue_s(runs.requests, busy, rate, chance / busy)
    # An answer of one token ends with its prompt.
    queue_s = np.where(runs.answer_steps > 0, np.maximum(queue_s, waited_s), queue_s)
    ttft_s = first_s + queue_s
    e2e_s = ttft_s + runs.answer_steps * tau_s
    # The last request waits twice the mean, and nobody's prompt is computed after its own.
    plain_s = runs.decode_s(laws, np.maximum(1.0, running))
    whole_s = long_s + ttft_s + queue_s + runs.answer_steps * plain_s
    in_flight = rate * np.minimum(long_s, e2e_s)
    return RunTimes(ttft_s, tau_s, running, runs.requests / whole_s, e2e_s), in_flight


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


class _Times(NamedTuple):
    """Seconds of one request of an open loop.

    Attributes:
        first_s: Time to the first token, without a queue.
        own_s: Part of it that is the step of its prompt, in which it has a place.
        queue_s: Time in the queue of prompts.
        tau_s: Time between two tokens.
    """

    first_s: Array
    own_s: Array
    queue_s: Array
    tau_s: Array


def _mixed(runs: Runs, laws: StepLaws, rate: Array, most: Array, running: Array) -> _Times:
    """Times of an open loop while so many decode, `most` at most, beside prompts.

    Its prompts come by chance and not because another answer has ended, so nothing is taken
    off the gaps for clumps or for users in step. A request shares its steps with the prompts
    that come while it is in the system, those while it waits for its first token included.
    """
    laws = laws.with_batches(np.clip(running * runs.stages, 1.0, runs.stages))
    decoding = np.maximum(1.0, running)
    plain_s = runs.decode_s(laws, decoding)
    fit = np.maximum(1.0, runs.budget - decoding * runs.each) / runs.inputs
    places = runs.most_placed(laws.c)
    full = np.clip(fit, 1.0, places)  # a prompt that does not fit takes several steps
    # Prompts of a step are those that came during the one before, and a step with prompts is long.
    # Their number has a geometric law in the simulator. `none` and `some` are the chances that
    # nobody comes during a step without and with prompts, `nobody` during one prompt.
    group = np.ones_like(rate)
    for _ in range(_GROWING):
        group_s = runs.mixed_s(laws, group, decoding, by_chance=True)
        nobody = np.exp(-rate * group_s / group)
        none, some = np.exp(-rate * plain_s), nobody / (nobody + group * (1 - nobody))
        share = (1 - none) / (1 - none + some)
        step_s = plain_s + share * (group_s - plain_s)
        group = np.clip(rate * step_s / share, 1.0, full)
    joining = np.minimum(2 * (group - 1), full - 1)
    uneven = (1 + joining) / group
    # A request comes in a long step more often than in a short one.
    seen_s = (plain_s**2 + share * (uneven * group_s**2 - plain_s**2)) / step_s
    own_s = runs.mixed_s(laws, 1 + joining, decoding, by_chance=True)
    working = _working(runs, running, own_s, plain_s)
    missed_s = working * runs.admission_delay_steps * step_s
    near_s = _clumped(runs, rate * own_s) * _LATER * own_s
    waited_s = np.maximum(0.0, working * seen_s / 2 + near_s)
    first_s = runs.request_s(laws) + waited_s + missed_s + own_s
    busy = rate * runs.mixed_s(laws, full, decoding) / full
    # Beyond the step in progress, which has the residual of what is in service.
    spread = np.maximum(0.0, 1 + _varied_prompts(runs) + 2 * runs.clumped)  # Kingman's formula
    chance = spread * np.minimum(1.0, busy) ** (np.sqrt(2 * (full + 1)) - 1)
    queue_s = _queue_s(runs.requests, busy, rate, chance)
    # Those who come behind are met, and as many as decode, by Little's law; not in the last step.
    behind = rate * (own_s + missed_s + queue_s)
    others = np.minimum(most, places - 1)
    clumped = _clumped(runs, rate * (first_s + queue_s + runs.steps * plain_s))
    met = np.clip(behind + running + clumped - running / runs.steps, FEWEST, others)
    parts = np.maximum(1.0, group / fit)  # steps in which all decode
    each_s = (group_s - parts * plain_s) / group
    # A token has more beside it than decode on average, as their number varies.
    varied = (1 + clumped) / (1 - np.minimum(_MOST_GROWTH, rate * each_s))
    plain_s = runs.decode_s(laws, np.clip(running + varied, 1.0, np.maximum(1.0, most)))
    tau_s = plain_s + met / runs.steps * each_s
    full_s = np.maximum(plain_s, runs.mixed_s(laws, full, decoding) * np.minimum(1.0, fit))
    return _Times(first_s, own_s, queue_s, np.minimum(tau_s, full_s))


class _PrefillFirst:
    """Times as `_mixed` has them under an engine that computes prompts before it decodes.

    A step of prompts takes a fixed time and one for each of them (`prefill_phases`): that of a lone
    prompt and that of as many as a request meets, which each round knows from the one before.
    """

    def __init__(self, runs: Runs, laws: StepLaws, rate: Array, most: Array) -> None:
        self._runs, self._laws, self._rate = runs, laws, rate
        self._most = np.maximum(1.0, most)
        full = np.clip(runs.budget / runs.inputs, 1.0, runs.most_placed(laws.c))
        self._full, self._prompt_s = full, runs.prompts_s(laws, full) / full
        self._lone_s = runs.prompts_s(laws, np.ones_like(rate))
        self._varied = _varied_prompts(runs)
        busy = rate * self._prompt_s
        self._over_s = _queue_s(runs.requests, busy, rate, np.zeros_like(rate))
        self._long_s = runs.requests / rate * np.maximum(1.0, busy)
        chance = np.maximum(0.0, 1 + self._varied + 2 * runs.clumped)
        chance = chance * np.minimum(1.0, busy) ** (np.sqrt(2 * (full + 1)) - 2)
        # Prompts as they come in a long run whose queue is, on average, what it is in this one.
        idle = (np.hypot(1 - busy, 2 * busy * np.sqrt(chance / runs.requests)) + 1 - busy) / 2
        self._seen = rate * np.minimum(1.0, (1 - idle) / busy)
        # Requests come one by one, or in clumps of so many.
        self._clump = np.maximum(_LEAST_CLUMP, 1 + 2 * _clumped(runs, rate * self._lone_s))
        self._met = np.full_like(rate, 2.0)
        self._share = np.ones_like(rate)  # of those that have a first token, in a step that decodes

    def times(self, running: Array) -> _Times:
        runs, laws, clump = self._runs, self._laws, self._clump
        each_s = (runs.prompts_s(laws, self._met) - self._lone_s) / (self._met - 1)
        each_s = np.clip(each_s, _LEAST_SLOPE * self._lone_s, self._lone_s)
        each_s = np.minimum(each_s, _MOST_LOAD / self._seen)
        fixed_s = self._lone_s - each_s
        step_s = runs.decode_s(laws, np.clip(running * self._share, 1.0, self._most))
        varied = self._varied / clump
        found = phases(self._seen / clump, fixed_s, each_s * clump, step_s, varied)
        met = found.own_prompts * clump
        # A prompt that does not fit is computed in one of the next steps, and has no place before.
        own_s = fixed_s + each_s * np.minimum(met, self._full)
        parts = np.maximum(1.0, met / self._full)
        done_s = np.maximum(own_s, found.own_s * (parts + 1) / (2 * parts))
        working = _working(runs, running, done_s, step_s)
        missed_s = working * runs.admission_delay_steps * step_s
        waited_s = working * found.waited_s
        all_s = np.maximum(waited_s + done_s, self._over_s + self._lone_s)
        waited_s = np.minimum(waited_s, own_s)
        # Those beside a token came in its own phase, as many before as after it, or in its clump.
        clumped = _clumped(runs, self._rate * (all_s + runs.steps * step_s))
        beside = running * self._share + met + 2 * (found.later_prompts * clump + clumped)
        most = np.minimum(self._most, np.maximum(1.0, runs.requests / 2))
        plain_s = runs.decode_s(laws, np.clip(beside, 1.0, most))
        # Of a clump that finds nobody the first is computed alone, and more of it comes later.
        soon = (clump - 1) / 2
        behind_s = soon * self._lone_s + (clumped - soon) * each_s / (1 - self._seen * each_s)
        held_s = (runs.steps - 1) * found.phase_s + found.rest_s
        held_s = np.maximum(0.0, held_s + behind_s)
        self._met = np.maximum(2.0, met)
        self._share = (step_s + found.phase_s) / (plain_s + held_s / runs.steps)
        tau_s = plain_s + self._held_s(held_s, runs.steps * plain_s) / runs.steps
        first_s = runs.request_s(laws) + waited_s + missed_s + own_s
        return _Times(first_s, own_s, all_s - waited_s - own_s, tau_s)

    def _held_s(self, held_s: Array, decode_s: Array) -> Array:
        """Time in which others' prompts hold an answer up, in a run that ends.

        None is computed while all places are taken, nor after the last has come: whoever comes
        late is held up until then.
        """
        held_s = np.minimum(held_s, (self._most - 1) * self._prompt_s)
        over = (held_s + decode_s) / self._long_s
        return np.asarray(held_s * np.where(over < 1, 1 - over / 2, 1 / (2 * np.maximum(1, over))))


def _working(runs: Runs, running: Array, own_s: Array, plain_s: Array) -> Array:
    """Share of those who come by chance that find somebody inside."""
    return np.asarray(-np.expm1(-running * (1 + own_s / (runs.steps * plain_s))))


def _varied_prompts(runs: Runs) -> Array:
    """Squared coefficient of variation of prompts."""
    return np.asarray(np.maximum(0.0, (2 * runs.pairs / runs.inputs - 1) / runs.inputs - 1))


def _clumped(runs: Runs, coming: Array) -> Array:
    """Requests that come on one side of a request, beyond those who come by chance.

    As many as `Runs.clumped` in a long time, and most of them soon.

    Args:
        runs: The runs.
        coming: Requests that come by chance in the time that is asked about.
    """
    return np.asarray(runs.clumped * -np.expm1(-_SOON * coming))


def _gathered(runs: Runs, laws: StepLaws, rate: Array, most: Array, running: Array) -> _Times:
    """Times as `_mixed` has them under an engine that gathers prompts for a number of steps.

    A group is let in once the steps are over, or when the first comes after that. Who is in it sees
    no other prompt before the steps are over again.
    """
    gathering = runs.gathering(laws.c)
    plain_s = runs.decode_s(laws, np.clip(1 + running, 1.0, np.maximum(1.0, most)))
    found = gathering.times(
        plain_s, partial(runs.prompts_s, laws), running, runs.most_placed(laws.c)
    )
    busy = np.asarray(rate / found.most_per_s)
    queue_s = _queue_s(runs.requests, busy, rate, np.minimum(1.0, busy))
    own_s = np.asarray(found.own_s)
    first_s = runs.request_s(laws) + found.wait_s + own_s
    return _Times(first_s, own_s, queue_s, np.asarray(found.tau_s))


def _all_taken(inside: Array, full: Array, places: Array) -> Array:
    """Chance that all places are taken at an arrival, by a birth and death process.

    Those inside leave the more slowly the more there are, by a power of their number. With a power
    of zero it is Erlang's C formula, by Stirling's approximation.

    Args:
        inside: Requests that have a place, on average.
        full: Requests that would have one if all took as long as while every place is taken.
        places: Places.
    """
    inside = np.minimum(inside, places)
    busy = np.minimum(full / places, _SATURATED)
    far = np.maximum(np.log(places / inside), _NEAR)
    growth = np.clip(np.log(full / inside) / far, 0.0, _MOST_GROWTH)
    reached = np.exp(-(1 - growth) * (places * far - (places - inside)))
    at = reached * np.sqrt((1 - growth) / (2 * np.pi * inside))
    beyond = at / (1 - busy)
    return np.asarray(beyond / (1 - reached / 2 + beyond))


def _queue_s(requests: Array, busy: Array, rate: Array, chance: Array) -> Array:
    """Mean wait in a queue that is empty when the run begins.

    For a long run it is chance * x^2 / (2 rate (1 - x)) for a server that is busy for the fraction
    x: of M/G/1 for a chance of 1 + cv^2, that of its service, of M/G/k times
    x^(sqrt(2 (k + 1)) - 2) (Sakasegawa, An approximation formula for L_q, Ann. Inst. Statist. Math.
    29, 1977), where one more x takes off the residual of what is in service. Beyond x = 1 the
    queue grows for as long as requests come: T (x - 1) / 2 is the mean. What joins both is
    Akcelik's formula of a queue within a time T (Rouphail and Akcelik, Oversaturation delay
    estimates with consideration of peaking, Transportation Research Record 1365, 1992).
    """
    over = busy - 1
    rooted = np.sqrt(over**2 + 4 * chance * busy**2 / requests)
    return np.asarray(requests / rate / 4 * (over + rooted))
