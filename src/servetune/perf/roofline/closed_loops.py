"""Closed loops by formula: each user's next request follows the answer to the last.

`run_formulas` has the symbols.

Generation 0 comes at once: n prompts per step, C/n steps, so the mean prompt waits for
(C/n + 1)/2 of them. Generation g ends its answers over w = min(D, sqrt(12 g) sigma) steps,
sigma the spread of answer lengths, plus the burst's own length; that many steps see its
successors come, a = C/w of them each. While a < n a prompt waits for the step in progress
and its own; beyond that a queue grows to C (1 - n/a) prompts. Once w reaches D the run is
the steady state of `SteadyState`. `warm_up_s` is paid by generation 0.

Some measured prompts wait for more of each other than arrivals spread over that window explain:
`clump_prompts` (sqrt(C) - 1) prompts more; where lengths vary much, less (`clump_share`). What
is waited for before the first token no longer lies between tokens; Little's law holds with all of
it, so that no more is served than steps compute. An engine that delays admission adds
`admission_delay_steps` of tau.

Engines that compute prompts in steps of their own have the closed loops of `SteadyState` after the
burst, in which groups wait for each other: a share exp(-w / together_steps) of later generations
comes all at once as well, w = sqrt(12) sigma. Users with equal answers stay in step, as there;
where prompts share steps with decoding, those with nearly equal ones do in part.

Open loops with a limit of requests in flight that is reached (`paced`) are closed ones whose users
come at a rate: the window of generation 0 is the time that this takes, and nobody is in step.

Users without a place wait for one and change nothing else; those who have one keep it while
their prompt is computed. Where prompts fill every step (few tokens to answer), fewer decode
than have a place, and the others' prompts come all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from servetune.perf.roofline.clumps import ended_meanwhile
from servetune.perf.roofline.gathering import Gathered, begun_share
from servetune.perf.roofline.runs import FEWEST, Mask, Runs, RunTimes
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Secants by which B is found.
_SECANTS = 5
#: Slope of what is off over B beyond which a secant is not trusted; it is minus one where B changes
#: no time.
_FLAT = -0.1
#: Seconds between prompts that come at the same time, where they are taken in at no cost.
_INSTANT_S = 1e-9
#: Steps over which users with nearly equal answers fall out of step where prompts share steps with
#: decoding, read off the simulator (where answers end over 6 steps a third of the wait is left).
_FALLING_OUT_STEPS = 5.0
#: Share of users in step below which there are none.
_NO_SHARE = 0.01
#: Shares of the generations after the first at whose middles their waiting is read.
_SLICES = ((0.0, 1 / 9), (1 / 9, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0))


def closed_loops(runs: Runs, laws: StepLaws) -> RunTimes:
    """Means of the runs, were all of them closed loops."""
    apart = runs.apart(laws.c)
    found = _loops_apart(runs, laws) if apart.any() else _mixed_loops(runs, laws)
    if apart.any() and not apart.all():
        found = _mixed_loops(runs, laws).where(apart, found)
    window = np.sqrt(12) * runs.spread
    share = np.where(apart, runs.equal, np.exp(-window / _FALLING_OUT_STEPS))
    share[_fallen_apart(runs, laws) | (runs.gained != 1) | (share < _NO_SHARE) | runs.paced] = 0.0
    if share.any():
        in_step = _loops_in_step(runs, laws, found.scattered_s)
        found = found.blended(share, in_step)
    if (single := runs.answer_steps <= 0).any():
        found = found.where(single, _loops_of_prompts(runs, laws))
    return found


def _loops_of_prompts(runs: Runs, laws: StepLaws) -> RunTimes:
    """Closed loops whose answers have one token: as many prompts a step as its budget takes."""
    prompts = np.clip(runs.budget / runs.inputs, 1.0, runs.users)
    step_s = runs.prompts_s(laws, prompts)
    rate = np.minimum(prompts / step_s, runs.users / (runs.request_s(laws) + step_s))
    ttft_s = runs.users / rate + _warm_up_s(runs, laws.c) / runs.generations
    tau_s = runs.decode_s(laws, np.ones_like(rate))  # which no answer has
    running = np.full_like(rate, FEWEST)
    return RunTimes(ttft_s, tau_s, running, runs.users / ttft_s, ttft_s, ttft_s)


def _mixed_loops(runs: Runs, laws: StepLaws) -> RunTimes:
    """Closed loops of an engine that computes prompts beside those who decode."""
    running, tau_s, before_s = _balanced(runs, laws)
    # Where places are short the others wait: Little's law says how long, in the mean of the first
    # generation half of it.
    e2e_s = runs.users * runs.steps * tau_s / running
    tau_s = tau_s - before_s
    ttft_s, scattered_s = _ttft_s(runs, laws, running, tau_s)
    waiting_s = np.maximum(0.0, e2e_s - runs.steps * tau_s - ttft_s)
    steady_s = ttft_s + waiting_s + runs.answer_steps * tau_s
    waited_s = waiting_s * (1 - 1 / 2 / runs.generations)
    ttft_s = ttft_s + waited_s
    whole_s = ttft_s + runs.answer_steps * tau_s
    return RunTimes(ttft_s, tau_s, running, runs.users / steady_s, whole_s, scattered_s + waited_s)


def _balanced(runs: Runs, laws: StepLaws) -> tuple[Array, Array, Array]:
    """B that solves B = C * D * tau / (ttft + D * tau), at most `most_running`.

    C are those users that have a place: they keep it while their prompts are computed.

    Returns:
        B, tau, and what of tau lies before first tokens.
    """
    placed = runs.placed(laws.c)
    most = runs.most_running(laws.c)
    others = _others(runs, laws)

    def off(running: Array) -> Array:
        """How many more than these would decode, were these to decode."""
        ttft_s, tau_s, _ = _waiting(runs, laws, running / runs.steps * others, running)
        decode_s = runs.steps * tau_s
        balanced = np.minimum(most, placed * decode_s / (ttft_s + decode_s))
        return np.asarray(balanced - running)

    running = _root(off, most)
    _, tau_s, before_s = _waiting(runs, laws, running / runs.steps * others, running)
    return running, tau_s, before_s


def _loops_in_step(runs: Runs, laws: StepLaws, scattered_s: Array) -> RunTimes:
    """Closed loops of users with equal answers, who end together; see `SteadyState`."""
    apart = runs.apart(laws.c)
    intake_s = laws.c["closed_loop.intake_s"]
    # Those that decode beside the prompts of others, and the group whose prompts are computed.
    most = runs.decoding_beside(laws.c) + runs.budget / np.minimum(runs.inputs, runs.budget)
    placed = np.minimum(runs.placed(laws.c), most)
    others, waiting = (placed - 1) / placed, runs.users - placed
    # Chunks of prompts fill a step, but not where prompts have steps of their own.
    taken = np.where(apart, runs.group, np.maximum(1.0, runs.budget / runs.inputs))
    taken = np.minimum(placed, taken)
    one = np.ones_like(placed)
    plain_s = runs.decode_s(laws, placed)
    request_s, clump_s = runs.request_s(laws), runs.clump_s(laws, runs.prompts_s(laws, one))
    outside_s = request_s + clump_s
    # Prompts of one step at the start of the run, which come one after another.
    beside = np.where(apart, 0.0, placed / 2)
    begun = runs.mixed_s(laws, one, beside) / np.maximum(intake_s, _INSTANT_S)
    begun = np.clip(begun, 1.0, taken)
    # Others end while a group is on its way back, unless those without a place are there.
    beside = np.where(apart, 0.0, placed - taken)
    parts = np.maximum(1.0, taken * runs.inputs / np.maximum(1.0, runs.budget - beside))
    mixed_s = runs.mixed_s(laws, taken, beside) / parts
    ended = ended_meanwhile(request_s, clump_s, plain_s, mixed_s, taken=taken, parts=parts)
    ended = ended * np.maximum(0.0, 1 - waiting / (taken + ended))
    back = np.minimum(placed, begun * (1 + ended))
    # One group decodes beside each step with prompts of others, and one has its own computed.
    least = placed / (1 + runs.steps / parts)
    group = np.where(apart, taken, np.maximum(np.minimum(taken, back), least))
    groups = placed / group
    queue = np.where(apart, groups, np.maximum(1.0, back / group))  # its own step at the least
    beside = np.where(apart, 0.0, placed - group)
    group_s = runs.mixed_s(laws, group, beside)
    parts = np.maximum(1.0, group * runs.inputs / np.maximum(1.0, runs.budget - beside))
    decoded_s = np.where(apart, 0.0, parts * plain_s)
    seen = np.where(apart, (queue + 1) / 2, queue - queue * (queue - 1) / (2 * groups))
    riding = np.where(apart, groups - seen, np.maximum(0.0, groups - seen))
    riding = np.where(apart, riding, np.minimum(riding, runs.steps / parts))
    # All in one group: the first to come has a step alone, the others the next.
    first = (placed > 1) & (groups <= 1) & (intake_s + laws.c["closed_loop.clump_prompts"] > 0)
    rest_s = runs.mixed_s(laws, np.maximum(1.0, placed - 1), np.where(apart, 0.0, 1.0))
    alone_s = runs.prompts_s(laws, one)
    first_s = np.where(first, alone_s + others * rest_s, seen * group_s)
    first_s = first_s + others * np.where(apart, 0.0, plain_s / 2)
    mixing_s = riding * (group_s - decoded_s)
    mixing_s = np.where(first, (1 - others) * (rest_s - decoded_s), mixing_s)
    tau_s = plain_s + mixing_s / runs.steps
    first_s = first_s + others * runs.held_steps * tau_s
    decode_s = runs.steps * tau_s
    steady_s = np.maximum(
        runs.users / placed * (first_s + decode_s), outside_s + first_s + decode_s
    )
    burst_s, _ = _burst(runs, laws, placed)
    burst_s = burst_s + _warm_up_s(runs, laws.c) + waiting / placed / 2 * (first_s + decode_s)
    ttft_s = (burst_s + (runs.generations - 1) * (steady_s - decode_s)) / runs.generations
    whole_s = ttft_s + runs.answer_steps * tau_s
    rate = runs.users / np.where(waiting > 0, np.maximum(whole_s, steady_s), whole_s)
    return RunTimes(ttft_s, tau_s, rate * decode_s, rate, whole_s, scattered_s)


def _loops_apart(runs: Runs, laws: StepLaws) -> RunTimes:
    """Closed loops of an engine in which nobody decodes beside prompts.

    A steady state as `SteadyState` has it, after a burst whose groups wait for each other.
    """
    c, users = laws.c, runs.users
    most = runs.most_running(c)
    placed = np.minimum(users, runs.most_placed(c))
    in_step = runs.equal & ~(runs.paced & _stay_apart(runs, laws, placed))
    placed = np.where(in_step, np.minimum(placed, most), placed)
    others, taken = (placed - 1) / placed, np.minimum(placed, runs.group)
    one_s, group_s = runs.prompts_s(laws, np.ones_like(users)), runs.prompts_s(laws, taken)
    prompts = c["closed_loop.clump_prompts"] * runs.clump_share * (np.sqrt(users) - 1)
    ahead = (users + np.minimum(users, runs.group)) / 2 - 1
    coming = np.where(in_step | runs.paced, 0.0, _in_step(runs, laws) * ahead)
    together = np.clip(coming, 1.0, runs.group)
    clump_s = prompts * one_s + coming * runs.prompts_s(laws, together) / together
    request_s = runs.request_s(laws)
    before = placed / taken - 1  # groups that begin while one decodes
    begun = _begun(runs, laws, placed)
    early_s = np.where(before <= 0, 2 * begun * (1 - begun) * group_s, 0.0)
    together_s = runs.decode_s(laws, placed) + (before * group_s + early_s) / runs.steps

    def waiting(running: Array) -> tuple[Array, Array, Array]:
        """Seconds from the queue to the first token and between tokens; requests/s at most."""
        mixed = _prompts_between(runs, laws, running, placed)
        tau_s = np.where(in_step, together_s, mixed.tau_s)
        wait_s = np.where(others > 0, mixed.wait_s, 0.0)
        first_s = np.where(in_step, group_s - early_s, wait_s + mixed.own_s)
        most_per_s = np.where(in_step, np.inf, mixed.most_per_s)
        return first_s + others * runs.held_steps * tau_s, tau_s, most_per_s

    def off(running: Array) -> Array:
        first_s, tau_s, most_per_s = waiting(running)
        decode_s = runs.steps * tau_s
        rate = np.minimum(most_per_s, placed / (first_s + decode_s))
        rate = np.minimum(rate, users / (request_s + clump_s + first_s + decode_s))
        return np.asarray(rate * decode_s - running)

    running = _root(off, np.minimum(users, most))
    first_s, tau_s, _ = waiting(running)
    decode_s = runs.steps * tau_s
    # Where places are short the others wait; Little's law says how long.
    steady_s = np.maximum(users * decode_s / running - decode_s, request_s + clump_s + first_s)
    burst_s = _burst_apart_s(runs, laws, running, placed, first_s)
    burst_s = burst_s + (users / placed - 1) / 2 * (first_s + decode_s)
    ttft_s = (burst_s + (runs.generations - 1) * steady_s) / runs.generations
    whole_s = ttft_s + runs.answer_steps * tau_s
    waited_s = np.maximum(ttft_s, steady_s) + runs.answer_steps * tau_s
    rate = users / np.where(users > placed, waited_s, whole_s)
    scattered_s = ttft_s
    if in_step.any():
        alone = _prompts_between(runs, laws, running, placed)
        held_s = others * runs.held_steps * tau_s
        alone_s = np.where(others > 0, alone.wait_s, 0.0) + alone.own_s + held_s
        less_s = np.maximum(0.0, first_s - alone_s)
        scattered_s = ttft_s - np.where(in_step, less_s, 0.0) * (1 - 1 / runs.generations)
    return RunTimes(ttft_s, tau_s, running, rate, whole_s, scattered_s)


def _burst_apart_s(
    runs: Runs, laws: StepLaws, running: Array, placed: Array, first_s: Array
) -> Array:
    """Mean seconds to the first tokens of those who begin a run with a place."""
    c, taken = laws.c, np.minimum(placed, runs.group)
    group_s, plain_s = runs.prompts_s(laws, taken), runs.decode_s(laws, np.maximum(1.0, running))
    each_s = group_s + np.where(runs.gathers(c), runs.gathering(c).gap_steps * plain_s, 0.0)
    burst_s = c["closed_loop.intake_s"] * runs.users / 2 + group_s
    burst_s = burst_s + np.maximum(0.0, placed / taken - 1) / 2 * each_s
    if runs.paced.any():  # a queue grows where prompts come faster than they are computed
        apart_s = 1 / np.where(runs.paced, runs.rate_per_s, np.inf)
        queued_s = placed / 2 * np.maximum(0.0, each_s / taken - apart_s)
        burst_s = np.where(runs.paced, first_s + queued_s, burst_s)
    return np.asarray(runs.request_s(laws) + _warm_up_s(runs, c) + burst_s)


def _stay_apart(runs: Runs, laws: StepLaws, placed: Array) -> Mask:
    """Whether users with equal answers who came one after another stay so.

    Two of them are in step from the first prompt on that comes while the other's is computed or on
    its way: none decodes before both do.
    """
    alone_s, plain_s = runs.prompts_s(laws, np.ones_like(placed)), runs.decode_s(laws, placed)
    together_steps = 1 + (runs.request_s(laws) + alone_s) / plain_s
    return np.asarray(placed * together_steps < runs.steps)


def _prompts_between(runs: Runs, laws: StepLaws, running: Array, placed: Array) -> Gathered:
    """Times while so many decode of users whose prompts come by chance, in steps of their own."""
    plain_s = runs.decode_s(laws, np.maximum(1.0, running))
    per_step = np.maximum(running * (placed - 1) / placed, FEWEST) / runs.steps
    period = 1 / -np.expm1(-per_step)
    come = per_step * period
    come_s = runs.prompts_s(laws, np.minimum(come, runs.group))
    come_s = come_s * np.maximum(1.0, come / runs.group)
    tau_s = plain_s + come_s / period
    wait_s = (plain_s**2 + come_s**2 / period) / (2 * tau_s)
    own_s = runs.prompts_s(laws, np.minimum(1 + per_step / period, runs.group))
    found = Gathered(wait_s, own_s, tau_s, np.full_like(tau_s, np.inf))
    if not (gathers := runs.gathers(laws.c)).any():
        return found
    prompts_s = partial(runs.prompts_s, laws)
    return found.where(gathers, runs.gathering(laws.c).times(plain_s, prompts_s, running, placed))


def _fallen_apart(runs: Runs, laws: StepLaws) -> Mask:
    """Whether an engine that gathers prompts lets users in step begin one after another."""
    placed = runs.placed(laws.c)
    late = (_begun(runs, laws, placed) < 1) | (placed > runs.whole_prompts)
    return runs.gathers(laws.c) & late


def _begun(runs: Runs, laws: StepLaws, placed: Array) -> Array:
    """Share of users in step whose prompts begin with the first: all, unless they are gathered."""
    if not runs.gathers(laws.c).any():
        return np.ones_like(placed)
    lone_s = runs.prompts_s(laws, np.ones_like(placed))
    return np.asarray(begun_share(lone_s, laws.c["closed_loop.intake_s"], placed))


def _others(runs: Runs, laws: StepLaws) -> Array:
    """Share of prompts that are other users'; a user without a place sends none."""
    placed = runs.placed(laws.c)
    return np.asarray((placed - 1) / placed)


