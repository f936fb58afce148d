"""Calibrate on three trials of a real engine, predict the others.

    SERVETUNE_VLLM=.venv-vllm/bin/vllm python benchmarks/simulation/real_engine.py \
        --model .cache/tiny-qwen3 --out out/real-engine

Starts real vLLM on this machine's CPU (`make vllm`, `make .cache/tiny-qwen3/config.json`) in
five configurations under nineteen loads in all: users, prompt lengths, max_num_seqs,
max_num_batched_tokens, prefix caching on and off. Three trials, named below before anything was
measured, make a calibration; the sixteen others are simulated with it and set beside what was
measured. A journal that exists already is read instead of measured again. About six minutes
on two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from servetune.api.inputs import read_records
from servetune.hardware import Node, detect_cpu
from servetune.metrics import summarize
from servetune.models import NetworkShape, load_shape
from servetune.perf import Calibration, simulate
from servetune.prediction.calibrations import from_trials
from servetune.store import TrialRecord
from servetune.workload import workload_from_client_args

#: float32, as virtual CPUs may advertise AMX and die of its bfloat16.
SERVER = "max_model_len=2048;enforce_eager=True;dtype=float32;"
LOAD = "random_output_len=64;num_prompts=96;warmup_requests=8;"
RUNS = {
    "grid": (
        "max_num_seqs=[4,16];max_num_batched_tokens=[256,2048];" + SERVER,
        "max_concurrency=[4,16];random_input_len=[64,512];" + LOAD,
    ),
    "uncached": (
        "max_num_seqs=16;max_num_batched_tokens=2048;enable_prefix_caching=False;" + SERVER,
        "max_concurrency=[1,8,16];random_input_len=256;" + LOAD,
    ),
}
#: (run, max_num_seqs, max_num_batched_tokens, users, prompt): one user alone, a full small
#: server with long prompts, a large one with short ones.
ANCHORS = (
    ("uncached", 16, 2048, 1, 256),
    ("grid", 4, 256, 4, 512),
    ("grid", 16, 2048, 16, 64),
)
METRICS = {
    "output_throughput": 10,
    "mean_tpot_ms": 10,
    "mean_ttft_ms": 20,
    "p99_e2e_latency_ms": 20,
    "mean_e2e_latency_ms": None,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".cache/tiny-qwen3")
    parser.add_argument("--out", type=Path, default=Path("out/real-engine"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    trials: dict[tuple[object, ...], TrialRecord] = {}
    for name in RUNS:
        for record in measured(name, given.model, given.out):
            if record.status == "ok":
                trials[(name, *sizes(record))] = record
    missing = [anchor for anchor in ANCHORS if anchor not in trials]
    if missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return 1
    shape, node = load_shape(given.model), detect_cpu()
    kept = from_trials([trials[a] for a in ANCHORS], name="three", shape=shape, node=node)
    plain, corrected = [], []
    print("| trial | " + " | ".join(METRICS) + " |\n|---|" + "--:|" * len(METRICS))
    for key, record in trials.items():
        if key in ANCHORS:
            continue
        before, after = (errors(record, shape, node, c) for c in (None, kept.calibration))
        plain.append(before)
        corrected.append(after)
        cells = " | ".join(f"{100 * error:+.0f}%" for error in after)
        print(f"| {' '.join(map(str, key))} | {cells} |")
    for name, found in (("calibrated", corrected), ("not calibrated", plain)):
        medians = 100 * np.median(np.abs(found), axis=0)
        cells = " | ".join(f"{error:.1f}%" for error in medians)
        print(f"| **median, {name}** | {cells} |")
    print(
        "| to reach | " + " | ".join("" if m is None else f"{m}%" for m in METRICS.values()) + " |"
    )
    return 0


def measured(name: str, model: str, out: Path) -> list[TrialRecord]:
    journal = out / f"{name}.jsonl"
    if not journal.is_file():
        server, client = RUNS[name]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"} | os.environ
        words = [sys.executable, "-m", "servetune", "tune", "--engine", "vllm", "--model", model]
        words += ["--server-args", server.rstrip(";"), "--client-args", client.rstrip(";")]
        words += ["--output-json", str(journal.with_suffix(".json"))]
        subprocess.run(words, env=environment, check=True)
    return read_records(journal)


def sizes(record: TrialRecord) -> tuple[int, int, int, int]:
    server, client = record.config.server_args, record.config.client_args
    return (
        server["max_num_seqs"],
        server["max_num_batched_tokens"],
        client["max_concurrency"],
        client["random_input_len"],
    )


def errors(
    record: TrialRecord, shape: NetworkShape, node: Node, calibration: Calibration | None
) -> list[float]:
    """Simulated over measured less one, per metric."""
    assert record.plan is not None
    load = workload_from_client_args(record.config.client_args)
    run = simulate(record.plan, shape, node, load, calibration=calibration)
    found = summarize(run.records, duration_s=run.duration_s)
    return [found[name] / record.results[name] - 1 for name in METRICS]


if __name__ == "__main__":
    sys.exit(main())
