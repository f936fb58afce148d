"""Simulate a whole run: users outside, engines inside, time only in numbers."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

import msgspec

from servetune.engines import check_fits, check_parallel, check_starts, engine, resolved
from servetune.errors import PlanError
from servetune.hardware.device import Node
from servetune.metrics.record import Record
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.similarity import run_features
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.sim.closed_loop_waits import ClosedLoopWaits, closed_loop_waits
from servetune.perf.sim.disaggregation import CacheTransfer, PrefillPool, prefill_pool_of
from servetune.perf.sim.event_queue import EventQueue
from servetune.perf.sim.peak_series import PeakSeries
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.router import Router, Routing
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.scheduler_choice import scheduler_for
from servetune.perf.sim.scheduler_config import (
    check_context_fits,
    composes_ahead,
    routing_of,
    scheduler_config_of,
)
from servetune.perf.sim.sequence import GeneratedTokens, SchedulerConfig, Sequence
from servetune.perf.sim.variants import SglangVariant, TgiVariant
from servetune.plan import Plan
from servetune.workload.request import Piece, Request
from servetune.workload.workload import Workload

__all__ = [
    "Simulation",
    "known_pieces",
    "run_requests",
    "simulate",
]

#: An open-loop run counts as saturated when this share of its requests had not begun to be
#: served when the last one had come to the engine, or became due but could not be sent.
_BACKLOG_FRACTION = 0.05


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would have been.

    Attributes:
        records: One per request that became due, by index; seconds since the run began.
        steps: Forward passes, all replicas together.
        busy_s: Time in forward passes, mean over replicas.
        duration_s: To the last answer, or to where the run was stopped.
        kv_peak_fraction: Largest share of KV blocks in use on any replica.
        preemptions: Sequences that lost their cache and were computed again.
        cached_fraction: Of all admitted prompts' tokens, those that the prefix cache had.
        saturated: Whether requests arrived faster than they could be served; never so in
            a closed loop, which waits.
        admitted_s: When each record's prompt was first taken up; `None` where the run was
            stopped before.
        kv_use: Share of all KV blocks in use, as `PeakSeries.points`.
        each_token: Whether records have the time of every token that came on its own.
    """

    records: tuple[Record, ...]
    steps: int
    busy_s: float
    duration_s: float
    kv_peak_fraction: float
    preemptions: int
    cached_fraction: float | None
    saturated: bool
    admitted_s: tuple[float | None, ...] = ()
    kv_use: tuple[tuple[float, float], ...] = ()
    each_token: bool = True


