"""Schedulers that compute prompts in steps of their own: SGLang's and TGI's.

While prompts are computed nobody decodes, so steps that decode are counted apart from those
that do not, and the stretches between prompts are planned as vLLM's are. A sequence joins as if
its first token had come with the decoding step before; the real time is kept separately.

SGLang 0.5.23 (`scheduler.py`, `schedule_policy.py`, `schedule_batch.py` of `srt/managers`, and
`mem_cache/prefill_budget.py`) takes prompts before anything else, as long as

    tokens to compute + tokens of the answer + a page
        < room - r * tokens that running answers may yet get

where r falls from 0.7 to a seventh of it in 600 decoding steps and rises when the guess was too
low; it is 1 for answers whose length is known (`ignore_eos`). Where decoding finds no room, those
with the fewest tokens, and of these with the longest prompts, are put back to the end of the
queue. When a prompt found no room, none is looked at until somebody ends, a prompt is cut, or a
batch that prompts began starts to decode. `benchmarks/simulation/ticks_sglang.py` compares this
with SGLang's own classes, step by step.

TGI (`router/src/infer.rs` of 1.x, `backends/v3/src/queue.rs` and `backend.rs` of 2.x at 120d577,
read 2026-11) keeps room for the whole answer, so nobody is put back, and lets prompts wait until
there are enough of them or long enough. It is written in Rust and was read, not run.

Where it composes a step while the one before runs, what arrived meanwhile and the tokens of that
step are not known yet: who ended in it keeps place and blocks, and gets no further token; if there
is no room for the next one, that step is read before anybody is put back.

Left out: SGLang's priorities, that its tree gives up whole leaves where ours gives up blocks, and
that who is put back loses the token of the step that runs; TGI's padding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection

import msgspec

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.kvcache import Hit, PagedCache
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant
from servetune.perf.sim.waiting_queue import FifoQueue

# SGLang's environs.py, 0.5.
_INITIAL_RATIO, _LEAST_SHARE, _DECAY_STEPS = 0.7, 0.14, 600
_RETRACT_STEPS, _MOST_NEW_TOKENS = 20, 4096
#: Queued requests, above which the queue is not sorted by cached prefixes.
_MOST_SORTED = 128
#: Tokens of a prompt. One that finds no more of them cached, and shares as many with a request
#: queued before it, waits until that one has computed them.
_ALIKE_TOKENS = 32
_NO_LIMIT = 1 << 62


class PromptStepScheduler(Scheduler):
    """Prompts first, in steps without decoding, as `_take_prompts` chooses them."""

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        super().__init__(config, law, cache)
        assert isinstance(self._waiting, FifoQueue)
        self._queue: FifoQueue = self._waiting
        self._max_seqs = config.max_num_seqs
        self._prompts_only = False  # of the planned step
        self._prompt_steps = 0
        self._firsts_s: dict[int, list[float]] = {}  # per stretch, by index

    @property
    def steps(self) -> int:
        """Forward passes so far."""
        return len(self.ends_s) + self._prompt_steps

    def plan(self, now_s: float) -> float | None:
        """Take prompts, else decode; the end of it, or `None` when idle."""
        self._start_s = now_s
        self._see_arrivals(before=self.steps + 1)
        while True:
            self._parts = []
            self._take_prompts()
            self._prompts_only = bool(self._parts) and not self._mixes
            preempted_before = self.preemptions
            decodes = bool(self._decoding) and not self._prompts_only and self._reserve_blocks()
            # What was composed ahead may look different in the step after.
            late = bool(self._unseen or self._leaving) or self.preemptions > preempted_before
            self._let_go()
            if self._prompts_only:
                self._planned_ends_s = [now_s + self._prompts_s()]
            elif self._parts:
                self._planned_ends_s = [now_s + self._mixed_step_s()]
            elif decodes:
                single = self._looks_again or bool(self._unseen)
                self._planned_ends_s = self._decode_run(now_s, single=single)
            elif late:  # a step without tokens takes no time
                self._see_arrivals()
                continue
            else:
                self._planned_ends_s = []
            return self.planned_end_s

    @property
    def decoding(self) -> Collection[Sequence]:
        """Sequences that get a token in every planned step; none while prompts are computed."""
        return () if self._prompts_only else self._decoding.values()

    def planned_tokens(self) -> dict[int, int]:
        """Tokens of each sequence, by index, in each of the planned steps."""
        if self._prompts_only:
            return {sequence.index: part for sequence, part in self._parts}
        return super().planned_tokens()

    def commit(self) -> list[Sequence]:
        """Let the planned steps have happened; the sequences that ended, in order."""
        if not self._prompts_only:
            return super().commit()
        (end_s,) = self._planned_ends_s
        self.busy_s += end_s - self._start_s
        self._planned_ends_s = []
        self._prompt_steps += 1
        self._note_firsts(end_s)
        self._prompts_only = False
        return self._prefills_done(len(self.ends_s) - 1)

    def ended_s(self, sequence: Sequence) -> float:
        """Time of the last token of a sequence that has all of them."""
        first, stop = sequence.stretches[-1]
        return self.ends_s[stop - 1] if stop - first > 1 else self._firsts_s[sequence.index][-1]

    def forget(self, sequence: Sequence) -> None:
        """Drop the data of a sequence whose answer has been read."""
        super().forget(sequence)
        self._firsts_s.pop(sequence.index, None)

    def _times_s(self, sequence: Sequence) -> tuple[float, ...]:
        """End of each step in which it got tokens so far; the first of a stretch had prompts."""
        firsts_s, ends_s = self._firsts_s.get(sequence.index, ()), self.ends_s
        times_s: list[float] = []
        for first_s, (first, stop) in zip(firsts_s, self._stretches_of(sequence), strict=True):
            times_s.append(first_s)
            times_s += ends_s[first + 1 : stop]
        return tuple(times_s)

    @property
    def _mixes(self) -> bool:
        """Whether those that decode take part in a step with prompts."""
        return False

    @property
    def _looks_again(self) -> bool:
        """Whether the very next step may find room for who waits now."""
        return False

    @abstractmethod
    def _take_prompts(self) -> None:
        """Fill `_parts` with what the next step computes, if anything."""

    @abstractmethod
    def _reserve_blocks(self) -> bool:
        """Take the blocks of the next decoding step; whether there is anybody to decode."""

    def _prefills_done(self, step: int) -> list[Sequence]:
        return super()._prefills_done(step) if self._parts else []

    def _note_firsts(self, end_s: float) -> None:
        """Keep when those whose prompts are through got their token."""
        for sequence, tokens in self._parts:
            if sequence.computed + tokens == sequence.to_compute:
                self._firsts_s.setdefault(sequence.index, []).append(end_s)

    def _prompts_s(self) -> float:
        tokens = sum(part for _, part in self._parts)
        pairs = sum(part * seq.computed + part * (part + 1) / 2 for seq, part in self._parts)
        ended = sum(seq.computed + part == seq.to_compute for seq, part in self._parts)
        return self._law.seconds(tokens, pairs, ended, 0, 0)

    def _admit(self, sequence: Sequence, hit: Hit) -> None:
        """Let the first that waits hold what was found of it."""
        self._queue.remove_first()
        found = hit.blocks * self._config.block_tokens
        if sequence.order < 0:
            sequence.admitted_s = self._start_s
            sequence.cached_tokens = found
            self.admitted_prompt_tokens += sequence.prompt_tokens
            self.cached_prompt_tokens += found
        sequence.order = self._admitted
        self._admitted += 1
        self.cache.adopt(sequence, hit)
        sequence.computed = found


class _Left(msgspec.Struct):
    """Tokens that a step has left for prompts.

    Attributes:
        unreserved_tokens: Tokens of the cache beyond those kept for answers.
        now: Tokens of the cache, those kept for answers included.
        chunk: Tokens left of `chunked_prefill_size`.
        prompts: Tokens left of `max_prefill_tokens`.
        states: Pairs (tokens to come, tokens held) of all that run or were admitted, where they are
            needed; see `PrefillFirstScheduler._fits_in_turn`.
    """

    unreserved_tokens: float
    now: int
    chunk: int
    prompts: int
    states: list[tuple[int, int]] | None = None

    @property
    def spent(self) -> bool:
        """Whether the step has no tokens for anybody else."""
        return self.prompts <= 0 or self.chunk <= 0

    def charge(self, tokens: int, page_tokens: int, later_tokens: int) -> None:
        """Take a part of a prompt in whole pages, one page more, and what its answer may get."""
        self.unreserved_tokens -= tokens + page_tokens + later_tokens
        self.now -= tokens + page_tokens
        self.chunk -= tokens
        self.prompts -= tokens


class PrefillFirstScheduler(PromptStepScheduler):
    """SGLang's scheduler; see the module."""

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        super().__init__(config, law, cache)
        assert isinstance(config.variant, PrefillFirstVariant)
        self._variant = config.variant
        self._first_ratio = min(1.0, _INITIAL_RATIO * config.variant.conservativeness)
        self._least_ratio = _LEAST_SHARE * self._first_ratio
        self._ratio = self._first_ratio
        self._full = False  # nobody is admitted until somebody ends
        self._retracted = False  # in the planned step, whose guess does not fall then
        self._riding = False  # in the planned step those that decode ride along with prompts
        self._from_idle = False  # nobody decoded when the planned step was composed
        self._awaited_blocks = 0  # of the cache's, that are this scheduler's
        # What is not known of the step before, where the next one is composed while it runs:
        self._all_gained = False  # a token of all that decode
        self._gained_first: set[int] = set()  # the first one of some, by index
        self._unread: list[tuple[Sequence, int]] = []  # prompts, with the blocks of what they have

    def plan(self, now_s: float) -> float | None:
        """Plan the next steps; when idle, forget the guess of answers' lengths."""
        self._retracted = False
        end_s = super().plan(now_s)
        if end_s is None:
            self._ratio = self._first_ratio
        self._queue_stands = self._full
        self._note_awaited()
        return end_s

    def commit(self) -> list[Sequence]:
        """Let the planned steps have happened; the guess falls with each that decodes alone."""
        if not self._prompts_only:
            decay = (self._first_ratio - self._least_ratio) / _DECAY_STEPS
            falls = 0 if self._parts else self.planned_steps - self._retracted
            self._ratio = max(self._least_ratio, self._ratio - decay * falls)
            if self._parts:
                self._note_firsts(self._planned_ends_s[-1])
        # A batch that prompts begin, or that they leave again, has not found itself full.
        fresh = bool(self._parts) and (self._from_idle or not self._prompts_only)
        ahead, self._all_gained = self._config.async_scheduling, False
        if ahead:
            self._all_gained = not self._prompts_only
            self._gained_first = {each.index for each, _ in self._parts}
        ended = super().commit()
        if (ended and not ahead) or fresh or self._cut is not None:
            self._full = False
        return ended

    def abort(self, sequence: Sequence) -> bool:
        """Take a sequence out for good; there may be room for others then."""
        out = super().abort(sequence)
        self._full = self._full and not out
        if not self._planned_ends_s:
            self._note_awaited()
        return out

    def _note_awaited(self) -> None:
        """Let those who share the cache leave room for the rest of a prompt that was cut."""
        blocks = 0
        parts = self._parts
        if self._cut is not None and not parts:
            parts = [(self._cut, 0)]
        for sequence, tokens in parts:
            if sequence.computed + tokens < sequence.to_compute:
                computed = self.cache.blocks_for(sequence.computed + tokens)
                blocks = self.cache.blocks_for(sequence.to_compute) - computed
        self.cache.awaited_blocks += blocks - self._awaited_blocks
        self._awaited_blocks = blocks

    @property
    def _mixes(self) -> bool:
        return self._riding

    @property
    def _looks_again(self) -> bool:
        return bool(self._waiting) and not self._full

    def _let_go(self) -> None:
        """The step before has been read: those who ended leave, and prompts are found."""
        if self._leaving:
            self._full = False
        super()._let_go()
        for sequence, blocks in self._unread:
            if self._decoding.get(sequence.index) is sequence:  # it has not lost its blocks
                self.cache.remember(sequence, blocks)
        self._unread = []

    def _take_prompts(self) -> None:
        self._from_idle = not (self._decoding or self._leaving)
        if self._from_idle:
            self._full = False
        if self._cut is None and (self._full or not self._waiting):
            return
        if self._cut is None and self._in_step >= self._config.max_num_seqs:
            self._full = True
            return
        left = self._left_of_step()
        self._sort_waiting()
        if self._cut is not None:
            self._continue(self._cut, left)
            if not self._parts:  # it waits for blocks that others hold
                return
        while self._waiting and not left.spent and self._take_first(left):
            pass
        self._riding = self._variant.mixed_chunk and bool(self._parts and self._decoding)
        if self._riding and self._growth_blocks(len(self.ends_s), 1) > self.cache.free_blocks:
            self._riding = False  # prompts took the room: who decodes sits the step out

    def _left_of_step(self) -> _Left:
        config, variant = self._config, self._variant
        mixed_tokens = self._in_step if variant.mixed_chunk else 0
        chunk_tokens = config.max_num_batched_tokens if config.chunked_prefill else _NO_LIMIT
        others_blocks = self.cache.awaited_blocks - self._awaited_blocks
        free_tokens = (self.cache.free_blocks - others_blocks) * config.block_tokens
        return _Left(
            unreserved_tokens=free_tokens - self._promised_tokens() - mixed_tokens,
            now=free_tokens - mixed_tokens,
            chunk=chunk_tokens - mixed_tokens,
            prompts=variant.max_prefill_tokens - mixed_tokens,
        )

    def _continue(self, cut: Sequence, left: _Left) -> None:
        """Compute more of a prompt that was cut; it must go on, so it takes what room there is."""
        size = self._config.block_tokens
        missing = cut.to_compute - cut.computed
        available = min(left.chunk, int(left.unreserved_tokens))
        available = available if available > 0 else left.chunk
        tokens = min(missing, available, self.cache.free_blocks * size)
        if tokens <= 0:
            return
        self._add_part(cut, tokens, self._more_blocks(cut, cut.computed + tokens))
        left.charge(self._paged(tokens), size, _clipped(cut) if tokens == missing else 0)

    def _take_first(self, left: _Left) -> bool:
        """Admit who waits first; whether another may be looked at."""
        config, cache, size = self._config, self.cache, self._config.block_tokens
        if self._in_step >= config.max_num_seqs:
            self._full = True
        if self._full:
            return False
        sequence = self._queue.first()
        hit = cache.find(sequence, (sequence.to_compute - 1) // size)
        missing = sequence.to_compute - hit.blocks * size
        whole = (self._paged(missing) if config.prefix_caching else missing) <= left.chunk
        tokens = missing if whole else left.chunk // size * size
        # What is found and free may be needed for itself: it is no room for others.
        found_tokens = hit.free_blocks * size
        length = sequence.to_compute + config.lookahead_tokens
        blocks = cache.blocks_for(length) - hit.blocks + hit.free_blocks
        fits = self._fits(sequence, missing, left, found_tokens)
        if not fits or blocks > cache.free_blocks:  # blocks: a state needs some too
            self._full = self._in_step > 0
            return False
        if not config.chunked_prefill and self._parts and self._paged(missing) >= left.prompts:
            return False
        if tokens <= 0:
            return False
        self._admit(sequence, hit)
        self._add_part(sequence, tokens, self._more_blocks(sequence, sequence.computed + tokens))
        left.unreserved_tokens -= found_tokens
        left.now -= found_tokens
        left.charge(self._paged(tokens), size, _clipped(sequence) if whole else 0)
        if left.unreserved_tokens <= 0:
            self._full = True
        return not self._full

    def _fits(self, sequence: Sequence, missing: int, left: _Left, found_tokens: int) -> bool:
        """Whether the cache has room for a prompt, a page more, and what is kept for its answer."""
        if self._variant.ignore_eos and not self._config.prefix_caching:
            return self._fits_in_turn(sequence, missing, left)
        later = min(sequence.output_tokens - sequence.generated, _MOST_NEW_TOKENS)
        return missing + later + self._config.block_tokens < left.unreserved_tokens - found_tokens

    def _fits_in_turn(self, sequence: Sequence, missing: int, left: _Left) -> bool:
        """Whether all answers find room until the first ends and leaves its own, and so on.

        `PrefillAdder.add_one_req_ignore_eos`: for lengths that are known, where nothing is kept
        in the cache for others.
        """
        page = self._config.block_tokens
        taken = self._paged(missing) + page
        if taken > min(left.now, left.unreserved_tokens):
            return False
        state = self._state(sequence)
        if left.states is None:
            others = [*self._decoding.values(), *self._leaving, *(part for part, _ in self._parts)]
            left.states = [state, *map(self._state, others)]
            left.states = sorted(
                (each for each in left.states if each[0] > 0), key=lambda each: each[0]
            )
        elif state[0] > 0:
            _insert(left.states, state)
        available, freed = left.now - taken, 0
        for place, (to_come, held) in enumerate(left.states):
            later = len(left.states) - place
            if available + freed - to_come * later <= later:
                return False
            freed += held
        return True

    def _state(self, sequence: Sequence) -> tuple[int, int]:
        if sequence in self._leaving:
            got = sequence.output_tokens - 1
        else:
            got = self._got(sequence) if sequence.index in self._decoding else sequence.generated
        return sequence.output_tokens - got, sequence.prompt_tokens + got

    def _reserve_blocks(self) -> bool:
        """Put back whom the next step has no room for, and take its blocks.

        Where those who ended in the step before leave room, the step waits until it was read.
        """
        step, size = len(self.ends_s), self._config.block_tokens
        if self._growth_blocks(step, 1) > self.cache.free_blocks:
            if self._leaving:
                self._all_gained = False
                self._gained_first = set()
                return False
            # Fewest tokens first, of these the longest prompt, until one step fits.
            order = sorted(
                self._decoding.values(),
                key=lambda each: (self._got(each), -each.prompt_tokens),
                reverse=True,
            )
            # The last alone always fits, unless others hold the cache.
            least = 0 if self._shares_cache else 1
            while len(order) > least and self._growth_blocks(step, 1) > self.cache.free_blocks:
                self._preempt(order.pop())
                self.cache.make_blank(len(order) * _RETRACT_STEPS // size)
            got = sum(self._got(each) for each in order)
            expected = sum(each.output_tokens for each in order)
            if order:
                self._ratio = min(1.0, (got + _RETRACT_STEPS * len(order)) / (expected + 1))
            self._full = False
            self._retracted = True
        self.cache.take(self._growth_blocks(step, 1))
        return bool(self._decoding)

    def _preempt(self, sequence: Sequence, *, ahead: bool = False) -> None:
        super()._preempt(sequence, ahead=ahead)
        self._queue.remove_first()  # it is not the first to be served again, but the last
        self._queue.append(sequence)

    def _known_tokens(self, sequence: Sequence, _length: int) -> int:
        """Blocks of decoded tokens are not kept for a sequence that is put back."""
        return min(sequence.computed, sequence.to_compute)

    def _got(self, sequence: Sequence) -> int:
        """Tokens of a decoding sequence so far, as far as they are known."""
        unknown = self._all_gained or sequence.index in self._gained_first
        return sequence.generated + len(self.ends_s) - sequence.first_step - unknown

    def _promised_tokens(self) -> float:
        """Tokens kept free for the answers of decoding sequences."""
        share = 1.0 if self._variant.ignore_eos else self._ratio
        decoding = sum(
            min(each.output_tokens - self._got(each), _MOST_NEW_TOKENS) * share
            for each in self._decoding.values()
        )
        return decoding + len(self._leaving) * share

    def _paged(self, tokens: int) -> int:
        size = self._config.block_tokens
        return -(-tokens // size) * size

    def _sort_waiting(self) -> None:
        """Sort by the longest known beginning, where the policy is `lpm`.

        Of several that begin alike and find little, all but the first are served last, so that
        they will find what it computes.
        """
        if not self._variant.longest_prefix_first or not self._config.prefix_caching:
            return
        if not 1 < len(self._queue) <= _MOST_SORTED:
            return
        size = self._config.block_tokens
        waiting, seen = list(self._queue), set[int]()
        order: list[tuple[float, int]] = []
        for place, each in enumerate(waiting):
            found = self.cache.find(each, (each.to_compute - 1) // size).blocks
            if found * size <= _ALIKE_TOKENS:
                alike = 0
                while alike < len(each.keys) and each.keys[alike] in seen:
                    alike += 1
                if alike * size >= _ALIKE_TOKENS:
                    order.append((math.inf, place))
                    continue
                seen.update(each.keys)
            order.append((-found, place))
        self._queue.clear()
        self._queue.extend(waiting[place] for _, place in sorted(order))

    def _add_part(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        self.cache.take(blocks)
        self._parts.append((sequence, tokens))

    def _prefills_done(self, step: int) -> list[Sequence]:
        parts = self._parts
        ended = super()._prefills_done(step)
        for sequence, _ in parts:  # unlike vLLM's, prompts are found from here on
            if sequence.keys and sequence not in ended:
                blocks = sequence.computed // self._config.block_tokens
                if self._config.async_scheduling and sequence is not self._cut:
                    self._unread.append((sequence, blocks))
                else:
                    self.cache.remember(sequence, blocks)
        return ended


def _clipped(sequence: Sequence) -> int:
    """Tokens that admission reserves for a whole answer, even if part of it was given before."""
    return min(sequence.output_tokens, _MOST_NEW_TOKENS)


def _insert(states: list[tuple[int, int]], state: tuple[int, int]) -> None:
    """Before the first that has as much to come, or else before the last, as SGLang does."""
    place = next(
        (at for at, each in enumerate(states) if state[0] <= each[0]), max(0, len(states) - 1)
    )
    states.insert(place, state)


class InterruptingScheduler(PromptStepScheduler):
    """TGI's router; see the module."""

    def __init__(
        self, config: SchedulerConfig, law: StepLaw, cache: PagedCache | None = None
    ) -> None:
        super().__init__(config, law, cache)
        assert isinstance(config.variant, InterruptingVariant)
        self._variant = config.variant
        self._waited_steps = 1
        self._prompts_considered = False  # for prompts, since the last step that decoded
        self._passed_over = False  # nobody was looked at for the planned step, but will be next
        self._promised = 0  # prompts and whole answers of all that run

    def commit(self) -> list[Sequence]:
        """Let the planned steps have happened."""
        if self._prompts_only:
            self._waited_steps = 1
        else:
            self._waited_steps += self.planned_steps
            self._prompts_considered = False
        return super().commit()

    def abort(self, sequence: Sequence) -> bool:
        """Take a sequence out for good, and with it what was promised to it."""
        served = sequence.index in self._decoding
        out = super().abort(sequence)
        if out and served:
            self._promised -= sequence.prompt_tokens + sequence.output_tokens
        return out

    @property
    def _looks_again(self) -> bool:
        return self._passed_over and bool(self._waiting)

    def _take_prompts(self) -> None:
        """One batch between two steps that decode, if it is large or late enough."""
        config, variant = self._config, self._variant
        self._passed_over = self._prompts_considered
        if self._passed_over:
            return
        running = len(self._decoding)
        least = 0
        if running and self._waited_steps < variant.max_waiting_tokens:
            least = int(running * variant.waiting_served_ratio)
        self._prompts_considered = running > 0
        most_tokens = config.capacity_blocks * config.block_tokens
        if variant.max_batch_total_tokens is not None:
            most_tokens = min(most_tokens, variant.max_batch_total_tokens)
        size = config.block_tokens
        most_prompts = -(-config.max_num_batched_tokens // size) * size  # whole blocks, rounded up
        chosen: list[Sequence] = []
        prompts = answers = blocks = 0
        for sequence in self._queue:
            prompts += sequence.prompt_tokens
            answers += sequence.output_tokens
            blocks += self._whole_blocks(sequence)
            if (
                prompts > most_prompts
                or prompts + answers > most_tokens - self._promised
                or blocks > self.cache.free_blocks
                or running + len(chosen) >= config.max_num_seqs
            ):
                break
            chosen.append(sequence)
        if len(chosen) < max(1, least):
            return
        for sequence in chosen:
            self._admit(sequence, Hit([], 0))
            self._promised += sequence.prompt_tokens + sequence.output_tokens
            self.cache.take(self._whole_blocks(sequence))
            self._parts.append((sequence, sequence.to_compute))

    def _whole_blocks(self, sequence: Sequence) -> int:
        kept = sequence.prompt_tokens + sequence.output_tokens - 1
        return self.cache.blocks_for(kept + self._config.draft_tokens)

    def _reserve_blocks(self) -> bool:
        """Every answer has its room from the beginning."""
        return True

    def _end(self, sequence: Sequence, length: int, blocks: int) -> None:
        self._promised -= sequence.prompt_tokens + sequence.output_tokens
        super()._end(sequence, length, self._whole_blocks(sequence))

    def _held(self, sequence: Sequence, step: int, *, ahead: bool = False) -> tuple[int, int]:
        length, _ = super()._held(sequence, step, ahead=ahead)
        return length, self._whole_blocks(sequence)

    def _growth_blocks(self, first_step: int, steps: int) -> int:
        return 0

    def _steps_that_fit(self, first_step: int, most_steps: int) -> int:
        """All of them, but prompts that wait are looked at when they have waited long enough."""
        late = self._variant.max_waiting_tokens - self._waited_steps
        if self._waiting and late > 0:
            return min(most_steps, late - 1)
        return most_steps
