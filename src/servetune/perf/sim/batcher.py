"""Continuous batching as vLLM V1 does it, one replica, one step after another.

Each step has a budget of `max_num_batched_tokens`. Running sequences take one token each,
then the rest goes to prompts in order of arrival, the last of which may be cut (chunked
prefill) and continues in the next step before new ones. When blocks run out, the sequence
that was admitted last gives its blocks back, returns to the head of the queue and will
compute its prompt and its tokens again; in such a step nothing new is admitted.

Between two changes of the batch all running sequences advance together. Such a stretch is
planned as a whole (`decode_run_s`) and cut short when something arrives, so the work grows
with the number of requests and not with the number of tokens.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque

import msgspec

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.kvcache import PagedCache

__all__ = ["Batcher", "Rules", "Sequence"]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a step: the fields of a resolved Plan that the scheduler reads.

    Attributes:
        state_blocks: What a sequence takes of the cache beside its tokens.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int
    capacity_blocks: int
    chunked_prefill: bool
    state_blocks: int = 0


class Sequence:
    """One request inside the engine.

    Attributes:
        to_compute: Tokens to prefill before the next token comes: the prompt, and after
            a preemption also what was generated.
        computed: Of those, tokens that lie in the cache.
        generated: Tokens that came before the present stretch of decoding.
        stretches: Pairs (first step, step after the last) in which it got tokens.
        admitted_s: When its prompt was first taken up; `None` while it waits.
    """

    __slots__ = (
        "admitted_s",
        "computed",
        "finish_step",
        "first_step",
        "generated",
        "index",
        "length_at_step_0",
        "order",
        "output_tokens",
        "prompt_tokens",
        "stretches",
        "to_compute",
    )

    def __init__(self, index: int, prompt_tokens: int, output_tokens: int) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.to_compute = prompt_tokens
        self.computed = 0
        self.generated = 0
        self.admitted_s: float | None = None
        self.stretches: list[tuple[int, int]] = []
        self.order = 0
        self.first_step = 0
        self.finish_step = -1
        self.length_at_step_0 = 0


class Batcher:
    """One replica's scheduler and its clockwork of steps.

    The caller alternates `plan` and `commit`; `interrupt` in between tells of arrivals.

    Attributes:
        ends_s: When each committed step ended.
        busy_s: Time in steps.
        preemptions: Sequences that lost their cache.
    """

    def __init__(self, rules: Rules, law: StepLaw) -> None:
        self.ends_s: list[float] = []
        self.busy_s = 0.0
        self.preemptions = 0
        self.cache = PagedCache(rules.capacity_blocks, rules.block_tokens, rules.state_blocks)
        self._law = law
        self._rules = rules
        self._max_seqs = min(rules.max_num_seqs, rules.max_num_batched_tokens)
        self._waiting: deque[Sequence] = deque()
        self._decoding: dict[int, Sequence] = {}  # in order of admission
        self._cut: Sequence | None = None  # its prompt was cut by the budget
        self._context_tokens = 0  # cached tokens of all decoding sequences
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._admitted = 0
        self._start_s = 0.0
        self._planned_ends_s: list[float] = []
        self._parts: list[tuple[Sequence, int]] = []

    @property
    def running(self) -> int:
        return len(self._decoding) + (self._cut is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def planned_end_s(self) -> float | None:
        """When the planned steps end; `None` when idle."""
        return self._planned_ends_s[-1] if self._planned_ends_s else None

    def enqueue(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def plan(self, now_s: float) -> float | None:
        """Compose what runs next from `now_s` on; the end of it, or `None` when idle."""
        self._start_s = now_s
        self._parts = []
        preempted_before = self.preemptions
        self._make_room()
        self._choose_prefills(admit=self.preemptions == preempted_before)
        if self._parts:
            self._planned_ends_s = [now_s + self._mixed_step_s()]
        elif self._decoding:
            preempted = self.preemptions > preempted_before
            self._planned_ends_s = self._decode_run(now_s, single=preempted)
        else:
            self._planned_ends_s = []
        return self.planned_end_s

    def interrupt(self, now_s: float) -> bool:
        """Cut the planned stretch at the end of the step that runs at `now_s`.

        Returns:
            Whether the planned end moved. It does not where the batch is full anyway.
        """
        ends_s = self._planned_ends_s
        if len(ends_s) < 2 or self.running >= self._max_seqs:
            return False
        kept = bisect_left(ends_s, now_s) + 1
        if kept >= len(ends_s):
            return False
        del ends_s[kept:]
        return True

    def commit(self) -> list[Sequence]:
        """Let the planned steps have happened; the sequences that ended, in order."""
        first, steps = len(self.ends_s), len(self._planned_ends_s)
        self.cache.take(self.cache.growth_blocks(first, steps))
        self._context_tokens += steps * len(self._decoding)
        self.ends_s += self._planned_ends_s
        self.busy_s += self._planned_ends_s[-1] - self._start_s
        self._planned_ends_s = []
        ended = self._prefills_done(first)
        ended += self._decodes_done(first + steps)
        return ended

    def stop(self, now_s: float) -> None:
        """Let the planned steps that end by `now_s` have happened, and no other.

        What every sequence got by then is in its stretches; nothing can follow.
        """
        del self._planned_ends_s[bisect_right(self._planned_ends_s, now_s) :]
        if self._planned_ends_s:
            self.commit()
        for sequence in self._decoding.values():
            sequence.stretches.append((sequence.first_step, len(self.ends_s)))

    def _make_room(self) -> None:
        """Preempt until every decoding sequence can store one more token."""
        step = len(self.ends_s)
        while self.cache.growth_blocks(step, 1) > self.cache.free_blocks:
            self._preempt(self._cut or next(reversed(self._decoding.values())))

    def _choose_prefills(self, *, admit: bool) -> None:
        if self._cut is None and not (admit and self._waiting):
            return
        rules, cache = self._rules, self.cache
        # Blocks for this step's decodes are taken on commit: leave them alone.
        spare = cache.free_blocks - cache.growth_blocks(len(self.ends_s), 1)
        budget = rules.max_num_batched_tokens - len(self._decoding)
        if self._cut is not None:
            tokens = min(self._cut.to_compute - self._cut.computed, budget)
            blocks = self._more_blocks(self._cut, tokens)
            if blocks > spare:
                self._preempt(self._cut)
                return
            self._add_part(self._cut, tokens, blocks)
            spare -= blocks
            budget -= tokens
        while admit and self._waiting and budget > 0 and self._in_step < self._max_seqs:
            sequence = self._waiting[0]
            tokens = min(sequence.to_compute, budget)
            blocks = self._more_blocks(sequence, tokens)
            if blocks > spare or (tokens < sequence.to_compute and not rules.chunked_prefill):
                return
            self._waiting.popleft()
            sequence.order = self._admitted
            if sequence.admitted_s is None:
                sequence.admitted_s = self._start_s
            self._admitted += 1
            self._add_part(sequence, tokens, blocks)
            spare -= blocks
            budget -= tokens

    @property
    def _in_step(self) -> int:
        return len(self._decoding) + len(self._parts)

    def _more_blocks(self, sequence: Sequence, tokens: int) -> int:
        cache = self.cache
        return cache.blocks_for(sequence.computed + tokens) - cache.blocks_for(sequence.computed)

    def _add_part(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        self.cache.take(blocks)
        self._parts.append((sequence, tokens))

    def _mixed_step_s(self) -> float:
        tokens = sum(part for _, part in self._parts)
        pairs = sum(part * seq.computed + part * (part + 1) / 2 for seq, part in self._parts)
        completed = sum(seq.computed + part == seq.to_compute for seq, part in self._parts)
        decoding = len(self._decoding)
        return self._law.seconds(
            tokens, pairs, completed, decoding, self._context_tokens + decoding
        )

    def _decode_run(self, now_s: float, *, single: bool) -> list[float]:
        """Ends of all steps up to the next change that is known by now."""
        step, decoding = len(self.ends_s), len(self._decoding)
        steps = 1 if single else self._next_finish() - step + 1
        steps = self.cache.steps_that_fit(step, steps)
        context_tokens = self._context_tokens + decoding
        if steps == 1:
            return [now_s + self._law.seconds(0, 0.0, 0, decoding, context_tokens)]
        durations_s = self._law.decode_run_s(decoding, context_tokens, steps)
        ends_s: list[float] = (now_s + durations_s.cumsum()).tolist()
        return ends_s

    def _next_finish(self) -> int:
        """The step in which a decoding sequence ends first; stale entries are dropped."""
        while True:
            step, _, sequence = self._finishes[0]
            if sequence.index in self._decoding and sequence.finish_step == step:
                return step
            heapq.heappop(self._finishes)

    def _prefills_done(self, step: int) -> list[Sequence]:
        ended = []
        self._cut = None
        for sequence, tokens in self._parts:
            sequence.computed += tokens
            if sequence.computed < sequence.to_compute:
                self._cut = sequence
            elif sequence.generated + 1 == sequence.output_tokens:
                sequence.stretches.append((step, step + 1))
                self.cache.give_back(self.cache.blocks_for(sequence.computed))
                ended.append(sequence)
            else:
                self._start_decoding(sequence, step)
        self._parts = []
        return ended

    def _start_decoding(self, sequence: Sequence, step: int) -> None:
        """Its first token of this stretch came at the end of `step`."""
        sequence.first_step = step
        sequence.finish_step = step + sequence.output_tokens - sequence.generated - 1
        sequence.length_at_step_0 = sequence.computed - (step + 1)
        self._decoding[sequence.index] = sequence
        self._context_tokens += sequence.computed
        self.cache.start_growing(sequence.length_at_step_0)
        heapq.heappush(self._finishes, (sequence.finish_step, sequence.order, sequence))

    def _decodes_done(self, next_step: int) -> list[Sequence]:
        ended = []
        while self._finishes and self._finishes[0][0] < next_step:
            step, _, sequence = heapq.heappop(self._finishes)
            if sequence.index in self._decoding and sequence.finish_step == step:
                self._stop_decoding(sequence, next_step)
                ended.append(sequence)
        return ended

    def _stop_decoding(self, sequence: Sequence, next_step: int) -> None:
        """Take it out of the batch before `next_step`, with its blocks."""
        length = sequence.length_at_step_0 + next_step
        del self._decoding[sequence.index]
        self._context_tokens -= length
        self.cache.stop_growing(sequence.length_at_step_0)
        self.cache.give_back(self.cache.blocks_for(length))
        sequence.stretches.append((sequence.first_step, next_step))
        sequence.generated += next_step - sequence.first_step

    def _preempt(self, sequence: Sequence) -> None:
        if sequence is self._cut:
            self._cut = None
            self.cache.give_back(self.cache.blocks_for(sequence.computed))
        else:
            self._stop_decoding(sequence, len(self.ends_s))
        sequence.to_compute = sequence.prompt_tokens + sequence.generated
        sequence.computed = 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1
