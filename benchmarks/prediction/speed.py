"""How long one prediction takes in bulk, in process time.

python benchmarks/prediction/speed.py [--table silicon_dev.csv]
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, calibrated, run_features
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.sweep import plans_of, sweep
from servetune.plan import Plan
from servetune.prediction.rows import prediction_columns, run_of
from servetune.prediction.tables import read_table
from servetune.workload import LengthLaws, Workload

CASES = (("Qwen/Qwen3-4B", "L4", 4), ("meta-llama/Llama-3.1-70B-Instruct", "H100", 8))
#: Copies of a table's rows that make a bulk of them.
_TIMES = 5
EQUAL = Workload.of(LengthLaws.fixed(1024, 512), request_count=1000)
SPREAD = Workload.of(LengthLaws.ranged(1024, 512, 0.5), request_count=1000)

Found = TypeVar("Found")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", type=Path, help="rows to read and price, as in silicon_dev.csv")
    options = parser.parse_args()
    print("| what | count | microseconds each |")
    print("|---|--:|--:|")
    for model, gpu, count in CASES:
        shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=count)
        plan = Plan(model=model, max_model_len=4096)
        plans = list(plans_of(plan, shape, machine, quantizations=(None, "fp8")))
        priced = functools.partial(sweep, plans, shape, machine)
        timed(f"sweep of {model}", lambda priced=priced: list(priced(EQUAL)))
        timed("the same, lengths that differ", lambda priced=priced: list(priced(SPREAD)))
        timed(
            "the same, at one number of users",
            lambda priced=priced: list(priced(SPREAD, concurrencies=(64,))),
        )
        runs = [
            PlannedRun(
                shape=shape,
                node=machine,
                plan=plan,
                lengths=EQUAL.lengths,
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
        timed(
            "equal lengths, corrected by two runs",
            lambda priced=priced, told=told: list(priced(EQUAL, calibration=told)),
        )
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
        timed(f"whole runs of {model}", lambda runs=runs: predict_runs(runs))
    if options.table:
        rows_of(options.table)
    return 0


def rows_of(path: Path) -> None:
    """Times of each part of `estimate --batch`, after the models have been read."""
    rows = read_table(path).rows
    shape_of = functools.cache(functools.partial(load_shape, catalogue_first=True))
    for row in rows:
        shape_of(row["model"].strip())
    runs = timed(f"rows of {path.name}: read", lambda: [run_of(row, shape_of) for row in rows])
    predicted = timed("the same: priced", lambda: predict_runs(runs))
    many = [
        msgspec.structs.replace(run, request_count=run.request_count + more)
        for more in range(_TIMES)
        for run in runs
    ]
    timed(
        f"{_TIMES} times as many, of other numbers of requests: priced", lambda: predict_runs(many)
    )
    timed(
        "the same: columns with intervals",
        lambda: [prediction_columns(*each) for each in zip(runs, predicted, strict=True)],
    )


def timed(what: str, compute: Callable[[], list[Found]]) -> list[Found]:
    """Results, and a line with the time of each; garbage of what came before is not counted."""
    gc.collect()
    started_s = time.process_time()
    found = compute()
    took_s = time.process_time() - started_s
    print(f"| {what} | {len(found)} | {took_s / len(found) * 1e6:.0f} |")
    return found


if __name__ == "__main__":
    sys.exit(main())
