"""The simulator's schedulers, moved on by a clock that somebody else reads.

The same schedulers, the same router and the same order of events as in `perf.sim.simulation`, but
requests come from outside while time passes. Every time here is the engine's own: seconds
since it started, before any speed-up. Nothing waits; `advance` lets everything happen that
is due, and `due_s` says when it is worth calling again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection
from typing import Protocol, cast

import msgspec

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.disaggregation import PrefillPool
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.router import Router, Routing
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.scheduler_choice import scheduler_for
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.simserver.engine_metrics import EngineMetrics, RequestTimes
from servetune.workload.request import Piece

__all__ = ["LiveEngine", "LiveRequest", "RequestOverhead", "TokenListener"]


class TokenListener(Protocol):
    """Who waits for a request's tokens."""

    def tokens(self, count: int) -> None:
        """So many more have come, all at once."""

    def ended(self) -> None:
        """That was the last."""


class RequestOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """From the server's door to the engine's queue, as `perf.sim.simulation` has it."""

    request_s: float = 0.0
    prompt_token_s: float = 0.0

    def arrival_s(self, asked_s: float, prompt_tokens: int) -> float:
        """When a request queues; added up in the simulator's order, to its last digit."""
        return asked_s + self.request_s + self.prompt_token_s * prompt_tokens


class LiveRequest(Sequence):
    """A sequence that somebody listens to.

    Attributes:
        asked_s: When the request came in at the door.
        finish_reason: For the account, when it ends.
        max_tokens: That the client allowed, for the account.
        queued_s: When it reached the scheduler's queue.
        first_token_s: When its first token came.
        handed_tokens: Of the prompt, computed by another engine.
        taken: Its prompt, where another engine computes it.
        asker: Of such a prompt, the job that it belongs to; `None` when that was aborted.
        is_sent: Of such a prompt, whether its cache travels.
    """

    __slots__ = (
        "asked_s",
        "asker",
        "finish_reason",
        "first_token_s",
        "handed_tokens",
        "is_sent",
        "listener",
        "max_tokens",
        "queued_s",
        "served_by",
        "taken",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        output_tokens: int,
        listener: TokenListener,
        finish_reason: str,
        content: tuple[Piece, ...],
        priority: int,
        max_tokens: int,
    ) -> None:
        super().__init__(index, prompt_tokens, output_tokens, pieces=content, priority=priority)
        self.listener = listener
        self.finish_reason = finish_reason
        self.max_tokens = max_tokens
        self.asked_s = 0.0
        self.queued_s = 0.0
        self.first_token_s: float | None = None
        self.served_by: _Rank | None = None
        self.handed_tokens = 0
        self.taken: LiveRequest | None = None
        self.asker: LiveRequest | None = None
        self.is_sent = False