def _waiting(
    runs: Runs, laws: StepLaws, per_step: Array, running: Array
) -> tuple[Array, Array, Array]:
    """Times while `per_step` prompts come per step.

    Returns:
        Time to the first token, that between two decode steps, and the part of it that a
        request waits for before its first token already, in a clump.
    """
    others = _others(runs, laws)
    decoding = np.maximum(1.0, running)
    none = 0 * decoding
    plain_s = laws.seconds(none, none, none, decoding, decoding * runs.context)
    per_step = np.maximum(per_step, FEWEST / runs.steps)
    come = -np.expm1(-per_step)  # fraction of steps with a new prompt
    prompts = per_step / come
    left = np.maximum(1.0, runs.budget - decoding * runs.each)
    parts = np.maximum(1.0, prompts * runs.inputs / left)
    part_s = runs.mixed_s(laws, prompts, decoding, by_chance=True) / parts
    own_s = runs.mixed_s(laws, 1 + per_step, running * others, by_chance=True)
    share = np.minimum(1.0, come * parts)
    # As many come while the own prompt is computed, for the first step after it.
    added_s = share * np.maximum(0.0, part_s - plain_s)
    base_s = plain_s + added_s * (1 - 1 / runs.steps)
    tau_s = (base_s + np.sqrt(base_s**2 + 4 * added_s * own_s / runs.steps)) / 2
    tau_s = np.minimum(part_s, tau_s)
    share = (tau_s - plain_s) / np.where(part_s > plain_s, part_s - plain_s, np.inf)
    squares = (1 - share) * plain_s**2 + share * part_s**2
    residual_s = others * squares / (2 * tau_s)
    mixing_s = np.maximum(0.0, tau_s - plain_s)
    before_s = np.minimum(runs.clump_s(laws, own_s) / runs.steps, mixing_s / 2)
    held_s = others * runs.held_steps * (tau_s - before_s)
    return runs.request_s(laws) + residual_s + held_s + own_s, tau_s, before_s


