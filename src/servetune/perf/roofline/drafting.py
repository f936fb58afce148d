"""Tokens drafted ahead and verified together (speculative decoding), in their steady state.

| symbol | here |
|---|---|
| k | tokens drafted per step, `Plan.draft_tokens` |
| a | chance that a drafted token is right if all before it were |
| m | tokens that a sequence gains per step, 1 <= m <= k + 1 |

A step verifies k + 1 tokens of every sequence in one pass: matrices and attention compute all
of them, weights and cache are read once. The accepted ones are those up to the first that is
wrong, and the pass itself yields one more, so

    m = 1 + a + a^2 + ... + a^k

Acceptance of each place is taken to be alike and independent; real drafters are surer of the
first token than of the last (DeepSeek-V3's report of 2024 gives 85 to 90% for the one token
that its MTP layer drafts). Drafting costs, per drafted token, one layer's share of a step and
the output head (MTP, EAGLE), or nothing on the device (ngram).
"""

from __future__ import annotations

import math

import msgspec

from servetune.plan.plan import Plan

#: Acceptance where the plan states none; the estimate notes it. A judgement, not a measurement.
ASSUMED_ACCEPTANCE = 0.6
#: Standard deviation of its log odds, for drafts that are looked up in the text and for drafts that
#: a network computes. Public figures, each as the `a` that gives the tokens gained per step, spread
#: so far about 0.6 (vLLM's pull request 24344 and issue 19254, nebius' model card of the MTP layer
#: of DeepSeek-V3-0324, DeepSeek-V3's report, llama.cpp's pull request 24536; read in 2026-11):
#: n-grams 0.09 and 0.16 on mixed prompts and 0.72 on edits of code, the steps counted in which
#: nothing was found; MTP 0.70 of seven tokens and 0.85 to 0.90 of one; EAGLE 0.70 and 0.75 of
#: three. 90% intervals are 0.11 to 0.95 and 0.29 to 0.85.
_LOOKED_UP_SD, _COMPUTED_SD = 1.5, 0.8

#: Halvings by which an acceptance is found.
_HALVINGS = 50

_LOOKED_UP = ("ngram", "ngram_gpu", "suffix")


def acceptance_of(plan: Plan) -> float:
    """Chance that a drafted token is right: the plan's, or the one assumed."""
    given = plan.draft_acceptance_fraction
    return ASSUMED_ACCEPTANCE if given is None else given


def tokens_per_step(plan: Plan) -> float:
    """m: tokens that a decoding sequence gains per step, on average; 1 without drafts.

    Example:
        >>> tokens_per_step(Plan(model="m"))
        1.0
        >>> tokens_per_step(Plan(model="m", draft_tokens=2, draft_acceptance_fraction=0.5))
        1.75
    """
    accepted = acceptance_of(plan)
    return float(sum(accepted**place for place in range((plan.draft_tokens or 0) + 1)))


def acceptance_for(drafted: int, gained: float) -> float:
    """a: chance that a drafted token is right, where so many gain m tokens per step.

    Args:
        drafted: k, tokens drafted per step.
        gained: m, from 1 to k + 1, as servers and load clients report it ("accept length").

    Example:
        >>> acceptance_for(2, 1.75)
        0.5
        >>> acceptance_for(3, 1.0), acceptance_for(3, 4.0)
        (0.0, 1.0)
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = sum(middle**place for place in range(drafted + 1)) < gained
        low, high = (middle, high) if short else (low, middle)
    return round(high, 12)


def log_odds(fraction: float) -> float:
    """Logarithm of the odds of a share."""
    return math.log(fraction / (1 - fraction))


def acceptance_sd(plan: Plan) -> float:
    """Standard deviation of the log odds of a plan's acceptance; 0 where it is stated, and without
    drafts.
    """
    if plan.draft_tokens is None or plan.draft_acceptance_fraction is not None:
        return 0.0
    return _LOOKED_UP_SD if plan.draft_method in _LOOKED_UP else _COMPUTED_SD


def shifted_acceptance(plan: Plan, log_odds_shift: float) -> float:
    """Acceptance of a plan with its log odds shifted.

    Example:
        >>> round(shifted_acceptance(Plan(model="m", draft_tokens=1), -1.0), 2)
        0.36
    """
    return 1 / (1 + math.exp(-log_odds(acceptance_of(plan)) - log_odds_shift))


def doubt_about_drafts(plan: Plan) -> float:
    """Standard deviation of the logarithm of the time per token that an assumed acceptance brings:
    half the logarithm of m at one deviation more over m at one deviation less.
    """
    sd = acceptance_sd(plan)
    if not sd:
        return 0.0
    few, many = (
        tokens_per_step(
            msgspec.structs.replace(
                plan, draft_acceptance_fraction=shifted_acceptance(plan, towards * sd)
            )
        )
        for towards in (-1, 1)
    )
    return math.log(many / few) / 2


def drafts_on_device(plan: Plan) -> int:
    """Drafted tokens per step that a layer on the device computes."""
    if plan.draft_method in _LOOKED_UP:
        return 0
    return plan.draft_tokens or 0
