"""How fast the simulator is, and how much memory a million requests take.

python benchmarks/simulation/speed.py

Prints the ratio of virtual to real time for single servers that are never idle, time and peak
memory of a million requests (each in a process of its own), and the 27-trial sweep of the
published walk-through as a user runs it, from the start of the command to its last line. Time
is that of one core at work (process time), so that others on the machine do not count.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from servetune.engines import resolved
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline.step import step_law
from servetune.perf.sim import RunOptions, SimulatedRun, simulate
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.simulation import run_requests
from servetune.plan import Plan
from servetune.units import MIB
from servetune.workload import SHAREGPT, Arrivals, LengthLaws, Lengths, Poisson, Workload
from servetune.workload.arrivals import AllAtOnce
from servetune.workload.request import Request

LEAST_RATIO, MOST_MIB, MOST_SWEEP_S = 200, 2048, 5.0
BUSY_FRACTION = 0.95

#: Name, model, GPU, lengths, arrivals, users.
LOADED: tuple[tuple[str, str, str, Lengths, Arrivals, int | None], ...] = (
    ("ShareGPT, 128 users", "Qwen/Qwen3-4B", "L4", SHAREGPT, AllAtOnce(), 128),
    ("ShareGPT, 15/s", "Qwen/Qwen3-8B", "H100", SHAREGPT, Poisson(15), None),
    (
        "512 in 128 out, 40/s",
        "Qwen/Qwen3-8B",
        "H100",
        LengthLaws.ranged(512, 128, 0.5),
        Poisson(40),
        None,
    ),
    (
        "512 in 128 out, 60/s",
        "Qwen/Qwen3-8B",
        "H100",
        LengthLaws.ranged(512, 128, 0.5),
        Poisson(60),
        None,
    ),
    (
        "2000 in 50 out, 256 users",
        "Qwen/Qwen3-8B",
        "H100",
        LengthLaws.ranged(2000, 50, 0.8),
        AllAtOnce(),
        256,
    ),
)
SWEEP = (
    "tune",
    *("--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--instance", "ml.g6.12xlarge"),
    "--server-args",
    "tensor_parallel_size=[1,2,4];max_num_batched_tokens=[4096,8192,16384]",
    "--client-args",
    "max_concurrency=[32,64,128];num_prompts=1000;dataset_name=sharegpt",
    *("--output-json", "walk.json"),
)


#: Three tokens drafted ahead, seven of ten of them right.
DRAFTS: dict[str, Any] = {"draft_tokens": 3, "draft_acceptance_fraction": 0.7}


def run(
    case: int, count: int, *, each_token: bool = True, **fields: Any
) -> tuple[SimulatedRun, float]:
    """A simulation and the seconds that it took, its requests' making included."""
    _, model, gpu, lengths, arrivals, users = LOADED[case]
    shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=1)
    workload = Workload.of(lengths, request_count=count, arrivals=arrivals, concurrency=users)
    started_s = time.process_time()
    result = simulate(
        Plan(model=model, max_model_len=8192, **fields),
        shape,
        machine,
        workload,
        options=RunOptions(each_token=each_token),
    )
    return result, time.process_time() - started_s


def served_prefixes(kind: str, count: int = 5000) -> tuple[SimulatedRun, float]:
    """Prompts that begin alike, on one H100 at 20 requests per second."""
    model = "Qwen/Qwen3-8B"
    shape, machine = load_shape(model, catalogue_first=True), node(gpu="H100", count=1)
    plan = resolved(Plan(model=model, max_model_len=16384), shape, machine.device)
    rng = np.random.default_rng(0)
    due_s = np.cumsum(rng.exponential(1 / 20, count))
    requests = tuple(
        Request(index=index, due_s=float(due_s[index]), output_tokens=128, **PREFIXES[kind](index))
        for index in range(count)
    )
    config = SchedulerConfig(
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        block_tokens=16,
        capacity_blocks=24_000,
        chunked_prefill=True,
        prefix_caching=True,
    )
    started_s = time.process_time()
    result = run_requests(requests, config, step_law(plan, shape, machine))
    return result, time.process_time() - started_s


