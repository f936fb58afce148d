"""Steps at a rate: each computes the prompts that came during the one before.

Requests come by chance, r a second. A step of g prompts takes a + b g seconds, and one without
prompts, which decodes, d seconds. Steps with prompts in a row are a phase: an engine that computes
prompts before it decodes has no token meanwhile, one that mixes both has longer steps. The prompts
that come during a step are a Markov chain, whose generating function f at z follows from that at
s(z) = exp(-r b (1 - z)):

    f(z) = A(z) f(s(z)) + q B(z),    A(z) = exp(-r a (1 - z)),    B(z) = exp(-r d (1 - z)) - A(z)

where q = f(0) is the share of steps without prompts. From z = 0 on s(z) goes to 1, where f is 1;
that gives q. The same recursion, begun with the prompts of a request's own step, counts the steps
and prompts that still come before its phase is over. `tests/perf/test_prefill_phases.py` holds it
to a simulated chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from servetune.perf.roofline.step_laws import Array

#: Terms of the recursion; the rest is summed as of points near 1.
_TERMS = 12
#: Least share of steps that compute prompts, and least chance that a phase ends.
_FEWEST, _LEAST_END = 1e-12, 1e-30


class Phases(NamedTuple):
    """Means of requests that come by chance, each of shape (R,); times in seconds.

    Attributes:
        waited_s: Rest of the step in progress when it comes.
        own_s: Step of its prompt.
        own_prompts: Prompts of that step.
        later_prompts: Prompts of later steps of the same phase; as many are in earlier ones.
        rest_s: Time of those later steps.
        phase_s: Steps with prompts from one step without to the next; most often there is none.
        step_s: A step, with prompts or without.
        computing: Share of steps that have prompts.
        group: Prompts of one of those.
    """

    waited_s: Array
    own_s: Array
    own_prompts: Array
    later_prompts: Array
    rest_s: Array
    phase_s: Array
    step_s: Array
    computing: Array
    group: Array


def phases(rate: Array, fixed_s: Array, prompt_s: Array, decode_s: Array, varied: Array) -> Phases:
    """Phases of prompts; all arguments of shape (R,).

    Args:
        rate: Requests per second; times `prompt_s` below one.
        fixed_s: Time of a step of prompts whatever their number.
        prompt_s: Further time of each prompt.
        decode_s: Step without prompts.
        varied: Squared coefficient of variation of `prompt_s`.
    """
    load, fixed, plain = rate * prompt_s, rate * fixed_s, rate * decode_s
    points = [np.ones_like(rate)]  # 1 - z
    for _ in range(_TERMS):
        points.append(-np.expm1(-load * points[-1]))
    away, last = np.array(points[:-1]), points[-1]
    beyond = 2 / load**2 * np.log1p(load**2 * last / (2 * (1 - load)))  # sum of all later points
    shares, others = np.exp(-fixed * away), np.exp(-plain * away)
    reached = np.cumprod(shares, axis=0)
    weights = np.concatenate([np.ones((1, len(rate))), reached[:-1]])
    end = np.maximum(_LEAST_END, reached[-1] * np.exp(-fixed * beyond))
    added = (weights * (others - shares)).sum(axis=0) + reached[-1] * (fixed - plain) * beyond
    decoding = np.minimum(end / (1 - added), 1 - _FEWEST)
    computing = 1 - decoding
    group = (plain * decoding / computing + fixed) / (1 - load)
    coming = computing * group  # prompts per step
    step_s = decoding * decode_s + computing * (fixed_s + prompt_s * group)
    # Second moments of a step's time and of its prompts, each part of the other.
    square_s = decoding * decode_s**2 + computing * fixed_s**2
    square_s = square_s + coming * prompt_s * (2 * fixed_s + varied * prompt_s)
    square_s = (square_s + coming * prompt_s**2) / (1 - load**2)
    own_prompts = 1 + rate * square_s / step_s
    own_s = fixed_s + prompt_s * own_prompts
    # f and its slope from the last point back, as the prompts of a step weigh by their number.
    value, slope = 1 - coming * last, coming
    left = reached[-1] * (fixed + load * own_prompts) * beyond
    for k in range(_TERMS - 1, -1, -1):
        z = 1 - points[k + 1]
        left = left + weights[k] * (1 - shares[k] * z * slope / coming)
        slope = shares[k] * (fixed * value + load * z * slope) + decoding * (
            plain * others[k] - fixed * shares[k]
        )
        value = shares[k] * value + decoding * (others[k] - shares[k])
    steps = left / end
    later_prompts = (rate * own_s + fixed * steps) / (1 - load)
    return Phases(
        waited_s=square_s / step_s / 2,
        own_s=own_s,
        own_prompts=own_prompts,
        later_prompts=later_prompts,
        rest_s=fixed_s * steps + prompt_s * later_prompts,
        phase_s=computing / decoding * (fixed_s + prompt_s * group),
        step_s=step_s,
        computing=computing,
        group=group,
    )
