"""Simulated engine in real time, for requests that arrive over HTTP.

The core is that of a simulated run (`perf.sim.serving`), moved by a clock that somebody else
reads. Every time here is the engine's own: seconds since it started, before any speed-up.
Nothing waits; `advance` lets everything happen that is due, and `due_s` is when it is worth
calling again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Protocol

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.admission import Limit
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.serving import (
    EngineLayout,
    Rank,
    RequestOverhead,
    ServedRequest,
    ServingCore,
)
from servetune.simserver.engine_metrics import EngineMetrics, RequestTimes


class TokenListener(Protocol):
    """Receiver of a request's tokens."""

    def tokens(self, count: int) -> None:
        """Take in the next tokens, which came all at once."""

    def ended(self) -> None:
        """Take in that there are no more."""

    def accepted(self) -> None:
        """Take in that the engine will answer."""

    def refused(self, limit: Limit) -> None:
        """Take in that it will not, since a limit is reached."""


class LiveRequest(ServedRequest, eq=False, kw_only=True):
    """One request with a listener.

    Attributes:
        listener: Receiver of its tokens.
        finish_reason: Reason of its end, for the metrics.
        max_tokens: Largest answer that the client allowed, for the metrics; that of the answer
            itself if zero.
        sent_s: Time at which it reached the server.
        queued_s: Time at which it reached the scheduler's queue.
        first_token_s: Time of its first token.
        cache_sent: Whether its prompt's cache travels, or has arrived.
    """

    listener: TokenListener
    finish_reason: str = "length"
    max_tokens: int = 0
    sent_s: float = 0.0
    queued_s: float = 0.0
    first_token_s: float | None = None
    cache_sent: bool = False

    def __post_init__(self) -> None:
        self.max_tokens = self.max_tokens or self.output_tokens

    @property
    def transferred_tokens(self) -> int:
        """Tokens of the prompt that another rank computed."""
        return self.prompt_tokens - 1 if self.cache_sent else 0


class LiveEngine(ServingCore["LiveRank"]):
    """All data-parallel ranks of one engine, of its copies and of its prefill pool.

    Args:
        config: Limits of every scheduler.
        law: Step times.
        layout: Schedulers and how requests are divided among them.
        overhead: Time of a request before it queues.
        longest_tokens: Context of the model, for the buckets of the metrics.

    Attributes:
        requests: Requests that have not ended, by index.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        law: StepLaw,
        layout: EngineLayout | None = None,
        *,
        overhead: RequestOverhead | None = None,
        longest_tokens: int = 1_000_000,
    ) -> None:
        self._longest_tokens = longest_tokens
        super().__init__(config, law, layout or EngineLayout())
        self.requests: dict[int, LiveRequest] = {}
        self._overhead = overhead or RequestOverhead()
        self._numbers = itertools.count()

    def _new_rank(self, scheduler: Scheduler) -> LiveRank:
        return LiveRank(scheduler, self, self._longest_tokens)

    def _new_prefill_rank(self, scheduler: PrefillOnlyScheduler) -> LiveRank:
        return _LivePrefillRank(scheduler, self, self._longest_tokens)

    @property
    def rank_metrics(self) -> tuple[EngineMetrics, ...]:
        """Metrics of each rank, by number; those of the prefill pool are the last."""
        return tuple(rank.metrics() for rank in (*self.ranks, *self.prefill_ranks))

    @property
    def running(self) -> int:
        """Sequences that have a place in some rank's batch."""
        ranks = (*self.ranks, *self.prefill_ranks)
        return sum(rank.in_flight - rank.scheduler.waiting for rank in ranks)

    @property
    def due_s(self) -> float | None:
        """Time of the next event without further requests; `None` when idle."""
        return self.events.next_s if self.events else None

    def next_number(self) -> int:
        """Index of the next request."""
        return next(self._numbers)

    def submit(self, request: LiveRequest, now_s: float) -> None:
        """Take in a request; `advance` was called up to `now_s`."""
        request.sent_s = now_s
        self.requests[request.index] = request
        self.expect(request, self._overhead.arrival_s(now_s, request.prompt_tokens))

    def abort(self, request: LiveRequest, now_s: float) -> None:
        """Forget a request that has not ended; a step that has begun still computes it."""
        request.cancelled = True
        if request.rank is not None:
            assert isinstance(request.rank, LiveRank)
            assert request.sequence is not None
            request.rank.abort(request.sequence, now_s)
        elif request.prefill_sequence is not None and not request.cache_sent:
            assert isinstance(request.prefill_rank, LiveRank)
            request.prefill_rank.abort(request.prefill_sequence, now_s)
        else:
            self.requests.pop(request.index)

    def refuse(self, request: ServedRequest, limit: Limit, now_s: float) -> None:
        """Tell a request's listener that a limit is reached."""
        refused = self.requests.pop(request.index)
        self.ranks[0].refuse(limit)
        refused.listener.refused(limit)


