"""Columns of the table of results: what `runs export` writes and `runs sql` reads.

The first part has the names and types that benchmark tables of SageMaker have in Athena
(ml-container-creator, table `benchmark_results`), so that queries written for them work; the second
has what else a trial's record says. A value that a record does not have is null, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ColumnType = Literal["string", "int", "double", "boolean"]
"""Type of a column in the words of Hive and Glue; `int` has 32 bits."""


class Column(msgspec.Struct, frozen=True):
    """Column of the table.

    Attributes:
        name: Name in lower case.
        type: Type of its values.
        text: Meaning of its values.
    """

    name: str
    type: ColumnType
    text: str


def _columns(type_: ColumnType, texts: dict[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, type_, text) for name, text in texts.items())


def _statistics(metric: str, title: str, statistics: str, unit: str = "ms") -> tuple[Column, ...]:
    words = {"avg": "mean", "std": "standard deviation", "p50": "median"}
    return tuple(
        Column(f"{metric}_{each}_{unit}", "double", f"{title}: {words.get(each, each)}, in {unit}.")
        for each in statistics.split()
    )


def _ends(of: str, text: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{of}_{end}", "double", f"{end.capitalize()} end of the interval of {text}.")
        for end in ("low", "high")
    )


#: Partition keys, in the order of the folders; they are in paths and not in files.
PARTITIONS: tuple[Column, ...] = _columns(
    "string",
    {
        "model": "Model, with _ for /.",
        "instance": "Instance type, else count and type of the GPUs, else unknown.",
        "target": "Target: realtime-inference, local, url or simulated.",
    },
)

_SHARED: tuple[Column, ...] = (
    *_columns(
        "string",
        {
            "project_name": "Project; the journal's name without its ending where none is given.",
            "model_name": "Hub id or folder of the model.",
            "model_family": "Family of the model, such as qwen3, else other.",
            "instance_type": "Instance type of the machine.",
            "deployment_config": "Kind of model and the engine, joined by a hyphen.",
            "deployment_target": "Target, as the partition.",
            "quantization": "Quantization applied on loading.",
        },
    ),
    Column("tensor_parallel_degree", "int", "Devices over which each matrix is split."),
    Column("instance_family", "string", "Family of the instance type, such as g6."),
    Column("gpu_count", "int", "GPUs of the machine."),
    Column("gpu_type", "string", "Type of the GPUs."),
    Column("gpu_memory_gb", "double", "Memory of one GPU, in GB."),
    Column("max_model_len", "int", "Longest sequence, in tokens."),
    Column("enable_lora", "boolean", "Whether adapters could be served."),
    Column("kv_cache_dtype", "string", "Number format of the KV cache."),
    Column("serving_config", "string", "Settings of the server, as JSON."),
    Column("workload", "string", "Workload or data set of the load."),
    Column("concurrency", "int", "Requests in flight; null for loads with a rate."),
    Column("input_tokens_mean", "int", "Prompt tokens of a request, as requested or on average."),
    Column("output_tokens_mean", "int", "Output tokens of a request, as requested or on average."),
    Column("streaming", "boolean", "Whether answers were streamed."),
    Column("duration_seconds", "int", "Duration of the load, in whole seconds."),
    *_columns(
        "double",
        {
            "request_throughput_rps": "Complete requests per second.",
            "total_token_throughput_tps": "Prompt and output tokens per second.",
            "output_token_throughput_tps": "Output tokens per second.",
            "request_count": "Requests that ended, failed ones included.",
        },
    ),
    *_statistics("ttft", "Time to first token", "avg p50 p90 p99"),
    *_statistics("itl", "Inter-token latency", "avg p50 p90 p99"),
    *_statistics("e2e_latency", "End-to-end latency", "avg p50 p90 p99"),
    *_columns(
        "double",
        {
            "prefill_tps_avg": "Prompt tokens per second of a request; null, records lack it.",
            "prefill_tps_p50": "Median of these; null, records lack it.",
            "output_token_tps_avg": "Output tokens per second of one user: mean.",
            "output_token_tps_p50": "Output tokens per second of one user: median.",
            "output_token_tps_p90": "Output tokens per second of one user: p90.",
            "ttst_p50_ms": "Time to the second token; null, records lack it.",
            "ttst_p90_ms": "p90 of these; null, records lack it.",
            "output_sequence_length_avg": "Output tokens of a complete answer: mean.",
            "input_sequence_length_avg": "Prompt tokens of a complete answer: mean.",
            "error_rate": "Share of requests that failed, 0 to 1.",
            "cost_per_1m_tokens": "Dollars for a million output tokens: one instance, one copy.",
            "benchmark_duration_sec": "Duration of the load, in seconds.",
        },
    ),
    *_columns(
        "string",
        {
            "run_type": "Kind of run: servetune.",
            "benchmark_job_name": "Benchmark job of SageMaker; null for loads that servetune sent.",
            "mcc_version": "Version of ml-container-creator; null in rows of servetune.",
            "run_timestamp": "Start of the trial, ISO 8601; null for simulated trials.",
            "region": "AWS region of the endpoint or the job; null without one.",
            "adapter_name": "Adapter that was requested.",
        },
    ),
    *_columns(
        "double",
        {
            "gpu_utilization_avg": "Share of time in which a GPU computed, in percent.",
            "gpu_utilization_max": "Largest of these of any GPU at any reading, in percent.",
            "gpu_memory_used_avg_gb": "Memory in use of one GPU: mean, in GB.",
            "gpu_memory_util_avg": "Share of a GPU's memory in use: mean, in percent.",
            "kv_cache_util_avg": "Share of the KV cache in use, 0 to 1: mean.",
            "kv_cache_util_max": "Share of the KV cache in use, 0 to 1: largest.",
            "prefix_cache_hit_rate": "Share of prompt tokens found in the prefix cache, 0 to 1.",
            "queue_depth_running_avg": "Requests in the batch: mean.",
            "queue_depth_waiting_avg": "Requests in the queue: mean.",
            "queue_depth_waiting_max": "Requests in the queue: largest.",
        },
    ),
    Column("metrics_source", "string", "Source of the metrics above: engine_metrics or none."),
)

_OWN: tuple[Column, ...] = (
    *_columns(
        "string",
        {
            "kind": "Kind of result: measured, or simulated where no model ran.",
            "status": "Status: ok or failed.",
            "failure_kind": "Cause of a failure in one word.",
            "failure_reason": "Cause of a failure in one line.",
            "run_id": "Identity of the run; equal for all trials of one journal.",
            "trial_id": "Identity of the trial; another measurement of its settings has another.",
            "trial_key": "Identity of the trial's settings, as in journals.",
            "engine": "Engine that served.",
            "engine_version": "Version of the engine.",
            "servetune_version": "Version of servetune that made the record.",
            "host": "Name of the machine that measured.",
            "run_ended_at": "End of the trial, ISO 8601.",
            "server_command": "Command line of the server.",
        },
    ),
    *_columns(
        "int",
        {
            "seed": "Seed of the load.",
            "pipeline_parallel_degree": "Stages over which the layers are split.",
            "data_parallel_degree": "Copies inside the engine.",
            "replica_count": "Copies behind the load balancer.",
            "gpus_used": "GPUs that the plan uses.",
            "max_num_seqs": "Sequences that may run in one step.",
            "max_num_batched_tokens": "Tokens that one step may process.",
            "completed_requests": "Complete answers.",
            "failed_requests": "Requests without a complete answer.",
            "instance_count": "Instances that served the load; null where it is not known.",
            "copies_per_instance": "Copies of the plan that the machine's GPUs hold.",
        },
    ),
    *_columns(
        "double",
        {
            "request_rate_rps": "Offered requests per second, of loads with a rate.",
            "input_token_throughput_tps": "Prompt tokens per second.",
            "output_token_throughput_per_gpu_tps": "Output tokens per second and GPU of the plan.",
            "goodput_rps": "Requests per second that met every limit per request.",
            "goodput_fraction": "Share of requests that met every limit per request, 0 to 1.",
            "mean_requests_in_system": "Requests in the system: mean.",
        },
    ),
    *_statistics("ttft", "Time to first token", "std p95"),
    *_statistics("itl", "Inter-token latency", "std p95"),
    *_statistics("tpot", "Time per output token", "avg std p50 p90 p95 p99"),
    *_statistics("e2e_latency", "End-to-end latency", "std p95"),
    *_ends("request_throughput_rps", "the requests per second"),
    *_ends("output_token_throughput_tps", "the output tokens per second"),
    *_ends("ttft_avg_ms", "the mean time to first token"),
    *_ends("ttft_p99_ms", "the p99 time to first token"),
    *_ends("itl_avg_ms", "the mean inter-token latency"),
    *_ends("e2e_latency_p99_ms", "the p99 end-to-end latency"),
    Column("interval_level", "double", "Chance that an interval holds the true value, 0 to 1."),
    Column("interval_source", "string", "Source of the intervals: sampling or prediction."),
    *_columns(
        "double",
        {
            "price_per_hour_usd": "Price of one instance per hour, in dollars.",
            "cost_per_1m_tokens_all_instances_usd": (
                "Dollars for a million output tokens, with the price of every instance."
            ),
            "cost_per_1m_tokens_filled_instance_usd": (
                "Dollars for a million output tokens if copies fill the instance, each as fast "
                "as this one: an estimate."
            ),
            "energy_j": "Energy of the GPUs, in joules.",
            "predicted_output_token_throughput_tps": "Predicted output tokens per second.",
            "predicted_ttft_avg_ms": "Predicted mean time to first token, in ms.",
            "predicted_itl_avg_ms": "Predicted mean inter-token latency, in ms.",
        },
    ),
    Column("price_source", "string", "Source and date of the price."),
)

COLUMNS: tuple[Column, ...] = _SHARED + _OWN
"""Columns of a file, in its order."""

TYPES = {column.name: column.type for column in (*COLUMNS, *PARTITIONS)}
"""Types by column, partition keys included."""
