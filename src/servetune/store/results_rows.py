"""Trials as rows of the table of results, and the file and partition that each belongs to."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from servetune.errors import ServetuneError
from servetune.hardware import cost_per_million_tokens_usd, device
from servetune.json_value import JsonObject
from servetune.store.results_columns import COLUMNS, PARTITIONS, ColumnType
from servetune.store.schema import TrialRecord
from servetune.units import GB

MEASURED, SIMULATED = "measured", "simulated"
#: Share of true values that a sampling interval of a measured trial holds.
_SAMPLING_LEVEL = 0.95
_INT_LIMIT = 1 << 31

Row = dict[str, Any]
"""Values by column, those of the partition keys included."""

#: Families of models as tables of SageMaker benchmarks name them, from names without the
#: organisation; the first that is found holds.
_FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), family)
    for pattern, family in (
        (r"deepseek[-_.]?(r1|v3|v2|coder|math)", "deepseek-{}"),
        (r"(deepseek)", "{}"),
        (r"qwen([23]?)", "qwen{}"),
        (r"(code)[-_]?llama", "{}llama"),
        (r"llama[-_.]?([234]?)", "llama{}"),
        (r"(mixtral|mistral|falcon|starcoder|gpt-oss)", "{}"),
        (r"phi[-_.]?([234]?)", "phi{}"),
        (r"gemma[-_.]?([23]?)", "gemma{}"),
    )
)


class RowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of an export that records do not have.

    Attributes:
        project: Project; `None` for the journal's name.
        target: Target of measured trials; `None` for what the record says.
        instance_count: Instances that served the load; `None` where only the record may say it.
    """

    project: str | None = None
    target: str | None = None
    instance_count: int | None = None


def run_id_of(first: TrialRecord) -> str:
    """Identity of a run, from the first line of its journal: sixteen hex digits.

    Lines are only added to a journal, so the identity stays while it grows, and a copy of the file
    has the same.
    """
    return _digest(["run", trial_id_of(first)])


def trial_id_of(record: TrialRecord) -> str:
    """Identity of one measurement: sixteen hex digits.

    Settings that are measured again are another trial; a record that a later line corrects is the
    same.
    """
    began = record.provenance.get("started_at")
    if isinstance(began, str) and began:
        return _digest([record.key, began, record.provenance.get("host")])
    return _digest([record.key, record.config, dict(record.results)])


def _digest(identity: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:16]


def row_of(
    record: TrialRecord,
    *,
    journal: str,
    run_id: str,
    trial_id: str | None = None,
    options: RowOptions | None = None,
) -> Row:
    """Row of a trial; `None` where the record has no value.

    Args:
        record: The trial.
        journal: Name of its journal, without ending.
        run_id: Identity of its run.
        trial_id: Identity of the trial, where the record has another price than its journal.
        options: What the record does not say.
    """
    options = options or RowOptions()
    target = SIMULATED if record.simulated else options.target or _target(record)
    values: JsonObject = {
        "project_name": options.project or journal,
        "run_id": run_id,
        "trial_id": trial_id or trial_id_of(record),
        "deployment_target": target,
        "run_type": "servetune",
        **_identity(record),
        **_machine(record),
        **_server(record),
        **_load(record),
        **_metrics(record),
        **_intervals(record),
        **_costs(record, options),
    }
    partition = (_model(record), _instance(record), target)
    row: Row = {each.name: typed(values.get(each.name), each.type) for each in COLUMNS}
    for key, value in zip(PARTITIONS, partition, strict=True):
        row[key.name] = partition_value(value)
    return row


def folder_of(row: Mapping[str, Any]) -> str:
    """Hive's folders of a row's partition, such as `model=a_b/instance=ml.g6.xlarge/target=url`."""
    return "/".join(f"{key.name}={_escaped(str(row[key.name]))}" for key in PARTITIONS)


def file_name(run_id: str) -> str:
    """Name of the file of a run's trials in each of its partitions."""
    return f"run-{run_id}.parquet"


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Rows of distinct trials; of one that several journals have, such as a copy, the first."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row["trial_id"], row)
    return list(found.values())


def last_measured(rows: Iterable[Row]) -> set[str]:
    """Identities of the trials that are the last measurement of their settings in their run."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        settings = row["run_id"], row["trial_key"]
        known = found.get(settings)
        if known is None or (row["run_timestamp"] or "") >= (known["run_timestamp"] or ""):
            found[settings] = row
    return {row["trial_id"] for row in found.values()}


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by the path of their file below the folder of the table."""
    files: dict[str, list[Row]] = {}
    for row in distinct(rows):
        path = f"{folder_of(row)}/{file_name(row['run_id'])}"
        files.setdefault(path, []).append(row)
    return files


