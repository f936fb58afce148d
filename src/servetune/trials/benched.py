"""One run of load on servers that are there already: from what is asked to its record."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.errors import LoadError
from servetune.loadgen import (
    CredentialSource,
    LoadHooks,
    LoadResult,
    LoadSettings,
    Progress,
    Target,
    fetch_blocking,
    invocation_account,
    models_are_simulated,
    parse_speed,
    run_load_blocking,
    verdict_of,
)
from servetune.metrics import (
    Constraint,
    PrecisionTarget,
    Record,
    compat_results,
    saturation,
    summarize,
)
from servetune.metrics.overload import saturation_of
from servetune.store import (
    SCHEMA,
    Failure,
    TrialConfig,
    TrialRecord,
    now_utc,
    provenance,
    trial_key,
)
from servetune.trials.simulated import percentiles_of
from servetune.workload import Constant, Gamma, Poisson, Workload
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.prompts import Prompt

__all__ = ["Bench", "Benched", "bench"]

FIRST_VERDICT_S = 5.0
"""Before that no open loop is called saturated while it runs."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """A run of load, ready to begin.

    Attributes:
        targets: Servers that share the requests.
        workload: What is asked, and when.
        prompts: Words of its requests, in order.
        settings: How it is carried out.
        client_args: What the user said, for the record.
        about: What was prepared, for the record.
        constraints: Judged in the report; they end nothing.
        request_limits: Of single requests, for goodput.
        until: Ends the run once a metric is known well enough.
        stop_when_saturated: Whether an open loop that the server cannot follow is ended.
        tokenizer: Counts answers again, so far as their words were kept.
        credentials: To sign with, where the targets ask for it.
        wrong_length_fails: Whether an answer of another length than asked is a failure.
        compat: Another tool whose definitions and names the figures are also given in.
    """

    targets: tuple[Target, ...]
    workload: Workload
    prompts: Sequence[Prompt]
    settings: LoadSettings
    client_args: dict[str, Any]
    about: dict[str, Any] = {}
    constraints: tuple[Constraint, ...] = ()
    request_limits: tuple[Constraint, ...] = ()
    until: PrecisionTarget | None = None
    stop_when_saturated: bool = True
    tokenizer: ModelTokenizer | None = None
    credentials: CredentialSource | None = None
    wrong_length_fails: bool = False
    compat: str | None = None


class Benched(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        record: The journal's line.
        result: Every request, and the instrument.
    """

    record: TrialRecord
    result: LoadResult


