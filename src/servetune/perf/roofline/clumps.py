"""Prompts of a closed loop that come in clumps, beyond what its scheduler explains."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.step_laws import Array

#: Spread of answers' lengths over their mean at which clumps are half dissolved: a judgement
#: between what was measured (0.06, where they are whole) and traffic of people (near 1, where
#: nothing keeps users in step).
_DISSOLVING_SPREAD = 0.2

#: Share of the steps that have prompts while users of a group that ended wait in a clump, as the
#: first of them are back; and the prompts of one step from which on this share falls, to none at
#: twice as many. Read off the simulator: 160 runs of two networks, 4 to 128 users, prompts of 128
#: to 20,000 tokens. On 54 runs of three other networks and lengths first tokens are 12% off it in
#: the median, for 19% without.
_PROMPTS_BEGIN, _FEW_PROMPTS = 0.05, 8.0

_Numbers = TypeVar("_Numbers", float, Array)


def clump_share(spread: _Numbers) -> _Numbers:
    """Share of `clump_prompts` that is left where lengths vary.

    Args:
        spread: Standard deviation of the answers' lengths over their mean.
    """
    return 1 / (1 + (spread / _DISSOLVING_SPREAD) ** 2)


def missed_share(spread: _Numbers) -> _Numbers:
    """Share of a step that a prompt misses where steps are composed while the one before runs.

    Of such engines `clump_prompts` were fitted without that step, and have it in them.

    Args:
        spread: Standard deviation of the answers' lengths over their mean.
    """
    return 1 - clump_share(spread)


def waiting_prompts(
    c: Coefficients, users: float, mean_tokens: float, sd_tokens: float, taken: float
) -> tuple[float, float]:
    """Prompts of others that a user's prompt waits for before the engine's queue, on average.

    Returns:
        Those of clumps, counted by the time of a lone prompt as they were fitted, and those of
        users in step, which are computed together.

    Args:
        c: Coefficients, which were fitted to measured runs.
        users: Users of one copy of the model.
        mean_tokens: Mean length of answers.
        sd_tokens: Its standard deviation.
        taken: Prompts that one step takes: all of them have their first token at its end.
    """
    prompts = c.closed_loop.clump_prompts * max(0.0, math.sqrt(users) - 1)
    prompts *= clump_share(sd_tokens / mean_tokens)
    in_step = 0.0
    if c.scheduling.prefill_first and sd_tokens > 0:  # equal answers stay in step by themselves
        window = math.sqrt(12) * sd_tokens
        ahead = (users + min(users, taken)) / 2 - 1
        in_step = math.exp(-window / c.closed_loop.together_steps) * max(0.0, ahead)
    return prompts, in_step


def ended_meanwhile(
    request_s: _Numbers,
    clump_s: _Numbers,
    plain_s: _Numbers,
    mixed_s: _Numbers,
    *,
    taken: _Numbers,
    parts: _Numbers,
) -> _Numbers:
    """Groups of users with equal answers that end while one is on its way back to the queue.

    Groups end as many steps apart as the prompts of one take. A wait in a clump is drawn by chance,
    so that the prompts of those who are back first lengthen the steps that others wait through.

    Args:
        request_s: Seconds of a request on its way.
        clump_s: Mean seconds of its wait in a clump.
        plain_s: Seconds of a step that decodes alone.
        mixed_s: Seconds of a step with prompts of a group.
        taken: Prompts of a group.
        parts: Steps that they take.
    """
    share: _Numbers = _PROMPTS_BEGIN * np.clip(2 - taken / _FEW_PROMPTS, 0.0, 1.0)
    clumped_s = plain_s + share * (mixed_s - plain_s)
    return (request_s / plain_s + clump_s / clumped_s) / parts
