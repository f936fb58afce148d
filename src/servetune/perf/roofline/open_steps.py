"""Steps of open loops: what a request meets while so many decode.

A step has the prompts that came during the one before. It takes a fixed time and one for each of
its prompts, so that the chain of steps can be solved (`prefill_phases`): by the time of a step with
one prompt and of one with as many as a request meets. How many it meets is known from the call
before, so that `open_loops` calls again until nothing moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple

import numpy as np

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
        self._met = np.full_like(rate, 2.0)

    @abstractmethod
    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        """Times while so many decode, by what the call before has met.

        Args:
            running: Sequences that decode, shape (R,).
            lasting: Whether requests go on coming, and not only as many as the run has.
        """

    def _chain(
        self, steps_s: tuple[Array, Array, Array, Array], full: Array, running: Array
    ) -> _Chain:
        """Steps while so many decode.

        Args:
            steps_s: A step without prompts, with one, with as many as were met in the round
                before, and with as many as fit.
            full: Prompts that fit.
        """
        plain_s, lone_s, wide_s, full_s = steps_s
        runs, rate, clump = self._runs, self._rate, self._clump
        busy = rate * full_s / full
        # The rate in a long run whose queue is, on average, as long as this run's.
        variation = np.maximum(0.0, 1 + self._varied + 2 * runs.clumped)  # Kingman's formula
        variation = variation_of_servers(busy, full, variation)
        idle = (np.hypot(1 - busy, 2 * busy * np.sqrt(variation / runs.requests)) + 1 - busy) / 2
        seen = rate / (busy + idle)
        each_s = np.clip((wide_s - lone_s) / (self._met - 1), _LEAST_SLOPE * lone_s, lone_s)
        each_s = np.minimum(each_s, _MOST_LOAD / seen)
        fixed_s = lone_s - each_s
        found = phases(seen / clump, fixed_s, each_s * clump, plain_s, self._varied / clump)
        met = found.own_prompts * clump
        self._met = np.maximum(2.0, met)
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
        return _Chain(found, met, each_s, seen * each_s, working, waited_s, own_s, left_s)

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


class MixedSteps(OpenSteps):
    """Engines that compute prompts beside those that decode, vLLM's way.

    Prompts come by chance and not because another answer has ended, so nothing is taken off the
    gaps for clumps of a closed loop or for users in step.
    """

    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        runs, rate = self._runs, self._rate
        laws = self._laws.with_batches(np.clip(running * runs.stages, 1.0, runs.stages))
        decoding = np.maximum(1.0, running)
        fit = np.maximum(1.0, runs.budget - decoding * runs.each) / runs.inputs
        places = runs.most_placed(laws.c)
        full = np.clip(fit, 1.0, places)
        plain_s = runs.decode_s(laws, decoding)
        lone_s, wide_s = (
            runs.mixed_s(laws, prompts, decoding, by_chance=True)
            for prompts in (np.ones_like(rate), self._met)
        )
        full_s = runs.mixed_s(laws, full, decoding)
        chain = self._chain((plain_s, lone_s, wide_s, full_s), full, running)
        found, load = chain.found, chain.load
        # Prompts that do not fit take several steps, in each of which all decode: a token waits for
        # no more than a full step.
        most_s = np.maximum(plain_s, full_s * np.minimum(1.0, fit))
        parts = np.maximum(1.0, found.group * self._clump / fit)
        step_s = found.step_s / (1 - found.computing + found.computing * parts)
        prompt_s = np.maximum(0.0, lone_s - np.maximum(1.0, 1 / fit) * plain_s)
        # Who comes behind a request makes its first steps longer than others are.
        clumped = self._clumped(chain.queue_s + runs.steps * found.step_s)
        later_s = (found.own_s - found.step_s) * load / (1 - load)
        later_s = later_s + self._behind_s(chain, clumped, prompt_s)
        longer_s = np.maximum(_INSTANT_S, most_s - step_s)
        later_s = later_s * np.minimum(1.0, longer_s / (chain.each_s * np.minimum(1.0, fit)))
        later_s = np.maximum(_INSTANT_S, later_s)
        met = np.minimum(1 - load**runs.steps, -np.expm1(-runs.steps * longer_s / later_s))
        tau_s = np.minimum(step_s + later_s * met / runs.steps, most_s)
        # Prompts come as long as requests do, and no more of them than are served.
        extra_s = np.maximum(0.0, tau_s - plain_s)
        served = np.minimum(rate, full / full_s)
        extra_s = extra_s * np.minimum(1.0, running / (served * runs.steps * tau_s))
        others = np.maximum(0.0, np.minimum(places, runs.requests) - 1)
        extra_s = np.minimum(extra_s, others * prompt_s / runs.steps)
        # A token has more beside it than decode on average, as their number varies.
        varied = (1 + clumped) / (1 - np.minimum(MOST_GROWTH, rate * chain.each_s))
        beside = np.clip(running + varied, 1.0, self._most)
        tau_s = np.maximum(plain_s, runs.decode_s(laws, beside)) + extra_s
        return self._times(chain, step_s, tau_s)


class PrefillFirstSteps(OpenSteps):
    """Engines that compute all waiting prompts before they decode, SGLang's way."""

    def __init__(self, runs: Runs, laws: StepLaws, rate: Array, most: Array) -> None:
        super().__init__(runs, laws, rate, most)
        self._full = np.clip(runs.budget / runs.inputs, 1.0, runs.most_placed(laws.c))
        self._full_s = runs.prompts_s(laws, self._full)
        self._lone_s = self._prompts_s(np.ones_like(rate))
        self._share = np.ones_like(rate)  # of those that have a first token, in a step that decodes

    def times(self, running: Array, *, lasting: bool = False) -> OpenTimes:
        runs, laws = self._runs, self._laws
        wide_s = self._prompts_s(self._met)
        step_s = runs.decode_s(laws, np.clip(running * self._share, 1.0, self._most))
        chain = self._chain((step_s, self._lone_s, wide_s, self._full_s), self._full, running)
        found = chain.found
        # Those beside a token came in its own phase, as many before as after it, or in its clump.
        around_s = chain.waited_s + chain.own_s + chain.queue_s + runs.steps * step_s
        clumped = self._clumped(around_s)
        beside = running * self._share + chain.met
        beside = beside + 2 * (found.later_prompts * self._clump + clumped)
        most = np.minimum(self._most, np.maximum(1.0, runs.requests))
        plain_s = runs.decode_s(laws, np.clip(beside, 1.0, most))
        held_s = (runs.steps - 1) * found.phase_s + found.rest_s
        held_s = np.maximum(0.0, held_s + self._behind_s(chain, clumped, self._lone_s))
        self._share = (step_s + found.phase_s) / (plain_s + held_s / runs.steps)
        # While all places are taken only those of answers that end are computed, and each of a run
        # once.
        held_s = np.minimum(held_s, (self._most - 1) * self._following_s())
        held_s = np.minimum(held_s, np.maximum(0.0, runs.requests - 1) * self._lone_s)
        if not lasting:
            held_s = held_s * self._share_held(held_s + runs.steps * plain_s)
        return self._times(chain, step_s, plain_s + held_s / runs.steps)

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
        plain_s = runs.decode_s(laws, np.clip(1 + running, 1.0, self._most))
        found = gathering.times(
            plain_s, partial(runs.prompts_s, laws), running, runs.most_placed(laws.c)
        )
        busy = np.asarray(rate / found.most_per_s)
        waited_s = queue_s(runs.requests, busy, rate, np.minimum(1.0, busy))
        own_s = np.asarray(found.own_s)
        first_s = runs.request_s(laws) + found.wait_s + own_s
        return OpenTimes(first_s, own_s, waited_s, np.asarray(found.tau_s))
