"""Engines that gather prompts, as TGI's router does: groups of them, some decode steps apart.

While somebody decodes, prompts that wait are let in when there are `waiting_ratio` of them for each
that decodes, or `admission_steps` after the last group. Nobody decodes while they are computed.
Numbers and arrays go through the same formulas; `clumps` has what closed loops add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = float | NDArray[np.float64]

#: Rounds in which a group and the time from one to the next find each other.
_ROUNDS = 4
#: Seconds between requests that come at the same time.
_INSTANT_S = 1e-9
#: Squared coefficient of variation of prompts that are all equal, at most.
_EQUAL = 1e-6


def whole_prompts(budget: Number, mean_tokens: Number, pairs: Number) -> Number:
    """Prompts that a step takes on average, one at least, if it takes none in part.

    Args:
        budget: Tokens of the step.
        mean_tokens: Mean tokens of a prompt.
        pairs: Mean of I(I+1)/2 over prompts of I tokens.
    """
    fit = np.maximum(1.0, budget // mean_tokens)
    varied = (2 * pairs / mean_tokens - 1) / mean_tokens - 1
    # Of prompts that differ as many come before their sum is over the budget, by renewal.
    mean = np.maximum(fit, budget / mean_tokens - (1 - varied) / 2)
    return np.asarray(np.where(varied > _EQUAL, mean, fit))


def begun_share(lone_s: Number, intake_s: Number, users: Number) -> Number:
    """Share of users with equal answers whose prompts begin with the first of them.

    Those who come while the first prompt is computed; the others wait for steps of these.

    Args:
        lone_s: Seconds of the step of one prompt.
        intake_s: Seconds between two requests that are taken in.
        users: Users that end together.
    """
    return np.minimum(1.0, (1 + lone_s / np.maximum(intake_s, _INSTANT_S)) / users)


class Gathered(NamedTuple):
    """Seconds that a request takes where prompts are gathered.

    Attributes:
        wait_s: Time from the queue to the step of its prompt.
        own_s: Time of that step.
        tau_s: Time between two tokens.
        most_per_s: Requests per second that are served at most.
    """

    wait_s: Number
    own_s: Number
    tau_s: Number
    most_per_s: Number

    def where(self, mask: NDArray[np.bool_], other: Gathered) -> Gathered:
        """These, and the other's where the mask is true."""
        return Gathered(*(np.where(mask, b, a) for a, b in zip(self, other, strict=True)))


class Gathering:
    """How an engine gathers prompts of one law of lengths.

    Attributes:
        gap_steps: Decode steps from one group to the next while more prompts wait than one takes.
        most_running: Sequences that decode at the same time at most.
        group: Prompts that are let in at the same time, at most.

    Args:
        admission_steps: Decode steps after which a group of any size is let in.
        waiting_ratio: Waiting prompts per decoding sequence from which they are let in before;
            positive.
        steps: Decode steps of an answer.
        equal: Whether all answers take as many.
        group: Prompts that are let in at the same time, at most.
    """

    def __init__(
        self,
        admission_steps: Number,
        waiting_ratio: Number,
        steps: Number,
        equal: bool | NDArray[np.bool_],
        group: Number,
    ) -> None:
        self._steps, self._equal, self.group = steps, equal, group
        # Answers end one by one until so few are left that a full group is let in: from `few` and
        # one group down to `few` and one. Equal ones end a group at a time.
        few = np.ceil((group + 1) / waiting_ratio) - 1
        groups = np.where(equal, 1 + few // np.floor(group), (few + (group + 1) / 2) / group)
        self.gap_steps = np.maximum(1.0, np.minimum(admission_steps, steps / groups))
        self.most_running = group * np.maximum(groups, steps / np.maximum(1.0, admission_steps))

    def times(
        self,
        decode_s: Number,
        prompts_s: Callable[[Number], Number],
        running: Number,
        users: Number,
    ) -> Gathered:
        """Times while so many decode.

        Args:
            decode_s: A step that decodes.
            prompts_s: Seconds of the steps that compute so many prompts, one at least.
            running: Sequences that decode, on average.
            users: Requests that have a place in closed loops, that find one at most in open ones.
        """
        share = np.minimum(running / users, 1 - 1e-9)
        others = users - 1
        none = np.exp(others * np.log1p(-share))
        one = np.minimum(1 - none, others * share / (1 - share) * none)
        # One that decodes holds nobody up: the first prompt to come is let in.
        gap = 1 + (self.gap_steps - 1) * (1 - none)
        tau_s = step_s = decode_s
        for _ in range(_ROUNDS):
            come = np.maximum(1e-9, running / self._steps * others / users * step_s / tau_s)
            period = gap + np.exp(-come * gap) / -np.expm1(-come)
            taken = np.clip(come * period, 1.0, self.group)
            group_s = prompts_s(taken)
            step_s = decode_s + group_s / period
            # Groups within an answer, which begins with one: a renewal process.
            met = np.maximum(0.0, (self._steps - gap + gap**2 / (2 * period)) / period)
            met = np.where(self._equal & (self._steps <= gap), 0.0, met)
            tau_s = decode_s + met * group_s / self._steps
        held = (1 - none - one) * self.gap_steps / period
        wait_s = (1 - none) * (decode_s**2 + group_s**2 / period) / (2 * step_s)
        wait_s = wait_s + held * (self.gap_steps - 1) / 2 * step_s
        own_s = prompts_s(np.minimum(1 + held * come * gap, self.group))
        cycle_s = self.gap_steps * decode_s + prompts_s(self.group)
        return Gathered(wait_s, own_s, tau_s, self.group / cycle_s)