def simulate(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
    stop_s: float | None = None,
    each_token: bool = True,
    routing: Routing | None = None,
    transfer: CacheTransfer | None = None,
) -> Simulation:
    """Run a workload on a plan in virtual time.

    The same arguments give the same result to the last digit. Warm-up requests leave no
    trace; what prompts share is in `Workload.prefixes`. A workload with a duration stops
    then.

    Args:
        plan: Fields that are `None` take the engine's defaults.
        shape: The network.
        node: Where it runs; its device's coefficients are used unless others are given.
        workload: What is asked.
        coefficients: Of the step law.
        calibration: From measured runs of this model on this machine.
        stop_s: When the run is stopped, whatever is under way; `None` for the workload's
            own duration, or to let it end.
        each_token: Whether records have the time of every token; see `run_requests`.
        routing: Among data-parallel ranks; `None` for what the plan's engine does.
        transfer: How prompts' caches travel to those that decode, where the plan has
            `prefill_replicas`; `None` for what the node's link does.

    Raises:
        PlanError: The plan does not fit, or a request could never be served by it.
    """
    check_starts(plan, shape, node.device)
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    divided = check_fits(filled, shape, node.device, device_limit=node.device_count)
    config = scheduler_config_of(
        filled,
        divided,
        seed=workload.seed,
        ignore_eos=workload.ignore_eos,
        # What measured closed loops wait for besides (`ClosedLoopWaits`) was fitted to engines
        # that compose ahead, by a formula without such a step: there it would count twice.
        composes_ahead=composes_ahead(filled, node.device) and not workload.closed_loop,
    )
    if engine(filled.engine).behaviour.needs_room_for_longest:
        check_context_fits(filled, config)
    prefill_pool = prefill_pool_of(filled, node, divided, transfer)
    requests = workload.requests()
    for request in requests:
        _check_context(request, filled)
    chosen = coefficients or coefficients_for(node.device, filled.engine)
    if calibration is not None:
        if workload.closed_loop and workload.max_concurrency:
            here = run_features(filled, shape, workload.lengths, workload.max_concurrency)
            (calibration,) = calibration.at(here)
        chosen = calibration.coefficients(chosen)
    law = step_law(filled, shape, node, chosen)
    return run_requests(
        requests,
        config,
        law,
        closed_loop=workload.closed_loop,
        max_concurrency=workload.max_concurrency,
        request_s=chosen.host.request_s,
        prompt_token_s=chosen.host.prompt_token_s,
        closed_loop_waits=closed_loop_waits(workload, requests, filled, law, chosen),
        replicas=filled.replicas,
        ranks=filled.data_parallel,
        stop_s=workload.duration_s if stop_s is None else stop_s,
        each_token=each_token,
        routing=routing or routing_of(filled),
        prefill_pool=prefill_pool,
    )


#: Its multiples are spread over the unit interval as evenly as any numbers are.
_GOLDEN = 0.6180339887498949


def run_requests(
    requests: tuple[Request, ...],
    config: SchedulerConfig,
    law: StepLaw,
    *,
    closed_loop: bool,
    max_concurrency: int | None = None,
    request_s: float = 0.0,
    prompt_token_s: float = 0.0,
    closed_loop_waits: ClosedLoopWaits | None = None,
    replicas: int = 1,
    ranks: int = 1,
    stop_s: float | None = None,
    each_token: bool = True,
    routing: Routing = "cache_pressure",
    prefill_pool: PrefillPool | None = None,
) -> Simulation:
    """Serve requests with `replicas` times `ranks` schedulers under one law of step times.

    A run that is stopped has records of what became due until then; what is not answered
    by then is `cancelled`, with the tokens that it got.

    Args:
        requests: By due time.
        config: Of every scheduler.
        law: Step times.
        closed_loop: Whether a request is due when one of `max_concurrency` users is free.
        max_concurrency: Most requests in flight; `None` for no limit.
        request_s: From sending to the engine's queue.
        prompt_token_s: And for each token of the prompt.
        closed_loop_waits: What is waited for besides.
        replicas: Copies that take turns.
        ranks: Data-parallel ranks in each.
        stop_s: When the run is stopped; `None` to let it end.
        each_token: Whether records have the time of every token. Otherwise an answer is
            two pieces, its first token and the rest: latencies, TPOT and throughputs stay
            exact, gaps between tokens become each request's mean gap, and a million
            requests need a third of the memory.
        routing: Among data-parallel ranks.
        prefill_pool: Where the `replicas` only decode what others have computed; `ranks` are those
            of each of them too.

    Raises:
        PlanError: A request could never be served, or due times run backwards.
    """
    _check_possible(requests, config)
    takers: list[PrefillOnlyScheduler] = []
    if prefill_pool is not None:
        alone = msgspec.structs.replace(config, draft_tokens=0, lookahead_tokens=0)
        takers = [PrefillOnlyScheduler(alone, law) for _ in range(ranks * prefill_pool.replicas)]
    groups = [[scheduler_for(config, law) for _ in range(ranks)] for _ in range(replicas)]
    run = _RunDriver(
        requests,
        groups,
        closed_loop=closed_loop,
        max_concurrency=max_concurrency,
        way_in_s=(request_s, prompt_token_s),
        waits=closed_loop_waits or ClosedLoopWaits(),
        each_token=each_token,
        routing=routing,
        takers=takers,
        transfer=prefill_pool.transfer if prefill_pool else None,
    )
    run.play(math.inf if stop_s is None else stop_s)
    schedulers = [*takers, *(scheduler for group in groups for scheduler in group)]
    records = tuple(record for record in run.records if record is not None)
    admitted_tokens = sum(scheduler.admitted_prompt_tokens for scheduler in schedulers)
    cached_tokens = sum(scheduler.cached_prompt_tokens for scheduler in schedulers)
    return Simulation(
        records=records,
        steps=sum(scheduler.steps for scheduler in schedulers),
        busy_s=sum(scheduler.busy_s for scheduler in schedulers) / len(schedulers),
        duration_s=max((record.end_s for record in records), default=0.0),
        kv_peak_fraction=max(b.cache.peak_blocks / b.cache.capacity_blocks for b in schedulers),
        preemptions=sum(scheduler.preemptions for scheduler in schedulers),
        cached_fraction=cached_tokens / admitted_tokens if admitted_tokens else None,
        saturated=run.saturated,
        admitted_s=tuple(run.admitted_s[record.index] for record in records),
        kv_use=run.kv_use.points(),
        each_token=each_token,
    )


