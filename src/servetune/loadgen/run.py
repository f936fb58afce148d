"""A run of load: every request that becomes due has exactly one record.

Two loops share everything but the question when a request is due. In a closed loop there
are `max_concurrency` users; a request is due when its user's last answer ended, the first
ones at the start. In an open loop each request is due at its time, whatever the server does;
where a limit on concurrency holds it back, the wait is part of every latency.

All bodies are built and the schedule is drawn before the clock starts. The garbage
collector rests during the run: what a run allocates, it keeps.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec

from servetune.clock import Clock, MonotonicClock
from servetune.errors import InputError, LoadError, ServerRefused, ServetuneError
from servetune.loadgen.connection import Pool
from servetune.loadgen.instrument import Departures, Instrument, LagMeter, p99_s, worst_s
from servetune.loadgen.openai_api import Answer, payload
from servetune.loadgen.pacing import pace
from servetune.loadgen.scrape import ServerMetrics, fetch, parse_metrics, server_metrics
from servetune.loadgen.target import Target
from servetune.metrics.record import Record
from servetune.workload.arrivals import AllAtOnce
from servetune.workload.prompts import Prompt, unlike
from servetune.workload.request import Request
from servetune.workload.workload import Workload

__all__ = ["LoadResult", "Progress", "run_load", "run_load_blocking"]

POLL_S = 0.5
"""How often the server's life is checked and progress is told."""

GRACE_S = 1.0
"""For requests in flight to fail by themselves when the server is known to be dead."""

STOPPED = "the run was stopped"
WARMUP_SEED = 0x5EED

Alive = Callable[[], str | None]
"""Answers at once: `None` while the server lives, else why it does not."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    elapsed_s: float
    request_count: int
    finished_count: int
    failed_count: int
    in_flight_count: int
    output_tokens: int


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured, whole or not.

    Attributes:
        records: One for each request that became due, in the workload's order.
        not_due_count: Requests that never became due, because the run was ended before.
        started_unix_s: Wall-clock time of the start; every other time is monotonic.
        duration_s: From the start to the end of the last record.
        instrument: The load generator's own error.
        warmup_failed_count: Warm-up requests that failed; not all of them did.
        interrupted: Whether somebody stopped the run.
        aborted_reason: Why the run ended by itself before its last request.
        server: The server's own account, if it was asked and gave one.
    """

    records: tuple[Record, ...]
    not_due_count: int
    started_unix_s: float
    duration_s: float
    instrument: Instrument
    warmup_failed_count: int = 0
    interrupted: bool = False
    aborted_reason: str | None = None
    server: ServerMetrics | None = None


async def run_load(
    target: Target,
    workload: Workload,
    prompts: Sequence[Prompt],
    *,
    clock: Clock | None = None,
    timeout_s: float = 600.0,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
    server_alive: Alive | None = None,
    warmup_prompts: Sequence[Prompt] | None = None,
    scrape_every_s: float | None = None,
) -> LoadResult:
    """Send a workload to a server, and return one record for each request.

    Args:
        target: The server.
        workload: What is asked, and when.
        prompts: Words or token ids of `workload.requests()`, one each, in order.
        clock: Stamps everything; it must be the time that the event loop waits by.
        timeout_s: Limit of each request, from when it is begun.
        on_progress: Called about twice a second and once at the end.
        stop: Ends the run when set; requests in flight are recorded as cancelled.
        server_alive: Ends the run when it says why the server is dead. Polled about twice a
            second and after each lost connection, so it must answer at once.
        warmup_prompts: Words of the warm-up requests; made from `prompts` in another order
            when not given.
        scrape_every_s: Asks for `/metrics` before, after, and this often meanwhile. A
            server without metrics leaves `LoadResult.server` empty.

    Raises:
        LoadError: No warm-up request could be sent or answered; no load was sent.
        ServerRefused: The server answered all of them with an error; no load was sent.
        InputError: The prompts do not suit the workload or the route.
    """
    clock = clock or MonotonicClock()
    requests = workload.requests()
    if len(prompts) < len(requests):
        raise InputError(f"{len(requests)} requests need as many prompts, got {len(prompts)}")
    warmups = _warmups(requests, prompts, workload.warmup_count, warmup_prompts)
    asks = _asks(target, workload, zip(requests, prompts, strict=False))
    warmup_asks = _asks(target, workload, warmups)
    _allow_open_files(workload.max_concurrency or len(asks))

    stop = stop or asyncio.Event()
    pool = Pool(target.origin, clock.now_s)
    one_by_one = msgspec.structs.replace(workload, arrivals=AllAtOnce(), max_concurrency=1)
    warmup = _Run(pool, target, one_by_one, warmup_asks, clock, timeout_s, server_alive)
    run = _Run(pool, target, workload, asks, clock, timeout_s, server_alive)
    try:
        warmup_failed_count = await _warm_up(warmup, target, stop)
        async with _scraping(target, scrape_every_s) as scrapes:
            with _resting_collector():
                result = await run.drive(on_progress, stop)
    finally:
        pool.close()
    return msgspec.structs.replace(
        result, warmup_failed_count=warmup_failed_count, server=_account(scrapes)
    )