class LiveEngine:
    """All data-parallel ranks of one engine, of its copies, and of those that compute prompts.

    Args:
        config: Of every scheduler.
        law: Step times.
        replicas: Copies that take turns.
        ranks: Data-parallel ranks in each.
        overhead: What a request costs before it queues.
        routing: Among the ranks.
        longest_tokens: Context of the model, for the account's buckets.
        prefill_pool: Where the copies only decode what others have computed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        law: StepLaw,
        *,
        replicas: int = 1,
        ranks: int = 1,
        overhead: RequestOverhead | None = None,
        routing: Routing = "cache_pressure",
        longest_tokens: int = 1_000_000,
        prefill_pool: PrefillPool | None = None,
    ) -> None:
        groups = [
            [_Rank(scheduler_for(config, law), longest_tokens) for _ in range(ranks)]
            for _ in range(replicas)
        ]
        alone = msgspec.structs.replace(config, draft_tokens=0, lookahead_tokens=0)
        taking = ranks * prefill_pool.replicas if prefill_pool else 0
        takers = [
            _Taker(PrefillOnlyScheduler(alone, law), longest_tokens, self._hand_over)
            for _ in range(taking)
        ]
        self._ranks = [*(rank for group in groups for rank in group), *takers]
        self._by_scheduler = {id(rank.scheduler): rank for rank in self._ranks}
        self._router = Router([[rank.scheduler for rank in group] for group in groups], routing)
        self._takers = Router([[rank.scheduler for rank in takers]]) if takers else None
        self._transfer = prefill_pool.transfer if prefill_pool else None
        self._way_in = overhead or RequestOverhead()
        # Requests that come to their queue, and caches that come to who decodes.
        self._arrivals: list[tuple[float, int, LiveRequest]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()

    @property
    def accounts(self) -> tuple[EngineMetrics, ...]:
        """What each rank did, by number; those that only compute prompts are the last."""
        return tuple(rank.account() for rank in self._ranks)

    @property
    def running(self) -> int:
        """Sequences that have a place in some rank's batch."""
        return sum(rank.in_flight - rank.scheduler.waiting for rank in self._ranks)

    @property
    def due_s(self) -> float | None:
        """When something happens next, if nobody asks for anything; `None` when idle."""
        times_s = [rank.due_s for rank in self._ranks if rank.due_s is not None]
        if self._arrivals:
            times_s.append(self._arrivals[0][0])
        return min(times_s, default=None)

    def job(
        self,
        prompt_tokens: int,
        output_tokens: int,
        listener: TokenListener,
        *,
        finish_reason: str = "length",
        content: tuple[Piece, ...] = (),
        priority: int = 0,
        max_tokens: int | None = None,
    ) -> LiveRequest:
        """A request that has not been asked yet; `content` as in `workload.Request.prefix`."""
        return LiveRequest(
            next(self._numbers),
            prompt_tokens,
            output_tokens,
            listener,
            finish_reason,
            content,
            priority,
            output_tokens if max_tokens is None else max_tokens,
        )

    def submit(self, job: LiveRequest, now_s: float) -> None:
        """Ask for a job; `advance` was called up to `now_s`."""
        job.asked_s = now_s
        arrives_s = self._way_in.arrival_s(now_s, job.prompt_tokens)
        self._expect(job, arrives_s)

    def abort(self, job: LiveRequest, now_s: float) -> None:
        """Forget a job that has not ended: a step that has begun is finished with it."""
        if job.served_by is not None:
            job.served_by.abort(job, now_s)
        elif job.taken is None:
            self._arrivals = [entry for entry in self._arrivals if entry[2] is not job]
            heapq.heapify(self._arrivals)
        else:
            job.taken.asker = None  # if its cache travels, nobody waits for it any more
            if job.taken.served_by is not None and not job.taken.is_sent:
                job.taken.served_by.abort(job.taken, now_s)

    def advance(self, now_s: float) -> None:
        """Let everything happen that is due by `now_s`, in order of time."""
        while True:
            rank = min(self._ranks, key=_due_or_never)
            step_s = rank.due_s
            # At equal times arrivals come before the batches that could take them.
            if self._arrivals and (step_s is None or self._arrivals[0][0] <= step_s):
                arrives_s, _, job = self._arrivals[0]
                if arrives_s > now_s:
                    return
                heapq.heappop(self._arrivals)
                self._arrive(job, arrives_s)
            elif step_s is None or step_s > now_s:
                return
            else:
                rank.step()

    def _expect(self, job: LiveRequest, arrives_s: float) -> None:
        heapq.heappush(self._arrivals, (arrives_s, next(self._order), job))

    def _arrive(self, job: LiveRequest, now_s: float) -> None:
        if isinstance(job.served_by, _Taker):  # it is a cache
            job.served_by.release(job, now_s)
            if job.asker is not None:
                job.asker.brought_tokens = job.asker.handed_tokens = job.prompt_tokens - 1
                self._queue(job.asker, self._router, now_s)
        elif self._takers is None:
            self._queue(job, self._router, now_s)
        else:
            job.taken = self._prompt_of(job)
            self._queue(job.taken, self._takers, now_s)

    def _queue(self, job: LiveRequest, router: Router, now_s: float) -> None:
        job.served_by = self._by_scheduler[id(router.choose())]
        job.served_by.arrive(job, now_s)

    def _prompt_of(self, job: LiveRequest) -> LiveRequest:
        """What another engine is asked for: one token, which nobody will hear of."""
        taken = LiveRequest(
            job.index, job.prompt_tokens, 1, job.listener, "length", job.pieces, job.priority, 1
        )
        taken.asker = job
        return taken

    def _hand_over(self, taken: LiveRequest, free_s: float) -> float:
        """Send the cache of a computed prompt from `free_s` on; when it will have come."""
        assert self._transfer is not None
        arrives_s = free_s + self._transfer.seconds(taken.prompt_tokens)
        self._expect(taken, arrives_s)
        return arrives_s