class LiveRank(Rank):
    """One scheduler whose planned steps are handed out one by one."""

    def __init__(self, scheduler: Scheduler, engine: LiveEngine, longest_tokens: int) -> None:
        super().__init__(scheduler, engine.events)
        self.in_flight = 0
        self._engine = engine
        self._metrics = EngineMetrics(longest_tokens, scheduler.tokens_each - 1)
        self._delivered_steps = 0  # planned steps whose tokens have been handed out
        self._delivered_s = 0.0  # the end of the last such step

    @property
    def next_end_s(self) -> float | None:
        ends_s = self.scheduler.planned_ends_s
        return ends_s[min(self._delivered_steps, len(ends_s) - 1)] if ends_s else None

    def metrics(self) -> EngineMetrics:
        """Metrics of the rank, with gauges of this moment."""
        metrics, scheduler = self._metrics, self.scheduler
        metrics.steps = scheduler.steps + self._delivered_steps
        metrics.preemptions = scheduler.preemptions
        metrics.prefix_queries_tokens = scheduler.admitted_prompt_tokens
        metrics.prefix_hits_tokens = scheduler.cached_prompt_tokens
        metrics.waiting = scheduler.waiting
        metrics.running = self.in_flight - scheduler.waiting
        cache = scheduler.cache
        metrics.kv_usage_fraction = 1 - cache.free_blocks / cache.capacity_blocks
        return metrics

    def enqueue(self, sequence: Sequence, now_s: float) -> None:
        self.in_flight += 1
        request = self._engine.requests[sequence.index]
        if not request.cache_sent:
            request.listener.accepted()
        request.queued_s = now_s
        super().enqueue(sequence, now_s)

    def abort(self, sequence: Sequence, now_s: float) -> bool:
        self.in_flight -= 1
        self._metrics.finished["abort"] += 1
        out = super().abort(sequence, now_s)
        if out:
            self._forget(sequence)
        return out

    def refuse(self, limit: Limit) -> None:
        """Count a request that a limit refused."""
        reasons = self._metrics.rejections
        reasons[limit.rule.setting] = reasons.get(limit.rule.setting, 0) + 1

    def reached(self, now_s: float) -> None:
        """Hand out the tokens of one planned step; the last one ends the stretch."""
        if self._delivered_steps < self.scheduler.planned_steps - 1:
            self._deliver(self._gains(self._delivered_steps), now_s)
            self._delivered_steps += 1
            self.await_end()
        else:
            self._commit(now_s)
            self.wake(now_s)

    def _commit(self, now_s: float) -> None:
        """End a stretch of steps: prompts may be complete, and sequences may end."""
        scheduler = self.scheduler
        delivered_all = self._delivered_steps == scheduler.planned_steps
        gains, parts = self._gains(scheduler.planned_steps - 1), list(scheduler.prefilling)
        resumed_s = {
            sequence.index: scheduler.ended_s(sequence)
            for sequence, _ in parts
            if sequence.stretches
        }
        ended = scheduler.commit()
        self._delivered_steps = 0
        through = [each for each, _ in parts if each.computed == each.to_compute]
        if not delivered_all:
            self._deliver(gains, now_s, through)
        for sequence in through:
            self._prompt_done(self._request(sequence), now_s, resumed_s.get(sequence.index))
        aborted = self.let_aborted_go(ended)
        for sequence in ended:
            self._end(sequence, now_s, aborted=sequence in aborted)
        for sequence in aborted:
            if sequence not in ended:
                self._forget(sequence)

    def _request(self, sequence: Sequence) -> LiveRequest:
        return self._engine.requests[sequence.index]

    def _computed_tokens(self, sequence: Sequence) -> int:
        """Tokens of a prompt that this rank computed: neither cached nor handed over."""
        transferred_tokens = self._request(sequence).transferred_tokens
        return sequence.prompt_tokens - sequence.cached_tokens - transferred_tokens

    def _forget(self, sequence: Sequence) -> None:
        self.scheduler.forget(sequence)
        self._engine.requests.pop(sequence.index)

    def _gains(self, planned: int) -> list[tuple[Sequence, int]]:
        """Tokens that each decoding sequence gains in a planned step, counted from the next."""
        scheduler = self.scheduler
        step = len(scheduler.ends_s) + planned
        return [(sequence, scheduler.gained(sequence, step)) for sequence in scheduler.decoding]

    def _deliver(
        self,
        gains: list[tuple[Sequence, int]],
        now_s: float,
        through: Collection[Sequence] = (),
    ) -> None:
        """Hand their tokens to sequences that had some in the step before as well."""
        fresh = (each for each in through if self._request(each).first_token_s is None)
        prompts = (self._computed_tokens(sequence) for sequence in fresh)
        answers = sum(tokens for _, tokens in gains)
        self._metrics.note_step(answers + len(through) + sum(prompts))
        if gains:
            self._metrics.note_gaps(now_s - self._delivered_s, len(gains), answers)
        if self.scheduler.tokens_each > 1:
            for _, tokens in gains:
                self._metrics.note_draft(tokens - 1)
        self._delivered_s = now_s
        for sequence, tokens in gains:
            self._request(sequence).listener.tokens(tokens)

    def _prompt_done(self, request: LiveRequest, now_s: float, resumed_s: float | None) -> None:
        """Hand out the token that comes with the end of a prompt."""
        assert request.sequence is not None
        if request.first_token_s is None:
            request.first_token_s = now_s
            self._metrics.note_first(
                request.prompt_tokens,
                now_s - request.sent_s,
                cached_tokens=request.sequence.cached_tokens,
                brought_tokens=request.transferred_tokens,
            )
        elif resumed_s is not None:
            self._metrics.note_gaps(now_s - resumed_s, 1, 1)
        request.listener.tokens(1)

    def _end(self, sequence: Sequence, now_s: float, *, aborted: bool) -> None:
        request, computed_tokens = self._request(sequence), self._computed_tokens(sequence)
        self._forget(sequence)
        if aborted:
            return
        self.admission.leave(sequence)
        self.in_flight -= 1
        assert request.first_token_s is not None
        assert sequence.admitted_s is not None
        times = RequestTimes(
            sent_s=request.sent_s,
            queued_s=request.queued_s,
            admitted_s=sequence.admitted_s,
            first_token_s=request.first_token_s,
            ended_s=now_s,
        )
        self._metrics.note_end(
            request.prompt_tokens,
            request.output_tokens,
            times,
            max_tokens=request.max_tokens,
            computed_tokens=computed_tokens,
            preemptions=sequence.preemptions,
        )
        self._metrics.finished[request.finish_reason] += 1
        request.listener.ended()


class _LivePrefillRank(LiveRank):
    """Rank that computes prompts for others, and sends their caches one after another."""

    def _prompt_done(self, request: LiveRequest, now_s: float, resumed_s: float | None) -> None:
        assert request.prefill_sequence is not None
        self._metrics.prompt_tokens += request.prompt_tokens
        self._metrics.cached_tokens += request.prefill_sequence.cached_tokens

    def _end(self, sequence: Sequence, now_s: float, *, aborted: bool) -> None:
        if aborted:
            assert isinstance(self.scheduler, PrefillOnlyScheduler)
            self.scheduler.release(sequence)
            self._forget(sequence)
            return
        self.scheduler.forget(sequence)
        self.in_flight -= 1
        request = self._request(sequence)
        request.cache_sent = True
        self._engine.send_cache(request, self, now_s)
