"""Batching with tokens drafted ahead and verified together (speculative decoding).

A decoding sequence computes k + 1 tokens in a step and gains those up to the first wrong draft
and one more, 1 to k + 1 of them. Each draft is right by the toss of a coin. A sequence tosses
its own coins, from a generator made of the run's seed and its index, so its luck does not
depend on when it is served, nor on whom it is served with; one that lost its cache goes on
where it was.

So what a sequence will gain in its steps is known when its decoding begins, and the batch
still advances by whole stretches: a ledger has, for each step ahead, how many tokens and
blocks all decoding sequences together gain in it.

Blocks are taken for all k + 1 tokens of the coming step and, where a layer
on the device drafts (MTP, EAGLE), for k more that it writes ahead (`num_lookahead_tokens`);
what is refused is written over. The step that ends a prompt verifies nothing and yields one
token.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np

from servetune.perf.roofline.step import FloatArray, StepLaw
from servetune.perf.sim.kvcache import PagedCache
from servetune.perf.sim.prefill_first import InterruptingScheduler, PrefillFirstScheduler
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import GeneratedTokens, SchedulerConfig, Sequence

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
GainArray = np.ndarray[tuple[int], np.dtype[np.int16]]

_LEDGER_STEPS = 4096


@lru_cache(maxsize=2048)
def gains_of(seed: int, index: int, steps: int, drafts: int, accepted: float) -> GainArray:
    """Tokens that one sequence gains in each of its verifications; shape (steps,), 1 to k + 1.

    The number of coins up to the first tail is geometric, so one draw stands for all k. Trials of
    one workload toss the same coins, so those of the last sequences are kept, read-only.

    Args:
        seed: Seed of the run.
        index: Number of the sequence.
        steps: Verifications.
        drafts: k, tokens drafted for each.
        accepted: Chance that a draft is right if those before it were.
    """
    if accepted in (0.0, 1.0):
        gains = np.full(steps, 1 + drafts * int(accepted), dtype=np.int16)
    else:
        tails = np.random.default_rng((seed, index)).geometric(1 - accepted, steps)
        gains = np.minimum(tails, drafts + 1).astype(np.int16)
    gains.flags.writeable = False
    return gains


class _Growth(msgspec.Struct, eq=False):
    """Growth of one stretch of a sequence's decoding; arrays have one entry per step.

    Attributes:
        first: The first step that verifies drafts.
        length: Tokens in the cache before it.
        held: Blocks before it.
        pieces: Token of the prompt's last step, and those gained in each step after it; one entry
            more than the others.
        total: Sum of gains up to and including the step.
        blocks: Held from the step on.
    """

    first: int
    length: int
    held: int
    pieces: GainArray
    total: IntArray
    blocks: IntArray

    @property
    def gains(self) -> GainArray:
        """Tokens gained in each step."""
        return self.pieces[1:]

    @property
    def taken(self) -> IntArray:
        """Blocks that each step takes."""
        taken = self.blocks.copy()
        taken[0] -= self.held
        taken[1:] -= self.blocks[:-1]
        return taken

    def gained(self, steps: int) -> int:
        """Tokens of the first `steps` steps."""
        return int(self.total[steps - 1]) if steps else 0


class _Ledger:
    """Tokens and blocks that all decoding sequences gain together in each step, by its number."""

    def __init__(self) -> None:
        self.tokens: IntArray = np.zeros(_LEDGER_STEPS, dtype=np.int64)
        self.blocks: IntArray = np.zeros(_LEDGER_STEPS, dtype=np.int64)

    def write(self, growth: _Growth, sign: int, *, skip: int = 0) -> None:
        """Enter a sequence's growth, or take it out from its step number `skip` on."""
        steps = len(growth.total)
        if skip == steps:
            return
        stop = growth.first + steps
        while stop > len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
            self.blocks = np.concatenate([self.blocks, np.zeros_like(self.blocks)])
        start = growth.first + skip
        self.tokens[start:stop] += sign * growth.gains[skip:]
        self.blocks[start:stop] += sign * growth.taken[skip:]


def _sum(counts: IntArray, first: int, steps: int) -> int:
    """Sum over some steps; beyond its end a ledger has nothing."""
    if steps == 1 and first < len(counts):
        return int(counts[first])
    return int(counts[first : first + steps].sum())


