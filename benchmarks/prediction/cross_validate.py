"""How anchors help: the law on the closed loops of one benchmark, pairs of model and GPU left out.

    python benchmarks/prediction/cross_validate.py [--data DIR] [--factors FILE]

Fits the factors again for every fold (`tools/fit_step_law.py`, needs scipy) with whole groups
left out, predicts those, and prints medians and means of absolute errors; then with k measured
rows of each group as anchors, drawn at random or by `most_informative`. `accuracy.py` judges all
sources. `--factors` judges a stored `factors.toml` instead, model by model: one from before a model
came is blind to it.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(Path(__file__).parent)]

from fit_step_law import Problem, fitted  # noqa: E402
from measured import SILICON, Measured, read  # noqa: E402

from servetune.perf import most_informative  # noqa: E402
from servetune.perf.roofline.calibration import Anchor, calibrated  # noqa: E402
from servetune.perf.roofline.similarity import remaining_sd, similarity_of  # noqa: E402

FOLDS: dict[str, Callable[[Measured], object]] = {
    "(model, GPU)": lambda row: row.group,
    "GPU": lambda row: row.gpu,
    "architecture": lambda row: row.node.device.architecture,
    "model": lambda row: row.model,
}
#: Whose anchors correct whom; a user calibrates the second.
ANCHORED: dict[str, Callable[[Measured], object]] = {
    "(model, GPU)": lambda row: row.group,
    "(model, GPU, engine, precision)": lambda row: (row.group, row.engine, row.precision),
}
#: Numbers of chosen anchors whose deviations, in remaining standard deviations, are stored.
DOUBTED = (1, 2, 4)
#: Draws of random anchors that figures are means of.
SEEDS = 20
#: Share of residuals between the stored factors: a little more than the 90% of unseen
#: groups that they are meant to hold, as a new group is further off than those at hand.
HELD = 0.93
#: One-sided confidences whose factors are stored for `perf.roofline.interval.safety_factors_of`.
LEVELS = (0.6, 0.7, 0.8, 0.9, 0.95)
#: (TPOT, TTFT, E2E) median / mean of others, on other rows of the same collection
#: (predictors.md of the shared reference).
RIVALS = (
    ("aiconfigurator 0.12 (75% of rows)", "13.8 / 19.3", "47.4 / 48.6", "13.8 / 19.3"),
    ("70 ridge coefficients, groups left out", "17.4 / 24.0", "33.9 / 51.3", "17.3 / 20.8"),
    ("plain roofline", "67.5 / 65.7", "97.1 / 94.7", "69.1 / 67.2"),
    ("the same rows measured twice", "1.0 / 4.9", "4.2 / 12.1", "1.0 / 4.8"),
)

Predicted = tuple[np.ndarray, np.ndarray]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--factors", type=Path, help="judge this factors.toml, fit nothing")
    given = parser.parse_args()
    rows, refused = read(given.data, [SILICON])
    problem = Problem(rows)
    print(f"{len(rows)} rows predicted, {sum(refused.values())} not: {refused}")
    print("| | rows | TPOT median / mean % | TTFT | E2E |\n|---|--:|--:|--:|--:|")
    if given.factors:
        print_models(problem, problem.predicted_ms(stored(problem, given.factors)))
        return 0
    print_line("operator tables alone", problem, problem.predicted_ms(0 * problem.prior_sd))
    values, _ = fitted(problem)
    print_line("in the fit", problem, problem.predicted_ms(values))
    held_out = {}
    for name, key in FOLDS.items():
        held_out[name] = predictions(problem, key)
        print_line(f"**{name} left out**", problem, held_out[name])
    print_parts(problem, held_out["(model, GPU)"])
    print_models(problem, held_out["model"])
    anchored = {}
    for name, key in ANCHORED.items():
        for count in (1, 2, 4):
            anchored[count] = [
                with_anchors(problem, held_out["(model, GPU)"], key, count, seed)
                for seed in range(SEEDS)
            ]
            print_line(f"{count} random anchors per {name}", problem, *anchored[count])
    key = ANCHORED["(model, GPU)"]
    for count in (1, 2, 4):
        chosen = with_anchors(problem, held_out["(model, GPU)"], key, count)
        print_line(f"{count} chosen anchors per (model, GPU)", problem, chosen)
    best = centred(problem, held_out["(model, GPU)"])
    print_line("each group's own median error taken off", problem, best)
    for cells in RIVALS:
        print(f"| {cells[0]} | | " + " | ".join(cells[1:]) + " |")
    print_speed(problem, values)
    return 0


def predictions(problem: Problem, key: Callable[[Measured], object]) -> Predicted:
    """TTFT and TPOT of every row from a fit that has seen nothing of its fold."""
    fold = np.array([str(key(row)) for row in problem.rows])
    ttft_ms, tpot_ms = np.zeros(len(fold)), np.zeros(len(fold))
    for name in sorted(set(fold)):
        out = fold == name
        values, _ = fitted(problem, ~out)
        ttft, tpot = problem.predicted_ms(values)
        ttft_ms[out], tpot_ms[out] = ttft[out], tpot[out]
    return ttft_ms, tpot_ms


def with_anchors(
    problem: Problem,
    predicted: Predicted,
    key: Callable[[Measured], object],
    count: int,
    seed: int | None = None,
) -> Predicted:
    """The predictions after `count` rows of each group; anchors become NaN.

    Without a seed they are those that `most_informative` chooses, else drawn at random.
    """
    rng = np.random.default_rng(seed)
    ttft_ms, tpot_ms = predicted[0].copy(), predicted[1].copy()
    group = np.array([str(key(row)) for row in problem.rows])
    for name in sorted(set(group)):
        mine = np.flatnonzero(group == name)
        if seed is None:
            chosen = mine[list(most_informative([problem.rows[i].place for i in mine], count))]
        else:
            chosen = rng.choice(mine, count, replace=False)
        found = calibrated(
            [
                Anchor(
                    predicted_ttft_ms=ttft_ms[i],
                    predicted_tpot_ms=tpot_ms[i],
                    measured_ttft_ms=problem.ttft_ms[i],
                    measured_tpot_ms=problem.tpot_ms[i],
                    place=problem.rows[i].place,
                )
                for i in chosen
            ]
        ).at(*(problem.rows[i].place for i in mine))
        ttft_ms[mine] *= [each.ttft_factor for each in found]
        tpot_ms[mine] *= [each.tpot_factor for each in found]
        ttft_ms[chosen] = tpot_ms[chosen] = np.nan
    return ttft_ms, tpot_ms


def centred(problem: Problem, predicted: Predicted) -> Predicted:
    """What one factor per (model, GPU) could reach at best: each by its own median error."""
    ttft_ms, tpot_ms = predicted[0].copy(), predicted[1].copy()
    group = np.array([str(row.group) for row in problem.rows])
    for name in set(group):
        mine = group == name
        ttft_ms[mine] *= np.median(problem.ttft_ms[mine] / ttft_ms[mine])
        tpot_ms[mine] *= np.median(problem.tpot_ms[mine] / tpot_ms[mine])
    return ttft_ms, tpot_ms


def errors(problem: Problem, predicted: Predicted) -> list[np.ndarray]:
    """Absolute errors in % of TPOT, TTFT and end-to-end, each of shape (rows,)."""
    ttft_ms, tpot_ms = predicted
    steps = problem.loops.outputs - 1
    pairs = (
        (tpot_ms, problem.tpot_ms),
        (ttft_ms, problem.ttft_ms),
        (ttft_ms + steps * tpot_ms, problem.ttft_ms + steps * problem.tpot_ms),
    )
    return [100 * np.abs(mine / true - 1) for mine, true in pairs]


def print_line(name: str, problem: Problem, *runs: Predicted, of: np.ndarray | None = None) -> None:
    """One line of the table; several runs (seeds) are averaged."""
    of = np.ones(len(problem.rows), dtype=bool) if of is None else of
    cells = []
    for each in zip(*(errors(problem, run) for run in runs), strict=True):
        median = np.mean([np.nanmedian(error[of]) for error in each])
        mean = np.mean([np.nanmean(error[of]) for error in each])
        cells.append(f"{median:.1f} / {mean:.1f}")
    print(f"| {name} | {of.sum()} | " + " | ".join(cells) + " |", flush=True)


def print_parts(problem: Problem, predicted: Predicted) -> None:
    """By engine and GPU, and without the two kinds of rows that say less than they should."""
    rows = problem.rows
    for name in sorted({row.engine for row in rows}):
        print_line(f"- {name}", problem, predicted, of=np.array([r.engine == name for r in rows]))
    for name in sorted({row.gpu for row in rows}):
        print_line(f"- {name}", problem, predicted, of=np.array([r.gpu == name for r in rows]))
    drafted = np.array([row.speculative for row in rows])
    print_line("- without drafted tokens", problem, predicted, of=~drafted)


def print_models(problem: Problem, predicted: Predicted) -> None:
    for name in sorted({row.model for row in problem.rows}):
        of = np.array([row.model == name for row in problem.rows])
        print_line(f"- {name}", problem, predicted, of=of)


def stored(problem: Problem, path: Path) -> np.ndarray:
    """The problem's values from a file of `tools/fit_step_law.py`; zero where it knew nothing."""
    factors = tomllib.loads(path.read_text())["factor"]
    values = {(factor["knob"], factor["scope"]): factor["value"] for factor in factors}
    return np.array([values.get(scope, 0.0) for scope in problem.scopes])


