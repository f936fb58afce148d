"""Which scheduler plays which rules."""

from __future__ import annotations

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.batcher import Batcher, Rules
from servetune.perf.sim.drafts import DraftingBatcher

__all__ = ["batcher_of"]


def batcher_of(rules: Rules, law: StepLaw) -> Batcher:
    """A scheduler under these rules, with nothing to do."""
    return DraftingBatcher(rules, law) if rules.draft_tokens else Batcher(rules, law)
