"""Steps of open loops: what a request meets while so many decode.

A step has the prompts that came during the one before. It takes a fixed time and one for each of
its prompts, so that the chain of steps can be solved (`prefill_phases`): by the time of a step with
one prompt and of one with as many as a request meets. How many it meets is found from one up, in a
few rounds and for each call alone: times are continuous in the rate and in the number that decodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from servetune.perf.roofline.filling import filling_of
from servetune.perf.roofline.gathering import Number
from servetune.perf.roofline.prefill_phases import Phases, phases
from servetune.perf.roofline.queues import MOST_GROWTH, queue_s, variation_of_servers
from servetune.perf.roofline.runs import Runs
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Clumped requests come, on average, within the time in which 1 / `_SOON` come by chance. Read off
#: gamma laws of a shape of 0.7.
_SOON = 3.0
#: Requests of a clump at least: below one where requests come more evenly than by chance.
_LEAST_CLUMP = 0.2
#: Bounds of the time of each further prompt of a step, over that of a lone one and over that in
#: which the next comes.
_LEAST_SLOPE, _MOST_LOAD = 0.02, 0.995
#: Rounds in which a request's step and the prompts that it meets there find each other.
_ROUNDS = 2
#: Least number of further prompts by which their time is read.
_LEAST = 1e-4
#: Least time, for divisions.
_INSTANT_S = 1e-12


class OpenTimes(NamedTuple):
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


class _Chain(NamedTuple):
    """Steps that a request meets.

    Attributes:
        found: Means of the chain; its rate and prompts are those of clumps.
        met: Prompts of the step that has the own one.
        each_s: Time of each further prompt of a step.
        load: Prompts that come in that time, at a rate below one that would overload a long run.
        working: Share of requests that find somebody inside.
        waited_s: Wait for the step in progress.
        own_s: Step of the own prompt, no longer than a full one.
        queue_s: Further wait for that step.
    """

    found: Phases
    met: Array
    each_s: Array
    load: Array
    working: Array
    waited_s: Array
    own_s: Array
    queue_s: Array


class OpenSteps(ABC):
    """Steps of open loops under one kind of engine.

    Args:
        runs: The runs.
        laws: Laws of their steps.
        rate: Requests per second of one copy, shape (R,).
        most: Sequences that decode at most, shape (R,).
    """

    def __init__(self, runs: Runs, laws: StepLaws, rate: Array, most: Array) -> None:
        self._runs, self._laws, self._rate = runs, laws, rate
        self._most = np.maximum(1.0, most)
        self._varied = np.maximum(0.0, runs.varied_inputs)
        # Requests come one by one, or in clumps of so many.
        lone_s = runs.prompts_s(laws, np.ones_like(rate))
        self._clump = np.maximum(_LEAST_CLUMP, 1 + 2 * self._clumped(lone_s))

    @abstractmethod
    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        """Times while so many decode.

        Args:
            running: Sequences that decode, shape (R,).
            lasting: Whether requests go on coming, and not only as many as the run has.
        """

    def _chain(
        self,
        prompts_s: Callable[[Array], Array],
        plain_s: Array,
        full: Array,
        full_s: Array,
        running: Array,
    ) -> _Chain:
        """Steps while so many decode.

        Args:
            prompts_s: Steps with so many prompts.
            plain_s: A step without prompts.
            full: Prompts that fit in a step.
            full_s: A step with as many.
            running: Sequences that decode.
        """
        runs, rate, clump = self._runs, self._rate, self._clump
        busy = rate * full_s / full
        # The rate in a long run whose queue is, on average, as long as this run's.
        variation = np.maximum(0.0, 1 + self._varied + 2 * runs.clumped)  # Kingman's formula
        variation = variation_of_servers(busy, full, variation)
        seen = _settled(busy, 4 * variation / runs.requests) / full_s * full
        lone_s = prompts_s(np.ones_like(rate))
        least_s = _LEAST_SLOPE * lone_s
        # No more than up to one prompt that does not fit in a full step: where captured graphs end
        # a step is longer at once, and only once.
        most_s = np.clip((full_s + full_s / full - lone_s) / full, least_s, lone_s)
        most_s = np.minimum(most_s, _MOST_LOAD / seen)
        least_s = np.minimum(least_s, most_s)
        long_s = runs.requests / rate * np.maximum(1.0, busy)  # until all prompts are computed
        met = 1 + seen * lone_s
        for _ in range(_ROUNDS):
            group = np.maximum(1 + _LEAST, met)
            wide_s = prompts_s(group)
            each_s = np.clip((wide_s - lone_s) / (group - 1), least_s, most_s)
            fixed_s = np.maximum(lone_s - each_s, wide_s - each_s * group)
            # A step is longer than the one before by what has come since: from steps of `fixed_s`
            # on they grow to the square root of twice that and the time since the run began.
            load = _settled(seen * each_s, 4.5 * fixed_s / long_s)
            coming = load / each_s / clump
            found = phases(coming, fixed_s, each_s * clump, plain_s, self._varied / clump)
            met = found.own_prompts * clump
        # A prompt that does not fit is computed in one of the next steps.
        own_s = fixed_s + each_s * np.minimum(met, full)
        parts = np.maximum(1.0, met / full)
        done_s = np.maximum(own_s, found.own_s * (parts + 1) / (2 * parts))
        # The engine is idle as often as nobody is inside, of those who come by chance.
        working = -np.expm1(-running * (1 + done_s / (runs.steps * plain_s)))
        waited_s = working * found.waited_s
        over_s = queue_s(runs.requests, busy, rate, np.zeros_like(rate)) + lone_s
        all_s = np.maximum(waited_s + done_s, over_s)
        waited_s = np.minimum(waited_s, own_s)
        left_s = all_s - waited_s - own_s
        return _Chain(found, met, each_s, load, working, waited_s, own_s, left_s)

    def _spread(self, running: Array, filling: Array) -> Array:
        """Standard deviation of the number that decodes, each of the places being taken or not.

        Args:
            running: Mean number.
            filling: Its standard deviation as a run fills.
        """
        by_chance = running * np.minimum(1.0, running) * np.maximum(0.0, 1 - running / self._most)
        return np.asarray(np.sqrt(by_chance + filling**2))

    def _times(self, chain: _Chain, step_s: Array, tau_s: Array) -> OpenTimes:
        """Times of a request, which may miss a step that was composed ahead."""
        missed_s = chain.working * self._runs.admission_delay_steps * step_s
        first_s = self._runs.request_s(self._laws) + chain.waited_s + missed_s + chain.own_s
        return OpenTimes(first_s, chain.own_s, chain.queue_s, tau_s)

    def _behind_s(self, chain: _Chain, clumped: Array, lone_s: Array) -> Array:
        """Time of the prompts that come after the own one in its clump.

        Of a clump that finds nobody the first is computed alone.
        """
        soon = (self._clump - 1) / 2
        later_s = (clumped - soon) * chain.each_s / (1 - chain.load)
        return np.asarray(soon * lone_s + later_s)

    def _clumped(self, time_s: Array) -> Array:
        """Requests that come on one side of a request within a time, beyond those by chance.

        As many as `Runs.clumped` in a long time, and most of them soon.
        """
        return np.asarray(self._runs.clumped * -np.expm1(-_SOON * self._rate * time_s))


def _settled(load: Array, short: Array) -> Array:
    """Load below one whose steady state has as much waiting as a run of another has on average.

    Args:
        load: That of the run, which begins with nobody waiting.
        short: Square of twice what is free in such a steady state if the run's load is one.
    """
    free = (np.hypot(1 - load, load * np.sqrt(short)) + 1 - load) / 2
    return np.asarray(load / (load + free))


class MixedSteps(OpenSteps):
    """Engines that compute prompts beside those that decode, vLLM's way.

    Prompts come by chance and not because another answer has ended, so nothing is taken off the
    gaps for clumps of a closed loop or for users in step.
    """

    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        runs, rate = self._runs, self._rate
        laws = self._laws.with_batches(np.clip(running * runs.stages, 1.0, runs.stages))
        filling = filling_of(running, runs.requests)
        inside = filling.prompts
        decoding = np.maximum(1.0, inside)
        fit = np.maximum(1.0, runs.budget - decoding * runs.each) / runs.inputs
        places = runs.most_placed(laws.c)
        full = np.clip(fit, 1.0, places)
        spread = self._spread(inside, filling.prompts_spread)
        plain_s = runs.decode_s(laws, decoding, spread)
        prompts_s = partial(runs.mixed_s, laws, sequences=inside, by_chance=True, spread=spread)
        full_s = runs.mixed_s(laws, full, decoding)
        chain = self._chain(prompts_s, plain_s, full, full_s, inside)
        found, load = chain.found, chain.load
        # Prompts that do not fit take several steps, in each of which all decode: a token waits for
        # no more than a full step.
        most_s = np.maximum(plain_s, full_s * np.minimum(1.0, fit))
        parts = np.maximum(1.0, found.group * self._clump / fit)
        step_s = found.step_s / (1 - found.computing + found.computing * parts)
        prompt_s = prompts_s(np.ones_like(rate)) - np.maximum(1.0, 1 / fit) * plain_s
        prompt_s = np.maximum(0.0, prompt_s)
        # Who comes behind a request makes its first steps longer than others are.
        clumped = self._clumped(chain.queue_s + runs.steps * found.step_s)
        later_s = (found.own_s - found.step_s) * load / (1 - load)
        later_s = later_s + self._behind_s(chain, clumped, prompt_s)
        longer_s = np.maximum(_INSTANT_S, most_s - step_s)
        later_s = later_s * np.minimum(1.0, longer_s / (chain.each_s * np.minimum(1.0, fit)))
        later_s = np.maximum(_INSTANT_S, later_s)
        met = np.minimum(1 - load**runs.steps, -np.expm1(-runs.steps * longer_s / later_s))
        tau_s = np.minimum(step_s + later_s * met / runs.steps, most_s)
        # While all places are taken only those of answers that end are computed, and prompts come
        # as long as requests do.
        others = np.maximum(0.0, np.minimum(places, runs.requests) - 1) / runs.steps
        group = np.maximum(1.0, others)
        most_s = np.maximum(0.0, prompts_s(group) - np.maximum(1.0, group / fit) * plain_s)
        extra_s = np.clip(tau_s - plain_s, 0.0, most_s * others / group)
        if not lasting:
            extra_s = extra_s * filling.coming
        # A token has more beside it than decode on average, as their number varies.
        varied = (1 + clumped) / (1 - np.minimum(MOST_GROWTH, rate * chain.each_s))
        beside = np.clip(running + varied, 1.0, self._most)
        spread = self._spread(running, filling.tokens_spread)
        beside_s = runs.decode_s(laws, beside, spread)
        tau_s = np.maximum(plain_s, beside_s) + extra_s
        return self._times(chain, step_s, tau_s)


class PrefillFirstSteps(OpenSteps):
    """Engines that compute all waiting prompts before they decode, SGLang's way."""

    def __init__(self, runs: Runs, laws: StepLaws, rate: Array, most: Array) -> None:
        super().__init__(runs, laws, rate, most)
        self._full = np.clip(runs.budget / runs.inputs, 1.0, runs.most_placed(laws.c))
        self._full_s = runs.prompts_s(laws, self._full)
        self._lone_s = self._prompts_s(np.ones_like(rate))

    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        runs, laws = self._runs, self._laws
        spread = self._spread(running, filling_of(running, runs.requests).tokens_spread)
        most = np.minimum(self._most, np.maximum(1.0, runs.requests))
        share = np.ones_like(running)  # of those that have a first token, in a step that decodes
        for _ in range(_ROUNDS):
            decoding = np.clip(running * share, 1.0, self._most)
            step_s = runs.decode_s(laws, decoding, spread)
            chain = self._chain(self._prompts_s, step_s, self._full, self._full_s, running)
            found = chain.found
            # Those beside a token came in its own phase, as many before as after it, or in its
            # clump.
            around_s = chain.waited_s + chain.own_s + chain.queue_s + runs.steps * step_s
            clumped = self._clumped(around_s)
            beside = running * share + chain.met
            beside = beside + 2 * (found.later_prompts * self._clump + clumped)
            plain_s = runs.decode_s(laws, np.clip(beside, 1.0, most), spread)
            held_s = (runs.steps - 1) * found.phase_s + found.rest_s
            held_s = np.maximum(0.0, held_s + self._behind_s(chain, clumped, self._lone_s))
            share = (step_s + found.phase_s) / (plain_s + held_s / runs.steps)
        # While all places are taken only those of answers that end are computed, and each of a run
        # once.
        held_s = np.minimum(held_s, (self._most - 1) * self._following_s())
        held_s = np.minimum(held_s, np.maximum(0.0, runs.requests - 1) * self._lone_s)
        if not lasting:
            held_s = held_s * self._share_held(held_s + runs.steps * plain_s)
        return self._times(chain, found.step_s, plain_s + held_s / runs.steps)

    def _prompts_s(self, prompts: Array) -> Array:
        """Steps that compute so many prompts, each as long as it happens to be."""
        return self._runs.mixed_s(self._laws, prompts, 0 * prompts, by_chance=True)

    def _following_s(self) -> Array:
        """A prompt's share of its step, with those that take the places of one step's answers."""
        ending = self._most / self._runs.steps
        group = np.clip(ending / -np.expm1(-ending), 1.0, self._full)
        share = (group - 1) / np.maximum(1e-9, self._full - 1)
        return np.asarray((self._lone_s + share * (self._full_s - self._lone_s)) / group)

    def _share_held(self, decode_s: Array) -> Array:
        """Share of the time that prompts hold an answer up which a run that ends has.

        None is computed after the last has come, and whoever comes late is held up until then.
        """
        prompt_s = self._full_s / self._full
        over = decode_s / (self._runs.requests * np.maximum(1 / self._rate, prompt_s))
        return np.asarray(np.where(over < 1, 1 - over / 2, 1 / (2 * np.maximum(1, over))))


