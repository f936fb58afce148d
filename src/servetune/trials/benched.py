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
from servetune.metrics import Acceptance, Constraint, PrecisionTarget, Record
from servetune.metrics.overload import saturation_of
from servetune.store import TrialRecord, now_utc
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
) -> Benched:
    """Send the load, whole or until something ends it, and make its record.

    Raises:
        LoadError: No request could be sent.
        ServerRefused: The server refused the first one.
        InputError: The prompts do not suit the route.
    """
    started_at = now_utc()
    speed = _simulated_speed(load.targets[0])
    result = run_load_blocking(
        load.targets,
        load.workload,
        load.prompts,
        settings=load.settings,
        hooks=LoadHooks(
            on_progress=on_progress,
            halt=halt or threading.Event(),
            judge=_judge(load),
            credentials=load.credentials,
        ),
    )
    result = _counted(result, load.tokenizer)
    record = bench_record(load, result, started_at=started_at, speed=speed)
    return Benched(record=record, result=result)


def _judge(load: Bench) -> Callable[[Sequence[Record], float], str | None] | None:
    """Function that gives the reason why the run may end before its last request."""
    open_loop = not load.workload.closed_loop
    if load.until is None and not (open_loop and load.stop_when_saturated):
        return None
    requests = load.workload.requests()
    due_s = np.array([request.due_s for request in requests])
    offered = constant_rate(load.workload)
    until = load.until

    def judge(records: Sequence[Record], elapsed_s: float) -> str | None:
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