def partition_value(text: str | None) -> str:
    """Value of a partition key: `_` for `/`, and `unknown` for nothing."""
    return (text or "").replace("/", "_").strip() or "unknown"


def _escaped(value: str) -> str:
    """Value as a folder's name; what Hive escapes is escaped as it does."""
    return quote(value, safe=" -_.~+@,()")


def _target(record: TrialRecord) -> str:
    if record.results.sagemaker is not None or record.metadata.job:
        return "realtime-inference"
    return "url" if record.metadata.urls else "local"


#: Region in the address of a SageMaker runtime, and in the ARN of a job.
_REGION = re.compile(r"(?:\.sagemaker\.|arn:aws[\w-]*:sagemaker:)([a-z]{2,}(?:-[a-z]+)+-\d+)\b")


def _region(record: TrialRecord) -> str | None:
    """AWS region of the endpoint or the job, by its account or else its address."""
    named = _object(record.results.sagemaker).get("region")
    if isinstance(named, str) and named:
        return named
    about = record.metadata
    found = filter(None, map(_REGION.search, (about.job_arn or "", *(about.urls or ()))))
    return next((each[1] for each in found), None)


def _model(record: TrialRecord) -> str | None:
    return record.metadata.model or (record.plan.model if record.plan else None)


def _instance(record: TrialRecord) -> str | None:
    about = record.metadata
    if about.instance_type or not about.gpu_count:
        return about.instance_type
    return f"{about.gpu_count}x-{about.gpu_type}".replace(" ", "-") if about.gpu_type else None


def _identity(record: TrialRecord) -> JsonObject:
    came, failure = record.provenance, record.failure
    return {
        "kind": SIMULATED if record.simulated else MEASURED,
        "status": record.status,
        "failure_kind": failure.kind if failure else None,
        "failure_reason": failure.reason if failure else None,
        "trial_key": record.key,
        "engine_version": came.get("engine_version"),
        "servetune_version": came.get("servetune"),
        "host": came.get("host"),
        "run_timestamp": came.get("started_at"),
        "region": _region(record),
        "benchmark_job_name": record.metadata.job,
        "run_ended_at": came.get("ended_at"),
        "seed": came.get("seed", record.metadata.seed),
        "server_command": record.cmd or None,
    }


def _machine(record: TrialRecord) -> JsonObject:
    about = record.metadata
    known = about.gpu_type if about.gpu_type != "unknown" else None
    family = re.fullmatch(r"(?:ml\.)?([a-z][a-z0-9-]*)\.[a-z0-9-]+", about.instance_type or "")
    return {
        "instance_type": about.instance_type,
        "instance_family": family[1] if family else None,
        "gpu_count": about.gpu_count,
        "gpu_type": known,
        "gpu_memory_gb": _gpu_memory_gb(record),
        "gpus_used": about.gpus_used,
    }


def _gpu_memory_gb(record: TrialRecord) -> float | None:
    """Memory of one GPU: of the machine that measured, else of its type in the catalogue."""
    about = record.metadata
    if about.gpu_memory_bytes:
        return about.gpu_memory_bytes / GB
    if about.gpu_type in (None, "unknown"):
        return None
    try:
        return device(about.gpu_type).memory_bytes / GB
    except ServetuneError:  # a device of another machine's catalogue
        return None


