"""Record of a trial: the one place where results and metadata of all kinds of trials are made.

Simulated and measured trials and `bench` runs share the fields of the load and the summary of
the requests; each kind adds what only it knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from servetune.engines import DEFAULT_ENGINE
from servetune.hardware import Node, cost_per_million_tokens_usd, instances
from servetune.json_value import JsonObject
from servetune.loadgen import LoadResult, invocation_account, verdict_of
from servetune.metrics import (
    Constraint,
    Record,
    RequestedLengths,
    compat_results,
    saturation,
    summarize,
)
from servetune.metrics.precision import PrecisionTarget
from servetune.perf.sim import SimulatedRun
from servetune.store import (
    SCHEMA,
    Failure,
    Metadata,
    PredictionInterval,
    Results,
    TrialConfig,
    TrialRecord,
    of_run,
    provenance,
    trial_key,
)
from servetune.trials.failures import no_answer, not_accepted
from servetune.trials.trial import StudyContext, Trial, percentiles_of
from servetune.workload import Constant, Gamma, Poisson, Workload
from servetune.workload.options import STUDY_INPUT_TOKENS, STUDY_OUTPUT_TOKENS

if TYPE_CHECKING:
    from servetune.trials.benched import Bench


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one trial.

    Attributes:
        cmd: Server command line.
        server_cmd_args: Settings of the server as arguments.
        results: Results without those that the plan and the price add; empty without answers.
        failure: Reason why there are no results.
        predicted: Results that the simulator predicts for the same trial.
        interval: Interval of the predicted results.
        server_log: Path of the server's log, beside the journal.
        provenance: Time, place and releases of the run.
        simulated: Whether a server turned out to be the simulated engine.
    """

    cmd: str
    server_cmd_args: list[str]
    results: Results = Results()
    failure: Failure | None = None
    predicted: JsonObject | None = None
    interval: PredictionInterval | None = None
    server_log: str | None = None
    provenance: JsonObject = {}
    simulated: bool = False


def record_of(trial: Trial, study: StudyContext, outcome: Outcome) -> TrialRecord:
    """Record of a trial that ended, with results or with a failure; it holds no credential."""
    record = TrialRecord(
        servetune_schema=SCHEMA,
        key=trial.key,
        status="ok" if outcome.failure is None else "failed",
        simulated=study.simulated or outcome.simulated,
        config=TrialConfig(
            client_args=trial.client_args,
            server_args=trial.server_args,
            server_cmd_args=outcome.server_cmd_args,
        ),
        results=trial_results(trial, study, outcome.results),
        cmd=outcome.cmd,
        constraints=[constraint.to_json() for constraint in study.constraints],
        metadata=_trial_metadata(trial, study),
        plan=trial.plan,
        predicted=outcome.predicted,
        interval=outcome.interval,
        failure=outcome.failure,
        server_log=outcome.server_log,
        provenance=outcome.provenance,
    )
    return record.without_secrets()


def bench_record(
    bench: Bench, loaded: LoadResult, *, started_at: str, speed: float | None
) -> TrialRecord:
    """Record of a `bench` run.

    Args:
        bench: Load that was sent.
        loaded: Every request, and the load generator's own error.
        started_at: Time of the start in UTC.
        speed: Engine's seconds per second where the server is the simulated engine.
    """
    results = _bench_results(bench, loaded, speed)
    failure = (
        not_accepted(results, bench.acceptance, bench.constraints)
        if results.completed
        else _failure(loaded, results)
    )
    record = TrialRecord(
        servetune_schema=SCHEMA,
        key=trial_key(
            model=bench.targets[0].model,
            engine="external",
            server_args={"url": ",".join(target.label for target in bench.targets)},
            client_args=bench.client_args,
        ),
        status="ok" if failure is None else "failed",
        simulated=speed is not None,
        config=TrialConfig(client_args=bench.client_args),
        results=results,
        constraints=[limit.to_json() for limit in bench.constraints],
        metadata=_bench_metadata(bench),
        failure=failure,
        provenance=provenance(started_at=started_at, seed=bench.workload.seed, engine_version=None),
    )
    return of_run(record, bench.run).without_secrets()


# results


def simulation_results(
    simulation: SimulatedRun,
    *,
    request_limits: tuple[Constraint, ...] = (),
    percentiles: tuple[float, ...] = (),
) -> Results:
    """Results of a simulation.

    Requests that were on their way when the run was stopped did not fail: they are counted
    as unfinished and are in no latency, throughput or error rate.
    """
    finished = [record for record in simulation.records if record.outcome != "cancelled"]
    duration_s = simulation.duration_s
    results = summarize(
        finished,
        duration_s=duration_s,
        per_request_limits=request_limits,
        further_percentiles=percentiles,
        extras=False,
    )
    results["server"] = {
        "steps": simulation.steps,
        "busy_fraction": simulation.busy_s / duration_s if duration_s else None,
        "kv_peak_fraction": simulation.kv_peak_fraction,
        "preemptions": simulation.preemptions,
        "cached_fraction": simulation.cached_fraction,
        "saturated": simulation.saturated,
        "unfinished": len(simulation.records) - len(finished),
        "itl_is_tpot": not simulation.each_token,
    }
    return Results(results)