class _Rank:
    """One scheduler, its place in the stretch of steps that it has planned, and its account."""

    def __init__(self, scheduler: Scheduler, longest_tokens: int) -> None:
        self.scheduler = scheduler
        self.in_flight = 0
        self.due_s: float | None = None
        self._account = EngineMetrics(longest_tokens, scheduler.tokens_each - 1)
        self._told = 0  # of the planned steps, those whose tokens have been handed out
        self._told_s = 0.0  # the end of the last such step
        self._aborted: list[LiveRequest] = []

    def account(self) -> EngineMetrics:
        account, scheduler = self._account, self.scheduler
        account.steps = scheduler.steps + self._told
        account.preemptions = scheduler.preemptions
        account.prefix_queries_tokens = scheduler.admitted_prompt_tokens
        account.prefix_hits_tokens = scheduler.cached_prompt_tokens
        account.waiting = scheduler.waiting
        account.running = self.in_flight - scheduler.waiting
        account.kv_usage_fraction = (
            1 - scheduler.cache.free_blocks / scheduler.cache.capacity_blocks
        )
        return account

    def arrive(self, job: LiveRequest, now_s: float) -> None:
        self.in_flight += 1
        job.queued_s = now_s
        self.scheduler.enqueue(job)
        if self.scheduler.planned_end_s is not None:
            self.scheduler.interrupt(now_s)
            self._look_ahead()
        elif self.due_s is None:
            self.due_s = now_s  # it composes its step after all arrivals of this instant

    def abort(self, job: LiveRequest, now_s: float) -> None:
        self.in_flight -= 1
        self._account.finished["abort"] += 1
        if self.scheduler.abort(job):
            self.scheduler.forget(job)
            return
        self._aborted.append(job)
        self.scheduler.cut_short(now_s)
        self._look_ahead()

    def step(self) -> None:
        """What is due: the tokens of a planned step, or the plan of the next."""
        now_s, ends_s = self.due_s, self.scheduler.planned_ends_s
        assert now_s is not None
        if not ends_s:
            self._plan(now_s)
        elif self._told < len(ends_s) - 1:
            self._tell(self._gains(self._told), now_s)
            self._told += 1
            self._look_ahead()
        else:
            self._commit(now_s)
            self._plan(now_s)

    def _commit(self, now_s: float) -> None:
        """The last step of the stretch: prompts may be through, and sequences may end."""
        scheduler = self.scheduler
        told_all = self._told == len(scheduler.planned_ends_s)  # the stretch was cut behind us
        gains, parts = self._gains(scheduler.planned_steps - 1), list(scheduler.prefilling)
        resumed_s = {
            sequence.index: scheduler.ended_s(sequence)
            for sequence, _ in parts
            if sequence.stretches
        }
        ended = scheduler.commit()
        self._told = 0
        through = [
            cast("LiveRequest", each) for each, _ in parts if each.computed == each.to_compute
        ]
        if not told_all:
            self._tell(gains, now_s, through)
        for job in through:
            self._tell_prefilled(job, now_s, resumed_s.get(job.index))
        for sequence in ended:
            self._end(cast("LiveRequest", sequence), now_s)
        for job in self._aborted:
            if job not in ended:
                scheduler.abort(job)
                scheduler.forget(job)
        self._aborted = []

    def _gains(self, planned: int) -> list[tuple[LiveRequest, int]]:
        """What each decoding sequence gains in a planned step, counted from the next one on."""
        scheduler = self.scheduler
        step = len(scheduler.ends_s) + planned
        decoding = cast("Collection[LiveRequest]", scheduler.decoding)
        return [(job, scheduler.gained(job, step)) for job in decoding]

    def _tell(
        self,
        gains: list[tuple[LiveRequest, int]],
        now_s: float,
        through: Collection[LiveRequest] = (),
    ) -> None:
        """Their tokens, to those who had some in the step before as well."""
        prompts = (_computed_here(job) for job in through if job.first_token_s is None)
        answers = sum(tokens for _, tokens in gains)
        self._account.note_step(answers + len(through) + sum(prompts))
        if gains:
            self._account.note_gaps(now_s - self._told_s, len(gains), answers)
        if self.scheduler.tokens_each > 1:
            for _, tokens in gains:
                self._account.note_draft(tokens - 1)
        self._told_s = now_s
        for job, tokens in gains:
            job.listener.tokens(tokens)

    def _tell_prefilled(self, job: LiveRequest, now_s: float, resumed_s: float | None) -> None:
        """The token that comes with the end of a prompt."""
        if job.first_token_s is None:
            job.first_token_s = now_s
            self._account.note_first(
                job.prompt_tokens,
                now_s - job.asked_s,
                cached_tokens=job.cached_tokens,
                brought_tokens=job.handed_tokens,
            )
        elif resumed_s is not None:
            self._account.note_gaps(now_s - resumed_s, 1, 1)
        job.listener.tokens(1)

    def _end(self, job: LiveRequest, now_s: float) -> None:
        self.scheduler.forget(job)
        if job in self._aborted:
            return
        self.in_flight -= 1
        assert job.first_token_s is not None
        account = self._account
        assert job.admitted_s is not None
        times = RequestTimes(
            asked_s=job.asked_s,
            queued_s=job.queued_s,
            admitted_s=job.admitted_s,
            first_token_s=job.first_token_s,
        )
        account.note_end(
            job.prompt_tokens,
            job.output_tokens,
            times,
            now_s,
            max_tokens=job.max_tokens,
            computed_tokens=_computed_here(job),
            preemptions=job.preemptions,
        )
        account.finished[job.finish_reason] += 1
        job.listener.ended()

    def _plan(self, now_s: float) -> None:
        self.scheduler.plan(now_s)
        self._look_ahead()

    def _look_ahead(self) -> None:
        ends_s = self.scheduler.planned_ends_s
        self.due_s = ends_s[min(self._told, len(ends_s) - 1)] if ends_s else None


