"""Simulation of a whole run in virtual time: users, router and engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from functools import partial

import msgspec

from servetune.engines import check_fits, check_parallel, check_starts, engine, resolved
from servetune.errors import PlanError
from servetune.hardware.device import Node
from servetune.metrics.record import Outcome, Record
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.causes import run_features
from servetune.perf.roofline.clumps import clump_share
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.factors import run_coefficients
from servetune.perf.roofline.planned_runs import PlannedRun, predict_runs
from servetune.perf.roofline.steady_state import length_moments
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.sim.admission import Limit, limits_of
from servetune.perf.sim.closed_loop_waits import ClosedLoopWaits, closed_loop_waits
from servetune.perf.sim.disaggregation import CacheTransfer, prefill_pool_of
from servetune.perf.sim.peak_series import PeakSeries
from servetune.perf.sim.prefill_only import PrefillOnlyScheduler
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.scheduler_config import (
    batch_in_flight,
    check_context_fits,
    copy_routing_of,
    routing_of,
    scheduler_config_of,
)
from servetune.perf.sim.sequence import GeneratedTokens, SchedulerConfig, Sequence
from servetune.perf.sim.serving import (
    ARRIVAL,
    DEADLINE,
    EngineLayout,
    Rank,
    RequestOverhead,
    ServedRequest,
    ServingCore,
)
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant
from servetune.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload.lengths import Observed
from servetune.workload.request import Piece, Request
from servetune.workload.workload import Workload

#: Requests whose lengths stand for all of a run.
_OBSERVED = 512
#: An open-loop run counts as saturated when this share of its requests had not begun to be
#: served when the last one had come to the engine, or became due but could not be sent.
_BACKLOG_FRACTION = 0.05


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a simulated run.

    Attributes:
        records: One per request that became due, by index; seconds since the run began.
        steps: Forward passes, all replicas together.
        busy_s: Time in forward passes, mean over replicas.
        duration_s: Time of the last answer, or at which the run was stopped.
        kv_peak_fraction: Largest share of KV blocks in use on any replica.
        preemptions: Sequences that lost their cache and were computed again.
        cached_fraction: Share of admitted prompts' tokens that the prefix cache had.
        saturated: Whether requests arrived faster than they could be served; never so in
            a closed loop, which waits.
        admitted_s: Time of first admission of each record's prompt; `None` if the run was
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
    transfer: CacheTransfer | None = None,
    options: RunOptions | None = None,
) -> SimulatedRun:
    """Simulate a workload on a plan in virtual time.

    The same arguments give the same result to the last digit. Warm-up requests leave no
    trace; shared beginnings of prompts are in `Workload.prefixes`. A workload with a duration
    stops then.

    Args:
        plan: Fields that are `None` take the engine's defaults.
        shape: Network.
        node: Machine; its device's coefficients are used unless others are given.
        workload: Requests and their arrivals.
        coefficients: Coefficients of the step law.
        calibration: Calibration by measured runs of this model on this machine.
        transfer: Transfer of prompts' caches to the servers that decode, where the plan has
            `prefill_replicas`; that of the node's link if omitted.
        options: Time limit of requests, and what becomes of records.

    Raises:
        PlanError: The plan does not fit, or a request could never be served by it.
    """
    run = prepared_run(
        plan,
        shape,
        node,
        workload,
        coefficients=coefficients,
        calibration=calibration,
        transfer=transfer,
        options=options,
    )
    return run.simulated()


#: Waits that are tried for a mean time to the first token, how near it is near enough, and how far
#: one of them may be beyond two others, in times of what lies between these.
_WAITS_TRIED, _NEAR_WANTED, _FARTHEST = 6, 0.02, 8.0


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a workload, and the engine and clients that a plan makes of a machine.

    Attributes:
        requests: Requests by due time.
        config: Limits of every scheduler.
        law: Step times.
        load: Sending by the clients.
        layout: Schedulers that serve them.
        first_token_factor: `Calibration.first_token_factor`; one without a calibration.
    """

    requests: tuple[Request, ...]
    config: SchedulerConfig
    law: StepLaw
    load: ClientLoad
    layout: EngineLayout
    first_token_factor: float = 1.0

    def simulated(self) -> SimulatedRun:
        """Simulate it, with first tokens as late as a calibration says.

        Where they come later than its steps make them, every request waits longer before the
        scheduler's queue, until their mean is about the factor times that of a run without it.
        Users of a closed loop who wait longer meet others' prompts, so the wait is sought. Where
        first tokens come earlier, a request's time to the queue is shortened, at most to none.
        """
        if self.first_token_factor == 1:
            return run_requests(self.requests, self.config, self.law, self.load, self.layout)
        own_s = self.load.overhead.request_s
        mean_s = self._first_token_s(own_s)
        wanted_s = self.first_token_factor * mean_s
        here_s = max(0.0, own_s + wanted_s - mean_s)
        if wanted_s > mean_s:
            here_s = self._sought_s((own_s, mean_s), here_s, wanted_s)
        load = self._waiting(here_s)
        return run_requests(self.requests, self.config, self.law, load, self.layout)

    def _sought_s(self, below: tuple[float, float], here_s: float, wanted_s: float) -> float:
        """Wait before the queue with which the mean first token comes when it is wanted.

        Args:
            below: A shorter wait, and the mean first token with it.
            here_s: The first wait to try.
            wanted_s: Mean time to the first token.
        """
        above: tuple[float, float] | None = None
        for _ in range(_WAITS_TRIED):
            mean_s = self._first_token_s(here_s)
            if abs(mean_s / wanted_s - 1) <= _NEAR_WANTED:
                break
            before = below
            if mean_s < wanted_s:
                below = here_s, mean_s
            else:
                above = here_s, mean_s
            # By the line through the two around the wanted one, or the last two below it.
            (first_s, low_s), (last_s, high_s) = (below, above) if above else (before, below)
            slope = (high_s - low_s) / (last_s - first_s)
            step_s = (wanted_s - high_s) / slope if slope > 0 else wanted_s - high_s
            here_s = last_s + min(step_s, _FARTHEST * (last_s - first_s))
        return here_s

    def _first_token_s(self, request_s: float) -> float:
        """Mean time to the first token, with so much time before the queue; zero without any."""
        load = self._waiting(request_s)
        plain = msgspec.structs.replace(load.options, each_token=False, on_record=None)
        load = msgspec.structs.replace(load, options=plain)
        run = run_requests(self.requests, self.config, self.law, load, self.layout)
        waits = [each.chunk_times_s[0] - each.sent_s for each in run.records if each.chunk_times_s]
        return sum(waits) / max(1, len(waits))

    def _waiting(self, request_s: float) -> ClientLoad:
        """The load with so much time before the queue."""
        overhead = msgspec.structs.replace(self.load.overhead, request_s=request_s)
        return msgspec.structs.replace(self.load, overhead=overhead)