def bench(
    asked: Bench,
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
    speed = _simulated_speed(asked.targets[0])
    result = run_load_blocking(
        asked.targets,
        asked.workload,
        asked.prompts,
        settings=asked.settings,
        hooks=LoadHooks(
            on_progress=on_progress,
            halt=halt or threading.Event(),
            judge=_judge(asked),
            credentials=asked.credentials,
        ),
    )
    result = _counted(result, asked.tokenizer)
    results = _results(asked, result)
    if speed is not None:
        results["simulated_speed"] = speed
    record = TrialRecord(
        servetune_schema=SCHEMA,
        key=trial_key(
            model=asked.targets[0].model,
            engine="external",
            server_args={"url": ",".join(target.label for target in asked.targets)},
            client_args=asked.client_args,
        ),
        status="ok" if results["completed"] else "failed",
        simulated=speed is not None,
        config=TrialConfig(client_args=asked.client_args),
        results=results,
        constraints=[limit.to_json() for limit in asked.constraints],
        metadata=_metadata(asked),
        failure=None if results["completed"] else _failure(result, results),
        provenance=provenance(started_at=started_at, seed=asked.workload.seed, engine_version=None),
    )
    return Benched(record=record, result=result)


def _judge(asked: Bench) -> Callable[[Sequence[Record], float], str | None] | None:
    """Why the run may end before its last request."""
    open_loop = not asked.workload.closed_loop
    if asked.until is None and not (open_loop and asked.stop_when_saturated):
        return None
    requests = asked.workload.requests()
    due_s = np.array([request.due_s for request in requests])
    offered = _constant_rate(asked.workload)
    until = asked.until

    def judge(records: Sequence[Record], elapsed_s: float) -> str | None:
        if until is not None and until.met(records).met:
            return f"{until.label} was reached"
        if open_loop and asked.stop_when_saturated and elapsed_s >= FIRST_VERDICT_S:
            end_s = np.full(len(due_s), np.inf)
            for record in records:
                end_s[record.index] = record.end_s
            verdict = saturation_of(due_s, end_s, offered, now_s=elapsed_s)
            if verdict.saturated:
                return f"saturated: {verdict.words}"
        return None

    return judge


def _constant_rate(workload: Workload) -> float | None:
    """Requests per second where the law of arrivals has one rate; `None` for any other."""
    if isinstance(workload.arrivals, Constant | Poisson | Gamma):
        return workload.arrivals.rate_per_s
    return None


def _counted(result: LoadResult, tokenizer: ModelTokenizer | None) -> LoadResult:
    """With our own count of the answers whose words were kept."""
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


def _results(asked: Bench, result: LoadResult) -> dict[str, Any]:
    workload = asked.workload
    results = {
        "backend": workload.api,
        "dataset_name": workload.dataset,
        "request_rate": asked.client_args.get("request_rate"),
        "max_concurrency": workload.max_concurrency,
        **summarize(
            result.records,
            duration_s=result.duration_s,
            per_request_limits=asked.request_limits,
            further_percentiles=percentiles_of(asked.constraints),
            asked_output_tokens=workload.forced_lengths(),
            wrong_length_fails=asked.wrong_length_fails,
        ),
    }
    retokenized = [r.counted_output_tokens for r in result.records if r.outcome == "ok"]
    whole = retokenized and None not in retokenized
    results["total_output_tokens_retokenized"] = (
        sum(count for count in retokenized if count is not None) if whole else None
    )
    results["not_sent"] = result.not_due_count
    results["interrupted"] = result.interrupted
    results["ended_reason"] = result.ended_reason or _ran_out(asked, result)
    if asked.until is not None:
        results["until"] = _until(asked.until, result)
    results["aborted_reason"] = result.aborted_reason
    results["saturation"] = _saturation(asked, result)
    results["instrument"] = {
        **msgspec.json.decode(msgspec.json.encode(result.instrument)),  # as it will be read
        "stamp_error_s": result.instrument.stamp_error_s,
        "departure_error_s": result.instrument.departure_error_s,
        "verdict": verdict_of(result.instrument, results).words,
    }
    results["server"] = msgspec.to_builtins(result.side.totals) if result.side else None
    results["prepared"] = asked.about
    if asked.targets[0].signing is not None:
        results["sagemaker"] = invocation_account(asked.targets[0], result.records)
    if asked.compat is not None:
        results["compat"] = {
            asked.compat: compat_results(
                result.records,
                asked.compat,
                limits=asked.request_limits,
                role_chunk=workload.api == "chat",
            )
        }
    results["cost_per_million_tokens"] = None
    return results


def _ran_out(asked: Bench, result: LoadResult) -> str | None:
    """What a closed loop says that was to last longer than its requests did."""
    limit_s = asked.settings.duration_s
    if limit_s is None or not asked.workload.closed_loop:
        return None
    if result.interrupted or result.aborted_reason or result.not_due_count:
        return None
    return f"all {len(result.records):,} requests were answered before {limit_s:g} s were over"


def _until(until: PrecisionTarget, result: LoadResult) -> dict[str, Any]:
    """How well the metric was known in the end, as of the last look."""
    progress = until.met(result.records)
    width = progress.relative_half_width
    return {
        "label": until.label,
        "reached": progress.met,
        "relative_half_width": width if math.isfinite(width) else None,
    }


def _saturation(asked: Bench, result: LoadResult) -> dict[str, Any] | None:
    """The verdict on an open loop; a closed one has as many in it as it was given."""
    if asked.workload.closed_loop or not result.records:
        return None
    verdict = saturation(result.records, _constant_rate(asked.workload))
    return {"saturated": verdict.saturated, "words": verdict.words}


def _metadata(asked: Bench) -> dict[str, Any]:
    about = asked.about
    return {
        "gpu_type": "unknown",
        "gpu_count": None,
        "model_tag": asked.targets[0].model,
        "framework": "external",
        "urls": [target.label for target in asked.targets],
        "slo": [limit.label for limit in asked.request_limits],
        "input_tokens": about.get("input_tokens_mean", -1),
        "output_tokens": about.get("output_tokens_mean", -1),
        "seed": asked.workload.seed,
    }


def _failure(result: LoadResult, results: dict[str, Any]) -> Failure:
    if result.aborted_reason:
        return Failure(kind="load", reason=result.aborted_reason)
    if result.interrupted:
        return Failure(kind="load", reason="the run was stopped before any answer was whole")
    if not results["failures"]:
        return Failure(kind="load", reason="no request was answered")
    sample = results["failures"][0]
    return Failure(
        kind="load",
        reason=f"no request was answered: {sample['outcome']}, {sample['sample']}",
    )


def _simulated_speed(target: Target) -> float | None:
    """How fast the clock of a server runs that says that it only plays an engine."""
    if target.signing is not None:
        return None  # behind it there is one route, and it says nothing about itself
    with contextlib.suppress(LoadError):
        if models_are_simulated(fetch_blocking(target, "/v1/models")):
            return parse_speed(fetch_blocking(target, "/version"))
    return None
