"""Does the plan that a prediction picks hold its limit, and what does it give away?

    python benchmarks/prediction/choosing.py [--data DIR]

A pool is what was measured of one model on one GPU under one engine with one pair of lengths:
plans and concurrencies to choose from. Each is asked for the highest output rate with a TPOT of
at most 15, 30 and 50 ms; predictions come from a fit that has not seen the (model, GPU). Needs
scipy. After the policies comes a frontier: the best that any one factor on all predictions could
do, had it been known, and with smaller errors. `benchmarks/search/surfaces.py` has choices after
measurements.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(Path(__file__).parent)]

from cross_validate import (  # noqa: E402
    ANCHORED,
    DOUBTED,
    FOLDS,
    LEVELS,
    Predicted,
    cautions,
    deviations,
    doubts_left,
    predictions,
    residuals,
    with_anchors,
)
from fit_step_law import Problem  # noqa: E402
from measured import SILICON, Measured, read  # noqa: E402

#: Draws of random anchors that a policy's figures are means of.
SEEDS = 5
LIMITS_MS = (15.0, 30.0, 50.0)
#: A pool with fewer leaves nothing to choose.
FEWEST = 3
#: Among which the confidence after anchors is chosen.
CONFIDENCES = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
#: Of repeated measurements; others count a pick that is this close as meeting its limit.
TOLERANCE = 1.05
#: On predicted TPOT, for the frontier; and the share of picks that it is to hold.
SAFETY, HELD = np.arange(1.0, 1.5, 0.01), 0.95
SHOWN = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3)


class Question(msgspec.Struct, frozen=True):
    """A pool under one limit: rows to choose from, by their number."""

    rows: np.ndarray
    limit_ms: float


class Answers(msgspec.Struct, frozen=True):
    """What a policy picked, question by question; `None` where it said that nothing holds.

    Attributes:
        told: Measurements it used, in all.
    """

    picks: list[int | None]
    told: int = 0


class Pools:
    """All questions, and what is true of every row.

    Attributes:
        rate: Measured output tokens per second; per GPU, or in all.
    """

    def __init__(self, problem: Problem, held_out: Predicted, *, per_gpu: bool) -> None:
        self.problem, self.rows = problem, problem.rows
        self.devices = np.array([row.plan.device_count for row in self.rows], dtype=float)
        self.per_gpu = per_gpu
        self.ttft_ms, self.tpot_ms = held_out
        self.rate = self.rate_of(problem.ttft_ms, problem.tpot_ms)
        pools = collections.defaultdict(list)
        for number, row in enumerate(self.rows):
            pools[(row.model, row.gpu, row.engine, row.lengths)].append(number)
        self.pools = [np.array(pool) for pool in pools.values() if len(pool) >= FEWEST]
        self.questions = [Question(pool, limit) for pool in self.pools for limit in LIMITS_MS]
        self.group = np.array([str(row.group) for row in self.rows])

    def rate_of(self, ttft_ms: np.ndarray, tpot_ms: np.ndarray) -> np.ndarray:
        """Output tokens per second of a closed loop with these times."""
        loops = self.problem.loops
        e2e_s = (ttft_ms + (loops.outputs - 1) * tpot_ms) / 1e3
        rate: np.ndarray = loops.concurrency * loops.outputs / e2e_s
        return rate / self.devices if self.per_gpu else rate

    def feasible(self, question: Question) -> np.ndarray:
        return question.rows[self.problem.tpot_ms[question.rows] <= question.limit_ms]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    rows, _ = read(given.data, [SILICON])
    problem = Problem(rows)
    held_out = predictions(problem, FOLDS["(model, GPU)"])
    for per_gpu in (True, False):
        pools = Pools(problem, held_out, per_gpu=per_gpu)
        print_questions(pools)
        print_policies(pools, held_out)
        print_frontier(pools, held_out)
    return 0


def print_questions(pools: Pools) -> None:
    answerable = [pools.feasible(question) for question in pools.questions]
    some = sum(len(rows) > 0 for rows in answerable)
    every = sum(
        len(rows) == len(question.rows)
        for rows, question in zip(answerable, pools.questions, strict=True)
    )
    median = np.median([len(pool) for pool in pools.pools])
    print(
        f"\nRate {'per GPU' if pools.per_gpu else 'in all'}: {len(pools.pools)} pools of "
        f"{median:.0f} runs (median), {len(pools.questions)} questions; something holds the limit "
        f"in {some}, everything in {every}\n"
    )
    print("| policy | measured | picks | refused | meets | within 5% | of the best | counted |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")


def print_policies(pools: Pools, held_out: Predicted) -> None:
    for confidence in (0.5, *LEVELS):
        tell(f"prediction, confidence {confidence:g}", pools, predicted(pools, confidence))
    for name, key in ANCHORED.items():
        for confidence in (0.5, 0.8):
            answers = [anchored(pools, held_out, key, confidence, seed) for seed in range(SEEDS)]
            tell(f"2 random anchors per {name}, confidence {confidence:g}", pools, *answers)
    for count in (2, 4):
        for confidence in (0.5, 0.6, 0.7, 0.8):
            key = ANCHORED["(model, GPU)"]
            answer = anchored(pools, held_out, key, confidence, count=count)
            tell(
                f"{count} chosen anchors per (model, GPU), confidence {confidence:g}", pools, answer
            )
    scales = [deviations(pools.problem, held_out, count)["tpot"] for count in DOUBTED]
    for count in DOUBTED:
        by_level = {level: doubted(pools, held_out, scales, level, count) for level in CONFIDENCES}
        name = f"{count} chosen anchors, each run's own doubt, confidence"
        for level in (0.6, 0.7, 0.75, 0.8):
            tell(f"{name} {level:g}", pools, by_level[level])
        nested, levels = chosen_by_others(pools, by_level)
        said = ", ".join(f"{level:g} {times} times" for level, times in sorted(levels.items()))
        tell(f"{name} chosen on the other (model, GPU) ({said})", pools, nested)


def predicted(pools: Pools, confidence: float) -> Answers:
    """The best predicted one whose TPOT, times the confidence's factor, is within the limit.

    The factor comes from the residuals of all other (model, GPU).
    """
    logs = residuals(pools.problem, (pools.ttft_ms, pools.tpot_ms))["tpot"]
    return _by_factor(pools, pools.ttft_ms, pools.tpot_ms, logs, confidence)


def anchored(
    pools: Pools,
    held_out: Predicted,
    key: Callable[[Measured], object],
    confidence: float,
    seed: int | None = None,
    count: int = 2,
) -> Answers:
    """The same after runs of each group as anchors, which cannot be picked.

    Random ones with a seed, chosen by `most_informative` without.
    """
    corrected = with_anchors(pools.problem, held_out, key, count, seed)
    logs = residuals(pools.problem, corrected)["tpot"]
    groups = len({str(key(row)) for row in pools.rows})
    found = _by_factor(pools, *corrected, logs, confidence)
    return Answers(found.picks, told=count * groups)


def doubted(
    pools: Pools,
    held_out: Predicted,
    scales: Sequence[np.ndarray],
    confidence: float,
    count: int,
) -> Answers:
    """After chosen anchors, each run held back by the doubt that `similarity` leaves of it.

    Args:
        scales: Deviations of all rows, in doubts; those of all other (model, GPU) say how
            many doubts a confidence is worth, as `[doubt]` of `intervals.toml` does.
    """
    key = ANCHORED["(model, GPU)"]
    ttft_ms, tpot_ms = with_anchors(pools.problem, held_out, key, count)
    left = doubts_left(pools.problem, count)["tpot"]
    factor = np.ones(len(pools.rows))
    for name in set(pools.group):
        mine = pools.group == name
        others = np.concatenate([scale[~mine] for scale in scales])
        off = max(0.0, float(np.nanquantile(others, confidence))) if confidence > 0.5 else 0.0
        factor[mine] = np.exp(off * left[mine])
    found = _held_back(pools, ttft_ms, tpot_ms * factor, dict.fromkeys(pools.group, 1.0))
    return Answers(found.picks, told=count * len(set(pools.group)))


def chosen_by_others(
    pools: Pools, by_level: Mapping[float, Answers]
) -> tuple[Answers, collections.Counter[float]]:
    """Each (model, GPU) answered at the level that did best on the questions of all others.

    Best is most of the best rate among levels at which the share wanted holds; the level at
    which most hold where none does. Also returns how often each level was taken.
    """
    group = np.array([pools.group[question.rows[0]] for question in pools.questions])
    picks: list[int | None] = [None] * len(group)
    levels: collections.Counter[float] = collections.Counter()
    for name in sorted(set(group)):
        cells = {level: _cells(pools, each, group != name) for level, each in by_level.items()}
        holding = [level for level, found in cells.items() if found[3] >= HELD]
        level = (
            max(holding, key=lambda one: cells[one][5])
            if holding
            else max(cells, key=lambda one: cells[one][3])
        )
        levels[level] += 1
        for number in np.flatnonzero(group == name):
            picks[number] = by_level[level].picks[number]
    return Answers(picks, told=by_level[CONFIDENCES[0]].told), levels


def _by_factor(
    pools: Pools, ttft_ms: np.ndarray, tpot_ms: np.ndarray, logs: np.ndarray, confidence: float
) -> Answers:
    factors = {
        name: cautions(logs[pools.group != name]).get(confidence, 1.0) for name in set(pools.group)
    }
    return _held_back(pools, ttft_ms, tpot_ms, factors)


def _held_back(
    pools: Pools, ttft_ms: np.ndarray, tpot_ms: np.ndarray, factors: Mapping[str, float]
) -> Answers:
    """The highest predicted rate of those that hold when TPOT is a group's factor longer."""
    rate = pools.rate_of(ttft_ms, tpot_ms)
    picks: list[int | None] = []
    for question in pools.questions:
        factor = factors[pools.group[question.rows[0]]]
        holding = question.rows[tpot_ms[question.rows] * factor <= question.limit_ms]
        picks.append(int(holding[np.argmax(rate[holding])]) if len(holding) else None)
    return Answers(picks)