def prepared_run(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
    transfer: CacheTransfer | None = None,
    options: RunOptions | None = None,
) -> PreparedRun:
    """Everything that a simulation of a workload on a plan needs; arguments as of `simulate`.

    Raises:
        PlanError: The plan does not fit, or a request could never be served by it.
    """
    check_starts(plan, shape, node.device)
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    divided = check_fits(filled, shape, node.device, device_limit=node.device_count)
    behaviour = engine(filled.engine).behaviour
    requests = workload.requests()
    config = scheduler_config_of(
        filled,
        divided,
        seed=workload.seed,
        ignore_eos=workload.ignore_eos,
        composes_ahead=behaviour.composes_ahead(filled, node.device)
        and not _counted_as_clumps(workload, requests),
    )
    if behaviour.must_hold_longest:
        check_context_fits(filled, config)
    prefill_pool = prefill_pool_of(filled, node, divided, transfer)
    for request in requests:
        _check_context(request, filled)
    chosen = coefficients or run_coefficients(node.device, filled, shape, workload)
    first_token_factor = 1.0
    if calibration is not None:
        closed = workload.concurrency if workload.closed_loop else None
        users = closed or _in_flight(requests, workload, filled, shape, node)
        here = PlannedRun(
            shape=shape,
            node=node,
            plan=filled,
            lengths=length_moments(_lengths(requests), shared=workload.found_prefix),
            concurrency=max(1, round(users)),
            request_count=len(requests),
        )
        (calibration,) = calibration.at(*run_features([here], in_flight=[users]))
        chosen = calibration.coefficients(chosen)
        first_token_factor = calibration.first_token_factor
    law = step_law(filled, shape, node, chosen)
    if workload.closed_loop and workload.concurrency is not None:
        copies = filled.replicas * filled.data_parallel
        law = law.with_batches(workload.concurrency / copies)
    load = ClientLoad(
        closed_loop=workload.closed_loop,
        max_concurrency=workload.concurrency,
        overhead=RequestOverhead(
            request_s=chosen.host.request_s, prompt_token_s=chosen.host.prompt_token_s
        ),
        waits=closed_loop_waits(workload, requests, filled, divided, law, chosen),
        stop_s=workload.duration_s,
        options=options or RunOptions(),
    )
    layout = EngineLayout(
        replicas=filled.replicas,
        copy_routing=copy_routing_of(filled),
        seed=workload.seed,
        ranks=filled.data_parallel,
        batches=filled.pipeline_parallel,
        routing=routing_of(filled),
        prefill_pool=prefill_pool,
        admission=limits_of(filled),
    )
    return PreparedRun(
        requests=requests,
        config=batch_in_flight(config, filled),
        law=law,
        load=load,
        layout=layout,
        first_token_factor=first_token_factor,
    )


