"""Run of load on servers that exist already, from its settings to its record."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from servetune.errors import LoadError
from servetune.json_value import JsonObject
from servetune.loadgen import (
    CredentialSource,
    LoadHooks,
    LoadResult,
    LoadSettings,
    Progress,
    Target,
    fetch_blocking,
    models_are_simulated,
    parse_speed,
    run_load_blocking,
)
from servetune.loadgen.instrument import instrument_of
from servetune.loadgen.sender_pool import SendStatistics
from servetune.metrics import Acceptance, Constraint, PrecisionTarget, Record
from servetune.metrics.overload import saturation_of
from servetune.store import Artifacts, TrialRecord, now_utc
from servetune.trials.kept import RunFiles
from servetune.trials.record import bench_record, constant_rate
from servetune.workload import Workload
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.prompts import Prompt

FIRST_VERDICT_S = 5.0
"""Time before which no open loop is called saturated while it runs."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Load that is ready to be sent.

    Attributes:
        targets: Servers that share the requests.
        workload: Lengths, arrivals and number of the requests.
        prompts: Text or token ids of the requests, in order.
        settings: Time limits, processes and sampling of the run.
        client_args: Options of the load as the user gave them, for the record.
        about: Description of the prepared requests, for the record.
        constraints: Constraints to judge in the report; they end nothing.
        request_limits: Limits on single requests, for goodput.
        until: Precision of a metric at which the run ends.
        stop_when_saturated: Whether an open loop that the server cannot follow is ended.
        tokenizer: Tokenizer that counts answers again, as far as their text was kept.
        credentials: Credentials to sign with, where the targets require it.
        acceptance: Limits beyond which the run has failed.
        compat: Another tool whose definitions and names the figures are given in as well.
        run: Identity of the run, for the record; empty where it is not kept.
    """

    targets: tuple[Target, ...]
    workload: Workload
    prompts: Sequence[Prompt]
    settings: LoadSettings
    client_args: JsonObject
    about: JsonObject = {}
    constraints: tuple[Constraint, ...] = ()
    request_limits: tuple[Constraint, ...] = ()
    until: PrecisionTarget | None = None
    stop_when_saturated: bool = True
    tokenizer: ModelTokenizer | None = None
    credentials: CredentialSource | None = None
    acceptance: Acceptance = Acceptance()
    compat: str | None = None
    run: str = ""


class Benched(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a `bench` run.

    Attributes:
        record: Record for the journal.
        result: Every request, and the load generator's own error.
    """

    record: TrialRecord
    result: LoadResult


def bench(
    load: Bench,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    halt: threading.Event | None = None,
    artifacts: Artifacts | None = None,
) -> Benched:
    """Send the load, whole or until something ends it, and make its record.

    Args:
        load: Load to send.
        on_progress: Called about twice a second and once at the end.
        halt: Ends the run when set.
        artifacts: Files that keep what was measured while the run is in progress.

    Raises:
        LoadError: No request could be sent.
        ServerRefused: The server refused the first one.
        InputError: The prompts do not suit the route.
    """
    started_at = now_utc()
    speed = _simulated_speed(load.targets[0])
    files = None
    if artifacts is not None:
        files = RunFiles(
            artifacts,
            lambda records, elapsed_s: bench_record(
                load, _so_far(load, records, elapsed_s), started_at=started_at, speed=speed
            ),
        )
    try:
        result = run_load_blocking(
            load.targets,
            load.workload,
            load.prompts,
            settings=load.settings,
            hooks=LoadHooks(
                on_progress=on_progress,
                halt=halt or threading.Event(),
                judge=_judge(load, files),
                credentials=load.credentials,
            ),
        )
    finally:
        if files is not None:
            files.close()
    result = _counted(result, load.tokenizer)
    record = bench_record(load, result, started_at=started_at, speed=speed)
    return Benched(record=record, result=result)


def _so_far(load: Bench, records: Sequence[Record], elapsed_s: float) -> LoadResult:
    """Result of a run as if it were interrupted now; nothing is known of its senders yet."""
    return LoadResult(
        records=tuple(sorted(records, key=lambda record: record.index)),
        not_due_count=len(load.workload.requests()) - len(records),
        started_unix_s=0.0,  # of no record
        duration_s=elapsed_s,
        instrument=instrument_of(SendStatistics(), stamped_by="kernel"),
        interrupted=True,
    )


def _judge(
    load: Bench, files: RunFiles | None
) -> Callable[[Sequence[Record], float], str | None] | None:
    """Function that gives the reason why the run may end before its last request."""
    open_loop = not load.workload.closed_loop
    if files is None and load.until is None and not (open_loop and load.stop_when_saturated):
        return None
    requests = load.workload.requests()
    due_s = np.array([request.due_s for request in requests])
    offered = constant_rate(load.workload)
    until = load.until

    def judge(records: Sequence[Record], elapsed_s: float) -> str | None:
        if files is not None:
            files.keep(records, elapsed_s)
        if until is not None and until.met(records).met:
            return f"{until.label} was reached"
        if open_loop and load.stop_when_saturated and elapsed_s >= FIRST_VERDICT_S:
            end_s = np.full(len(due_s), np.inf)
            for record in records:
                end_s[record.index] = record.end_s
            verdict = saturation_of(due_s, end_s, offered, now_s=elapsed_s)
            if verdict.saturated:
                return f"saturated: {verdict.words}"
        return None

    return judge


def _counted(result: LoadResult, tokenizer: ModelTokenizer | None) -> LoadResult:
    """Result with our own token count of the answers whose text was kept."""
    if tokenizer is None or not result.texts:
        return result
    indices = list(result.texts)
    counts = dict(
        zip(indices, tokenizer.counts(list(result.texts.values()), specials=False), strict=True)
    )
    records = tuple(
        msgspec.structs.replace(record, counted_output_tokens=counts[record.index])
        if record.index in counts and record.outcome == "ok"
        else record
        for record in result.records
    )
    return msgspec.structs.replace(result, records=records)


def _simulated_speed(target: Target) -> float | None:
    """Engine's seconds per second of a simulated engine; `None` for a real one."""
    if target.signing is not None:
        return None  # SageMaker has one route, which says nothing about the engine
    with contextlib.suppress(LoadError):
        if models_are_simulated(fetch_blocking(target, "/v1/models")):
            return parse_speed(fetch_blocking(target, "/version"))
    return None