def load_results(
    loaded: LoadResult, trial: Trial, study: StudyContext, *, ended_early: str | None
) -> Results:
    """Results of a measured trial's load; `ended_early` is the reason if it was cut short."""
    # Requests that were cut off when the trial was ended have not failed.
    cut = ended_early is not None and loaded.ended_reason is not None
    records = [r for r in loaded.records if not (cut and r.outcome == "cancelled")]
    results = summarize(
        records,
        duration_s=loaded.duration_s,
        per_request_limits=study.request_limits,
        further_percentiles=study.percentiles,
        requested=_requested(trial.workload),
        wrong_length_fails=study.acceptance.wrong_length_fails,
    )
    results["instrument"] = msgspec.to_builtins(loaded.instrument)
    results["server"] = msgspec.to_builtins(loaded.server) if loaded.server else None
    results["not_sent"] = loaded.not_due_count
    verdict = saturation_note(trial.workload, loaded.records)
    if verdict is not None:
        results["saturation"] = verdict
    if trial.workload.until is not None:
        results["until"] = _until(PrecisionTarget.parse(trial.workload.until), loaded)
    return Results(results)


def _requested(workload: Workload) -> RequestedLengths:
    return RequestedLengths(output_tokens=workload.requested_lengths(), exact=workload.ignore_eos)


def trial_results(trial: Trial, study: StudyContext, results: Results) -> Results:
    """Results with what the load, the plan and the price add; empty where there are none."""
    if not results:
        return Results()
    workload, args = trial.workload, trial.client_args
    rate = results.output_throughput
    return Results(
        {
            "backend": args.get("backend", DEFAULT_ENGINE),
            "dataset_name": workload.name,
            "request_rate": args.get(
                "request_rate", getattr(workload.arrivals, "rate_per_s", None)
            ),
            "max_concurrency": workload.concurrency,
            "sharegpt_output_len": args.get("sharegpt_output_len"),
            "random_input_len": args.get("random_input_len"),
            "random_output_len": args.get("random_output_len"),
            "random_range_ratio": args.get("random_range_ratio"),
            **results,
            "total_output_tokens_retokenized": _counted_again(results),
            "cost_per_million_tokens": cost_per_million_tokens_usd(study.price_per_hour_usd, rate),
            "cost_per_hour": study.price_per_hour_usd,
            "output_throughput_per_gpu": rate / trial.plan.device_count if rate else None,
        }
    )


def _counted_again(results: Results) -> int | None:
    """Output tokens as our own tokenizer counts them, where it counted every answer."""
    check = results.token_check
    if not check or check["requests"] != results.completed:
        return None
    return int(check["counted_tokens"])


def _bench_results(bench: Bench, loaded: LoadResult, speed: float | None) -> Results:
    workload = bench.workload
    results = {
        "backend": workload.api,
        "dataset_name": workload.name,
        "request_rate": bench.client_args.get("request_rate"),
        "max_concurrency": workload.concurrency,
        **summarize(
            loaded.records,
            duration_s=loaded.duration_s,
            per_request_limits=bench.request_limits,
            further_percentiles=percentiles_of(bench.constraints),
            requested=_requested(workload),
            wrong_length_fails=bench.acceptance.wrong_length_fails,
        ),
    }
    counts = [r.counted_output_tokens for r in loaded.records if r.outcome == "ok"]
    whole = counts and None not in counts
    results["total_output_tokens_retokenized"] = (
        sum(count for count in counts if count is not None) if whole else None
    )
    results["not_sent"] = loaded.not_due_count
    results["interrupted"] = loaded.interrupted
    results["ended_reason"] = loaded.ended_reason or _ran_out(bench, loaded)
    if bench.until is not None:
        results["until"] = _until(bench.until, loaded)
    results["aborted_reason"] = loaded.aborted_reason
    results["saturation"] = saturation_note(workload, loaded.records)
    results["instrument"] = {
        **msgspec.json.decode(msgspec.json.encode(loaded.instrument)),  # as it will be read
        "stamp_error_s": loaded.instrument.stamp_error_s,
        "departure_error_s": loaded.instrument.departure_error_s,
        "verdict": verdict_of(loaded.instrument, results).words,
    }
    results["server"] = msgspec.to_builtins(loaded.side.totals) if loaded.side else None
    results["prepared"] = bench.about
    if bench.targets[0].signing is not None:
        results["sagemaker"] = invocation_account(bench.targets[0], loaded.records)
    if bench.compat is not None:
        results["compat"] = {
            bench.compat: compat_results(
                loaded.records,
                bench.compat,
                limits=bench.request_limits,
                role_chunk=workload.api == "chat",
            )
        }
    results["cost_per_million_tokens"] = None
    if speed is not None:
        results["simulated_speed"] = speed
    return Results(results)


