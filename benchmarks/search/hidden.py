"""Searches on machines whose coefficients nobody knows, by every strategy on the same spaces.

    python benchmarks/search/hidden.py [--machines N] [--trials 12] [--strategies guided,tpe,random]

A machine is the law of step times with each of its coefficients off by up to 40%, each size of
group's links by up to a factor of two, 3% noise on every measured run and 5% of the servers
failing. The strategies know the law as it ships. A space has some 500 points: layouts, batch limits
and numbers of users of one model on one machine, with limits on the time per token and on first
tokens that some of them hold. Printed are, at the end of each search, the regret of its pick
against the best point that holds the limits on that machine, and how often a pick that was said to
be sure was within the margin.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import msgspec
import numpy as np
from calibrated import print_calibration

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import run_features
from servetune.perf.roofline import PlannedRun
from servetune.perf.roofline.causes import CAUSES
from servetune.perf.roofline.planned_runs import run_formulas
from servetune.perf.roofline.step_laws import columns_of
from servetune.perf.sweep import layouts
from servetune.plan import Plan
from servetune.prediction.forecasts import Quantity, forecast_of
from servetune.search.strategies import Outcome, Point, strategy
from servetune.search.strategies.guided import Guided
from servetune.workload import LengthLaws

CASES = (
    ("Qwen/Qwen3-32B", "L40S", 8, 1024, 512, 50.0, 2000.0),
    ("Qwen/Qwen3-8B", "L4", 4, 1024, 256, 60.0, 3000.0),
    ("meta-llama/Llama-3.1-70B-Instruct", "H100", 8, 2048, 512, 40.0, 2000.0),
    ("Qwen/Qwen3-30B-A3B", "A100 80GB", 4, 1024, 1024, 25.0, 1000.0),
    ("Qwen/Qwen3-4B", "RTX 4090", 4, 512, 512, 20.0, 600.0),
)
USERS = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
LIMITS = tuple((sequences, tokens) for sequences in (None, 64, 128, 256) for tokens in (2048, 8192))
NOISE, OFF, LINK_OFF, FAILING = 0.03, 0.4, 2.0, 0.05
START_S, LOAD_S = 90.0, 60.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    runs: list[PlannedRun]
    points: list[Point]
    limits_ms: tuple[float, float]


def case(model: str, gpu: str, count: int, inputs: int, outputs: int, *limits: float) -> Case:
    shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=count)
    runs, points = [], []
    for plan in layouts(Plan(model=model, max_model_len=8192), shape, machine):
        for sequences, tokens in LIMITS:
            for users in USERS:
                runs.append(
                    PlannedRun(
                        shape=shape,
                        node=machine,
                        plan=msgspec.structs.replace(
                            plan, max_num_seqs=sequences, max_num_batched_tokens=tokens
                        ),
                        lengths=LengthLaws.ranged(inputs, outputs, 0.8),
                        concurrency=users,
                        request_count=10 * users,
                    )
                )
                server = (plan.label, sequences, tokens)
                settings = {
                    "tensor_parallel_size": plan.tensor_parallel,
                    "pipeline_parallel_size": plan.pipeline_parallel,
                    "data_parallel_size": plan.data_parallel,
                    "max_num_seqs": sequences or 0,
                    "max_num_batched_tokens": tokens,
                    "max_concurrency": users,
                }
                points.append(Point(settings, server))
    _, misfits = run_formulas(runs)
    fits = [number for number, why in enumerate(misfits) if why is None]
    return Case(
        name=f"{model} on {count} {gpu}",
        runs=[runs[number] for number in fits],
        points=[points[number] for number in fits],
        limits_ms=(limits[0], limits[1]),
    )


def times_of(runs: list[PlannedRun], rng: np.random.Generator | None) -> dict[str, np.ndarray]:
    """Times and rate of every run by the law, or by that of a machine which `rng` draws."""
    formulas, _ = run_formulas(runs)
    columns = columns_of([run.coefficients for run in runs])
    if rng is not None:
        for paths in CAUSES.values():
            for path in paths:
                if path != "link_factor":
                    factor = 1 + rng.uniform(-OFF, OFF)
                    value = columns[path] * factor
                    # A share of a peak stays below one: the device cannot do more.
                    columns[path] = np.minimum(value, 0.97) if "fraction" in path else value
        sizes = np.array([run.plan.devices_per_replica for run in runs])
        for size in np.unique(sizes):
            factor = LINK_OFF ** rng.uniform(-1, 1)
            columns["link_factor"] = np.where(sizes == size, factor, columns["link_factor"])
    found = formulas.times_s(columns)
    rate = found.requests_per_s * formulas.busy_copies * formulas.outputs
    return {"ttft": found.ttft_s, "tpot": found.tpot_s, "rate": rate, "e2e": found.e2e_s}


def forecast(of: Case):
    known = times_of(of.runs, None)
    first = known["ttft"] / known["e2e"]
    shares = np.stack([1 - first, first], axis=1)
    alone = np.eye(2)
    count = len(of.runs)
    return forecast_of(
        run_features(of.runs),
        [
            Quantity(logs=np.log(known["rate"]), weights=-shares),
            Quantity(
                logs=np.log(known["tpot"] * 1e3 / of.limits_ms[0]),
                weights=np.tile(alone[0], (count, 1)),
            ),
            Quantity(
                logs=np.log(known["ttft"] * 1e3 / of.limits_ms[1]),
                weights=np.tile(alone[1], (count, 1)),
            ),
        ],
    )


class Machine:
    """A machine with coefficients of its own, which measures points with noise."""

    def __init__(self, of: Case, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 7])
        true = times_of(of.runs, np.random.default_rng([seed, 3]))
        self.rate = true["rate"]
        self.ratios = np.stack(
            [true["tpot"] * 1e3 / of.limits_ms[0], true["ttft"] * 1e3 / of.limits_ms[1]]
        )
        servers = sorted({point.server for point in of.points}, key=str)
        fails = {server for server in servers if self._rng.random() < FAILING}
        self.fails = np.array([point.server in fails for point in of.points])
        holds = (self.ratios <= 1).all(axis=0) & ~self.fails
        self.best = float(self.rate[holds].max()) if holds.any() else 0.0

    def measured(self, index: int) -> Outcome:
        if self.fails[index]:
            return Outcome(failed=True)
        noise = np.exp(NOISE * self._rng.standard_normal(3))
        ratios = self.ratios[:, index] * noise[1:]
        return Outcome((float(self.rate[index] * noise[0]),), tuple(map(float, ratios)))

    def regret(self, index: int | None) -> float:
        """Share of the best worth that a pick lacks; a pick that misses a limit is judged by its
        rate over that limit.
        """
        if index is None:
            return 1.0
        over = max(1.0, float(self.ratios[:, index].max()))
        return max(0.0, 1 - float(self.rate[index]) / over / self.best)


def searched(of: Case, machine: Machine, name: str, seed: int, trials: int, forecasts) -> Iterator:
    """Regret after each trial of a search, and what it said of its pick."""
    if name == "guided":
        count = len(of.points)
        search = Guided(
            of.points,
            forecasts,
            start_s=np.full(count, START_S),
            load_s=np.full(count, LOAD_S),
            seed=seed,
        )
    else:
        search = strategy(name, of.points, seed=seed, objective_count=1)
    held: dict[int, float] = {}
    for _ in range(trials):
        index = search.ask()
        if index is None:
            break
        outcome = machine.measured(index)
        search.tell(index, outcome)
        if outcome.holds:
            held[index] = outcome.objectives[0]
        best = max(held, key=lambda at: held[at]) if held else None
        yield machine.regret(search.pick.index if name == "guided" else best), search


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=20)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--strategies", default="guided,tpe,random")
    given = parser.parse_args()
    print(
        "| space | points | strategy | median regret | 90% of regrets below | under 2% | trials |"
    )
    print("|---|--:|---|--:|--:|--:|--:|")
    sure: list[tuple[float, bool]] = []
    for parts in CASES:
        of = case(*parts)
        forecasts = forecast(of)
        for name in given.strategies.split(","):
            regrets, counts, started_s = [], [], time.perf_counter()
            for seed in range(given.machines):
                machine = Machine(of, seed)
                if not machine.best:
                    continue
                last, used, search = 1.0, 0, None
                for last, search in searched(of, machine, name, seed, given.trials, forecasts):
                    used += 1
                    if name == "guided":
                        sure.append((search.pick.best, last <= 0.02 / 1.02))
                regrets.append(last)
                counts.append(used)
            took_s = (time.perf_counter() - started_s) / max(1, sum(counts))
            print(
                f"| {of.name} | {len(of.points)} | {name} | {100 * np.median(regrets):.1f}% | "
                f"{100 * np.quantile(regrets, 0.9):.1f}% | "
                f"{100 * np.mean(np.array(regrets) < 0.02):.0f}% | {np.mean(counts):.1f}, "
                f"{took_s:.2f} s each |",
                flush=True,
            )
    print_calibration(sure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