class _Taker(_Rank):
    """One that computes prompts for others, and sends their caches one after another."""

    scheduler: PrefillOnlyScheduler

    def __init__(
        self,
        scheduler: PrefillOnlyScheduler,
        longest_tokens: int,
        send: Callable[[LiveRequest, float], float],
    ) -> None:
        super().__init__(scheduler, longest_tokens)
        self._send = send
        self._free_s = 0.0

    def release(self, taken: LiveRequest, now_s: float) -> None:
        """A cache has come to who decodes: its blocks are free, which another may wait for."""
        self.scheduler.release(taken)
        if self.due_s is None:
            self.due_s = now_s

    def _tell_prefilled(self, job: LiveRequest, now_s: float, resumed_s: float | None) -> None:
        self._account.prompt_tokens += job.prompt_tokens
        self._account.cached_tokens += job.cached_tokens

    def _end(self, job: LiveRequest, now_s: float) -> None:
        self.scheduler.forget(job)
        if job in self._aborted:
            self.scheduler.release(job)
            return
        self.in_flight -= 1
        job.is_sent = True
        self._free_s = self._send(job, max(now_s, self._free_s))


def _computed_here(job: LiveRequest) -> int:
    """Of its prompt, what no cache had and nobody handed over."""
    return job.prompt_tokens - job.cached_tokens - job.handed_tokens


def _due_or_never(rank: _Rank) -> float:
    return float("inf") if rank.due_s is None else rank.due_s
