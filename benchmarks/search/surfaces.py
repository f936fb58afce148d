"""Searches of recorded surfaces: the runs that laboratories published, by every strategy.

    python benchmarks/search/surfaces.py [--data DIR] [--strategies guided,tpe,random] [--seeds 3]
        [--left-out | --fronts]

A surface is all runs of one model on one kind of GPU under one engine with equal lengths, of one
laboratory. Its objective is the measured output tokens/s of a GPU; its limit lets a half, and then
a fifth, of its runs pass by their time per token. A strategy is told what was measured of the
points that it asks for, at most 15% of them and at least three. Nothing of the law was fitted to
these rows where silicon has operator tables; the doubts by cause and the similarity were. Printed
are the share of surfaces whose pick is within 2% of the best that holds the limit, the regrets, and
how often a pick said to be sure was. `--left-out` fits the doubts and the similarity to the half
of the pairs of model and GPU that a surface is not of, and searches with these (guided alone; needs
scipy; six minutes). `--fronts` searches for the set that is best in two objectives, output tokens/s
of a GPU and of a user (one over the time per token), without a limit; it prints which share of the
hypervolume of the whole space's front (from zero, its root: a factor on both) what was measured
has.
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
import zlib
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "prediction"), str(ROOT / "tools")]

from accuracy import Bench  # noqa: E402
from calibrated import print_calibration  # noqa: E402
from measured import Measured, loops_of, read  # noqa: E402

from servetune.perf.roofline import causes  # noqa: E402
from servetune.perf.roofline.step_laws import columns_of  # noqa: E402
from servetune.prediction import forecasts  # noqa: E402
from servetune.prediction.forecasts import Quantity, forecast_of  # noqa: E402
from servetune.search.strategies import Outcome, Point, strategy  # noqa: E402
from servetune.search.strategies.guided import Guided  # noqa: E402
from servetune.search.strategies.guided_set import GuidedSet  # noqa: E402

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


class Front(Surface):
    """The runs of a space with two objectives: tokens/s of a GPU, and of a user."""

    def __init__(self, rows: list[Measured]) -> None:
        super().__init__(rows, 1.0)
        alone = self.forecast
        per_user = -(alone.quantities[1] + np.log(self.limit_ms))
        self.forecast = msgspec.structs.replace(
            alone,
            quantities=np.stack([alone.quantities[0], per_user]),
            weights=np.stack([alone.weights[0], -alone.weights[1]]),
            objective_count=2,
        )
        self.whole = _volume(self.rate, 1 / self.tpot_ms)

    def measured(self, index: int) -> Outcome:
        return Outcome((float(self.rate[index]), float(1 / self.tpot_ms[index])))

    def search(self, name: str, seed: int):
        if name != "guided":
            return strategy(name, self.points, seed=seed, objective_count=2)
        count = len(self.points)
        times = {"start_s": np.full(count, 120.0), "load_s": np.full(count, 60.0)}
        return GuidedSet(self.points, self.forecast, seed=seed, **times)

    def shares(self, name: str, seed: int, trials: int):
        """Share of the front's hypervolume after each trial, and how sure a guided search is."""
        search, told = self.search(name, seed), []
        for _ in range(trials):
            index = search.ask()
            if index is None:
                return
            search.tell(index, self.measured(index))
            told.append(index)
            share = math.sqrt(_volume(self.rate[told], 1 / self.tpot_ms[told]) / self.whole)
            yield share, search.front.best if name == "guided" else math.nan


def _volume(one: np.ndarray, other: np.ndarray) -> float:
    """Area that points reach or exceed in both objectives, from zero."""
    area, reached = 0.0, 0.0
    for at in np.argsort(-one):
        if other[at] > reached:
            area += one[at] * (other[at] - reached)
            reached = other[at]
    return area


def print_fronts(rows: list[Measured], strategies: str, seeds: int) -> None:
    found = [Front(mine) for mine in surfaces(rows)]
    print(f"{len(found)} spaces, output tokens/s of a GPU and of a user")
    print("| strategy | at most | share of the front, mean | 10% below | within 2% | measured |")
    print("|---|--:|--:|--:|--:|--:|")
    sure: list[tuple[float, bool]] = []
    for part in (SHARE, 2 * SHARE):
        for name in strategies.split(","):
            last, counts = [], []
            for front in found:
                trials = max(LEAST_TRIALS, int(part * len(front.points)))
                for seed in range(1 if name == "guided" else seeds):
                    share, used = 0.0, 0
                    for share, said in front.shares(name, seed, trials):
                        used += 1
                        if name == "guided" and part > SHARE:
                            sure.append((said, share >= 1 / 1.02))
                    last.append(share)
                    counts.append(used / len(front.points))
            print(
                f"| {name} | {part:.0%} | {np.mean(last):.1%} | {np.quantile(last, 0.1):.1%} | "
                f"{np.mean(np.array(last) >= 1 / 1.02):.0%} | {np.mean(counts):.0%} |",
                flush=True,
            )
    print_calibration(sure)


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


def left_out_surfaces(bench: Bench) -> list[Surface]:
    """Surfaces whose doubts and similarity were fitted to other pairs of model and GPU."""
    from similarity import doubts_from, groups_of, most_likely, similarity_from  # needs scipy

    groups, found = groups_of(bench), []
    for half in (0, 1):
        values = most_likely([group for group in groups if _half(group.name) != half])
        similarities = {name: similarity_from(name, values) for name in ("tpot", "ttft")}
        mine = [row for row in bench.rows if _half(str((row.source, *row.group))) == half]
        with (
            mock.patch.object(causes, "_fitted", return_value=doubts_from(values)),
            mock.patch.object(forecasts, "similarity_of", similarities.__getitem__),
        ):
            places = causes.run_features([row.run for row in mine])
            for place, (number, row) in zip(places, enumerate(mine), strict=True):
                doubts = {"tpot_doubts": place.tpot_doubts, "ttft_doubts": place.ttft_doubts}
                here = msgspec.structs.replace(row.place, **doubts)
                mine[number] = msgspec.structs.replace(row, place=here)
            found += [Surface(rows, passing) for rows in surfaces(mine) for passing in PASSING]
    return found


def _half(name: str) -> int:
    return zlib.crc32(name.encode()) % 2


def surfaces(rows: list[Measured]) -> list[list[Measured]]:
    groups: dict[tuple[str, ...], list[Measured]] = collections.defaultdict(list)
    for row in rows:
        known = not np.isnan(row.tpot_ms) and not (
            np.isnan(row.output_tokens_per_s) and np.isnan(row.ttft_ms)
        )
        if row.run.protocol == "closed" and known:
            lengths = f"{row.nominal_lengths[0]}/{row.nominal_lengths[1]}"
            groups[(row.source, row.model, row.gpu, row.engine, lengths)].append(row)
    return [mine for mine in groups.values() if len(mine) >= LEAST_POINTS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--strategies", default="guided,tpe,random")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--left-out", action="store_true")
    parser.add_argument("--fronts", action="store_true")
    given = parser.parse_args()
    if given.fronts:
        rows, _ = read(given.data)
        print_fronts(rows, given.strategies.replace("tpe", "nsga2"), given.seeds)
        return 0
    if given.left_out:
        bench = Bench(given.data)
        bench.leave_out("source")
        found, given.strategies = left_out_surfaces(bench), "guided"
    else:
        rows, _ = read(given.data)
        found = [Surface(mine, passing) for mine in surfaces(rows) for passing in PASSING]
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
    print_calibration(sure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
