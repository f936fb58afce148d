"""Run of load: every request that becomes due has exactly one record.

All bodies are built and the schedule is drawn before the clock starts. Sender processes send
(`servetune.traffic`, started by `sender_pool`); this process watches them, reports progress, and
makes records of their traces.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal

import msgspec
import numpy as np

from servetune.errors import InputError, LoadError, ServerRefused, ServetuneError
from servetune.loadgen.bodies import answer_form, head_of, prepared_request
from servetune.loadgen.instrument import Instrument, instrument_of
from servetune.loadgen.sampler import Sampler
from servetune.loadgen.sender_pool import (
    ONE_PER_CORE,
    LoadSender,
    SenderEvents,
    SenderPool,
    SenderPoolConfig,
    SenderSource,
    SendStatistics,
)
from servetune.loadgen.server_side import ServerMetrics, ServerSide
from servetune.loadgen.target import Target, tls_context
from servetune.metrics.record import Record
from servetune.secret import redacted_text, without
from servetune.traffic.messages import RequestTrace, Setup
from servetune.traffic.request_file import (
    PreparedRequest,
    RequestColumns,
    RequestFile,
    write_request_file,
)
from servetune.traffic.sigv4 import Credentials
from servetune.workload.arrivals import AllAtOnce
from servetune.workload.prompts import Prompt, unlike
from servetune.workload.request import Request
from servetune.workload.workload import Workload

Routing = Literal["round_robin", "least_outstanding"]

CREDENTIALS_POLL_S = 30.0
"""Interval at which a run asks whether its credentials were refreshed."""

POLL_S = 0.5
"""Interval at which the server's life is checked and progress is reported."""

GRACE_S = 1.0
"""Time for requests in flight to fail by themselves when the server is known to be dead."""

DEFAULT_GRACE_S = 30.0
"""Time for requests in flight when a duration or a precision ends the run."""

RECENT_COUNT = 1000
"""Records that progress is told with: enough for a 99th percentile, few enough to cost nothing."""

STOPPED = "the run was stopped"
WARMUP_SEED = 0x5EED

Alive = Callable[[], str | None]
"""Function that returns at once: `None` while the server lives, else the reason why it is dead."""

CredentialSource = Callable[[], Credentials]
"""Function that gives the current credentials; called again during a run, as sessions end."""

Judge = Callable[[Sequence[Record], float], str | None]
"""Function of the records so far and the seconds since the start: the reason to end the run."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run.

    Attributes:
        draining: Whether nothing more is sent, and the last answers are awaited.
        recent: Records of the requests that ended last, at most `RECENT_COUNT`.
    """

    elapsed_s: float
    request_count: int
    finished_count: int
    failed_count: int
    in_flight_count: int
    output_tokens: int
    draining: bool = False
    recent: tuple[Record, ...] = ()


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run, whole or ended early.

    Attributes:
        records: Records of the requests that became due, in the workload's order.
        not_due_count: Requests that never became due, because the run ended before.
        started_unix_s: Wall-clock time of the start; every other time is monotonic.
        started_monotonic_s: Start on the machine's monotonic clock.
        duration_s: Time from the start to the end of the last record.
        instrument: The load generator's own error.
        warmup_failed_count: Warm-up requests that failed; not all of them did.
        interrupted: Whether the run was stopped from outside.
        aborted_reason: Reason why the run broke off before its last request.
        ended_reason: Reason why it ended before its last request as its settings wanted.
        server: The server's own metrics, if it has any.
        side: Metrics of server and machine over time, from the start of the run.
        texts: Text of the answers by index, as far as it was kept.
    """

    records: tuple[Record, ...]
    not_due_count: int
    started_unix_s: float
    started_monotonic_s: float = 0.0
    duration_s: float
    instrument: Instrument
    warmup_failed_count: int = 0
    interrupted: bool = False
    aborted_reason: str | None = None
    ended_reason: str | None = None
    server: ServerMetrics | None = None
    side: ServerSide | None = None
    texts: dict[int, str] = {}


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run that do not change its requests.

    Attributes:
        timeout_s: Time limit of each request, from when it is begun.
        processes: Sender processes; `auto` starts another one when those that run are busy.
        most_processes: Largest number under `auto`; `None` for the cores this process may use.
        routing: Distribution of requests over several targets.
        duration_s: Time after which nothing more is sent; `None` for no limit.
        grace_s: Time for requests in flight to end after that.
        failures_limit: Failures one after another that end the run; `None` for no limit.
        failed_fraction_limit: Share of failures among the last hundred that ends it.
        keep_texts: Number of answers whose text is kept, from the first request on.
        open_ahead: Whether each user's connection is opened before the clock starts; otherwise
            connecting is part of the first latencies.
        run_id: Name of the run in the `traceparent` header of requests; empty for no header.
        trace_id: Trace of all requests, 32 hex digits; empty for one of each.
        senders: Machines that send, each with `processes` of its own; `None` for this one.
        scrape_every_s: Interval at which a process beside the load reads the servers'
            `/metrics`, this machine's GPUs and its cores; `None` for not at all.
        dcgm_url: URL of a DCGM exporter to read instead of this machine's GPUs.
        cards: NVML's numbers of this machine's GPUs that are read; `None` for all.
        watched_processes: Process ids by name, whose process trees are sampled as well.
    """

    timeout_s: float = 600.0
    processes: int | Literal["auto"] = 1
    most_processes: int | None = None
    routing: Routing = "round_robin"
    duration_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    failures_limit: int | None = None
    failed_fraction_limit: float | None = None
    keep_texts: int = 0
    run_id: str = ""
    trace_id: str = ""
    open_ahead: bool = True
    senders: SenderSource | None = None
    scrape_every_s: float | None = None
    dcgm_url: str | None = None
    cards: tuple[int, ...] | None = None
    watched_processes: dict[str, int] = {}


class LoadHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions and events through which a caller watches a run and ends it.

    Attributes:
        on_progress: Called about twice a second and once at the end.
        halt: Ends the run when set; requests in flight are recorded as cancelled.
        server_alive: Gives the reason why the server is dead, which ends the run. Called about
            twice a second and after each lost connection, so it must return at once.
        judge: Gives the reason why the run may end; called about once a second.
        credentials: Source of the credentials, for targets that have requests signed.
    """

    on_progress: Callable[[Progress], None] | None = None
    halt: threading.Event = msgspec.field(default_factory=threading.Event)
    server_alive: Alive | None = None
    judge: Judge | None = None
    credentials: CredentialSource | None = None


def run_load_blocking(
    target: Target | Sequence[Target],
    workload: Workload,
    prompts: Sequence[Prompt],
    *,
    settings: LoadSettings | None = None,
    hooks: LoadHooks | None = None,
    requests: Sequence[Request] | None = None,
    warmup_prompts: Sequence[Prompt] | None = None,
) -> LoadResult:
    """Send a workload to a server, and return one record for each request.

    Called from the main thread, Ctrl-C ends the run with what was measured
    (`LoadResult.interrupted`) instead of raising `KeyboardInterrupt`.

    Args:
        target: Server, or several servers over which requests are spread.
        workload: Lengths, arrivals and number of the requests.
        prompts: Text or token ids of the requests, one each, in order.
        settings: Time limits, processes and sampling of the run.
        hooks: Functions that watch the run and may end it.
        requests: Requests of the workload, where they were drawn already.
        warmup_prompts: Prompts of the warm-up requests; by default those of `prompts` with
            their tokens in another order.

    Raises:
        LoadError: No warm-up request could be sent or answered; no load was sent.
        ServerRefused: The server answered all of them with an error; no load was sent.
        InputError: The prompts do not suit the workload or the route.
    """
    settings, hooks = settings or LoadSettings(), hooks or LoadHooks()
    targets = (target,) if isinstance(target, Target) else tuple(target)
    for each in targets:
        if each.cafile is not None:
            tls_context(each)  # raises now if the file cannot be read
    if settings.senders is not None:
        settings.senders.require(targets, signed=hooks.credentials is not None)
    if settings.duration_s is None:
        settings = msgspec.structs.replace(settings, duration_s=workload.duration_s)
    if requests is None:
        requests = workload.requests()
    if len(prompts) < len(requests):
        raise InputError(f"{len(requests)} requests need as many prompts, got {len(prompts)}")
    load = _Load(targets, workload, requests, prompts)
    warmups = list(_warmups(requests, prompts, workload.warmup_count, warmup_prompts))
    request_file = write_request_file(_prepared_requests(load))
    with _halt_on_interrupt(hooks.halt), contextlib.ExitStack() as stack:
        stack.callback(request_file.close)
        sampler = None
        if settings.scrape_every_s is not None:
            sampler = Sampler(
                targets,
                every_s=settings.scrape_every_s,
                dcgm_url=settings.dcgm_url,
                cards=settings.cards,
                processes=settings.watched_processes,
            )
            stack.enter_context(sampler)
        failed_count = 0
        if warmups and not hooks.halt.is_set():
            failed_count = _warm_up(load, warmups, settings, hooks)
        if sampler is not None:
            sampler.wait_ready()
            sampler.ask_now()  # counters begin where the warm-up ended
        result = _Run(load, settings, hooks).drive(request_file)
        side = sampler.stop() if sampler is not None else None
    return _with_side(msgspec.structs.replace(result, warmup_failed_count=failed_count), side)


def _with_side(result: LoadResult, side: ServerSide | None) -> LoadResult:
    if side is None:
        return result
    begun_s = result.started_monotonic_s
    # Up to the last scrape, which was made when all was over: an earlier one may have been on
    # its way while the last tokens were counted.
    own = side.within(begun_s, time.monotonic()).since(begun_s)
    has_engine = any(series.kind == "engine" and series.times_s for series in own.series)
    return msgspec.structs.replace(result, server=own.totals if has_engine else None, side=own)


class _Load(msgspec.Struct, frozen=True):
    """Requests of a run and the servers that they go to."""

    targets: Sequence[Target]
    workload: Workload
    requests: Sequence[Request]
    prompts: Sequence[Prompt]


class _Run:
    """Run in progress."""

    def __init__(self, load: _Load, settings: LoadSettings, hooks: LoadHooks) -> None:
        self._load = load
        self._targets, self._workload = load.targets, load.workload
        self._requests, self._prompts = load.requests, load.prompts
        self._settings = settings
        self._hooks = hooks
        self._records: dict[int, Record] = {}
        self._texts: dict[int, str] = {}
        self._failed_count = 0
        self._failures_in_a_row = 0
        self._recent_failures: list[bool] = []
        self._output_tokens = 0
        self._reported_s = 0.0
        self._judged_s = 0.0
        self._credentials: Credentials | None = None
        self._credentials_s = time.monotonic()
        self._start_s = 0.0
        self._started_unix_s = time.time()
        self._stopped = False
        self._interrupted = False
        self._aborted_reason: str | None = None
        self._ended_reason: str | None = None

    def drive(self, request_file: RequestFile) -> LoadResult:
        """Send everything, or as much as the hooks allow."""
        if self._hooks.halt.is_set():
            self._interrupted = True
            statistics = SendStatistics()
        else:
            sender = self._sender(request_file)
            statistics = sender.run()
            self._aborted_reason = self._aborted_reason or sender.broken
        if self._stopped and not self._workload.closed_loop:
            self._record_overdue()
        self._report_progress(0)
        records = tuple(self._records[index] for index in sorted(self._records))
        secure = any(target.origin.scheme == "https" for target in self._targets)
        return LoadResult(
            records=records,
            not_due_count=len(self._requests) - len(records),
            started_unix_s=self._started_unix_s,
            started_monotonic_s=statistics.start_s,
            duration_s=max((record.end_s for record in records), default=0.0),
            instrument=instrument_of(statistics, stamped_by="process" if secure else "kernel"),
            interrupted=self._interrupted,
            aborted_reason=self._aborted_reason,
            ended_reason=self._ended_reason,
            texts=self._texts,
        )

    def _sender(self, request_file: RequestFile) -> LoadSender:
        events = SenderEvents(on_start=self._begin, on_trace=self._add_trace, on_turn=self._on_turn)
        source = self._settings.senders
        if source is None:
            return SenderPool(self._config(), request_file, events)
        return source.open(self._config(), request_file, events)

    def _config(self) -> SenderPoolConfig:
        settings, workload = self._settings, self._workload
        first, most = _processes(settings)
        signing = [target.signing for target in self._targets if target.signing is not None]
        if signing and self._hooks.credentials is not None:
            self._credentials = self._hooks.credentials()
        return SenderPoolConfig(
            setup=Setup(
                addresses=[target.origin.address(target.cafile) for target in self._targets],
                heads=[head_of(target, workload) for target in self._targets],
                columns=RequestColumns(begins=b"", due_s=b""),
                requests_fd=-1,
                queue_fd=-1,
                api=answer_form(self._targets[0], workload),
                streamed=self._targets[0].stream,
                closed=workload.closed_loop,
                timeout_s=settings.timeout_s,
                routing=settings.routing,
                run_id=settings.run_id,
                trace_id=settings.trace_id,
                keep_text_below=settings.keep_texts,
                signing=signing,
                credentials=self._credentials,
                sagemaker=bool(signing),
                failures_limit=settings.failures_limit,
            ),
            users=workload.concurrency,
            open_ahead=settings.open_ahead,
            processes=first,
            most_processes=most,
        )

    # events of the senders

    def _begin(self, start_s: float) -> None:
        self._start_s = start_s
        self._started_unix_s = time.time() + (start_s - time.monotonic())

    def _add_trace(self, trace: RequestTrace) -> None:
        record = self._record(trace)
        self._records[record.index] = record
        if trace.text is not None:
            self._texts[record.index] = trace.text
        self._output_tokens += record.output_tokens
        failed = record.outcome != "ok"
        self._failed_count += failed
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        if self._settings.failed_fraction_limit is not None:
            self._recent_failures = [*self._recent_failures[-99:], failed]

    def _record(self, trace: RequestTrace) -> Record:
        start_s = self._start_s
        request, prompt = self._requests[trace.index], self._prompts[trace.index]
        times_s = array("d")
        times_s.frombytes((np.frombuffer(trace.times_s) - start_s).tobytes())
        prompt_tokens = trace.prompt_tokens
        return Record(
            index=trace.index,
            input_tokens=prompt.token_count if prompt_tokens is None else prompt_tokens,
            output_tokens=trace.output_tokens,
            due_s=trace.due_s - start_s,
            sent_s=trace.sent_s - start_s,
            end_s=trace.end_s - start_s,
            chunk_times_s=times_s,
            chunk_tokens=array("i", trace.counts) if trace.counts else (),
            outcome=trace.outcome,  # type: ignore[arg-type]
            status=trace.status,
            detail=self._plain(trace) if trace.detail else "",
            connect_s=trace.connect_s,
            session=request.session,
            turn=request.turn,
            target=trace.target,
            model=prompt.model or "",
            text_characters=trace.characters,
        )

    def _plain(self, trace: RequestTrace) -> str:
        """Error text of the server without secrets; AWS repeats what was signed, with a session
        token.
        """
        words = self._targets[trace.target].plain(trace.detail)
        credentials = self._credentials
        if credentials is not None:
            for secret, shown in (
                (credentials.token, "[session token]"),
                (credentials.secret_key, "[secret key]"),
                (credentials.access_key, "[access key]"),
            ):
                words = without(words, secret, shown)
        return redacted_text(words)

    def _on_turn(self, sender: LoadSender) -> None:
        """Report progress, and end the run where a limit or a hook says so; ten times a second."""
        elapsed_s = time.monotonic() - self._start_s if self._start_s > 0 else 0.0
        report_due = elapsed_s - self._reported_s >= POLL_S
        if report_due:
            self._reported_s = elapsed_s
            self._report_progress(sender.in_flight_count)
        if self._stopped:
            return
        if self._hooks.halt.is_set():
            self._interrupted = True
            self._end(sender, "cancelled", STOPPED)
            return
        if (report_due or sender.lost) and self._check_server(sender):
            return
        sender.lost = False
        if self._break_circuit(sender) or self._time_is_up(sender, elapsed_s):
            return
        self._refresh_credentials(sender)
        if self._hooks.judge is not None and elapsed_s - self._judged_s >= 2 * POLL_S:
            self._judged_s = elapsed_s
            reason = self._hooks.judge(tuple(self._records.values()), elapsed_s)
            if reason is not None:
                self._ended_reason = reason
                self._end(sender, "cancelled", reason, grace_s=self._settings.grace_s)

    def _refresh_credentials(self, sender: LoadSender) -> None:
        """Pass refreshed credentials on; asking costs nothing until the old ones are about to
        end.
        """
        source = self._hooks.credentials
        now_s = time.monotonic()
        if self._credentials is None or source is None:
            return
        if now_s - self._credentials_s < CREDENTIALS_POLL_S:
            return
        self._credentials_s = now_s
        current = source()
        if current != self._credentials:
            self._credentials = current
            sender.sign_with(current)

    def _check_server(self, sender: LoadSender) -> bool:
        alive = self._hooks.server_alive
        reason = alive() if alive is not None else None
        if reason is None or len(self._records) == len(self._requests):
            return False
        self._aborted_reason = reason
        self._end(sender, "disconnected", reason, grace_s=GRACE_S)
        return True

    def _break_circuit(self, sender: LoadSender) -> bool:
        limit, share = self._settings.failures_limit, self._settings.failed_fraction_limit
        recent = self._recent_failures
        if limit is not None and self._failures_in_a_row >= limit:
            reason = f"{self._failures_in_a_row} requests failed one after another"
        elif share is not None and len(recent) == 100 and sum(recent) > share * 100:
            reason = f"{sum(recent)} of the last 100 requests failed"
        else:
            return False
        self._aborted_reason = reason
        self._end(sender, "cancelled", reason)
        return True

    def _time_is_up(self, sender: LoadSender, elapsed_s: float) -> bool:
        limit_s = self._settings.duration_s
        if limit_s is None or elapsed_s < limit_s:
            return False
        self._ended_reason = f"{limit_s:g} s were over"
        self._end(sender, "cancelled", self._ended_reason, grace_s=self._settings.grace_s)
        return True

    def _end(self, sender: LoadSender, outcome: str, detail: str, *, grace_s: float = 0.0) -> None:
        self._stopped = True
        sender.stop(outcome, detail, grace_s=grace_s)

    def _record_overdue(self) -> None:
        """Record requests that were due when the run ended but had to wait: they failed too."""
        if self._ended_reason is not None:
            return
        now_s = max((record.end_s for record in self._records.values()), default=0.0)
        detail = self._aborted_reason or STOPPED
        for request, prompt in zip(self._requests, self._prompts, strict=False):
            index = request.index
            if request.follows is not None:
                continue  # it is due after an answer that has not come
            if request.due_s <= now_s and index not in self._records:
                self._failed_count += 1
                self._records[index] = Record(
                    index=index,
                    input_tokens=prompt.token_count,
                    output_tokens=0,
                    due_s=request.due_s,
                    sent_s=now_s,
                    end_s=now_s,
                    outcome="cancelled",
                    detail=f"due but not sent: {detail}",
                )

    def _report_progress(self, in_flight_count: int) -> None:
        if self._hooks.on_progress is None:
            return
        self._hooks.on_progress(
            Progress(
                elapsed_s=time.monotonic() - self._start_s if self._start_s > 0 else 0.0,
                request_count=len(self._requests),
                finished_count=len(self._records),
                failed_count=self._failed_count,
                in_flight_count=in_flight_count,
                output_tokens=self._output_tokens,
                draining=self._stopped,
                recent=tuple(islice(reversed(self._records.values()), RECENT_COUNT)),
            )
        )


def _processes(settings: LoadSettings) -> tuple[int, int]:
    """Processes to start with, and the most there may be."""
    if settings.processes != "auto":
        return settings.processes, settings.processes
    if settings.most_processes is not None:
        return 1, settings.most_processes
    if settings.senders is not None:
        return 1, ONE_PER_CORE
    import os

    return 1, max(1, len(os.sched_getaffinity(0)))


# before the clock starts


def _prepared_requests(load: _Load) -> Iterator[PreparedRequest]:
    """Requests one after another, so that no body is kept but in the file."""
    followers = {
        request.follows: index
        for index, request in enumerate(load.requests)
        if request.follows is not None
    }
    for index, (request, prompt) in enumerate(zip(load.requests, load.prompts, strict=False)):
        prepared = prepared_request(load.targets[0], load.workload, request, prompt)
        if request.follows is not None and prepared.messages_at == (0, 0):
            raise InputError(
                "only chat messages can continue a conversation", hint="use the chat route"
            )
        follower = followers.get(index)
        yield (prepared if follower is None else msgspec.structs.replace(prepared, next=follower))


def _warmups(
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    count: int,
    given: Sequence[Prompt] | None,
) -> Iterator[tuple[Request, Prompt]]:
    """Requests of the load's lengths with other tokens, so that no prefix cache is primed."""
    for i in range(count):
        likeness = i % len(requests)
        prompt = given[i % len(given)] if given else unlike(prompts[likeness], WARMUP_SEED + i)
        request = requests[likeness]
        yield (
            Request(
                index=i,
                due_s=0.0,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
            ),
            prompt,
        )