def run_load_blocking(
    target: Target,
    workload: Workload,
    prompts: Sequence[Prompt],
    *,
    clock: Clock | None = None,
    timeout_s: float = 600.0,
    on_progress: Callable[[Progress], None] | None = None,
    server_alive: Alive | None = None,
    warmup_prompts: Sequence[Prompt] | None = None,
    scrape_every_s: float | None = None,
) -> LoadResult:
    """`run_load` for callers without an event loop.

    Called from the main thread, Ctrl-C ends the run with what was measured
    (`LoadResult.interrupted`) instead of raising `KeyboardInterrupt`.
    """

    async def main() -> LoadResult:
        stop = asyncio.Event()
        with _stop_on_interrupt(stop):
            return await run_load(
                target,
                workload,
                prompts,
                clock=clock,
                timeout_s=timeout_s,
                on_progress=on_progress,
                stop=stop,
                server_alive=server_alive,
                warmup_prompts=warmup_prompts,
                scrape_every_s=scrape_every_s,
            )

    return asyncio.run(main())


class _Ask(msgspec.Struct, frozen=True):
    """A request that is ready to leave."""

    request: Request
    payload: bytes
    input_tokens: int

    @property
    def due_s(self) -> float:
        return self.request.due_s


class _Run:
    """One run in progress."""

    def __init__(
        self,
        pool: Pool,
        target: Target,
        workload: Workload,
        asks: Sequence[_Ask],
        clock: Clock,
        timeout_s: float,
        server_alive: Alive | None,
    ) -> None:
        self._pool = pool
        self._target = target
        self._workload = workload
        self._asks = asks
        self._clock = clock
        self._timeout_s = timeout_s
        self._server_alive = server_alive
        self._start_s = 0.0
        self._departures = Departures()
        self._records: dict[int, Record] = {}
        self._begun: set[int] = set()
        self._failed_count = 0
        self._output_tokens = 0
        self._over = asyncio.Event()  # nothing more is to be sent
        self._was_stopped = False
        self._aborted_reason: str | None = None

    async def drive(
        self, on_progress: Callable[[Progress], None] | None, stop: asyncio.Event
    ) -> LoadResult:
        lag = LagMeter()
        lag.start()
        started_unix_s = time.time()
        self._start_s = self._clock.now_s()
        closed = self._workload.closed_loop
        if stop.is_set():
            self._over.set()
        load = asyncio.create_task(self._closed_loop() if closed else self._open_loop())
        try:
            await self._watch(load, stop, on_progress)
            await load
        finally:
            lag.stop()
            if not load.done():
                load.cancel()
                await asyncio.wait((load,))
        unfinished = len(self._records) < len(self._asks)
        interrupted = stop.is_set() and (unfinished or self._was_stopped)
        if not closed and unfinished:
            self._record_overdue()
        if on_progress is not None:
            on_progress(self._progress())
        records = tuple(self._records[index] for index in sorted(self._records))
        return LoadResult(
            records=records,
            not_due_count=len(self._asks) - len(records),
            started_unix_s=started_unix_s,
            duration_s=max((record.end_s for record in records), default=0.0),
            instrument=self._instrument(lag),
            interrupted=interrupted,
            aborted_reason=self._aborted_reason,
        )

    # sending

    async def _closed_loop(self) -> None:
        left = iter(self._asks)
        users = min(self._workload.max_concurrency or len(self._asks), len(self._asks))

        async def user() -> None:
            due_s = self._start_s
            while not self._over.is_set() and (ask := next(left, None)) is not None:
                self._departures.note(self._clock.now_s() - due_s)
                record = await self._ask(ask, due_s)
                due_s = self._start_s + record.end_s

        async with asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(user())

    async def _open_loop(self) -> None:
        limit = self._workload.max_concurrency
        free = asyncio.Semaphore(limit) if limit is not None else None

        async def one(ask: _Ask) -> None:
            if not self._over.is_set():
                await self._ask(ask, self._start_s + ask.due_s)
            if free is not None:
                free.release()

        async with asyncio.TaskGroup() as group:
            pacing = group.create_task(self._release(group, free, one))
            ending = group.create_task(self._over.wait())
            await asyncio.wait((pacing, ending), return_when=asyncio.FIRST_COMPLETED)
            pacing.cancel()
            ending.cancel()

    async def _release(
        self,
        group: asyncio.TaskGroup,
        free: asyncio.Semaphore | None,
        one: Callable[[_Ask], Coroutine[Any, Any, None]],
    ) -> None:
        """Let each request go when it is due, and a user is free if their number is limited."""
        held_until_s = self._start_s
        async with aclosing(pace(self._asks, self._clock, self._start_s)) as paced:
            async for ask, _ in paced:
                if self._over.is_set():
                    return
                if free is not None:
                    if free.locked():
                        await free.acquire()
                        held_until_s = self._clock.now_s()
                    else:
                        await free.acquire()
                due_s = self._start_s + ask.due_s
                late_s = self._clock.now_s() - max(due_s, held_until_s)
                self._departures.note(late_s, held=held_until_s > due_s)
                group.create_task(one(ask))

    async def _ask(self, ask: _Ask, due_s: float) -> Record:
        self._begun.add(ask.request.index)
        answer = Answer(streamed=self._target.stream)
        exchange = await self._pool.exchange(ask.payload, answer, timeout_s=self._timeout_s)
        record = answer.record(
            ask.request,
            exchange,
            due_s=due_s,
            start_s=self._start_s,
            input_tokens=ask.input_tokens,
        )
        self._records[record.index] = record
        self._output_tokens += record.output_tokens
        if record.outcome != "ok":
            self._failed_count += 1
            if record.outcome in {"refused", "disconnected"}:
                self._check_server()
        return record

    # ending

    async def _watch(
        self,
        load: asyncio.Task[None],
        stop: asyncio.Event,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """Wait for the load to end, or end it."""
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(self._over.wait())
        try:
            while not load.done():
                await asyncio.wait(
                    (load, stopping, ending), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                if stop.is_set() and not load.done():
                    self._was_stopped = True
                    self._over.set()
                    self._pool.abandon("cancelled", STOPPED)
                    return
                self._check_server()
                if self._aborted_reason is not None:
                    await asyncio.wait((load,), timeout=GRACE_S)
                    self._pool.abandon("disconnected", self._aborted_reason)
                    return
                if on_progress is not None and not load.done():
                    on_progress(self._progress())
        finally:
            stopping.cancel()
            ending.cancel()

    def _check_server(self) -> None:
        if self._server_alive is None or self._aborted_reason is not None:
            return
        reason = self._server_alive()
        if reason is not None and len(self._records) < len(self._asks):
            self._aborted_reason = reason
            self._over.set()

    def _record_overdue(self) -> None:
        """Requests that were due when the run ended but had to wait: they failed too."""
        now_s = self._clock.now_s() - self._start_s
        detail = self._aborted_reason or STOPPED
        for ask in self._asks:
            index = ask.request.index
            if ask.due_s <= now_s and index not in self._begun:
                self._failed_count += 1
                self._records[index] = Record(
                    index=index,
                    input_tokens=ask.input_tokens,
                    output_tokens=0,
                    due_s=ask.due_s,
                    sent_s=now_s,
                    end_s=now_s,
                    outcome="cancelled",
                    detail=f"due but not sent: {detail}",
                )

    # telling

    def _progress(self) -> Progress:
        return Progress(
            elapsed_s=self._clock.now_s() - self._start_s,
            request_count=len(self._asks),
            finished_count=len(self._records),
            failed_count=self._failed_count,
            in_flight_count=len(self._begun - self._records.keys()),
            output_tokens=self._output_tokens,
        )

    def _instrument(self, lag: LagMeter) -> Instrument:
        return Instrument(
            loop_lag_max_s=worst_s(lag.lags_s),
            loop_lag_p99_s=p99_s(lag.lags_s),
            sent_late_max_s=worst_s(self._departures.lates_s),
            sent_late_p99_s=p99_s(self._departures.lates_s),
            late_count=self._departures.late_count,
            held_count=self._departures.held_count,
            connections_opened=self._pool.opened_count,
            connections_reused=self._pool.reused_count,
            retried_count=self._pool.retried_count,
        )


# before the clock starts


def _asks(
    target: Target, workload: Workload, pairs: Iterator[tuple[Request, Prompt]]
) -> tuple[_Ask, ...]:
    return tuple(
        _Ask(request, payload(target, workload, request, prompt), prompt.token_count)
        for request, prompt in pairs
    )


def _warmups(
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    count: int,
    given: Sequence[Prompt] | None,
) -> Iterator[tuple[Request, Prompt]]:
    """Requests like the load in length and unlike it in words, so that no cache is primed."""
    for i in range(count):
        likeness = i % len(requests)
        prompt = given[i % len(given)] if given else unlike(prompts[likeness], WARMUP_SEED + i)
        yield msgspec.structs.replace(requests[likeness], index=i), prompt


async def _warm_up(run: _Run, target: Target, stop: asyncio.Event) -> int:
    """Send the warm-up requests one after another; how many failed, unless all did."""
    records = (await run.drive(None, stop)).records
    failures = [record for record in records if record.outcome != "ok"]
    if failures and len(failures) == len(records) and not stop.is_set():
        raise _refusal(target, failures[0])
    return len(failures)


def _refusal(target: Target, record: Record) -> ServetuneError:
    """Why there is no load, in the server's words."""
    if record.outcome == "refused":
        return LoadError(record.detail, hint="is the server running, and is this its address?")
    if record.outcome != "http_status" or record.status is None:
        return LoadError(f"the first request failed ({record.outcome}): {record.detail}")
    return ServerRefused(
        f"the server refused the first request with status {record.status}: {record.detail}",
        status=record.status,
        body=record.detail,
        hint=_way_on(target, record.status, record.detail),
    )


def _way_on(target: Target, status: int, words: str) -> str:
    said = words.lower()
    if status in {401, 403}:
        return "name the environment variable that holds the API key"
    if "stream_options" in said or "continuous_usage" in said:
        return 'send no stream options: extra_body {"stream_options": null}'
    if "ignore_eos" in said or "min_tokens" in said:
        return "turn ignore_eos off for this server"
    if "context" in said or "max_model_len" in said:
        return "ask for shorter prompts or answers, or start the server with a longer context"
    if status == 404:
        return f"the names that the server knows are listed at {target.origin}/v1/models"
    return ""


def _allow_open_files(connection_count: int) -> None:
    """Raise this process's soft limit of open files if the connections would not fit."""
    wanted = connection_count + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


# around the run


@contextmanager
def _resting_collector() -> Iterator[None]:
    """No garbage collection inside: a pause would be read as the server's."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _stop_on_interrupt(stop: asyncio.Event) -> Iterator[None]:
    """Turn Ctrl-C into `stop`, where this thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if before is not None:
            signal.signal(signal.SIGINT, before)


@asynccontextmanager
async def _scraping(target: Target, every_s: float | None) -> AsyncIterator[list[str]]:
    """Texts of `/metrics` before, during and after; fewer than two if there are none."""
    texts: list[str] = []
    if every_s is None or not await _scrape(target, texts):
        yield texts
        return

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every_s)
            await _scrape(target, texts)

    task = asyncio.create_task(repeat())
    try:
        yield texts
    finally:
        task.cancel()
    await _scrape(target, texts)


async def _scrape(target: Target, texts: list[str]) -> bool:
    with suppress(LoadError):  # a server without metrics can be measured all the same
        texts.append(await fetch(target, "/metrics"))
        return True
    return False


def _account(texts: Sequence[str]) -> ServerMetrics | None:
    if len(texts) < 2:
        return None
    first, *between, last = (parse_metrics(text) for text in texts)
    return server_metrics(first, last, *between)