def _counted_as_clumps(workload: Workload, requests: Several[Request]) -> bool:
    """Whether the wait for a step composed ahead is in the waits of a closed loop's clumps."""
    if not workload.closed_loop:
        return False
    moments = length_moments(_lengths(requests))
    return clump_share(moments.output_spread_tokens / moments.output_tokens) > 0.5


def _lengths(requests: Several[Request]) -> Observed:
    """Lengths of a run's first requests, which stand for all."""
    some = requests[:_OBSERVED]
    return Observed("the run", tuple((one.input_tokens, one.output_tokens) for one in some))


def _in_flight(
    requests: Several[Request], workload: Workload, plan: Plan, shape: NetworkShape, node: Node
) -> float:
    """Requests in flight of an open loop, on average, by formula: rate times time of each."""
    lasted_s = requests[-1].due_s - requests[0].due_s
    rate = (len(requests) - 1) / lasted_s if lasted_s > 0 else float(len(requests))
    run = PlannedRun(
        shape=shape,
        node=node,
        plan=msgspec.structs.replace(plan, prefill_replicas=None),
        lengths=_lengths(requests),
        concurrency=1,
        request_count=len(requests),
        protocol="open",
        rate_per_s=rate,
    )
    (found,) = predict_runs([run])
    most = workload.concurrency or len(requests)
    return float(min(most, max(1.0, rate * found.point.e2e_ms / MS_PER_S)))


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a simulated run: time limit of requests, and what becomes of records.

    Attributes:
        timeout_s: Time after sending at which a client gives a request up and goes on; the engine
            computes it no further then. `None` for no limit.
        each_token: Whether records have the time of every token. Otherwise an answer is two
            pieces, its first token and the rest: latencies, TPOT and throughputs stay exact, gaps
            between tokens become each request's mean gap, and a million requests need a third of
            the memory.
        on_record: Function that takes the record of each request as it ends.
    """

    timeout_s: float | None = None
    each_token: bool = True
    on_record: Callable[[Record], None] | None = None


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a run: how clients send its requests, and when it is stopped.

    Attributes:
        closed_loop: Whether a request is due when one of `max_concurrency` users is free.
        max_concurrency: Largest number of requests in flight; `None` for no limit.
        overhead: Time from sending to the scheduler's queue.
        waits: Further waiting of closed loops.
        stop_s: Time at which the run is stopped; `None` to let it end.
        options: Time limit of requests, and what becomes of records.
    """

    closed_loop: bool = False
    max_concurrency: int | None = None
    overhead: RequestOverhead = RequestOverhead()
    waits: ClosedLoopWaits = ClosedLoopWaits()
    stop_s: float | None = None
    options: RunOptions = RunOptions()


_OPEN_LOOP, _ONE_RANK = ClientLoad(), EngineLayout()


