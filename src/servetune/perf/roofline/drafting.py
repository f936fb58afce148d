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

from servetune.plan.plan import Plan

#: Acceptance where the plan states none; the estimate notes it. A judgement, not a measurement.
ASSUMED_ACCEPTANCE = 0.6

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


def drafts_on_device(plan: Plan) -> int:
    """Drafted tokens per step that a layer on the device computes."""
    if plan.draft_method in _LOOKED_UP:
        return 0
    return plan.draft_tokens or 0
