"""How long one estimate takes in bulk, in process time, against the limit of 100 microseconds.

python benchmarks/prediction/speed.py
"""

from __future__ import annotations

import sys
import time

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, calibrated, run_features
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.sweep import plans_of, sweep
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

LIMIT_US = 100.0
CASES = (("Qwen/Qwen3-4B", "L4", 4), ("meta-llama/Llama-3.1-70B-Instruct", "H100", 8))


def main() -> int:
    print("| what | count | microseconds each | of the limit of 100 |")
    print("|---|--:|--:|--:|")
    workload = Workload.of(LengthLaws.fixed(1024, 512), request_count=1000)
    for model, gpu, count in CASES:
        shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=count)
        plan = Plan(model=model, max_model_len=4096)
        started_s = time.process_time()
        plans = list(plans_of(plan, shape, machine, quantizations=(None, "fp8")))
        swept = sum(1 for _ in sweep(plans, shape, machine, workload))
        say(f"sweep of {model}", swept, time.process_time() - started_s)
        runs = [
            PlannedRun(
                shape=shape,
                node=machine,
                plan=plan,
                lengths=workload.lengths,
                concurrency=users,
                request_count=10 * users,
            )
            for users in (8, 64)
        ]
        anchors = [
            Anchor(
                predicted_ttft_ms=100,
                predicted_tpot_ms=10,
                measured_ttft_ms=120,
                measured_tpot_ms=11,
                place=place,
            )
            for place in run_features(runs)
        ]
        told = calibrated(anchors)
        started_s = time.process_time()
        swept = sum(1 for _ in sweep(plans, shape, machine, workload, calibration=told))
        say("the same, corrected by two runs", swept, time.process_time() - started_s)
        runs = [
            PlannedRun(
                shape=shape,
                node=machine,
                plan=Plan(model=model, tensor_parallel=count, max_num_seqs=users),
                lengths=LengthLaws.ranged(1024, 1024, 0.8),
                concurrency=users,
                request_count=10 * users,
            )
            for users in range(1, 1001)
        ]
        started_s = time.process_time()
        predict_runs(runs)
        say(f"whole runs of {model}", len(runs), time.process_time() - started_s)
    return 0


def say(what: str, count: int, took_s: float) -> None:
    each_us = took_s / count * 1e6
    print(f"| {what} | {count} | {each_us:.0f} | {each_us / LIMIT_US:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
