"""Schedulers, routers and cache transfers of one engine, moved from event to event.

The same core serves a simulation in virtual time, which lets everything happen at once
(`simulation`), and a server that answers while time passes, which lets happen what is due by now
(`simserver.live_engine`). `advance` takes the time up to which events happen; nothing waits.

Events at the same time come in a fixed order: arrivals before the steps that could take them,
time limits of clients last, then by order of entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Several
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import msgspec

from servetune.perf.roofline.step import StepLaw
from servetune.perf.sim.admission import Admission, Limit
from servetune.perf.sim.disaggregation import PrefillPool
from servetune.perf.sim.event_queue import EventQueue
from servetune.perf.sim.kvcache import PagedCache
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.router import CopyRouting, Router, Routing
from servetune.perf.sim.scheduler import Scheduler, cache_of
from servetune.perf.sim.scheduler_choice import scheduler_for
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.workload.request import Piece

#: Order of events at the same time.
ARRIVAL, STEP, DEADLINE = 0, 1, 2

Action: TypeAlias = Callable[[float], None]
"""Effect of an event, called with its time."""


class EngineLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Schedulers of one engine.

    Attributes:
        replicas: Copies.
        copy_routing: Choice of the copy for a request.
        seed: Seed of that choice, where it is by chance.
        ranks: Data-parallel ranks in each copy, and in each copy of the prefill pool.
        batches: Batches that each rank's pipeline has in flight, each with a scheduler.
        routing: Choice among the ranks of a copy.
        prefill_pool: Copies that compute prompts for these, which then only decode; `None` if
            each computes its own.
        admission: Limits at which each copy refuses a request at once.
    """

    replicas: int = 1
    copy_routing: CopyRouting = "round-robin"
    seed: int = 0
    ranks: int = 1
    batches: int = 1
    routing: Routing = "cache_pressure"
    prefill_pool: PrefillPool | None = None
    admission: tuple[Limit, ...] = ()


class RequestOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """Time from a request's arrival at the server to the scheduler's queue.

    Attributes:
        request_s: Part that every request takes.
        prompt_token_s: Part per token of the prompt.
    """

    request_s: float = 0.0
    prompt_token_s: float = 0.0

    def arrival_s(self, sent_s: float, prompt_tokens: int) -> float:
        """Time at which a request reaches the scheduler's queue."""
        return sent_s + self.request_s + self.prompt_token_s * prompt_tokens