def _in_step(runs: Runs, laws: StepLaws) -> Array:
    """Share of later generations that come all at once, as the burst does."""
    window = np.sqrt(12) * runs.spread
    shares = np.exp(-window / laws.c["closed_loop.together_steps"])
    return np.asarray(laws.c["scheduling.prefill_first"] * shares)


def _ttft_s(runs: Runs, laws: StepLaws, running: Array, tau_s: Array) -> tuple[Array, Array]:
    """Time to the first token, and that of users with equal answers who do not stay in step."""
    users = runs.placed(laws.c)
    others = _others(runs, laws)
    taken = np.maximum(1.0, (runs.budget - running) / runs.inputs)
    steady, full_s = running / runs.steps, runs.mixed_s(laws, taken, running)

    def waited_s(window: Array) -> Array:
        """Mean seconds to the first token of users whose prompts come in so many steps."""
        coming = others * np.maximum(steady, users / np.maximum(1.0, window))
        ttft_s, *_ = _waiting(runs, laws, np.minimum(coming, taken), running)
        queue = np.maximum(0.0, users - window * taken) / 2  # in its mean, prompts ahead
        return np.asarray(ttft_s + queue / taken * full_s)

    burst_s, burst_steps = _burst(runs, laws, users)
    if runs.paced.any():
        rate = np.where(runs.paced, runs.rate_per_s, 1.0)
        step_s = np.where(rate * full_s > taken, full_s, tau_s)  # full ones where a queue grows
        burst_steps = np.where(runs.paced, users / (rate * step_s), burst_steps)
        burst_s = np.where(runs.paced, waited_s(burst_steps), burst_s)
    later = np.maximum(0.0, runs.generations - 1)
    one = np.ones_like(running)
    clump_s = runs.clump_s(laws, runs.mixed_s(laws, one, 0 * one))
    begun_s = burst_s + _warm_up_s(runs, laws.c)
    total = begun_s
    for low, high in _SLICES:
        generation = np.maximum(1.0, 0.5 + later * (low + high) / 2)
        window = np.sqrt(12 * generation) * runs.spread + burst_steps
        total = total + later * (high - low) * (waited_s(window) + clump_s)
    found = np.asarray(total / runs.generations)
    equal = runs.equal & ~runs.paced
    if not equal.any():
        return found, found
    scattered = (begun_s + later * waited_s(runs.steps)) / runs.generations
    return found, np.asarray(np.where(equal, scattered, found))