def print_frontier(pools: Pools, held_out: Predicted) -> None:
    """Share that holds / share of the best, by one factor on every predicted TPOT."""
    key = ANCHORED["(model, GPU)"]
    beliefs = {"no measurement": held_out}
    for count in (2, 4):
        beliefs[f"{count} chosen anchors"] = with_anchors(pools.problem, held_out, key, count)
    for share in (0.75, 0.5, 0.25):
        beliefs[f"errors x {share:g}"] = _better(pools.problem, held_out, share)
    print("\n| factor | " + " | ".join(f"{factor:g}" for factor in SHOWN), end=" ")
    print(f"| most of the best with {HELD:.0%} held |\n|---|" + "--:|" * (len(SHOWN) + 1))
    for name, (ttft_ms, tpot_ms) in beliefs.items():
        found = {}
        for factor in (*SHOWN, *SAFETY):
            factors = dict.fromkeys(pools.group, factor)
            cells = _cells(pools, _held_back(pools, ttft_ms, tpot_ms, factors))
            found[factor] = cells[3], cells[5]
        best, factor = max(
            (share, factor) for factor, (held, share) in found.items() if held >= HELD
        )
        shown = " | ".join("{:.0%} / {:.0%}".format(*found[factor]) for factor in SHOWN)
        print(f"| {name} | {shown} | {best:.0%} at {factor:.2f} |", flush=True)