def _check_context(request: Request, plan: Plan) -> None:
    length = request.input_tokens + request.output_tokens
    if plan.max_model_len is not None and length > plan.max_model_len:
        raise PlanError(
            f"{_shown(request)}, more than max_model_len {plan.max_model_len}",
            hint=f"raise max_model_len to {length}, or shorten the workload",
        )


def _check_possible(requests: tuple[Request, ...], config: SchedulerConfig) -> None:
    """What would wait for ever is refused before the run starts."""
    cache_tokens = max(0, config.capacity_blocks - config.state_blocks) * config.block_tokens
    drafted = config.draft_tokens + config.lookahead_tokens
    if config.variant is not None:  # whole answers, the last token included, are kept room for
        drafted = 2 + config.block_tokens if isinstance(config.variant, SglangVariant) else 1
        if isinstance(config.variant, TgiVariant) and config.variant.max_batch_total_tokens:
            cache_tokens = min(cache_tokens, config.variant.max_batch_total_tokens)
    latest_s = 0.0
    for request in requests:
        if request.due_s < latest_s:
            raise PlanError(
                f"request {request.index} is due at {request.due_s} s, times run backwards",
                hint="sort the requests by due time",
            )
        latest_s = request.due_s
        # The last token is not kept, but drafts after it need their room.
        kept = request.input_tokens + request.output_tokens - 1 + drafted
        if kept > cache_tokens:
            raise PlanError(
                f"{_shown(request)}, more than the whole KV cache of {cache_tokens}",
                hint="more tensor_parallel, a narrower kv_cache_dtype or shorter requests",
            )
        most = config.max_num_batched_tokens
        if not config.chunked_prefill and request.input_tokens > most:
            raise PlanError(
                f"{_shown(request)}, its prompt exceeds max_num_batched_tokens {most}",
                hint="turn chunked_prefill on, or raise max_num_batched_tokens",
            )


def _shown(request: Request) -> str:
    return f"request {request.index} has {request.input_tokens} + {request.output_tokens} tokens"


def known_pieces(request: Request) -> tuple[Piece, ...]:
    """Known content of prompt and answer; an answer counts only after a prompt known whole."""
    if request.answer_id is None or request.prefix_tokens < request.input_tokens:
        return request.prefix
    return (*request.prefix, (request.answer_id, request.output_tokens))


class _RequestState:
    """What the user saw of one request, and where it is served.

    Attributes:
        taken: Its prompt, where another engine than the one that decodes computes it.
        taker: That engine.
    """

    __slots__ = ("due_s", "scheduler", "sent_s", "sequence", "taken", "taker")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.sent_s: float | None = None
        self.scheduler: Scheduler | None = None
        self.sequence: Sequence | None = None
        self.taken: Sequence | None = None
        self.taker: PrefillOnlyScheduler | None = None


