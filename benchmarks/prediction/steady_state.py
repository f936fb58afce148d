"""The steady-state formula against real measurements that nothing was fitted to.

    python benchmarks/prediction/steady_state.py [--data DIR]

Reads the shared development set (`silicon_dev.csv`, `model_configs/`) and prints, per engine,
how far predicted time per output token and end-to-end latency are from the measured ones, and
which share of them the estimate's own interval holds. Only aggregated runs; nothing is simulated.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from servetune.errors import ServetuneError
from servetune.hardware import node
from servetune.models import NetworkShape, shape_from_config
from servetune.perf import estimate, performance_at
from servetune.plan import Plan
from servetune.workload import UniformRange, Workload

ROOT = Path(__file__).parents[2]
GPUS = {"h100_sxm": "H100 SXM", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
WEIGHTS = {
    "bf16": None,
    "": None,
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "awq",
    "mxfp4": "mxfp4",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    data = parser.parse_args().data
    if not (data / "silicon_dev.csv").is_file():
        print(f"no silicon_dev.csv in {data}; give its folder with --data", file=sys.stderr)
        return 2
    with (data / "silicon_dev.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors: dict[str, list[tuple[float, float, float, bool]]] = {}
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            errors.setdefault(row["engine"], []).append(errors_of(row, data / "model_configs"))
        except ServetuneError as error:
            refused[error.message.split(":")[0][:90]] += 1
    print(f"{len(rows)} rows, {sum(map(len, errors.values()))} predicted")
    for why, count in refused.most_common(12):
        print(f"  {count:5} not: {why}")
    print(
        "| engine | rows | TPOT median / mean % | TTFT median % | E2E median / mean % "
        "| in interval |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    everything = [value for values in errors.values() for value in values]
    for name, values in [*sorted(errors.items()), ("all", everything)]:
        tpot, ttft, e2e, held = (
            np.array(column, dtype=float) for column in zip(*values, strict=True)
        )
        print(
            f"| {name} | {len(values)} | {np.median(tpot):.1f} / {tpot.mean():.1f} | "
            f"{np.median(ttft):.0f} | {np.median(e2e):.1f} / {e2e.mean():.1f} | {held.mean():.0%} |"
        )
    return 0


def errors_of(row: dict[str, str], configs: Path) -> tuple[float, float, float, bool]:
    """Absolute errors in % of TPOT, TTFT and E2E, and whether the interval holds the TPOT."""
    shape = shape_of(row["model"], configs)
    concurrency, output = int(row["concurrency"]), int(row["osl"])
    degrees = {"tensor_parallel": int(row["tp"]), "data_parallel": int(row["dp"] or 1)}
    plan = Plan(
        model=row["model"],
        engine="sglang" if row["engine"] == "sglang" else "vllm",
        expert_parallel=int(row["moe_ep"] or 1) > 1,
        max_num_seqs=max(1, concurrency // degrees["data_parallel"]),
        quantization=WEIGHTS.get(row["precision_weights"])
        if shape.quantization == "none"
        else None,
        **degrees,
    )
    machine = node(gpu=GPUS[row["gpu"]], count=plan.device_count)
    # How the rows were measured: lengths uniform from 0.8 of the nominal one.
    lengths = UniformRange(int(row["isl"]), output, 0.8)
    workload = Workload(
        lengths=lengths, request_count=10 * concurrency, max_concurrency=concurrency
    )
    point = performance_at(shape, machine, plan, workload, concurrency)
    band = estimate(shape, machine, plan, workload).interval
    ttft_ms, tpot_ms = float(row["ttft_ms"]), float(row["tpot_ms"])
    steps = 0.9 * output - 1
    e2e_ms, predicted_ms = ttft_ms + steps * tpot_ms, point.ttft_ms + steps * point.itl_ms
    held = band.low_factor <= tpot_ms / point.itl_ms <= band.high_factor
    return (
        100 * abs(point.itl_ms / tpot_ms - 1),
        100 * abs(point.ttft_ms / ttft_ms - 1),
        100 * abs(predicted_ms / e2e_ms - 1),
        held,
    )


@functools.cache
def shape_of(model: str, configs: Path) -> NetworkShape:
    path = configs / f"{model.replace('/', '--')}_config.json"
    if not path.is_file():
        raise ServetuneError(f"no configuration of {model}")
    return shape_from_config(json.loads(path.read_text()), name=model, source=str(path.name))


if __name__ == "__main__":
    sys.exit(main())
