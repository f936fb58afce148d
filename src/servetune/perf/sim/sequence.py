"""Limits of a scheduler, and one request inside it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

import msgspec

from servetune.perf.sim.kvcache import Block, BlockRun
from servetune.perf.sim.variants import SchedulerVariant
from servetune.workload.request import Piece

QueueOrder = Literal["fcfs", "priority"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a scheduler's steps: the fields of a resolved Plan that it reads.

    Attributes:
        state_blocks: Blocks that a sequence takes besides those of its tokens.
        prefix_caching: Whether full blocks are found again by their content.
        policy: Order of admission and of preemption.
        whole_prompt_fits: Whether a prompt waits until all of it would fit the cache, and
            not only its first part.
        async_scheduling: Whether a step is composed while the one before it runs.
        draft_tokens: Drafted for every decoding sequence and verified in its next step.
        draft_acceptance_fraction: Chance that a draft is right if those before it were.
        lookahead_tokens: Room in the cache that the drafter writes to, beyond what is verified.
        seed: Seed of the draws that accept drafts.
        variant: Scheduler that composes steps otherwise; `None` for mixed steps.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int
    capacity_blocks: int
    chunked_prefill: bool
    state_blocks: int = 0
    prefix_caching: bool = False
    policy: QueueOrder = "fcfs"
    whole_prompt_fits: bool = True
    async_scheduling: bool = False
    draft_tokens: int = 0
    draft_acceptance_fraction: float = 0.0
    lookahead_tokens: int = 0
    seed: int = 1
    variant: SchedulerVariant | None = None


class GeneratedTokens(msgspec.Struct, frozen=True):
    """Tokens that one sequence got, and their times.

    Attributes:
        tokens: Number of tokens.
        times_s: Time of each piece.
        chunk_tokens: Tokens of each piece; empty if each has one.
    """

    tokens: int
    times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...] = ()

    def until(self, time_s: float, *, each_token: bool) -> GeneratedTokens:
        """Tokens by a time.

        Args:
            time_s: Time after which nobody saw any.
            each_token: Otherwise they are two pieces, the first and the rest.
        """
        pieces = bisect_right(self.times_s, time_s)
        times_s, chunk_tokens = self.times_s[:pieces], self.chunk_tokens[:pieces]
        tokens = sum(chunk_tokens) if chunk_tokens else pieces
        if each_token or pieces < 2:
            return GeneratedTokens(tokens, times_s, chunk_tokens)
        first = chunk_tokens[0] if chunk_tokens else 1
        return GeneratedTokens(tokens, (times_s[0], times_s[-1]), (first, tokens - first))


class Sequence(msgspec.Struct, eq=False):
    """One request inside the engine.

    Attributes:
        to_compute: Tokens to prefill before the next token comes: the prompt, and after
            a preemption also what was generated.
        computed: Tokens among those that lie in the cache.
        generated: Tokens that came before the present stretch of decoding.
        stretches: Pairs (first step, step after the last) in which it got tokens.
        admitted_s: Time of its first admission; `None` while it waits.
        cached_tokens: Tokens of the prompt that the prefix cache had on first admission.
        preemptions: Number of times it lost its cache.
        pieces: Known content, from the first token on.
        brought_tokens: Tokens of the prompt that another engine computed and sent; 0 once
            it lies in this one's cache.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[Piece, ...] = ()
    priority: int = 0
    brought_tokens: int = 0
    to_compute: int = 0
    computed: int = 0
    generated: int = 0
    stretches: list[tuple[int, int]] = []
    admitted_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    arrived: int = 0
    order: int = -1
    first_step: int = 0
    finish_step: int = -1
    length_at_step_0: int = 0
    # What the cache knows of it (`kvcache.Holder`).
    keys: tuple[int, ...] = ()
    known: list[Block] = []
    run: BlockRun | None = None

    def __post_init__(self) -> None:
        self.to_compute = self.prompt_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Order by priority; the smallest is served first."""
        return self.priority, self.arrived