def run_requests(
    requests: tuple[Request, ...],
    config: SchedulerConfig,
    law: StepLaw,
    load: ClientLoad = _OPEN_LOOP,
    layout: EngineLayout = _ONE_RANK,
) -> SimulatedRun:
    """Serve requests by schedulers under one law of step times.

    A run that is stopped has records of requests that became due until then; those without a
    whole answer by then are `cancelled`, with the tokens that they got, as are those of a
    `timeout`. Turns of a conversation after one that failed are never due.

    Args:
        requests: Requests by due time.
        config: Limits of every scheduler.
        law: Step times.
        load: Sending by the clients.
        layout: Schedulers that serve them.

    Raises:
        PlanError: A request could never be served, or due before the request in front of it.
    """
    _check_possible(requests, config)
    run = VirtualRun(requests, config, law, load, layout)
    run.play(math.inf if load.stop_s is None else load.stop_s)
    schedulers = run.schedulers
    records = tuple(record for record in run.records if record is not None)
    admitted_tokens = sum(scheduler.admitted_prompt_tokens for scheduler in schedulers)
    cached_tokens = sum(scheduler.cached_prompt_tokens for scheduler in schedulers)
    return SimulatedRun(
        records=records,
        steps=sum(scheduler.steps for scheduler in schedulers),
        busy_s=sum(scheduler.busy_s for scheduler in schedulers) / len(schedulers),
        duration_s=max((record.end_s for record in records), default=0.0),
        kv_peak_fraction=max(s.cache.peak_blocks / s.cache.capacity_blocks for s in schedulers),
        preemptions=sum(scheduler.preemptions for scheduler in schedulers),
        cached_fraction=cached_tokens / admitted_tokens if admitted_tokens else None,
        saturated=run.saturated,
        admitted_s=tuple(run.admitted_s[record.index] for record in records),
        kv_use=run.kv_use.points(),
        each_token=load.options.each_token,
    )


def _check_context(request: Request, plan: Plan) -> None:
    length = request.input_tokens + request.output_tokens
    if plan.max_model_len is not None and length > plan.max_model_len:
        raise PlanError(
            f"{_shown(request)}, more than max_model_len {plan.max_model_len}",
            hint=f"raise max_model_len to {length}, or shorten the workload",
        )


