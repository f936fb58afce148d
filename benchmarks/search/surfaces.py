"""Searches of recorded surfaces: the runs that laboratories published, by every strategy.

    python benchmarks/search/surfaces.py [--data DIR] [--strategies guided,tpe,random] [--seeds 3]

A surface is all runs of one model on one kind of GPU under one engine with equal lengths, of one
laboratory. Its objective is the measured output tokens/s of a GPU; its limit lets a half, and then
a fifth, of its runs pass by their time per token. A strategy is told what was measured of the
points that it asks for, at most 15% of them and at least three. Nothing of the law was fitted to
these rows where silicon has operator tables; the doubts by cause and the similarity were. Printed
are the share of surfaces whose pick is within 2% of the best that holds the limit, the regrets, and
how often a pick said to be sure was.
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "prediction"), str(ROOT / "tools")]

from measured import Measured, loops_of, read  # noqa: E402

from servetune.perf.roofline.step_laws import columns_of  # noqa: E402
from servetune.prediction.forecasts import Quantity, forecast_of  # noqa: E402
from servetune.search.strategies import Outcome, Point, strategy  # noqa: E402
from servetune.search.strategies.guided import Guided  # noqa: E402

LEAST_POINTS, LEAST_TRIALS, SHARE = 20, 3, 0.15
PASSING = (0.5, 0.2)


class Surface:
    """Runs of one space, with their measured and predicted rates and times."""

    def __init__(self, rows: list[Measured], passing: float) -> None:
        self.rows = rows
        gpus = np.array([row.plan.device_count for row in rows])
        self.rate = _rates(rows) / gpus
        self.tpot_ms = np.array([row.tpot_ms for row in rows])
        self.limit_ms = float(np.quantile(self.tpot_ms, passing))
        holds = self.tpot_ms <= self.limit_ms
        self.best = float(self.rate[holds].max())
        formulas = loops_of(rows)
        found = formulas.times_s(columns_of([row.run.coefficients for row in rows]))
        predicted = found.requests_per_s * formulas.busy_copies * formulas.outputs / gpus
        first = np.clip(found.ttft_s / found.e2e_s, 0, 1)
        weights = np.stack([1 - first, first], axis=1)
        alone = np.tile([1.0, 0.0], (len(rows), 1))
        self.forecast = forecast_of(
            [row.place for row in rows],
            [
                Quantity(logs=np.log(predicted), weights=-weights),
                Quantity(logs=np.log(found.tpot_s * 1e3 / self.limit_ms), weights=alone),
            ],
        )
        self.points = [
            Point(
                {
                    "tensor_parallel_size": row.plan.tensor_parallel,
                    "data_parallel_size": row.plan.data_parallel,
                    "quantization": row.precision,
                    "max_concurrency": row.concurrency,
                },
                server=(row.plan.label, row.precision),
            )
            for row in rows
        ]

    def measured(self, index: int) -> Outcome:
        return Outcome((float(self.rate[index]),), (float(self.tpot_ms[index] / self.limit_ms),))

    def search(self, name: str, seed: int):
        if name != "guided":
            return strategy(name, self.points, seed=seed, objective_count=1)
        count = len(self.points)
        times = {"start_s": np.full(count, 120.0), "load_s": np.full(count, 60.0)}
        return Guided(self.points, self.forecast, seed=seed, **times)

    def regrets(self, name: str, seed: int, trials: int):
        """Regret after each trial and, of a guided search, how sure it said to be."""
        search, held = self.search(name, seed), {}
        for _ in range(trials):
            index = search.ask()
            if index is None:
                return
            outcome = self.measured(index)
            search.tell(index, outcome)
            if outcome.holds:
                held[index] = outcome.objectives[0]
            best = max(held, key=lambda at: held[at]) if held else None
            if name == "guided":
                best = search.pick.index
            regret = 1.0 if best is None else 1 - held[best] / self.best
            yield regret, search.pick.best if name == "guided" else math.nan


def _rates(rows: list[Measured]) -> np.ndarray:
    """Measured output tokens/s of each row; by its times where its table has no rate."""
    found = []
    for row in rows:
        rate = row.output_tokens_per_s
        if np.isnan(rate):
            outputs = float(row.nominal_lengths[1])
            whole_s = (row.ttft_ms + (outputs - 1) * row.tpot_ms) / 1e3
            rate = row.concurrency * outputs / whole_s
        found.append(rate)
    return np.array(found)


def surfaces(data: Path) -> dict[tuple[str, ...], list[Measured]]:
    rows, _ = read(data)
    groups: dict[tuple[str, ...], list[Measured]] = collections.defaultdict(list)
    for row in rows:
        known = not np.isnan(row.tpot_ms) and not (
            np.isnan(row.output_tokens_per_s) and np.isnan(row.ttft_ms)
        )
        if row.run.protocol == "closed" and known:
            lengths = f"{row.nominal_lengths[0]}/{row.nominal_lengths[1]}"
            groups[(row.source, row.model, row.gpu, row.engine, lengths)].append(row)
    return {name: mine for name, mine in groups.items() if len(mine) >= LEAST_POINTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--strategies", default="guided,tpe,random")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    found = [
        Surface(rows, passing) for rows in surfaces(given.data).values() for passing in PASSING
    ]
    sizes = [len(each.points) for each in found]
    print(
        f"{len(found)} surfaces of {min(sizes)} to {max(sizes)} points, median {np.median(sizes)}"
    )
    print("| strategy | within 2% | median regret | mean regret | points measured |")
    print("|---|--:|--:|--:|--:|")
    sure: list[tuple[float, bool]] = []
    for name in given.strategies.split(","):
        last, shares = [], []
        for surface in found:
            trials = max(LEAST_TRIALS, int(SHARE * len(surface.points)))
            for seed in range(1 if name in ("guided", "grid") else given.seeds):
                regret, used = 1.0, 0
                for regret, said in surface.regrets(name, seed, trials):
                    used += 1
                    if name == "guided":
                        sure.append((said, regret <= 0.02))
                last.append(regret)
                shares.append(used / len(surface.points))
        print(
            f"| {name} | {100 * np.mean(np.array(last) <= 0.02):.0f}% | "
            f"{100 * np.median(last):.1f}% | {100 * np.mean(last):.1f}% | "
            f"{100 * np.mean(shares):.0f}% |",
            flush=True,
        )
    if sure:
        print("\n| said to be best within 2% | picks | were |\n|---|--:|--:|")
        said, were = np.array([s for s, _ in sure]), np.array([w for _, w in sure])
        for low, high in ((0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
            mine = (said >= low) & (said < high)
            if mine.any():
                print(
                    f"| {low:.0%} to {min(high, 1):.0%} | {mine.sum()} | {were[mine].mean():.0%} |"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
