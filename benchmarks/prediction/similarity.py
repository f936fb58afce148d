"""How alike the law's errors are within one (source, model, GPU), by maximum likelihood.

    python benchmarks/prediction/similarity.py [--data DIR] [--write]

Leaves pairs of model and GPU out of the law's fit, takes the logarithms of measured over predicted
as a Gaussian field over places and writes `perf/roofline/data/similarity.toml`. Eight numbers each
for times per token (of batches and rates, too) and first tokens: nothing is left out of this second
fit. Needs scipy; ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import numpy as np
import scipy.optimize
from accuracy import ROOT, Bench
from measured import Measured

from servetune.perf.roofline.similarity import Similarity

OUT = ROOT / "src" / "servetune" / "perf" / "roofline" / "data" / "similarity.toml"
#: Where the search begins, and what it is drawn to (a standard deviation of `_PRIOR_SD` in the
#: logarithm): judgement, for what the rows leave open.
_STARTS = {
    "tpot": (0.05, 0.05, 0.1, 0.1, 0.06, 2.0, 3.0, 3.0, 2.0),
    "ttft": (0.15, 0.15, 0.2, 0.3, 0.25, 2.0, 3.0, 3.0, 2.0),
}
_PRIOR_SD = 3.0
#: Log ratios beyond these are other stories (a wait for a place in the cache, drafted tokens).
_REACH = {"tpot": 0.6, "ttft": 1.2}
_MOST_ROWS = 60  # of one group, evenly spread: the work grows with the cube


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    bench = Bench(given.data)
    bench.leave_out("pair")
    own, ttft = -bench.left_out["pair"]
    found = {
        "tpot": most_likely("tpot", bench.rows, own),
        "ttft": most_likely("ttft", bench.rows, ttft),
    }
    text = document(found)
    print(text)
    if given.write:
        OUT.write_text(text)
    return 0


def most_likely(quantity: str, rows: list[Measured], logs: np.ndarray) -> Similarity:
    start = np.log(_STARTS[quantity])
    reach = _REACH[quantity]
    held_back = logs / np.hypot(1, logs / reach)
    groups: dict[object, list[int]] = {}
    for index, row in enumerate(rows):
        if not np.isnan(logs[index]):
            groups.setdefault((row.source, *row.group), []).append(index)
    parts = [
        np.array(mine)[np.unique(np.linspace(0, len(mine) - 1, _MOST_ROWS).astype(int))]
        for mine in groups.values()
    ]

    def unlikeliness(values: np.ndarray) -> float:
        similarity = likeness_from(np.exp(values))
        total = 0.5 * np.sum(((values - start) / _PRIOR_SD) ** 2)
        for mine in parts:
            places = [rows[index].place for index in mine]
            covariance = similarity.between(places, places)
            covariance += similarity.accident**2 * np.eye(len(mine))
            factor = np.linalg.cholesky(covariance)
            whitened = np.linalg.solve(factor, held_back[mine])
            total += 0.5 * whitened @ whitened + np.log(np.diag(factor)).sum()
        return float(total)

    found = scipy.optimize.minimize(unlikeliness, start, method="L-BFGS-B", options={"maxiter": 25})
    return likeness_from(np.exp(found.x))


def likeness_from(values: np.ndarray) -> Similarity:
    whole, engine, storage, near, accident, *reach = (float(value) for value in values)
    return Similarity(
        all=whole,
        engine=engine,
        storage=storage,
        near=near,
        accident=accident,
        reach_octaves=(reach[0], reach[1], reach[2], reach[3]),
    )


def document(found: dict[str, Similarity]) -> str:
    lines = ["# Written by benchmarks/prediction/similarity.py --write, do not edit."]
    for quantity, similarity in found.items():
        lines += ["", f"[{quantity}]"]
        for name, value in msgspec.structs.asdict(similarity).items():
            shown = (
                f"{value:.3f}"
                if isinstance(value, float)
                else "[" + ", ".join(f"{each:.2f}" for each in value) + "]"
            )
            lines.append(f"{name} = {shown}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