def _check_possible(requests: tuple[Request, ...], config: SchedulerConfig) -> None:
    """Refuse requests that would wait for ever."""
    cache_tokens = max(0, config.capacity_blocks - config.state_blocks) * config.block_tokens
    variant, most_tokens = config.variant, None
    drafted = config.draft_tokens + config.lookahead_tokens
    # Room is kept for whole answers, the last token included.
    if isinstance(variant, PrefillFirstVariant):
        drafted = max(drafted, 1) + 1 + config.block_tokens
    elif isinstance(variant, InterruptingVariant):
        drafted = max(config.draft_tokens, 1)
        most_tokens = variant.max_batch_total_tokens
    latest_s = 0.0
    for request in requests:
        if request.due_s < latest_s:
            raise PlanError(
                f"request {request.index} is due at {request.due_s} s, before the one above it",
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
        if most_tokens is not None and request.input_tokens + request.output_tokens > most_tokens:
            raise PlanError(
                f"{_shown(request)}, more than max_batch_total_tokens {most_tokens}",
                hint="raise max_batch_total_tokens, or shorten the requests",
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


#: Its multiples are spread over the unit interval as evenly as any numbers are.
_GOLDEN = 0.6180339887498949


class _SimulatedRequest(ServedRequest, eq=False, kw_only=True):
    """One request and what its user saw."""

    due_s: float
    sent_s: float | None = None
    gave_up_s: float | None = None


def _simulated(request: Request, due_s: float) -> _SimulatedRequest:
    return _SimulatedRequest(
        request.index,
        request.input_tokens,
        request.output_tokens,
        prefix=request.prefix,
        pieces=known_pieces(request),
        priority=request.priority,
        due_s=due_s,
    )


class _SimulatedRank(Rank):
    """Rank whose planned stretches happen as a whole."""

    def __init__(self, scheduler: Scheduler, run: VirtualRun) -> None:
        super().__init__(scheduler, run.events)
        self._run = run

    def reached(self, now_s: float) -> None:
        ended = self.scheduler.commit()
        aborted = self.let_aborted_go(ended)
        if aborted:
            self._run.gave_up(self, aborted, ended)
            ended = [each for each in ended if each not in aborted]
        self._run.committed(self, ended, now_s)
        self.wake(now_s)


class VirtualRun(ServingCore[_SimulatedRank]):
    """Users and engine of one run.

    Attributes:
        records: Record of each request, by index; `None` before it is due or answered.
        admitted_s: Time of first admission of each request with a record, by index.
        kv_use: Share of all KV blocks in use after each stretch of steps.
        saturated: Saturation; see `SimulatedRun`.
    """

    def __init__(
        self,
        requests: tuple[Request, ...],
        config: SchedulerConfig,
        law: StepLaw,
        load: ClientLoad,
        layout: EngineLayout,
    ) -> None:
        super().__init__(config, law, layout)
        self.records: list[Record | None] = [None] * len(requests)
        self.admitted_s: list[float | None] = [None] * len(requests)
        self.kv_use = PeakSeries()
        self.saturated = False
        self._judged = False
        self._requests = requests
        self._all_ranks = [*self.prefill_ranks, *self.ranks]
        self.schedulers = [rank.scheduler for rank in self._all_ranks]
        self._load = load
        self._closed_loop = load.closed_loop
        self._limit = load.max_concurrency or len(requests)
        # Each copy has a front end of its own; they take turns, whatever rule chooses the copy.
        self._intake_free_s = [load.waits.warm_up_s] * layout.replicas
        self._open: dict[int, _SimulatedRequest] = {}  # due and not answered, by index
        self._given_up: dict[int, _SimulatedRequest] = {}  # until a step lets them go
        self._deadlines: deque[tuple[float, int]] = deque()  # in order of sending
        self._awaits_deadline = False
        self._unsent: deque[_SimulatedRequest] = deque()
        self._in_flight = 0
        self._due_count = 0
        self._sent_count = 0
        # A later turn of a conversation is due by the answer before it, all others by the clock.
        self._by_clock = [i for i, each in enumerate(requests) if each.follows is None]
        self._coming = iter(self._by_clock)
        self._next_turn = {
            each.follows: i for i, each in enumerate(requests) if each.follows is not None
        }

    def _new_rank(self, scheduler: Scheduler) -> _SimulatedRank:
        return _SimulatedRank(scheduler, self)

    def _new_prefill_rank(self, scheduler: PrefillOnlyScheduler) -> _SimulatedRank:
        return _SimulatedRank(scheduler, self)

    def play(self, stop_s: float) -> None:
        """Let everything happen until all is answered, or until `stop_s`."""
        self._await_next()
        self.advance(stop_s)
        if self.events:
            self._stop(stop_s)

    def _stop(self, stop_s: float) -> None:
        if not self._judged:
            self._judge_backlog()
        for rank in self._all_ranks:
            ended = [each for each in rank.scheduler.stop(stop_s) if each.index in self._open]
            if not isinstance(rank.scheduler, PrefillOnlyScheduler):
                self._answered(ended, rank.scheduler)
        for request in self._given_up.values():
            self._record_given_up(request)
        for request in self._open.values():
            if request.sent_s is not None or not self._closed_loop:
                why = "the run was stopped before it was answered"
                self._record(request, "cancelled", end_s=stop_s, detail=why)

    def committed(self, rank: Rank, ended: list[Sequence], now_s: float) -> None:
        """Take in what ended with a stretch of steps, and send what may leave then."""
        if isinstance(rank.scheduler, PrefillOnlyScheduler):
            for sequence in ended:
                self.send_cache(self._open[sequence.index], rank, now_s)
        else:
            self._answered(ended, rank.scheduler)
            self._continue_conversations(ended, now_s)
        self.kv_use.note(now_s, self._used_fraction())
        self._send(now_s)

    def _answered(self, sequences: list[Sequence], scheduler: Scheduler) -> None:
        for sequence in sequences:
            self._in_flight -= 1
            request = self._open.pop(sequence.index)
            if request.rank is not None:
                request.rank.admission.leave(sequence)
            self._record(request, "ok", end_s=scheduler.ended_s(sequence))
            scheduler.forget(sequence)

    def _record(
        self,
        request: _SimulatedRequest,
        outcome: Outcome,
        *,
        end_s: float,
        status: int | None = None,
        detail: str = "",
    ) -> None:
        """Keep the record of one request, with token times of the steps it took part in."""
        index, source = request.index, self._requests[request.index]
        answer = GeneratedTokens(0, ())
        if request.rank is not None and request.sequence is not None:
            scheduler, late = request.rank.scheduler, outcome == "timeout"
            each_token = self._load.options.each_token
            answer = scheduler.generated_tokens(request.sequence, each_token=each_token or late)
            if late:
                answer = answer.until(end_s, each_token=each_token)
        first = request.prefill_sequence or request.sequence
        if first is not None:
            self.admitted_s[index] = first.admitted_s
        record = Record(
            index=index,
            input_tokens=source.input_tokens,
            output_tokens=answer.tokens,
            due_s=request.due_s,
            sent_s=end_s if request.sent_s is None else request.sent_s,
            end_s=end_s,
            chunk_times_s=answer.times_s,
            chunk_tokens=answer.chunk_tokens,
            outcome=outcome,
            status=status,
            detail=detail,
            session=source.session,
            turn=source.turn,
        )
        self.records[index] = record
        if self._load.options.on_record is not None:
            self._load.options.on_record(record)

    def refuse(self, request: ServedRequest, limit: Limit, now_s: float) -> None:
        """Record the error with which the engine answers at once; its user goes on."""
        failed = self._open.pop(request.index)
        rule = limit.rule
        self._record(failed, "http_status", end_s=now_s, status=rule.status, detail=rule.message)
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Let the user of a failed request begin another conversation."""
        self._in_flight -= 1
        self._let_think(now_s)
        self._send(now_s)

    def _await_deadline(self, request: _SimulatedRequest, timeout_s: float) -> None:
        """Note the time limit of a request that was sent now; one event stands for the next."""
        assert request.sent_s is not None
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._open:
            deadlines.popleft()
        deadlines.append((request.sent_s + timeout_s, request.index))
        if not self._awaits_deadline:
            self._awaits_deadline = True
            self.events.enter(deadlines[0][0], DEADLINE, self._at_deadline)

    def _at_deadline(self, now_s: float) -> None:
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_s or deadlines[0][1] not in self._open):
            request = self._open.get(deadlines.popleft()[1])
            if request is not None:
                self._give_up(request, now_s)
        self._awaits_deadline = bool(deadlines)
        if deadlines:
            self.events.enter(deadlines[0][0], DEADLINE, self._at_deadline)

    def _give_up(self, request: _SimulatedRequest, now_s: float) -> None:
        """Let a client give a request up; a step that has begun still computes it."""
        request.cancelled, request.gave_up_s = True, now_s
        self._given_up[request.index] = self._open.pop(request.index)
        out = True
        if request.rank is not None and request.sequence is not None:
            out = request.rank.abort(request.sequence, now_s)
        elif request.prefill_rank is not None and request.prefill_sequence is not None:
            scheduler = request.prefill_rank.scheduler
            assert isinstance(scheduler, PrefillOnlyScheduler)
            if not scheduler.keeps(request.prefill_sequence):  # else its cache is on its way
                out = request.prefill_rank.abort(request.prefill_sequence, now_s)
        if out:
            self._record_given_up(self._given_up.pop(request.index))
        self._go_on(now_s)

    def gave_up(self, rank: Rank, aborted: list[Sequence], ended: list[Sequence]) -> None:
        """Record requests that were given up during the steps that have happened now."""
        for sequence in aborted:
            self._record_given_up(self._given_up.pop(sequence.index))
            if isinstance(rank.scheduler, PrefillOnlyScheduler) and sequence in ended:
                rank.scheduler.release(sequence)

    def _record_given_up(self, request: _SimulatedRequest) -> None:
        assert request.gave_up_s is not None
        why = f"no whole answer within {self._load.options.timeout_s:g} s"
        self._record(request, "timeout", end_s=request.gave_up_s, detail=why)
        if request.rank is not None and request.sequence is not None:
            request.rank.scheduler.forget(request.sequence)

    def _await_next(self) -> None:
        """Let the next request by the clock become due when it is."""
        following = next(self._coming, None)
        if following is not None:
            self._await_due(following, self._requests[following].due_s)

    def _await_due(self, index: int, due_s: float) -> None:
        self.events.enter(due_s, ARRIVAL, partial(self._due, index))

    def _due(self, index: int, now_s: float) -> None:
        self._due_count += 1
        source = self._requests[index]
        if source.follows is not None:
            request = self._open[index] = _simulated(source, now_s)
            if self._closed_loop:
                self._resume(request, now_s)
                return
            self._unsent.append(request)
            self._send(now_s)
            return
        self._await_next()
        request = self._open[index] = _simulated(source, source.due_s)
        self._unsent.append(request)
        self._send(now_s)
        if index == self._by_clock[-1] and self._unsent:
            self._judge_backlog()

    def _continue_conversations(self, ended: list[Sequence], now_s: float) -> None:
        """Let the next turns of answered requests become due, after their users' thinking."""
        for sequence in ended:
            following = self._next_turn.get(sequence.index)
            if following is None:
                self._let_think(now_s)
                continue
            if self._closed_loop:  # the user who thinks starts nothing else
                self._in_flight += 1
            self._await_due(following, now_s + self._requests[following].think_s)

    def _let_think(self, now_s: float) -> None:
        """Keep the user whose answer ended from sending the next request too early."""
        if not (self._closed_loop and self._unsent):
            return
        think_s = self._requests[self._unsent[0].index].think_s
        if think_s > 0:
            self._in_flight += 1
            request = self._unsent.popleft()
            self.events.enter(now_s + think_s, ARRIVAL, partial(self._resume, request))

    def _resume(self, request: _SimulatedRequest, now_s: float) -> None:
        """Send the request of a user who has waited, before that of any new user."""
        self._in_flight -= 1
        self._unsent.appendleft(request)
        self._send(now_s)

    def _judge_backlog(self) -> None:
        """Decide whether more due requests wait than a server that keeps up leaves waiting."""
        self._judged = True
        last = max((i for i in self._by_clock if self.records[i] or i in self._open), default=0)
        last_due_s = self._requests[last].due_s
        if self._closed_loop or last_due_s == self._requests[0].due_s:  # one burst has no rate
            return
        backlog = sum(scheduler.waiting for scheduler in self.schedulers) + len(self._unsent)
        self.saturated = backlog > 1 + _BACKLOG_FRACTION * self._due_count

    def _send(self, now_s: float) -> None:
        while self._unsent and self._in_flight < self._limit:
            request = self._unsent.popleft()
            request.sent_s = now_s
            if self._closed_loop:  # it is due when its user is free
                request.due_s = now_s
            self._in_flight += 1
            taken_s = self._taken_in(self._sent_count, now_s)
            self._sent_count += 1
            if self._load.options.timeout_s is not None:
                self._await_deadline(request, self._load.options.timeout_s)
            self.expect(request, self._load.overhead.arrival_s(taken_s, request.prompt_tokens))

    def _taken_in(self, order: int, now_s: float) -> float:
        """Time at which the server has read a request from its socket, by order of sending."""
        waits, front = self._load.waits, order % len(self._intake_free_s)
        if order >= self._limit:
            # Evenly spread from nothing to twice the mean: requests that came together and
            # are equally long would else come together for ever, which no measured run does.
            return now_s + 2 * waits.clump_s * (order * _GOLDEN % 1.0)
        taken_s = max(now_s, self._intake_free_s[front])
        self._intake_free_s[front] = taken_s + waits.intake_s
        return taken_s

    def arrive(self, request: ServedRequest, now_s: float) -> None:
        """Queue a request; with the last one the backlog is judged."""
        if request.index == self._by_clock[-1] and not self._judged:
            self._judge_backlog()  # not when it is due: what comes with it is on its way, too
        super().arrive(request, now_s)

    def _used_fraction(self) -> float:
        caches = [scheduler.cache for scheduler in self.schedulers]
        free = sum(cache.free_blocks for cache in caches)
        return 1 - free / sum(cache.capacity_blocks for cache in caches)