#: At equal times arrivals come before the batches that could take them.
_ARRIVAL, _STEP = 0, 1
_Kind = Literal["due", "arrive", "arrived_cache"]
_Event = tuple[_Kind, int] | tuple[Scheduler, float]


class _RunDriver:
    """Users, router and schedulers of one run.

    Attributes:
        records: By index; `None` for what has not become due or is not answered yet.
        admitted_s: Of the records, by index, when the prompt was first taken up.
        kv_use: Share of all blocks in use after each stretch of steps.
        saturated: See `Simulation`.
    """

    def __init__(
        self,
        requests: tuple[Request, ...],
        groups: list[list[Scheduler]],
        *,
        closed_loop: bool,
        max_concurrency: int | None,
        way_in_s: tuple[float, float],
        waits: ClosedLoopWaits,
        each_token: bool,
        routing: Routing,
        takers: list[PrefillOnlyScheduler],
        transfer: CacheTransfer | None,
    ) -> None:
        self.records: list[Record | None] = [None] * len(requests)
        self.admitted_s: list[float | None] = [None] * len(requests)
        self.kv_use = PeakSeries()
        self.saturated = False
        self._judged = False
        self._requests = requests
        self._groups = groups
        self._router = Router(groups, routing)
        self._takers = Router([takers]) if takers else None
        self._transfer = transfer
        self._sender_free_s: dict[int, float] = {}  # by id of its engine
        self._schedulers = [*takers, *(scheduler for group in groups for scheduler in group)]
        self._closed_loop = closed_loop
        self._limit = max_concurrency or len(requests)
        self._request_s, self._prompt_token_s = way_in_s
        self._waits = waits
        # Each copy has a front of its own, which is taken in turns as the copies are.
        self._taken_in_s = [waits.warm_up_s] * len(groups)
        self._each_token = each_token
        self._events: EventQueue[_Event] = EventQueue()
        self._journeys: dict[int, _RequestState] = {}  # of those that are due and not answered
        self._unsent: deque[int] = deque()
        self._in_flight = 0
        self._due_count = 0
        self._sent_count = 0
        # A later turn of a conversation is due by the answer before it, all others by the clock.
        self._by_clock = [i for i, each in enumerate(requests) if each.follows is None]
        self._coming = iter(self._by_clock)
        self._next_turn = {
            each.follows: i for i, each in enumerate(requests) if each.follows is not None
        }

    def play(self, stop_s: float) -> None:
        """Let everything happen until all is answered, or until `stop_s`."""
        self._await_next()
        while self._events:
            now_s, event = self._events.next()
            if now_s > stop_s:
                self._stop(stop_s)
                return
            if event[0] == "due":
                self._due(event[1], now_s)
            elif event[0] == "arrive":
                self._arrive(event[1], now_s)
            elif event[0] == "arrived_cache":
                self._arrived_cache(event[1], now_s)
            else:
                self._step_ended(event[0], event[1], now_s)

    def _stop(self, stop_s: float) -> None:
        if not self._judged:
            self._judge_backlog()
        for scheduler in self._schedulers:
            ended = scheduler.stop(stop_s)
            if not isinstance(scheduler, PrefillOnlyScheduler):
                self._answered(ended, scheduler)
        for index, journey in self._journeys.items():
            if journey.sent_s is not None or not self._closed_loop:
                self._record(index, journey, end_s=stop_s)

    def _answered(self, sequences: list[Sequence], scheduler: Scheduler) -> None:
        for sequence in sequences:
            self._in_flight -= 1
            journey = self._journeys.pop(sequence.index)
            self._record(sequence.index, journey, end_s=scheduler.ended_s(sequence), whole=True)
            scheduler.forget(sequence)

    def _record(
        self, index: int, journey: _RequestState, *, end_s: float, whole: bool = False
    ) -> None:
        """Keep what one request did, its token times read from the steps it took part in."""
        answer = GeneratedTokens(0, ())
        if journey.scheduler is not None and journey.sequence is not None:
            answer = journey.scheduler.generated_tokens(
                journey.sequence, each_token=self._each_token
            )
        first = journey.taken or journey.sequence
        if first is not None:
            self.admitted_s[index] = first.admitted_s
        self.records[index] = Record(
            index=index,
            input_tokens=self._requests[index].input_tokens,
            output_tokens=answer.tokens,
            due_s=journey.due_s,
            sent_s=end_s if journey.sent_s is None else journey.sent_s,
            end_s=end_s,
            chunk_times_s=answer.times_s,
            chunk_tokens=answer.chunk_tokens,
            outcome="ok" if whole else "cancelled",
            detail="" if whole else "the run was stopped before it was answered",
            session=self._requests[index].session,
            turn=self._requests[index].turn,
        )

    def _await_next(self) -> None:
        """Let the clock's next request become due when it is."""
        following = next(self._coming, None)
        if following is not None:
            self._events.enter(self._requests[following].due_s, _ARRIVAL, ("due", following))

    def _due(self, index: int, now_s: float) -> None:
        self._due_count += 1
        if self._requests[index].follows is not None:
            self._journeys[index] = _RequestState(now_s)
            if self._closed_loop:  # its user has waited for it, and asks before anybody new
                self._in_flight -= 1
                self._unsent.appendleft(index)
            else:
                self._unsent.append(index)
            self._send(now_s)
            return
        self._await_next()
        self._journeys[index] = _RequestState(self._requests[index].due_s)
        self._unsent.append(index)
        self._send(now_s)
        if index == self._by_clock[-1] and self._unsent:
            self._judge_backlog()

    def _go_on(self, ended: list[Sequence], now_s: float) -> None:
        """Let the next turns of answered requests become due, after their users' thinking."""
        for sequence in ended:
            following = self._next_turn.get(sequence.index)
            if following is None:
                continue
            if self._closed_loop:  # the user who thinks starts nothing else
                self._in_flight += 1
            due_s = now_s + self._requests[following].think_s
            self._events.enter(due_s, _ARRIVAL, ("due", following))

    def _judge_backlog(self) -> None:
        """Of what has become due, did more wait than a server that keeps up leaves waiting?"""
        self._judged = True
        last = max((i for i in self._by_clock if self.records[i] or i in self._journeys), default=0)
        last_due_s = self._requests[last].due_s
        if self._closed_loop or last_due_s == self._requests[0].due_s:  # one burst has no rate
            return
        waiting = sum(scheduler.waiting for scheduler in self._schedulers)
        backlog = waiting + len(self._unsent)
        self.saturated = backlog > 1 + _BACKLOG_FRACTION * self._due_count

    def _send(self, now_s: float) -> None:
        while self._unsent and self._in_flight < self._limit:
            index = self._unsent.popleft()
            journey = self._journeys[index]
            journey.sent_s = now_s
            if self._closed_loop:  # it is due when its user is free
                journey.due_s = now_s
            self._in_flight += 1
            tokens = self._requests[index].input_tokens
            taken_s = self._taken_in(self._sent_count, now_s)
            self._sent_count += 1
            arrives_s = taken_s + self._request_s + self._prompt_token_s * tokens
            self._events.enter(arrives_s, _ARRIVAL, ("arrive", index))

    def _taken_in(self, order: int, now_s: float) -> float:
        """When the server has taken the request from the socket that was sent as this one."""
        waits, front = self._waits, order % len(self._taken_in_s)
        if order >= self._limit:
            # Evenly spread from nothing to twice the mean: requests that came together and
            # are equally long would else come together for ever, which no measured run does.
            return now_s + 2 * waits.clump_s * (order * _GOLDEN % 1.0)
        taken_s = max(now_s, self._taken_in_s[front])
        self._taken_in_s[front] = taken_s + waits.intake_s
        return taken_s

    def _arrive(self, index: int, now_s: float) -> None:
        request, journey = self._requests[index], self._journeys[index]
        if index == self._by_clock[-1] and not self._judged:
            self._judge_backlog()  # not when it is due: what comes with it is on its way, too
        if self._takers is not None:
            taker = self._takers.choose()
            assert isinstance(taker, PrefillOnlyScheduler)
            journey.taker = taker
            journey.taken = Sequence(
                index, request.input_tokens, 1, pieces=request.prefix, priority=request.priority
            )
            self._enqueue(taker, journey.taken, now_s)
            return
        self._decode(request, journey, now_s)

    def _hand_over(
        self, sequences: list[Sequence], sender: PrefillOnlyScheduler, now_s: float
    ) -> None:
        """Send the caches of computed prompts, one after another."""
        assert self._transfer is not None
        for sequence in sequences:
            begun_s = max(now_s, self._sender_free_s.get(id(sender), 0.0))
            arrives_s = begun_s + self._transfer.seconds(sequence.prompt_tokens)
            self._sender_free_s[id(sender)] = arrives_s
            self._events.enter(arrives_s, _ARRIVAL, ("arrived_cache", sequence.index))

    def _arrived_cache(self, index: int, now_s: float) -> None:
        journey = self._journeys[index]
        taker, taken = journey.taker, journey.taken
        assert taker is not None
        assert taken is not None
        taker.release(taken)
        if taker.planned_end_s is None:  # it may have waited for these blocks
            self._wake(taker, now_s)
        self._decode(self._requests[index], journey, now_s, brought_tokens=taken.prompt_tokens - 1)

    def _decode(
        self, request: Request, journey: _RequestState, now_s: float, *, brought_tokens: int = 0
    ) -> None:
        scheduler = self._router.choose()
        journey.scheduler = scheduler
        journey.sequence = Sequence(
            request.index,
            request.input_tokens,
            request.output_tokens,
            pieces=known_pieces(request),
            priority=request.priority,
            brought_tokens=brought_tokens,
        )
        self._enqueue(scheduler, journey.sequence, now_s)

    def _enqueue(self, scheduler: Scheduler, sequence: Sequence, now_s: float) -> None:
        scheduler.enqueue(sequence)
        if scheduler.planned_end_s is None:
            self._wake(scheduler, now_s)
        elif scheduler.interrupt(now_s):
            self._expect(scheduler)

    def _used_fraction(self) -> float:
        caches = [scheduler.cache for scheduler in self._schedulers]
        free = sum(cache.free_blocks for cache in caches)
        return 1 - free / sum(cache.capacity_blocks for cache in caches)

    def _wake(self, scheduler: Scheduler, now_s: float) -> None:
        """The scheduler composes its next step after all arrivals of this instant."""
        self._events.enter(now_s, _STEP, (scheduler, now_s))

    def _expect(self, scheduler: Scheduler) -> None:
        end_s = scheduler.planned_end_s
        if end_s is not None:
            self._events.enter(end_s, _STEP, (scheduler, end_s))

    def _step_ended(self, scheduler: Scheduler, end_s: float, now_s: float) -> None:
        planned_s = scheduler.planned_end_s
        if planned_s is not None:
            if planned_s != end_s:  # the stretch was cut; this is its former end
                return
            ended = scheduler.commit()
            if isinstance(scheduler, PrefillOnlyScheduler):
                self._hand_over(ended, scheduler, now_s)
            else:
                self._answered(ended, scheduler)
                self._go_on(ended, now_s)
            self.kv_use.note(now_s, self._used_fraction())
            self._send(now_s)
            self._wake(scheduler, now_s)
            return
        scheduler.plan(now_s)
        self._expect(scheduler)