class GatheredSteps(OpenSteps):
    """Engines that gather prompts for a number of steps, TGI's way.

    A group is let in once the steps are over, or when the first comes after that. Who is in it sees
    no other prompt before the steps are over again.
    """

    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        runs, laws, rate = self._runs, self._laws, self._rate
        gathering = runs.gathering(laws.c)
        beside = np.clip(1 + running, 1.0, self._most)
        spread = self._spread(running, filling_of(running, runs.requests).tokens_spread)
        plain_s = runs.decode_s(laws, beside, spread)
        found = gathering.times(plain_s, self._prompts_s, running, runs.most_placed(laws.c))
        busy = np.asarray(rate / found.most_per_s)
        waited_s = queue_s(runs.requests, busy, rate, np.minimum(1.0, busy))
        own_s = np.asarray(found.own_s)
        first_s = runs.request_s(laws) + found.wait_s + own_s
        return OpenTimes(first_s, own_s, waited_s, np.asarray(found.tau_s))

    def _prompts_s(self, taken: Number) -> Array:
        """Steps of groups with so many prompts on average: one, and others by chance."""
        prompts = np.asarray(taken)
        runs, spread = self._runs, np.sqrt(3 * np.maximum(0.0, prompts - 1))
        most = np.maximum(prompts, runs.gathering(self._laws.c).group)
        below, above = np.maximum(1.0, prompts - spread), np.minimum(prompts + spread, most)
        # Whole groups are certain; three points of others have their mean and variance.
        spread = np.minimum(prompts - below, above - prompts)
        times = (runs.prompts_s(self._laws, prompts + k * spread) for k in (-1, 0, 1))
        return np.asarray(sum(w * s for w, s in zip((1 / 6, 2 / 3, 1 / 6), times, strict=True)))
