"""Prompts of a trial's requests."""

from __future__ import annotations

from servetune.trials.trial import StudyContext, Trial
from servetune.workload.prepare import prepare
from servetune.workload.prompts import Prompt

SMALLEST_VOCAB = 2048
"""Token ids below this are in every vocabulary that serves a language model."""


def prompts_for(trial: Trial, run: StudyContext, *, seed: int) -> tuple[Prompt, ...]:
    """One prompt for each request of the trial's workload.

    Random prompts are token ids, which are exact, where the route takes them; the chat
    route takes words, exact where the model's tokenizer is at hand.

    Args:
        trial: Trial with its workload.
        run: Context with the model's vocabulary.
        seed: Seed of random words; requests do not depend on it.
    """
    vocab_size = run.shape.vocab if run.shape else SMALLEST_VOCAB
    return prepare(trial.workload, vocab_size=vocab_size, words_seed=seed).prompts