def _server(record: TrialRecord) -> JsonObject:
    plan, args = record.plan, record.config.server_args
    chosen = msgspec.to_builtins(plan) if plan else {}
    settings = {name: value for name, value in chosen.items() if value not in (None, [], "")}
    model, engine = _model(record), record.metadata.engine

    def setting(neutral: str, *names: str) -> Any:
        found = chosen.get(neutral)
        return found if found is not None else next(filter(None, map(args.get, names)), None)

    return {
        "model_name": model,
        "model_family": model_family(model),
        "engine": engine,
        "deployment_config": f"transformers-{engine}" if engine else None,
        "quantization": setting("quantization", "quantization"),
        "tensor_parallel_degree": setting("tensor_parallel", "tensor_parallel_size", "tp_size"),
        "pipeline_parallel_degree": setting("pipeline_parallel", "pipeline_parallel_size"),
        "data_parallel_degree": setting("data_parallel", "data_parallel_size", "dp_size"),
        "replica_count": setting("replicas"),
        "max_model_len": setting("max_model_len", "max_model_len", "context_length"),
        "max_num_seqs": setting("max_num_seqs", "max_num_seqs", "max_running_requests"),
        "max_num_batched_tokens": setting("max_num_batched_tokens", "max_num_batched_tokens"),
        "kv_cache_dtype": setting("kv_cache_dtype", "kv_cache_dtype"),
        "enable_lora": args.get("enable_lora"),
        "serving_config": _json({**args, **settings}) if args or settings else None,
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def model_family(model: str | None) -> str | None:
    """Family of a model by its name: `qwen3` of `Qwen/Qwen3-4B`, else `other`."""
    if not model:
        return None
    name = model.rstrip("/").rpartition("/")[2]
    for pattern, family in _FAMILIES:
        found = pattern.search(name)
        if found:
            return family.format(found[1].lower())
    return "other"


def _load(record: TrialRecord) -> JsonObject:
    results, about = record.results, record.metadata
    completed = results.completed
    input_mean = _share(results.total_input_tokens, completed)
    output_mean = _share(results.total_output_tokens, completed)
    latency = results.mean_e2e_latency_ms
    args = record.config.client_args
    return {
        "workload": args.get("workload") or results.dataset_name or args.get("dataset_name"),
        "concurrency": results.max_concurrency or args.get("max_concurrency"),
        "request_rate_rps": results.request_rate,
        "input_tokens_mean": _rounded(_requested(about.input_tokens, input_mean)),
        "output_tokens_mean": _rounded(_requested(about.output_tokens, output_mean)),
        "input_sequence_length_avg": input_mean,
        "output_sequence_length_avg": output_mean,
        "streaming": results.mean_ttft_ms is not None if latency is not None else None,
        "adapter_name": _only_adapter(args.get("adapters")),
    }


def _only_adapter(named: Any) -> str | None:
    """Adapter that all requests named; `None` for several."""
    one = named[0] if isinstance(named, list | tuple) and len(named) == 1 else named
    return one.partition("=")[0] if isinstance(one, str) else None


def _requested(nominal: float | None, mean: float | None) -> float | None:
    """Length that was requested; the mean where it is a data set's (-1)."""
    return nominal if nominal is not None and nominal >= 0 else mean


def _share(total: float | None, of: float | None) -> float | None:
    return total / of if total is not None and of else None


def _rounded(value: float | None) -> int | None:
    return round(value) if value is not None and math.isfinite(value) else None


#: Statistics by their names here, and in records.
_STATISTICS = {
    "avg": "mean", "std": "std", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99",
}  # fmt: skip
_LATENCIES = ("ttft", "itl", "tpot", "e2e_latency")


def _metrics(record: TrialRecord) -> JsonObject:
    results, predicted = record.results, record.predicted or {}
    per_user = _object(results.get("output_rate_per_user"))
    failed = results.failed
    ended = None if results.completed is None else results.completed + (failed or 0)
    latencies = {
        f"{metric}_{ours}_ms": results.get(f"{theirs}_{metric}_ms")
        for metric in _LATENCIES
        for ours, theirs in _STATISTICS.items()
    }
    for metric in _LATENCIES:  # percentiles that only constraints had asked for
        quantiles = _object((results.quantiles or {}).get(f"{metric}_ms"))
        for percent in ("90", "95", "99"):
            name = f"{metric}_p{percent}_ms"
            if latencies[name] is None:
                latencies[name] = quantiles.get(percent)
    return {
        **latencies,
        "duration_seconds": _rounded(results.duration_s),
        "benchmark_duration_sec": results.duration_s,
        "request_throughput_rps": results.request_throughput,
        "input_token_throughput_tps": results.input_throughput,
        "output_token_throughput_tps": results.output_throughput,
        "total_token_throughput_tps": results.total_throughput,
        "output_token_throughput_per_gpu_tps": results.output_throughput_per_gpu,
        "output_token_tps_avg": per_user.get("mean"),
        "output_token_tps_p50": per_user.get("median"),
        "output_token_tps_p90": per_user.get("p90"),
        "request_count": ended,
        "completed_requests": results.completed,
        "failed_requests": failed,
        "error_rate": results.error_rate,
        "goodput_rps": results.goodput,
        "goodput_fraction": results.goodput_fraction,
        "mean_requests_in_system": results.concurrency,
        "predicted_output_token_throughput_tps": predicted.get("output_throughput"),
        "predicted_ttft_avg_ms": predicted.get("mean_ttft_ms"),
        "predicted_itl_avg_ms": predicted.get("mean_itl_ms"),
        **_server_metrics(_object(results.server)),
        **_gpu_metrics(_object(results.server), _gpu_memory_gb(record)),
    }


def _server_metrics(server: JsonObject) -> JsonObject:
    queries, hits = server.get("prefix_queries_tokens"), server.get("prefix_hits_tokens")
    values = {
        "kv_cache_util_avg": server.get("mean_kv_usage_fraction"),
        "kv_cache_util_max": server.get("max_kv_usage_fraction", server.get("kv_peak_fraction")),
        "prefix_cache_hit_rate": hits / queries if queries and hits is not None else None,
        "queue_depth_running_avg": server.get("mean_running_count"),
        "queue_depth_waiting_avg": server.get("mean_waiting_count"),
        "queue_depth_waiting_max": server.get("max_waiting_count"),
    }
    engine = any(value is not None for value in values.values())
    return {
        **values,
        "energy_j": server.get("energy_j"),
        "metrics_source": "engine_metrics" if engine else "none",
    }


def _gpu_metrics(server: JsonObject, memory_gb: float | None) -> JsonObject:
    busy, most, used = (
        _number(server.get(name))
        for name in ("mean_gpu_use_fraction", "max_gpu_use_fraction", "mean_gpu_memory_bytes")
    )
    return {
        "gpu_utilization_avg": None if busy is None else busy * 100,
        "gpu_utilization_max": None if most is None else most * 100,
        "gpu_memory_used_avg_gb": None if used is None else used / GB,
        "gpu_memory_util_avg": used / GB / memory_gb * 100 if used and memory_gb else None,
    }


#: Columns with intervals, their fields in records, and the metrics of predictions.
_WITH_INTERVALS = (
    ("request_throughput_rps", "request_throughput", "request_throughput"),
    ("output_token_throughput_tps", "output_throughput", "output_throughput"),
    ("ttft_avg_ms", "mean_ttft_ms", "ttft"),
    ("ttft_p99_ms", "p99_ttft_ms", "ttft"),
    ("itl_avg_ms", "mean_itl_ms", "itl"),
    ("e2e_latency_p99_ms", "p99_e2e_latency_ms", "e2e_latency"),
)


def _intervals(record: TrialRecord) -> JsonObject:
    sampled, predicted = record.results.intervals or {}, record.interval
    found: JsonObject = {}
    for name, field, metric in _WITH_INTERVALS:
        value = record.results.get(field)
        ends: Any = None
        if not record.simulated:
            ends = sampled.get(field)
        elif predicted and isinstance(value, int | float):
            ends = predicted.ends(metric, value)
        if ends and len(ends) == 2:
            found |= {f"{name}_low": ends[0], f"{name}_high": ends[1]}
    if not found:
        return {}
    level = predicted.level if record.simulated and predicted else _SAMPLING_LEVEL
    source = "prediction" if record.simulated else "sampling"
    return {**found, "interval_level": level, "interval_source": source}


def _costs(record: TrialRecord, options: RowOptions) -> JsonObject:
    results, about = record.results, record.metadata
    price, rate = about.price_per_hour_usd, results.output_throughput
    cost = results.cost_per_million_tokens_usd or cost_per_million_tokens_usd(price, rate)
    count = options.instance_count or (1 if about.gpus_used else None)
    copies = about.gpu_count // about.gpus_used if about.gpu_count and about.gpus_used else None
    return {
        "price_per_hour_usd": price,
        "price_source": about.price_source,
        "instance_count": count,
        "copies_per_instance": copies,
        "cost_per_1m_tokens": cost,
        "cost_per_1m_tokens_all_instances_usd": cost * count if cost and count else None,
        "cost_per_1m_tokens_filled_instance_usd": cost / copies if cost and copies else None,
    }


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def typed(value: Any, kind: ColumnType) -> Any:
    """A value of a column's type; `None` for what has no such value."""
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else _json(value)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    number = _number(value)
    if number is None or kind == "double":
        return number
    whole = number.is_integer() and abs(number) < _INT_LIMIT
    return int(number) if whole else None


def _number(value: Any) -> float | None:
    """Finite number of a value, also of its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
