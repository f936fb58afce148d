"""The engine in virtual time against measured runs, by their own protocol.

    python benchmarks/simulation/silicon.py [--data DIR] [--every N]

Every N-th row of `silicon_dev.csv` (all by default) is played request by request: its lengths,
ten requests per user, all users at once at the start, nothing warm. Each (model, GPU) is left
out of the fit that prices its steps. Beside the simulator stand the formula of a whole run
(`run_formulas`) and the steady state without the run's beginning. Needs scipy.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "prediction"), str(ROOT / "tools")]

from cross_validate import FOLDS  # noqa: E402
from fit_step_law import Problem, fitted  # noqa: E402
from measured import SILICON, Measured, read  # noqa: E402

from servetune.errors import ServetuneError  # noqa: E402
from servetune.perf import RunOptions, performance_at, simulate  # noqa: E402
from servetune.perf.roofline.coefficients import Coefficients  # noqa: E402
from servetune.perf.roofline.factors import Factor, corrected, scopes_of  # noqa: E402
from servetune.perf.roofline.steady_state import length_moments  # noqa: E402
from servetune.perf.roofline.tables import table_for  # noqa: E402
from servetune.workload import Workload  # noqa: E402

Triple = tuple[float, float, float]  # TTFT, TPOT, end-to-end in ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    rows, _ = read(given.data, [SILICON])
    problem = Problem(rows)
    values = held_out_values(problem)
    names = ("simulated", "whole run by formula", "steady state")
    errors: dict[str, list[list[float]]] = {name: [] for name in names}
    played: list[Measured] = []
    refused: dict[str, int] = {}
    spent_s = engine_s = 0.0
    for index in range(0, len(rows), given.every):
        row = rows[index]
        c = coefficients(problem, row, values[str(row.group)])
        start_s = time.process_time()
        try:
            found, lasted_s = simulated(row, c)
            steady = in_steady_state(row, c)
        except ServetuneError as error:
            why = error.message.split(": ")[-1][:70]
            refused[why] = refused.get(why, 0) + 1
            continue
        spent_s += time.process_time() - start_s
        engine_s += lasted_s
        played.append(row)
        truth = whole(row, row.ttft_ms, row.tpot_ms)
        ttft_ms, tpot_ms = problem.predicted_ms(values[str(row.group)])
        formula = whole(row, ttft_ms[index], tpot_ms[index])
        for name, triple in zip(names, (found, formula, steady), strict=True):
            errors[name].append([100 * abs(a / b - 1) for a, b in zip(triple, truth, strict=True)])
    tell(errors, played)
    print(f"\n{len(played)} runs; not played: {refused or 'none'}")
    print(f"{spent_s:.0f} s of one core for {engine_s:.0f} s of engines: {engine_s / spent_s:.0f}x")
    return 0


def held_out_values(problem: Problem) -> dict[str, np.ndarray]:
    fold = np.array([str(FOLDS["(model, GPU)"](row)) for row in problem.rows])
    return {name: fitted(problem, fold != name)[0] for name in sorted(set(fold))}


def coefficients(problem: Problem, row: Measured, values: np.ndarray) -> Coefficients:
    factors = [
        Factor(knob=knob, scope=scope, value=float(value), sd=0.0)
        for (knob, scope), value in zip(problem.scopes, values, strict=True)
    ]
    device = row.node.device
    return corrected(
        table_for(device, row.engine, row.version),
        factors,
        scopes_of(device, row.engine, row.version),
        name="held out",
    )


def simulated(row: Measured, c: Coefficients) -> tuple[Triple, float]:
    workload = Workload.of(
        row.lengths,
        request_count=row.request_count,
        concurrency=row.concurrency,
        warmup_count=0,
    )
    run = simulate(
        row.plan,
        row.shape,
        row.node,
        workload,
        coefficients=c,
        options=RunOptions(each_token=False),
    )
    ttft_ms = 1e3 * float(np.mean([record.ttft_s for record in run.records]))
    tpot_ms = 1e3 * float(
        np.mean([(r.e2e_s - r.ttft_s) / max(1, r.output_tokens - 1) for r in run.records])
    )
    return whole(row, ttft_ms, tpot_ms), run.duration_s


def in_steady_state(row: Measured, c: Coefficients) -> Triple:
    point = performance_at(
        row.shape,
        row.node,
        row.plan,
        Workload.of(row.lengths, request_count=1),
        row.concurrency,
        coefficients=c,
    )
    return whole(row, point.ttft_ms, point.itl_ms)


def whole(row: Measured, ttft_ms: float, tpot_ms: float) -> Triple:
    return ttft_ms, tpot_ms, ttft_ms + (length_moments(row.lengths).output_tokens - 1) * tpot_ms


def tell(errors: dict[str, list[list[float]]], played: list[Measured]) -> None:
    print("| | rows | TPOT median / mean % | TTFT | E2E |\n|---|--:|--:|--:|--:|")
    engines = np.array([row.engine for row in played])
    for part in ("all", *sorted(set(engines))):
        of = np.ones(len(played), dtype=bool) if part == "all" else engines == part
        for name, found in errors.items():
            ttft, tpot, e2e = np.array(found)[of].T
            cells = [f"{np.median(x):.1f} / {x.mean():.1f}" for x in (tpot, ttft, e2e)]
            print(f"| {part}: {name} | {of.sum()} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
