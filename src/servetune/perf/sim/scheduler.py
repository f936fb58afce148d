"""Continuous batching in mixed steps: one replica, one step after another.

Each step has a budget of `max_num_batched_tokens`. Running sequences take one token each,
then the rest goes to prompts in order of arrival, the last of which may be cut (chunked
prefill) and continues in the next step before new ones. A prompt is admitted when the whole
of it would fit the free blocks, even if only a part of it is computed at once. What the
prefix cache has of it is not computed again, except its last token. When blocks run out, the
sequence that was admitted last gives its blocks back, returns to the head of the queue and
will compute its prompt and its tokens again; in such a step nothing new is admitted.

By priority, prompts come by (priority, arrival), and the last by the same order loses its
cache. When that is the very sequence which found no block, those admitted after it miss the
step.

With asynchronous scheduling a step is composed when the one before it begins. So what arrives
during a step is seen one step later, and who ends in a step takes no part in the next one but
keeps place and blocks while that is composed. Where nothing can be composed ahead, the step is
composed when the one before it has ended, as without.

Between two changes of the batch all running sequences advance together. Such a stretch is
planned as a whole (`decode_run_s`) and cut short when something arrives, so the work grows
with the number of requests and not with the number of tokens.

Batches that a pipeline has in flight share one cache. Each has a scheduler, which then takes the
blocks of a stretch when it is planned, so that no other finds them free: a small part of what is
free (`_AHEAD`), so that stretches are short where others lack room. What a cut leaves is put back.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as Several
from itertools import chain

from servetune.perf.roofline.step import FloatArray, StepLaw
from servetune.perf.sim.kvcache import GrowingSequences, Hit, PagedCache, block_keys
from servetune.perf.sim.sequence import GeneratedTokens, SchedulerConfig, Sequence
from servetune.perf.sim.variants import PrefillFirstVariant
from servetune.perf.sim.waiting_queue import FifoQueue, PriorityQueue, WaitingQueue

#: One in so many free blocks is taken by a stretch at most, after its first step, where others take
#: blocks of the same cache: the fewer, the fewer sequences lose theirs for blocks not needed yet.
_AHEAD = 16


def cache_of(config: SchedulerConfig) -> PagedCache:
    """An empty cache for schedulers of these limits."""
    return PagedCache(
        config.capacity_blocks,
        config.block_tokens,
        config.state_blocks,
        prefix_caching=config.prefix_caching,
        merges=isinstance(config.variant, PrefillFirstVariant),
    )


class Scheduler:
    """Continuous batching of one rank, planned in stretches of steps.

    The caller alternates `plan` and `commit`; `interrupt` in between reports arrivals.

    Args:
        config: Limits.
        law: Step times.
        cache: Cache that it shares with other schedulers; one of its own if omitted.

    Attributes:
        ends_s: End of each committed step.
        busy_s: Time in steps.
        preemptions: Number of times a sequence lost its cache.
        tokens_each: Tokens that a decoding sequence computes in a step.
        admitted_prompt_tokens: Tokens of all admitted prompts, each counted once.
        cached_prompt_tokens: Tokens among those that the prefix cache had.
    """

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        self.ends_s: list[float] = []
        self.busy_s = 0.0
        self.preemptions = 0
        self.admitted_prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.cache = cache or cache_of(config)
        self._shares_cache = cache is not None
        self._growing = GrowingSequences(config.block_tokens)
        self._law = law
        self._config = config
        self.tokens_each = 1 + config.draft_tokens
        self._max_seqs = max(
            1, min(config.max_num_seqs, config.max_num_batched_tokens // self.tokens_each)
        )
        self._waiting: WaitingQueue = (
            PriorityQueue() if config.policy == "priority" else FifoQueue()
        )
        self._decoding: dict[int, Sequence] = {}  # in order of admission
        self._cut: Sequence | None = None  # its prompt was cut by the budget
        self._paused: list[Sequence] = []  # miss the planned step
        self._leaving: list[Sequence] = []  # ended, but not for who composes ahead
        self._unseen: deque[tuple[int, Sequence]] = deque()  # with the first step that may see it
        self._answering: dict[int, Sequence] = {}  # decoding what later prompts may contain
        self._context_tokens = 0  # cached tokens of all decoding sequences
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._arrivals = 0
        self._admitted = 0
        self._queue_stands = False  # its head found no room when the stretch was planned
        self._start_s = 0.0
        self._planned_ends_s: list[float] = []
        self._parts: list[tuple[Sequence, int]] = []

    @property
    def running(self) -> int:
        return len(self._decoding) + (self._cut is not None) + len(self._paused)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._unseen)

    @property
    def wants_room(self) -> bool:
        """Whether more free blocks may change what comes next."""
        return bool(self.waiting or self._cut)

    @property
    def planned_end_s(self) -> float | None:
        """End of the planned steps; `None` when idle."""
        return self._planned_ends_s[-1] if self._planned_ends_s else None

    @property
    def planned_ends_s(self) -> Several[float]:
        """End of each planned step."""
        return self._planned_ends_s

    @property
    def decoding(self) -> Collection[Sequence]:
        """Sequences that get a token in every planned step, in order of admission."""
        return self._decoding.values()

    @property
    def prefilling(self) -> Several[tuple[Sequence, int]]:
        """Prompts that the planned step computes besides those, and how many tokens of each."""
        return self._parts

    @property
    def planned_steps(self) -> int:
        return len(self._planned_ends_s)

    def planned_tokens(self) -> dict[int, int]:
        """Tokens of each sequence, by index, in each of the planned steps."""
        tokens = dict.fromkeys(self._decoding, self.tokens_each)
        tokens.update((sequence.index, part) for sequence, part in self._parts)
        return tokens

    def enqueue(self, sequence: Sequence) -> None:
        sequence.arrived = self._arrivals
        self._arrivals += 1
        if self._config.prefix_caching and sequence.pieces:
            sequence.keys = block_keys(sequence.pieces, self._config.block_tokens)
        if self._config.async_scheduling:
            self._unseen.append((self._first_unplanned_step + 1, sequence))
        else:
            self._waiting.append(sequence)

    def plan(self, now_s: float) -> float | None:
        """Compose what runs next from `now_s` on; the end of it, or `None` when idle."""
        self._start_s = now_s
        self._see_arrivals(before=self.steps + 1)
        while True:
            self._parts = []
            preempted_before = self.preemptions
            self._store_next_tokens()
            preempted = self.preemptions > preempted_before
            if not preempted:
                self._choose_prefills()
            # What was composed ahead may look different in the step after.
            single = preempted or bool(self._unseen or (self._leaving and self._waiting))
            single = single or self._head_awaits_answer()
            late = preempted or bool(self._unseen or self._leaving)
            self._let_go()
            if self._parts:
                self._planned_ends_s = [now_s + self._mixed_step_s()]
            elif self._decoding:
                self._planned_ends_s = self._decode_run(now_s, single=single)
                self._queue_stands = self._config.policy == "fcfs" and bool(self._waiting)
            elif late:  # a step without tokens takes no time
                self._resume_paused()
                self._see_arrivals()
                continue
            else:
                self._planned_ends_s = []
            return self.planned_end_s

    def interrupt(self, now_s: float) -> bool:
        """Cut the planned stretch at the end of the step that runs at `now_s`.

        Returns:
            Whether the planned end moved. It does not where the batch is full anyway, nor
            where one that came earlier waits for memory.
        """
        kept = self._steps_to_keep(now_s)
        if self._config.async_scheduling:
            first_step_after = self.steps + kept
            recent: deque[Sequence] = deque()
            while self._unseen and self._unseen[-1][0] > first_step_after:
                recent.appendleft(self._unseen.pop()[1])
            self._unseen.extend((first_step_after, sequence) for sequence in recent)
        if self.running >= self._max_seqs or self._queue_stands:
            return False
        return self._keep(kept)

    def cut_short(self, now_s: float) -> bool:
        """Cut the planned stretch as `interrupt` does, even where the batch is full."""
        return self._keep(self._steps_to_keep(now_s))

    def room_came(self) -> None:
        """Look again at who waits with the next step: another scheduler gave blocks back."""
        self._queue_stands = False

    def _steps_to_keep(self, now_s: float) -> int:
        """Planned steps that have begun, and the one that is composed meanwhile."""
        return bisect_left(self._planned_ends_s, now_s) + 1 + self._config.async_scheduling

    def _keep(self, steps: int) -> bool:
        if steps >= len(self._planned_ends_s):
            return False
        if self._shares_cache:
            left_out = len(self._planned_ends_s) - steps
            self.cache.put_back(self._growth_blocks(len(self.ends_s) + steps, left_out))
        del self._planned_ends_s[steps:]
        return True

    def commit(self) -> list[Sequence]:
        """Let the planned steps have happened; the sequences that ended, in order."""
        first, steps = len(self.ends_s), len(self._planned_ends_s)
        if steps > 1 and not self._shares_cache:  # the first step's were taken when it was planned
            self.cache.take(self._growth_blocks(first + 1, steps - 1))
        self._context_tokens += self._growth_tokens(first, steps)
        self.ends_s += self._planned_ends_s
        self.busy_s += self._planned_ends_s[-1] - self._start_s
        self._planned_ends_s = []
        ended = self._decodes_done(first + steps)
        ended += self._prefills_done(first)
        self._resume_paused()
        return ended

    def abort(self, sequence: Sequence) -> bool:
        """Take a sequence that has not ended out for good, with its blocks.

        Returns:
            Whether it is out. One that waits may go at any time, another only while nothing
            is planned: a step that has begun is finished with it.
        """
        for entry in self._unseen:
            if entry[1] is sequence:
                self._unseen.remove(entry)
                return True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return True
        if self._planned_ends_s:
            return False
        step = len(self.ends_s)
        length, blocks = self._held(sequence, step)
        if sequence is self._cut:
            self._cut = None
        else:
            self._leave_batch(sequence, step)
        self.cache.give_back(sequence, length, reusable=False, blocks=blocks)
        return True

    def stop(self, now_s: float) -> list[Sequence]:
        """Let the planned steps that end by `now_s` have happened, and no other."""
        ends_s, self._planned_ends_s = self._planned_ends_s, []
        self._planned_ends_s = ends_s[: bisect_right(ends_s, now_s)]
        ended_some = bool(self._planned_ends_s)
        ended = self.commit() if ended_some else []
        if ends_s and ends_s[-1] > now_s:  # one is under way
            since_s = self.ends_s[-1] if ended_some else self._start_s
            self.busy_s += now_s - since_s
        return ended

    def generated_tokens(self, sequence: Sequence, *, each_token: bool = True) -> GeneratedTokens:
        """Tokens of a sequence in all committed steps.

        Args:
            sequence: Sequence that was enqueued here.
            each_token: Otherwise an answer is two pieces, its first token and the rest.
        """
        times_s = self._times_s(sequence)
        tokens = len(times_s)
        if each_token or tokens < 2:
            return GeneratedTokens(tokens, times_s)
        return GeneratedTokens(tokens, (times_s[0], times_s[-1]), (1, tokens - 1))

    def gained(self, _sequence: Sequence, _step: int) -> int:
        """Tokens that a decoding sequence gains in a planned step, by its number."""
        return 1

    def forget(self, sequence: Sequence) -> None:
        """Drop the data of a sequence whose answer has been read."""

    def ended_s(self, sequence: Sequence) -> float:
        """Time of the last token of a sequence that has all of them."""
        return self.ends_s[sequence.stretches[-1][1] - 1]

    @property
    def steps(self) -> int:
        """Forward passes so far."""
        return len(self.ends_s)

    def _stretches_of(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Pairs (first step, step after the last) in which it got tokens so far."""
        if self._decoding.get(sequence.index) is not sequence:
            return sequence.stretches
        return [*sequence.stretches, (sequence.first_step, len(self.ends_s))]

    def _times_s(self, sequence: Sequence) -> tuple[float, ...]:
        """End of each step in which it got tokens so far."""
        stretches = self._stretches_of(sequence)
        return tuple(chain.from_iterable(self.ends_s[first:stop] for first, stop in stretches))

    @property
    def _first_unplanned_step(self) -> int:
        return self.steps + len(self._planned_ends_s)

    def _see_arrivals(self, before: float = math.inf) -> None:
        """Queue what may be seen by steps `before` one, all of it by default."""
        while self._unseen and self._unseen[0][0] < before:
            self._waiting.append(self._unseen.popleft()[1])

    def _let_go(self) -> None:
        for sequence in self._leaving:
            self.cache.give_back(sequence, sequence.computed, reusable=False)
        self._leaving = []

    def _end(self, sequence: Sequence, length: int, blocks: int) -> None:
        """End a sequence with all its tokens, of which `length` lie in some blocks."""
        if self._config.async_scheduling:
            sequence.computed = length
            self._leaving.append(sequence)
        else:
            self.cache.give_back(sequence, length, reusable=False, blocks=blocks)

    def _store_next_tokens(self) -> None:
        """Take the blocks of the next step's running sequences; preempt where they lack."""
        step, cut = len(self.ends_s), self._cut
        by_priority = self._config.policy == "priority"
        tokens = blocks = 0
        if cut is not None:
            budget = self._config.max_num_batched_tokens - self._decode_tokens
            tokens = min(cut.to_compute - cut.computed, budget)
            blocks = self._more_blocks(cut, cut.computed + tokens)
        growth_blocks = self._growth_blocks(step, 1)
        if by_priority and growth_blocks + blocks > self.cache.free_blocks:
            self._store_by_priority(step)
            return
        taken = 0
        while growth_blocks - taken > self.cache.free_blocks:
            # Who comes before the one that found no block has taken the last of them.
            taken += self.cache.free_blocks
            self.cache.take(self.cache.free_blocks)
            self._preempt(self._last_admitted())
            growth_blocks = self._growth_blocks(step, 1)
        self.cache.take(growth_blocks - taken)
        if self._cut is None:
            return
        while blocks > self.cache.free_blocks:
            victim = self._last_admitted()
            self._preempt(victim)
            if victim is cut:
                return
        self._add_part(self._cut, tokens, blocks)

    def _last_admitted(self) -> Sequence:
        last = self._cut or next(reversed(self._decoding.values()))
        return max([last, *self._leaving], key=lambda each: each.order)

    def _store_by_priority(self, step: int) -> None:
        """The same, one sequence after another, as the order of preemption asks for it."""
        cache, size = self.cache, self._config.block_tokens
        running = [*self._decoding.values(), *self._leaving]
        running.sort(key=lambda each: each.order)
        if self._cut is not None:
            running.append(self._cut)
        position = tokens = 0
        while position < len(running):
            sequence = running[position]
            if sequence in self._leaving:
                position += 1
                continue
            if sequence is self._cut:
                stored = sum(each not in self._leaving for each in running[:position])
                budget = self._config.max_num_batched_tokens - stored
                tokens = min(sequence.to_compute - sequence.computed, budget)
                blocks = self._more_blocks(sequence, sequence.computed + tokens)
            else:
                blocks = int((sequence.length_at_step_0 + step) % size == 0)
            while blocks > cache.free_blocks:
                victim = max(running, key=lambda each: each.rank)
                place = running.index(victim)
                del running[place]
                # One that comes before has its block for this step already.
                self._preempt(victim, ahead=place < position)
                if victim is sequence:
                    self._pause(running[position:])
                    return
                position -= place < position
            if sequence is self._cut:
                self._add_part(sequence, tokens, blocks)
            else:
                cache.take(blocks)
            position += 1

    def _pause(self, missing: list[Sequence]) -> None:
        """Running sequences that miss the next step."""
        step = len(self.ends_s)
        for sequence in missing:
            if sequence in self._leaving:
                continue
            self._paused.append(sequence)
            if sequence is self._cut:
                self._cut = None
            else:
                sequence.computed = sequence.length_at_step_0 + step
                self._leave_batch(sequence, step)

    def _resume_paused(self) -> None:
        if not self._paused:
            return
        step = len(self.ends_s)
        for sequence in self._paused:
            if sequence.computed < sequence.to_compute:
                self._cut = sequence
            else:
                self._join_batch(sequence, step, sequence.computed - step)
        self._paused = []
        self._decoding = {
            sequence.index: sequence
            for sequence in sorted(self._decoding.values(), key=lambda each: each.order)
        }

    def _choose_prefills(self) -> None:
        """Admit what waits, as long as the step has tokens and places and the cache room."""
        if not self._waiting:
            return
        config, cache = self._config, self.cache
        budget = config.max_num_batched_tokens - self._decode_tokens
        budget -= sum(tokens for _, tokens in self._parts)
        self._remember_answers()
        while self._waiting and budget > 0 and self._in_step < self._max_seqs:
            sequence = self._waiting.first()
            hit = cache.find(sequence, (sequence.to_compute - 1) // config.block_tokens)
            found = hit.blocks * config.block_tokens
            if sequence.brought_tokens:
                hit, found = Hit([], 0), sequence.brought_tokens
            tokens = min(sequence.to_compute - found, budget)
            whole = found + tokens == sequence.to_compute
            if not whole and not config.chunked_prefill:
                return
            length = sequence.to_compute if config.whole_prompt_fits else found + tokens
            length += config.lookahead_tokens
            if cache.blocks_for(length) - hit.blocks + hit.free_blocks > cache.free_blocks:
                return
            self._waiting.remove_first()
            if sequence.order < 0:
                sequence.admitted_s = self._start_s
                if not sequence.brought_tokens:
                    sequence.cached_tokens = found
                    self.admitted_prompt_tokens += sequence.prompt_tokens
                    self.cached_prompt_tokens += found
            sequence.order = self._admitted
            self._admitted += 1
            cache.adopt(sequence, hit)
            if sequence.brought_tokens:
                cache.take(cache.blocks_for(found))
                sequence.brought_tokens = 0
            sequence.computed = found
            self._add_part(sequence, tokens, self._more_blocks(sequence, found + tokens))
            budget -= tokens

    # What decoding sequences gain and hold: one token a step here, more in `speculative`.

    @property
    def _decode_tokens(self) -> int:
        """Tokens of all decoding sequences in one step."""
        return self.tokens_each * len(self._decoding)

    def _length_before(self, sequence: Sequence, step: int) -> int:
        """Tokens of a decoding sequence in the cache when `step` begins."""
        return sequence.length_at_step_0 + step

    def _held(self, sequence: Sequence, step: int, *, ahead: bool = False) -> tuple[int, int]:
        """Tokens and blocks that one has in the cache when `step` begins.

        Args:
            sequence: Sequence that decodes, or whose prompt is cut.
            step: The step.
            ahead: Whether it has the next token's block by then.
        """
        if sequence is self._cut:
            length = sequence.computed
        else:
            length = self._length_before(sequence, step) + ahead
        return length, self.cache.blocks_for(length)

    def _growth_blocks(self, first_step: int, steps: int) -> int:
        """Blocks that decoding sequences take in `steps` steps."""
        return self._growing.blocks(first_step, steps)

    def _growth_tokens(self, _first_step: int, steps: int) -> int:
        """Tokens that decoding sequences gain in `steps` steps."""
        return steps * len(self._decoding)

    def _steps_that_fit(self, first_step: int, most_steps: int) -> int:
        """The most of `most_steps` steps whose growth the free blocks can hold."""
        return self._growing.steps_within(self._free_ahead, first_step, most_steps)

    @property
    def _free_ahead(self) -> int:
        """Blocks that a stretch may take after its first step."""
        return self.cache.free_blocks // (_AHEAD if self._shares_cache else 1)

    def _decode_durations_s(self, context_tokens: int, steps: int) -> FloatArray:
        """Durations of the next steps, which only decode; shape (steps,)."""
        return self._law.decode_run_s(len(self._decoding), context_tokens, steps)

    @property
    def _in_step(self) -> int:
        return len(self._decoding) + len(self._parts) + len(self._leaving)

    def _more_blocks(self, sequence: Sequence, length: int) -> int:
        """Blocks that a sequence lacks to have `length` tokens in the cache."""
        return self.cache.blocks_for(length) - self.cache.blocks_for(sequence.computed)

    def _add_part(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        self.cache.take(blocks)
        self._parts.append((sequence, tokens))
        if sequence.keys:
            length = sequence.computed + tokens
            self.cache.remember(sequence, length // self._config.block_tokens)

    def _remember_answers(self) -> None:
        """Let prompts find what is decoded, the planned step's tokens included."""
        step, size = len(self.ends_s), self._config.block_tokens
        # Composed ahead, the token of the step before is not known yet.
        known = step if self._config.async_scheduling else step + 1
        for sequence in self._answering.values():
            length = self._length_before(sequence, step) + known - step
            self.cache.remember(sequence, length // size)
        for sequence in self._leaving:
            self.cache.remember(sequence, self._leaving_tokens(sequence) // size)

    def _head_awaits_answer(self) -> bool:
        """Whether what waits first begins with an answer that is being decoded."""
        if not (self._waiting and self._answering):
            return False
        first_keys = self._waiting.first().keys
        for sequence in self._answering.values():
            place = len(sequence.known)
            if first_keys[place : place + 1] == sequence.keys[place : place + 1] != ():
                return True
        return False

    def _leaving_tokens(self, sequence: Sequence) -> int:
        """Tokens of a leaving sequence that are known while its last one is on its way."""
        return max(sequence.computed - 1, sequence.to_compute)

    def _mixed_step_s(self) -> float:
        tokens = sum(part for _, part in self._parts)
        pairs = sum(part * seq.computed + part * (part + 1) / 2 for seq, part in self._parts)
        completed = sum(seq.computed + part == seq.to_compute for seq, part in self._parts)
        decoding = len(self._decoding)
        return self._law.seconds(
            tokens, pairs, completed, decoding, self._context_tokens + self._decode_tokens
        )

    def _decode_run(self, now_s: float, *, single: bool) -> list[float]:
        """Ends of all steps up to the next change that is known by now."""
        step, decoding = len(self.ends_s), len(self._decoding)
        steps = 1
        if not single:  # the first step's blocks are taken
            steps += self._steps_that_fit(step + 1, self._next_finish() - step)
        if self._shares_cache and steps > 1:
            self.cache.take(self._growth_blocks(step + 1, steps - 1))
        context_tokens = self._context_tokens + self._decode_tokens
        if steps == 1:
            return [now_s + self._law.seconds(0, 0.0, 0, decoding, context_tokens)]
        durations_s = self._decode_durations_s(context_tokens, steps)
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
                blocks = self.cache.blocks_for(sequence.computed + self._config.lookahead_tokens)
                self._end(sequence, sequence.computed, blocks)
                ended.append(sequence)
            else:
                self._join_batch(sequence, step, sequence.computed - (step + 1))
        self._parts = []
        return ended

    def _join_batch(self, sequence: Sequence, step: int, length_at_step_0: int) -> None:
        """Let it decode; the first token of this stretch comes at the end of `step`."""
        finish_step = step + sequence.output_tokens - sequence.generated - 1
        self._enter_batch(sequence, step, finish_step, length_at_step_0)
        self._growing.add(length_at_step_0)

    def _enter_batch(
        self, sequence: Sequence, step: int, finish_step: int, length_at_step_0: int
    ) -> None:
        sequence.first_step = step
        sequence.finish_step = finish_step
        sequence.length_at_step_0 = length_at_step_0
        self._decoding[sequence.index] = sequence
        if len(sequence.keys) * self._config.block_tokens > sequence.to_compute:
            self._answering[sequence.index] = sequence
        self._context_tokens += sequence.computed
        heapq.heappush(self._finishes, (sequence.finish_step, sequence.order, sequence))

    def _decodes_done(self, next_step: int) -> list[Sequence]:
        ended = []
        while self._finishes and self._finishes[0][0] < next_step:
            step, _, sequence = heapq.heappop(self._finishes)
            if sequence.index in self._decoding and sequence.finish_step == step:
                length, blocks = self._held(sequence, next_step)
                self._leave_batch(sequence, next_step)
                self._end(sequence, length, blocks)
                ended.append(sequence)
        return ended

    def _leave_batch(self, sequence: Sequence, next_step: int) -> None:
        """Take it out of the batch before `next_step`; it keeps its blocks."""
        del self._decoding[sequence.index]
        self._answering.pop(sequence.index, None)
        self._context_tokens -= sequence.length_at_step_0 + next_step
        self._growing.remove(sequence.length_at_step_0)
        if next_step > sequence.first_step:
            sequence.stretches.append((sequence.first_step, next_step))
            sequence.generated += next_step - sequence.first_step

    def _preempt(self, sequence: Sequence, *, ahead: bool = False) -> None:
        """Take a sequence's cache and let it wait; `ahead`: its next token's block is taken."""
        self.preemptions += 1
        sequence.preemptions += 1
        if sequence in self._leaving:  # its last token is on its way
            self._leaving.remove(sequence)
            known = self._leaving_tokens(sequence)
            self.cache.give_back(sequence, sequence.computed, reusable=False, known_tokens=known)
            return
        step = len(self.ends_s)
        length, blocks = self._held(sequence, step, ahead=ahead)
        known = length
        if sequence is self._cut:
            self._cut = None
        else:
            known = self._known_tokens(sequence, length)
            self._leave_batch(sequence, step)
        self.cache.give_back(sequence, length, reusable=True, known_tokens=known, blocks=blocks)
        sequence.to_compute = sequence.prompt_tokens + sequence.generated
        sequence.computed = 0
        self._waiting.put_back(sequence)

    def _known_tokens(self, sequence: Sequence, length: int) -> int:
        """Tokens that a sequence may find again when it loses its cache while it decodes."""
        return max(length - 1, sequence.to_compute) if self._config.async_scheduling else length