def turn(index: int) -> dict[str, Any]:
    """One of ten turns of one of 500 conversations."""
    turn, talk = divmod(index, 500)
    pieces = [((talk * 100 + part), (200, 128)[part % 2]) for part in range(2 * turn + 1)]
    return {
        "prefix": tuple(pieces),
        "answer_id": talk * 100 + 2 * turn + 1,
        "input_tokens": sum(tokens for _, tokens in pieces),
    }


PREFIXES: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing shared, 2,000 tokens": lambda _: {"input_tokens": 2000},
    "one of 20 system prompts of 1,500, and 500 tokens": lambda index: {
        "prefix": ((index * 7 % 20, 1500),),
        "input_tokens": 2000,
    },
    "ten turns of 500 conversations": turn,
    "ten of 50 x 10 hashes of 512, and 300 tokens": lambda index: {
        "prefix": tuple((index * 7 % 50 * 100 + part, 512) for part in range(10)),
        "input_tokens": 5420,
    },
}


def million(each_token: str) -> None:
    """In a process of its own: what the parent prints."""
    result, took_s = run(2, 1_000_000, each_token=each_token == "every token")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    tokens = sum(record.output_tokens for record in result.records)
    print(f"| {each_token} | {tokens / 1e6:.1f} | {took_s:.0f} | {peak_mib:.0f} |")


def main() -> int:
    if len(sys.argv) > 1:
        million(sys.argv[1])
        return 0
    print("| loaded server | steps | requests per s of real time | busy | times real time |")
    print("|---|--:|--:|--:|--:|")
    good = True
    rows: list[tuple[int, str, dict[str, Any]]] = [(case, "", {}) for case in range(len(LOADED))]
    rows += [(case, ", 3 drafts", DRAFTS) for case in (0, 1, 2)]
    for case, drafts, fields in rows:
        name, model, gpu, *_ = LOADED[case]
        pairs = (run(case, 5000, **fields) for _ in range(3))
        result, took_s = min(pairs, key=lambda pair: pair[1])
        busy, ratio = result.busy_s / result.duration_s, result.duration_s / took_s
        good &= ratio >= LEAST_RATIO and busy >= BUSY_FRACTION
        rate = len(result.records) / took_s
        print(
            f"| {model} on {gpu}, {name}{drafts} | {result.steps} | {rate:.0f} | {busy:.1%} "
            f"| {ratio:.0f} |"
        )
    print("\n| prompts | cached | times real time |")
    print("|---|--:|--:|")
    for kind in PREFIXES:
        result, took_s = served_prefixes(kind)
        ratio = result.duration_s / took_s
        good &= ratio >= LEAST_RATIO
        print(f"| {kind} | {result.cached_fraction:.1%} | {ratio:.0f} |")
    print("\n| a million requests, records of | million tokens | seconds | peak MiB |")
    print("|---|--:|--:|--:|", flush=True)
    for each_token in ("first and last token", "every token"):
        row = subprocess.run(
            [sys.executable, __file__, each_token], check=True, capture_output=True, text=True
        ).stdout.strip()
        good &= float(row.split("|")[-2]) < MOST_MIB
        print(row, flush=True)
    took_s = sweep_s()
    good &= took_s < MOST_SWEEP_S
    print(f"\nThe 27-trial sweep of the walk-through: {took_s:.2f} s")
    return 0 if good else 1


def sweep_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "servetune", *SWEEP],
            cwd=folder,
            check=True,
            capture_output=True,
            env=os.environ | {"NO_COLOR": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        trials = len(Path(folder, "walk.jsonl").read_text().splitlines())
        assert trials == 27, trials
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