def _warm_up(
    load: _Load,
    warmups: Sequence[tuple[Request, Prompt]],
    settings: LoadSettings,
    hooks: LoadHooks,
) -> int:
    """Number of warm-up requests, sent one after another, that failed; all of them raise."""
    one_by_one = _Load(
        load.targets,
        msgspec.structs.replace(load.workload, arrivals=AllAtOnce(), concurrency=1),
        [request for request, _ in warmups],
        [prompt for _, prompt in warmups],
    )
    quiet = LoadHooks(
        halt=hooks.halt, server_alive=hooks.server_alive, credentials=hooks.credentials
    )
    run = _Run(one_by_one, LoadSettings(timeout_s=settings.timeout_s), quiet)
    with contextlib.closing(write_request_file(_prepared_requests(one_by_one))) as request_file:
        records = run.drive(request_file).records
    failures = [record for record in records if record.outcome != "ok"]
    if failures and len(failures) == len(records) and not hooks.halt.is_set():
        raise _refusal(load.targets[0], failures[0])
    return len(failures)


def _refusal(target: Target, record: Record) -> ServetuneError:
    """Error of a load that cannot start, in the server's words."""
    if record.outcome == "refused":
        return LoadError(record.detail, hint="is the server running, and is this its address?")
    if record.outcome != "http_status" or record.status is None:
        return LoadError(f"the first request failed ({record.outcome}): {record.detail}")
    return ServerRefused(
        f"the server refused the first request with status {record.status}: {record.detail}",
        status=record.status,
        body=record.detail,
        hint=(
            _hint(target, record.status, record.detail)
            if target.signing is None
            else _aws_hint(target, record.status, record.detail.lower())
        ),
    )