def _ran_out(bench: Bench, loaded: LoadResult) -> str | None:
    """Note on a closed loop that was to last longer than its requests did."""
    limit_s = bench.settings.duration_s or bench.workload.duration_s
    if limit_s is None or not bench.workload.closed_loop:
        return None
    if loaded.interrupted or loaded.aborted_reason or loaded.not_due_count:
        return None
    return f"all {len(loaded.records):,} requests were answered before {limit_s:g} s were over"


def _until(until: PrecisionTarget, loaded: LoadResult) -> JsonObject:
    """Precision that the metric reached by the end."""
    progress = until.met(loaded.records)
    width = progress.relative_half_width
    return {
        "label": until.label,
        "reached": progress.met,
        "relative_half_width": width if math.isfinite(width) else None,
    }


def saturation_note(workload: Workload, records: Sequence[Record]) -> JsonObject | None:
    """Verdict on an open loop; a closed one has as many requests in flight as it has users."""
    if workload.closed_loop or not records:
        return None
    verdict = saturation(records, constant_rate(workload))
    return {"saturated": verdict.saturated, "words": verdict.words}


def constant_rate(workload: Workload) -> float | None:
    """Requests per second where the law of arrivals has one rate; `None` for any other."""
    if isinstance(workload.arrivals, Constant | Poisson | Gamma):
        return workload.arrivals.rate_per_s
    return None


def _failure(loaded: LoadResult, results: Results) -> Failure:
    """Failure of a run in which no request was answered."""
    if loaded.aborted_reason:
        return Failure(kind="load", reason=loaded.aborted_reason)
    if loaded.interrupted:
        return Failure(kind="load", reason="the run was stopped before any answer was whole")
    return no_answer(results)


# metadata


def _trial_metadata(trial: Trial, study: StudyContext) -> Metadata:
    node, price = study.node, study.node.price if study.node else None
    workload = trial.workload
    input_tokens, output_tokens = _nominal_lengths(trial)
    goal: JsonObject = {}
    if study.objectives:
        goal["objective"] = ",".join(each.name for each in study.objectives)
    if study.ladder:
        goal["ladder"] = True
    return Metadata(
        {
            "gpu_type": f"{node.device.vendor} {node.device.name}".strip() if node else "unknown",
            "gpu_count": node.device_count if node else None,
            "gpu_memory_bytes": node.device.memory_bytes if node else None,
            "gpus_used": trial.plan.device_count,
            "instance_type": node.name if node and _is_rented(node) else None,
            "price_per_hour_usd": study.price_per_hour_usd,
            "price_source": f"{price.source}, {price.date}" if price else None,
            "model_tag": study.model_of(trial.plan),
            "framework": study.engine,
            "slo": [limit.label for limit in study.request_limits],
            "server_cmd": study.server_cmd,
            "server_env": list(study.server_env) or None,
            "calibration": study.calibration.name if study.calibration else None,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "dataset_imitated": workload.imitated,
            "seed": workload.seed,
            **goal,
        }
    )


def _bench_metadata(bench: Bench) -> Metadata:
    return Metadata(
        {
            "gpu_type": "unknown",
            "gpu_count": None,
            "model_tag": bench.targets[0].model,
            "framework": "external",
            "urls": [target.label for target in bench.targets],
            "slo": [limit.label for limit in bench.request_limits],
            "input_tokens": bench.about.get("input_tokens_mean", -1),
            "output_tokens": bench.about.get("output_tokens_mean", -1),
            "seed": bench.workload.seed,
        }
    )


def _is_rented(node: Node) -> bool:
    """Whether the node is an instance of the catalogue rather than a number of devices."""
    return node.name in instances("sagemaker") or node.name in instances("ec2")


def _nominal_lengths(trial: Trial) -> tuple[int, int]:
    """Prompt and answer tokens as the journal has them; -1 where they are a data set's.

    A range has the length that it is named by, a law of `input_tokens` or `output_tokens` -1.
    """
    workload = trial.workload
    usual = {"random_input_len": STUDY_INPUT_TOKENS, "random_output_len": STUDY_OUTPUT_TOKENS}
    args = {**usual, **trial.client_args}
    if workload.name != "random" or not workload.parts or workload.has_dataset:
        return -1, -1
    fixed = workload.lengths.fixed_pair or (-1, -1)
    own_outputs = "output_tokens" in args or workload.api == "embeddings"
    return (
        fixed[0] if "input_tokens" in args else int(args["random_input_len"]),
        fixed[1] if own_outputs else int(args["random_output_len"]),
    )