def _warm_up_s(runs: Runs, c: Mapping[str, Array]) -> Array:
    experts = runs.stack.experts
    mxfp4_s, other_s = c["closed_loop.warm_up_mxfp4_s"], c["closed_loop.warm_up_experts_s"]
    each_s = np.where(experts["mxfp4"] > 0, mxfp4_s, other_s)
    experts_s = np.where(experts["count"] > 0, each_s, 0.0).max(axis=0, initial=0.0)
    return np.asarray(runs.cold * (c["closed_loop.warm_up_s"] + experts_s))


def _burst(runs: Runs, laws: StepLaws, users: Array) -> tuple[Array, Array]:
    """Mean time to first token when all users come at once, and its length in steps."""
    taken = np.clip(runs.budget / runs.inputs, 1.0, users)
    steps = users / taken
    decoding = users / 2 * (1 - 1 / steps)  # those that already decode, on average
    step_s = runs.mixed_s(laws, taken, decoding)
    intake_s = laws.c["closed_loop.intake_s"] * users / 2
    return runs.request_s(laws) + intake_s + step_s * (steps + 1) / 2, steps


def _root(off: Callable[[Array], Array], most: Array) -> Array:
    """B at which nothing is off, at most `most`.

    Secants, which stay within the bounds and move by half of what is off where they are flat.
    """
    running, last, missed = most, most, off(most)
    running = running + missed / 2
    for _ in range(_SECANTS):
        missing = off(running)
        slope = (missing - missed) / np.where(running == last, np.inf, running - last)
        step = np.where(slope < _FLAT, -missing / np.minimum(slope, _FLAT), missing / 2)
        last, missed = running, missing
        running = np.clip(running + step, FEWEST, most)
    return running