def _hint(target: Target, status: int, words: str) -> str:
    text = words.lower()
    if status in {401, 403}:
        return "name the environment variable that holds the API key"
    if "stream_options" in text or "continuous_usage" in text:
        return 'send no stream options: extra_body {"stream_options": null}'
    if "ignore_eos" in text or "min_tokens" in text:
        return "turn ignore_eos off for this server"
    if "context" in text or "max_model_len" in text:
        return "ask for shorter prompts or answers, or start the server with a longer context"
    if status == 404:
        return f"the names that the server knows are listed at {target.origin}/v1/models"
    return ""


def _aws_hint(target: Target, status: int, text: str) -> str:
    if status == 424:
        return _container_hint(target, text)
    if "inference component" in text:
        return "this endpoint is made of components: name one with --component"
    if "not found" in text or "could not find" in text:
        return "is it InService in this region? aws sagemaker describe-endpoint says"
    if status == 403 or "credential" in text or "signature" in text or "token" in text:
        return "the credentials need sagemaker:InvokeEndpointWithResponseStream on the endpoint"
    if "throttl" in text:
        return "the account's rate is used up: wait, or ask for a higher quota"
    return ""


def _container_hint(target: Target, text: str) -> str:
    """Hint from the container's message behind the service's ModelError."""
    if "does not exist" in text:
        return "give the name of the model in the container with --model"
    return _hint(target, 0, text) or "servetune deploy logs ENDPOINT shows what it says"


# around the run


@contextmanager
def _halt_on_interrupt(halt: threading.Event) -> Iterator[None]:
    """Set `halt` on Ctrl-C, where this thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: halt.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