def _better(problem: Problem, predicted: Predicted, share: float) -> Predicted:
    """Predictions with this share of every error's logarithm left."""
    ttft_ms, tpot_ms = predicted
    return (
        problem.ttft_ms * (ttft_ms / problem.ttft_ms) ** share,
        problem.tpot_ms * (tpot_ms / problem.tpot_ms) ** share,
    )


def tell(name: str, pools: Pools, *answers: Answers) -> None:
    """One line of the table; several answers (seeds) are averaged."""
    cells = np.mean([_cells(pools, each) for each in answers], axis=0)
    told, picks, wrongly, meets, near, of_best, counted = cells
    print(
        f"| {name} | {told:.1f} | {picks:.0f} | {wrongly:.0f} | {meets:.1%} | {near:.1%} | "
        f"{of_best:.1%} | {counted:.1%} |",
        flush=True,
    )


def _cells(pools: Pools, answers: Answers, of: np.ndarray | None = None) -> Sequence[float]:
    """Measurements per question, picks, wrong refusals, and shares; of some questions or all.

    `counted` is the share of the best rate over all questions that have an answer, where a
    pick that misses its limit and a refusal count nothing.
    """
    met, near, shares, wrongly, answerable = [], [], [], 0, 0
    for number, (question, pick) in enumerate(zip(pools.questions, answers.picks, strict=True)):
        if of is not None and not of[number]:
            continue
        feasible = pools.feasible(question)
        answerable += len(feasible) > 0
        if pick is None:
            wrongly += len(feasible) > 0
            continue
        tpot_ms = pools.problem.tpot_ms[pick]
        met.append(tpot_ms <= question.limit_ms)
        near.append(tpot_ms <= TOLERANCE * question.limit_ms)
        if met[-1]:
            shares.append(pools.rate[pick] / pools.rate[feasible].max())
    told = answers.told / len(pools.questions)
    return (
        told,
        len(met),
        wrongly,
        float(np.mean(met)),
        float(np.mean(near)),
        float(np.mean(shares)),
        sum(shares) / answerable,
    )


if __name__ == "__main__":
    sys.exit(main())