class ServedRequest(msgspec.Struct, eq=False):
    """One request and the schedulers that serve it.

    Attributes:
        prefix: Known content of the prompt, from the first token on.
        pieces: Known content of prompt and answer.
        rank: Rank that decodes it, once routed.
        sequence: The request inside that rank.
        prefill_rank: Rank of the prefill pool that computes its prompt, where there is a pool.
        prefill_sequence: The prompt inside that rank.
        cancelled: Whether its client has gone; its events have no effect then.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[Piece, ...] = ()
    pieces: tuple[Piece, ...] = ()
    priority: int = 0
    rank: Rank | None = None
    sequence: Sequence | None = None
    prefill_rank: Rank | None = None
    prefill_sequence: Sequence | None = None
    cancelled: bool = False


class Rank(ABC):
    """One scheduler and its next event.

    Attributes:
        admission: Requests of its copy, and their limits.
        siblings: Ranks that share its cache.
    """

    def __init__(self, scheduler: Scheduler, events: EventQueue[Action]) -> None:
        self.scheduler = scheduler
        self.admission = Admission(())
        self.siblings: Several[Rank] = ()
        self.transfer_free_s = 0.0  # when its last cache transfer ends
        self._events = events
        self._aborted: list[Sequence] = []  # leave with the step that has begun

    @property
    def next_end_s(self) -> float | None:
        """End of the planned steps that are awaited next; `None` when nothing is planned."""
        return self.scheduler.planned_end_s

    @abstractmethod
    def reached(self, now_s: float) -> None:
        """Handle the end of the awaited steps."""

    def enqueue(self, sequence: Sequence, now_s: float) -> None:
        self.scheduler.enqueue(sequence)
        if self.scheduler.planned_end_s is None:
            self.wake(now_s)
        elif self.scheduler.interrupt(now_s):
            self.await_end()

    def abort(self, sequence: Sequence, now_s: float) -> bool:
        """Take a sequence out for good, with the end of the step that has begun at the latest.

        Returns:
            Whether it is out; otherwise the next `let_aborted_go` takes it out.
        """
        self.admission.leave(sequence)
        free_blocks = self.scheduler.cache.free_blocks
        out = self.scheduler.abort(sequence)
        if not out:
            self._aborted.append(sequence)
        self.offer_room(free_blocks, now_s)
        if self.scheduler.cut_short(now_s):  # what waits may have room now
            self.await_end()
        return out

    def let_aborted_go(self, ended: Several[Sequence]) -> list[Sequence]:
        """Take out what was aborted during steps that have happened now; those sequences.

        Args:
            ended: Sequences that ended with these steps, aborted ones among them.
        """
        aborted, self._aborted = self._aborted, []
        for sequence in aborted:
            if sequence not in ended:
                self.scheduler.abort(sequence)
        return aborted

    def wake(self, now_s: float) -> None:
        """Compose the next step after all arrivals of this instant."""
        self._events.enter(now_s, STEP, partial(self._step, now_s))

    def await_end(self) -> None:
        end_s = self.next_end_s
        if end_s is not None:
            self._events.enter(end_s, STEP, partial(self._step, end_s))

    def _step(self, awaited_s: float, now_s: float) -> None:
        end_s, free_blocks = self.next_end_s, self.scheduler.cache.free_blocks
        if end_s is None:
            self.scheduler.plan(now_s)
            self.await_end()
        elif end_s == awaited_s:  # else the stretch was cut, and this was its former end
            self.reached(now_s)
        if self.siblings:
            self.offer_room(free_blocks, now_s)

    def offer_room(self, free_blocks: int, now_s: float) -> None:
        """Let those who wait for the same cache look again, if more of it is free than was."""
        if self.scheduler.cache.free_blocks <= free_blocks:
            return
        for rank in self.siblings:
            if not rank.scheduler.wants_room:
                continue
            rank.scheduler.room_came()
            if rank.scheduler.planned_end_s is None:
                rank.wake(now_s)
            elif rank.scheduler.cut_short(now_s):
                rank.await_end()


RankT = TypeVar("RankT", bound=Rank)


def _in_flight(
    count: int, config: SchedulerConfig, new: Callable[[PagedCache | None], RankT]
) -> list[RankT]:
    """Ranks for the batches that a pipeline has in flight.

    They share a cache: vLLM composes them with one scheduler, as disjoint parts of what runs
    (`EngineCore.step_with_batch_queue`; vllm-project/vllm pull request 13064, 2025), and so does
    SGLang, whose batches take turns over one tree and one pool (`event_loop_pp` of 0.5.23). A
    prompt that is cut goes on in SGLang's next batch, and here in its own.
    """
    if count == 1:
        return [new(None)]
    cache = cache_of(config)
    ranks = [new(cache) for _ in range(count)]
    for rank in ranks:
        rank.siblings = [other for other in ranks if other is not rank]
    return ranks


class ServingCore(ABC, Generic[RankT]):
    """All ranks of one engine, of its copies and of its prefill pool.

    Args:
        config: Limits of every scheduler.
        law: Step times.
        layout: Schedulers and how requests are divided among them.

    Attributes:
        events: Everything that happens next.
        ranks: Ranks that answer.
        prefill_ranks: Ranks that only compute prompts.
    """

    def __init__(self, config: SchedulerConfig, law: StepLaw, layout: EngineLayout) -> None:
        self.events: EventQueue[Action] = EventQueue()
        pool = layout.prefill_pool
        alone = msgspec.structs.replace(config, draft_tokens=0, lookahead_tokens=0)

        def prefilling(cache: PagedCache | None) -> RankT:
            return self._new_prefill_rank(PrefillOnlyScheduler(alone, law, cache))

        self._rank_of: dict[int, RankT] = {}
        copies = self._new_copies(config, law, layout)
        self.ranks = [rank for copy in copies for rank in copy]
        self.prefill_ranks = [
            rank
            for _ in range(layout.ranks * pool.replicas if pool else 0)
            for rank in _in_flight(layout.batches, alone, prefilling)
        ]
        self._rank_of.update((id(rank.scheduler), rank) for rank in self.prefill_ranks)
        schedulers = [[rank.scheduler for rank in copy] for copy in copies]
        self._router = self._new_router(schedulers, layout)
        self._prefill_router = Router([[rank.scheduler for rank in self.prefill_ranks]])
        self._transfer = pool.transfer if pool else None

    def _new_copies(
        self, config: SchedulerConfig, law: StepLaw, layout: EngineLayout
    ) -> list[list[RankT]]:
        """Ranks of equal copies that answer, by copy."""

        def answering(cache: PagedCache | None) -> RankT:
            return self._new_rank(scheduler_for(config, law, cache))

        copies = [
            [
                rank
                for _ in range(layout.ranks)
                for rank in _in_flight(layout.batches, config, answering)
            ]
            for _ in range(layout.replicas)
        ]
        for copy in copies:
            admission = Admission(layout.admission)
            for rank in copy:
                rank.admission = admission
                self._rank_of[id(rank.scheduler)] = rank
        return copies

    def _new_router(self, copies: Several[Several[Scheduler]], layout: EngineLayout) -> Router:
        """Router of requests to the ranks of the copies."""
        return Router(copies, layout.routing, layout.copy_routing, layout.seed)

    @abstractmethod
    def _new_rank(self, scheduler: Scheduler) -> RankT:
        """Rank for a scheduler that answers."""

    @abstractmethod
    def _new_prefill_rank(self, scheduler: PrefillOnlyScheduler) -> RankT:
        """Rank for a scheduler that computes prompts for others."""

    @abstractmethod
    def refuse(self, request: ServedRequest, limit: Limit, now_s: float) -> None:
        """Answer a request with the error of a limit."""

    def advance(self, until_s: float) -> None:
        """Let all events up to a time happen, in order."""
        events = self.events
        while events and events.next_s <= until_s:
            now_s, act = events.next()
            act(now_s)

    def expect(self, request: ServedRequest, arrives_s: float) -> None:
        """Let a request reach its queue at a time."""
        self.events.enter(arrives_s, ARRIVAL, partial(self.arrive, request))

    def arrive(self, request: ServedRequest, now_s: float) -> None:
        """Queue a request, or its prompt where others compute prompts; or refuse it."""
        if request.cancelled:
            return
        if self._transfer is None:
            self._decode(request, now_s)
            return
        rank = self._rank_of[id(self._prefill_router.choose())]
        request.prefill_rank = rank
        request.prefill_sequence = Sequence(
            request.index,
            request.prompt_tokens,
            1,
            pieces=request.prefix,
            priority=request.priority,
        )
        rank.enqueue(request.prefill_sequence, now_s)

    def send_cache(self, request: ServedRequest, rank: Rank, now_s: float) -> None:
        """Send the cache of a computed prompt; a rank sends one after another."""
        assert self._transfer is not None
        begins_s = max(now_s, rank.transfer_free_s)
        arrives_s = begins_s + self._transfer.seconds(request.prompt_tokens)
        rank.transfer_free_s = arrives_s
        self.events.enter(arrives_s, ARRIVAL, partial(self._cache_arrived, request))

    def _cache_arrived(self, request: ServedRequest, now_s: float) -> None:
        rank, sequence = request.prefill_rank, request.prefill_sequence
        assert rank is not None
        assert sequence is not None
        assert isinstance(rank.scheduler, PrefillOnlyScheduler)
        free_blocks = rank.scheduler.cache.free_blocks
        rank.scheduler.release(sequence)
        if rank.scheduler.planned_end_s is None:  # it may have waited for these blocks
            rank.wake(now_s)
        rank.offer_room(free_blocks, now_s)
        if not request.cancelled:
            self._decode(request, now_s, brought_tokens=request.prompt_tokens - 1)

    def _decode(self, request: ServedRequest, now_s: float, *, brought_tokens: int = 0) -> None:
        rank = self._rank_of[id(self._router.choose())]
        limit = rank.admission.refusal(waiting=rank.scheduler.waiting)
        if limit is not None:
            self.refuse(request, limit, now_s)
            return
        request.rank = rank
        request.sequence = Sequence(
            request.index,
            request.prompt_tokens,
            request.output_tokens,
            pieces=request.pieces,
            priority=request.priority,
            brought_tokens=brought_tokens,
        )
        rank.admission.enter(request.sequence)
        rank.enqueue(request.sequence, now_s)
