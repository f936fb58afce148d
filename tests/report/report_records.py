"""Records as a run of 27 trials leaves them, made by a small law instead of a server."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import msgspec

from servetune.store.schema import Failure, TrialConfig, TrialRecord, trial_key

MODEL = "Qwen/Qwen3-4B"
PERCENTS = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 96, 97, 98, 99, 99.5, 99.9)
INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS = 302_118, 195_775, 1000
LOG_TAIL = (
    "INFO 11-20 12:00:01 gpu_worker.py:298] Available KV cache memory: 1.12 GiB\n"
    "ERROR 11-20 12:00:09 core.py:700] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.37 GiB\n"
)


def results(tp: int, batched: int, users: int, *, scale: float = 1.0) -> dict[str, Any]:
    """A trial's results: a rate that saturates, latencies that follow Little's law."""
    best = {1: 2.8, 2: 4.9, 4: 8.9}[tp] * (1 + 0.015 * math.log2(batched / 8192))
    rate = scale * best * users / (users + {1: 9, 2: 14, 4: 19}[tp])
    e2e_ms = users / rate * 1000
    ttft_ms = 60 + 4.5 * users * (8192 / batched) ** 0.2 * 4 / tp / 2
    tpot_ms = (e2e_ms - ttft_ms) / (OUTPUT_TOKENS / REQUESTS - 1)
    made: dict[str, Any] = {
        "backend": "vllm",
        "dataset_name": "sharegpt",
        "max_concurrency": users,
        "duration": REQUESTS / rate,
        "completed": REQUESTS,
        "failed": 0,
        "failures": [],
        "error_rate": 0.0,
        "total_input_tokens": INPUT_TOKENS,
        "total_output_tokens": OUTPUT_TOKENS,
        "request_throughput": rate,
        "input_throughput": rate * INPUT_TOKENS / REQUESTS,
        "output_throughput": rate * OUTPUT_TOKENS / REQUESTS,
        "goodput": None,
        "concurrency": float(users),
        "cost_per_million_tokens": 5.752 / 3600 / (rate * OUTPUT_TOKENS / REQUESTS) * 1e6,
        "quantiles": {},
    }
    for name, mean_ms, sigma in (
        ("e2e_latency", e2e_ms, 0.82),
        ("ttft", ttft_ms, 1.1),
        ("tpot", tpot_ms, 0.25),
        ("itl", tpot_ms * 0.96, 0.6),
    ):
        made |= _distribution(name, mean_ms, sigma)
        made["quantiles"][f"{name}_ms"] = {
            f"{p:g}": _lognormal(mean_ms, sigma, p / 100) for p in PERCENTS
        }
    return made


def record(
    tp: int = 4,
    batched: int = 8192,
    users: int = 32,
    *,
    simulated: bool = True,
    failure: Failure | None = None,
    predicted: dict[str, Any] | None = None,
    **changes: Any,
) -> TrialRecord:
    server = {"tensor_parallel_size": tp, "max_num_batched_tokens": batched}
    client = {"max_concurrency": users, "num_prompts": REQUESTS, "dataset_name": "sharegpt"}
    args = [f"--tensor-parallel-size={tp}", f"--max-num-batched-tokens={batched}"]
    made = TrialRecord(
        servetune_schema=1,
        key=trial_key(model=MODEL, engine="vllm", server_args=server, client_args=client),
        config=TrialConfig(client_args=client, server_args=server, server_cmd_args=args),
        results={} if failure else results(tp, batched, users),
        cmd=" ".join(["vllm serve", MODEL, "--host 127.0.0.1 --port 8000", *args]),
        constraints=[{"name": "p99_e2e_latency_ms", "op": "<=", "value": 60000.0}],
        metadata={
            "gpu_type": "NVIDIA L4",
            "gpu_count": 4,
            "gpus_used": tp,
            "instance_type": "ml.g6.12xlarge",
            "price_per_hour_usd": 5.752,
            "model_tag": MODEL,
            "framework": "simulated" if simulated else "vllm",
            "input_tokens": -1,
            "output_tokens": -1,
            "seed": 1,
        },
        status="failed" if failure else "ok",
        simulated=simulated,
        failure=failure,
        predicted=predicted,
        provenance={}
        if simulated
        else {"started_at": "2026-11-20T21:00:00.000+00:00", "engine_version": "0.11.0", "seed": 1},
    )
    return msgspec.structs.replace(made, **changes)


def sweep(*, failures: bool = True) -> list[TrialRecord]:
    """27 simulated trials, two of them failed unless told otherwise."""
    records = []
    for tp in (1, 2, 4):
        for batched in (4096, 8192, 16384):
            for users in (32, 64, 128):
                failure = None
                if failures and (tp, batched) == (1, 16384) and users >= 64:
                    failure = Failure(
                        kind="out_of_memory",
                        reason="the server ran out of GPU memory while it loaded",
                        log_tail=LOG_TAIL,
                    )
                records.append(record(tp, batched, users, failure=failure))
    return records


def failing(record: TrialRecord, failed: int, of: int = 30) -> TrialRecord:
    """The same trial, with so many of its requests unanswered."""
    counts = {"failed": failed, "completed": of - failed, "error_rate": failed / of}
    return msgspec.structs.replace(record, results={**record.results, **counts})


def dirty_sweep() -> list[TrialRecord]:
    """The sweep with a few failed requests in its slowest trial and many in its fastest ones."""
    records = sweep()
    records[0] = failing(records[0], 2, 1000)
    for index, failed in ((18, 3), (24, 14), (25, 14), (26, 14)):
        records[index] = failing(records[index], failed)
    return records


def measured() -> list[TrialRecord]:
    """Three measured trials that carry the prediction for themselves."""
    return [
        record(4, 8192, users, simulated=False, predicted=results(4, 8192, users, scale=1.08))
        for users in (32, 64, 128)
    ]


def foreign_json(users: int = 32) -> dict[str, Any]:
    """A record as another tool writes it: no quantiles, no cost, no servetune fields."""
    plain = {
        name: value
        for name, value in results(4, 8192, users).items()
        if name
        not in (
            "quantiles",
            "cost_per_million_tokens",
            "goodput",
            "failed",
            "failures",
            "error_rate",
        )
        and not name.startswith("p90_")
    }
    own = record(4, 8192, users)
    return {
        "config": msgspec.to_builtins(own.config),
        "results": {**plain, "accept_length": None},
        "cmd": own.cmd,
        "constraints": [],
        "metadata": {
            "gpu_type": "NVIDIA L4",
            "gpu_count": 4,
            "model_tag": MODEL,
            "input_tokens": -1,
            "output_tokens": -1,
        },
    }


def _distribution(name: str, mean_ms: float, sigma: float) -> dict[str, float]:
    return {
        f"mean_{name}_ms": mean_ms,
        f"median_{name}_ms": _lognormal(mean_ms, sigma, 0.5),
        f"std_{name}_ms": mean_ms * math.sqrt(math.exp(sigma**2) - 1),
        f"p90_{name}_ms": _lognormal(mean_ms, sigma, 0.90),
        f"p95_{name}_ms": _lognormal(mean_ms, sigma, 0.95),
        f"p99_{name}_ms": _lognormal(mean_ms, sigma, 0.99),
    }


def _lognormal(mean: float, sigma: float, share: float) -> float:
    return math.exp(math.log(mean) - sigma**2 / 2 + sigma * NormalDist().inv_cdf(share))