class SpeculativeScheduler(Scheduler):
    """Scheduler where every decoding sequence has `config.draft_tokens` drafts."""

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        super().__init__(config, law, cache)
        assert config.draft_tokens
        assert config.policy == "fcfs"
        assert not config.async_scheduling
        self._ledger = _Ledger()
        self._growths: dict[int, _Growth] = {}  # of decoding sequences, by index
        self._luck: dict[int, GainArray] = {}  # gains that are still to come, by index
        self._pieces: dict[int, tuple[int, ...]] = {}  # tokens of past steps, by index

    def generated_tokens(self, sequence: Sequence, *, each_token: bool = True) -> GeneratedTokens:
        """Tokens of a sequence; a piece has the tokens of one step."""
        times_s = self._times_s(sequence)
        pieces = self._pieces.get(sequence.index, ())
        missing = len(times_s) - len(pieces)
        if missing and sequence.index in self._growths:
            pieces += tuple(self._growths[sequence.index].pieces[:missing].tolist())
        elif missing:  # it ended with its prompt's step
            pieces += (1,)
        tokens = sum(pieces)
        if each_token or len(pieces) < 2:
            return GeneratedTokens(tokens, times_s, pieces)
        rest = tokens - pieces[0]
        return GeneratedTokens(tokens, (times_s[0], times_s[-1]), (pieces[0], rest))

    def gained(self, sequence: Sequence, step: int) -> int:
        """1 to k + 1, as its coins fell."""
        growth = self._growths[sequence.index]
        return int(growth.gains[step - growth.first])

    def forget(self, sequence: Sequence) -> None:
        """Drop the data of a sequence whose answer has been read."""
        super().forget(sequence)
        self._pieces.pop(sequence.index, None)
        self._luck.pop(sequence.index, None)

    def _join_batch(self, sequence: Sequence, step: int, length_at_step_0: int) -> None:
        config, cache = self._config, self.cache
        left = sequence.output_tokens - sequence.generated - 1
        luck = self._luck.get(sequence.index)
        if luck is None:
            luck = self._luck[sequence.index] = gains_of(
                config.seed,
                sequence.index,
                left,
                config.draft_tokens,
                config.draft_acceptance_fraction,
            )
        total = luck[:left].cumsum(dtype=np.int64)
        steps = int(total.searchsorted(left)) + 1
        total = total[:steps]
        pieces = np.ones(steps + 1, dtype=np.int16)
        pieces[1:] = luck[:steps]
        pieces[-1] -= total[-1] - left  # what is verified beyond the last token is thrown away
        total[-1] = left
        # A step's blocks are those of what came before it, its own tokens and the drafter's.
        blocks = np.zeros_like(total)
        blocks[1:] = total[:-1]
        blocks += sequence.computed + self.tokens_each + config.lookahead_tokens - 1
        blocks //= cache.block_tokens
        blocks += cache.state_blocks + 1
        held = cache.blocks_for(sequence.computed + config.lookahead_tokens)
        growth = _Growth(step + 1, sequence.computed, held, pieces, total, blocks)
        self._growths[sequence.index] = growth
        self._ledger.write(growth, 1)
        self._enter_batch(sequence, step, step + steps, length_at_step_0)

    def _leave_batch(self, sequence: Sequence, next_step: int) -> None:
        growth = self._growths.pop(sequence.index)
        steps = next_step - growth.first
        gained = growth.gained(steps)
        self._ledger.write(growth, -1, skip=steps)
        del self._decoding[sequence.index]
        self._answering.pop(sequence.index, None)
        self._context_tokens -= growth.length + gained
        sequence.stretches.append((sequence.first_step, next_step))
        pieces = tuple(growth.pieces[: steps + 1].tolist())
        self._pieces[sequence.index] = self._pieces.get(sequence.index, ()) + pieces
        sequence.generated += 1 + gained
        self._luck[sequence.index] = self._luck[sequence.index][steps:]

    def _length_before(self, sequence: Sequence, step: int) -> int:
        growth = self._growths[sequence.index]
        return growth.length + growth.gained(step - growth.first)

    def _held(self, sequence: Sequence, step: int, *, ahead: bool = False) -> tuple[int, int]:
        if sequence is self._cut:
            length = sequence.computed
            return length, self.cache.blocks_for(length + self._config.lookahead_tokens)
        growth = self._growths[sequence.index]
        steps = step - growth.first
        blocks = int(growth.blocks[steps - 1]) if steps else growth.held
        return growth.length + growth.gained(steps), blocks

    def _more_blocks(self, sequence: Sequence, length: int) -> int:
        lookahead_tokens = self._config.lookahead_tokens
        held_tokens = sequence.computed + (lookahead_tokens if sequence is self._cut else 0)
        blocks_for = self.cache.blocks_for
        return blocks_for(length + lookahead_tokens) - blocks_for(held_tokens)

    def _growth_blocks(self, first_step: int, steps: int) -> int:
        return _sum(self._ledger.blocks, first_step, steps)

    def _growth_tokens(self, first_step: int, steps: int) -> int:
        return _sum(self._ledger.tokens, first_step, steps)

    def _steps_that_fit(self, first_step: int, most_steps: int) -> int:
        taken = self._ledger.blocks[first_step : first_step + most_steps].cumsum()
        return int(taken.searchsorted(self._free_ahead, side="right"))

    def _decode_durations_s(self, context_tokens: int, steps: int) -> FloatArray:
        first = len(self.ends_s)
        gained = self._ledger.tokens[first : first + steps - 1]
        contexts = np.full(steps, float(context_tokens))
        contexts[1:] += gained.cumsum()
        return self._law.decode_steps_s(len(self._decoding), contexts)


class SpeculativePrefillFirst(PrefillFirstScheduler, SpeculativeScheduler):
    """SGLang's scheduler where every decoding sequence has drafts."""

    def _got(self, sequence: Sequence) -> int:
        # The last token is not in the cache yet.
        return self._length_before(sequence, len(self.ends_s)) - sequence.prompt_tokens + 1


class SpeculativeInterrupting(InterruptingScheduler, SpeculativeScheduler):
    """TGI's router where every decoding sequence has drafts."""