def cautions(logs: np.ndarray) -> dict[float, float]:
    """Confidence -> the factor that exp(logs) exceeds no oftener than that leaves."""
    return {level: max(1.0, float(np.exp(np.nanquantile(logs, level)))) for level in LEVELS}


def residuals(problem: Problem, predicted: Predicted) -> dict[str, np.ndarray]:
    return {
        "tpot": np.log(problem.tpot_ms / predicted[1]),
        "ttft": np.log(problem.ttft_ms / predicted[0]),
    }


def doubts_left(problem: Problem, count: int) -> dict[str, np.ndarray]:
    """What each row may be off by once the chosen anchors of its (model, GPU) are known."""
    group = np.array([str(row.group) for row in problem.rows])
    found = {quantity: np.zeros(len(group)) for quantity in ("tpot", "ttft")}
    for name in set(group):
        mine = np.flatnonzero(group == name)
        places = [problem.rows[number].place for number in mine]
        known = [places[number] for number in most_informative(places, count)]
        for quantity, left in found.items():
            similarity = similarity_of(quantity)
            left[mine] = np.hypot(remaining_sd(places, known, similarity), similarity.accident)
    return found


def deviations(problem: Problem, predicted: Predicted, count: int) -> dict[str, np.ndarray]:
    """Residuals after chosen anchors of each (model, GPU), over the doubt left at each row."""
    logs = residuals(problem, with_anchors(problem, predicted, ANCHORED["(model, GPU)"], count))
    left = doubts_left(problem, count)
    return {quantity: values / left[quantity] for quantity, values in logs.items()}


def print_speed(problem: Problem, values: np.ndarray) -> None:
    columns = problem.columns(values)
    start_s = time.perf_counter()
    problem.loops.times_s(columns)
    spent_s = time.perf_counter() - start_s
    count = len(problem.rows)
    print(f"\n{1e6 * spent_s / count:.0f} microseconds per run, {count} at once")


if __name__ == "__main__":
    sys.exit(main())
