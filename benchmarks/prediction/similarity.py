"""How alike the law's errors are within one (source, model, GPU), by maximum likelihood.

    python benchmarks/prediction/similarity.py [--data DIR] [--write]

Leaves sources out of the law's fit, takes the logarithms of measured over predicted as a Gaussian
field over places and writes `perf/roofline/data/similarity.toml`: eight numbers each for times per
token (of batches and rates, too) and first tokens, and the doubt about each cause, which both have
in common. Nothing is left out of this second fit; `--judge` fits it to half of the groups and says
how likely the others are. Needs scipy; ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import scipy.optimize
from accuracy import ROOT, Bench

from servetune.hardware import Node
from servetune.perf.roofline.causes import CAUSES, doubts_of, slopes_of
from servetune.perf.roofline.similarity import RunFeatures, Similarity, in_common

OUT = ROOT / "src" / "servetune" / "perf" / "roofline" / "data" / "similarity.toml"
#: Where the search begins, and what it is drawn to (a standard deviation of `_PRIOR_SD` in the
#: logarithm): judgement, for what the rows leave open.
_STARTS = {
    "tpot": (0.05, 0.05, 0.1, 0.1, 0.06, 2.0, 3.0, 3.0, 2.0),
    "ttft": (0.15, 0.15, 0.2, 0.3, 0.25, 2.0, 3.0, 3.0, 2.0),
}
_DOUBTS = {cause: 0.15 for cause in CAUSES if cause != "link"} | {"host": 0.25}
_DOUBTS |= {"fabric": 0.2, "peer": 0.4, "staged": 0.5, "assumed_times": 1.5}
_PRIOR_SD = 1.5
#: Log ratios beyond these are other stories (a wait for a place in the cache, drafted tokens).
_REACH = {"tpot": 0.6, "ttft": 1.2}
_MOST_ROWS = 30  # of one group, evenly spread: the work grows with the cube
_FIELDS = len(_STARTS["tpot"])


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one (source, model, GPU) with a measured quantity.

    Attributes:
        places: Features without doubts.
        slopes: Slopes by cause, shape (rows, causes).
        node: Machine of the first row, whose silicon and links all have.
        logs: Logarithms of measured over predicted, outliers drawn in; shape (rows,).
    """

    name: str
    quantity: str
    places: list[RunFeatures]
    slopes: np.ndarray
    node: Node
    logs: np.ndarray
    same_group: np.ndarray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    bench = Bench(given.data)
    bench.leave_out("source")
    groups = groups_of(bench)
    if given.judge:
        for part in (0, 1):
            mine = [zlib.crc32(group.name.encode()) % 2 == part for group in groups]
            unseen = [group for group, out in zip(groups, mine, strict=True) if out]
            found = most_likely([g for g, out in zip(groups, mine, strict=True) if not out])
            rows = sum(len(group.logs) for group in unseen)
            print(f"half {part + 1}: {-unlikeliness(found, unseen) / rows:.3f} per row unseen")
        return 0
    text = document(most_likely(groups))
    print(text)
    if given.write:
        OUT.write_text(text)
    return 0


def groups_of(bench: Bench) -> list[Group]:
    rows = bench.rows
    slopes = slopes_of([row.run for row in rows])
    found = []
    for which, quantity in enumerate(("tpot", "ttft")):
        logs = -bench.left_out["source"][which]
        logs = logs / np.hypot(1, logs / _REACH[quantity])
        members: dict[object, list[int]] = {}
        for index, row in enumerate(rows):
            if not np.isnan(logs[index]):
                members.setdefault((row.source, *row.group), []).append(index)
        for name, mine in members.items():
            few = np.unique(np.linspace(0, len(mine) - 1, _MOST_ROWS).astype(int))
            kept = np.array(mine)[few]
            places = [
                msgspec.structs.replace(rows[index].place, tpot_doubts=(), ttft_doubts=())
                for index in kept
            ]
            devices = np.array([place.devices for place in places])
            found.append(
                Group(
                    name=str(name),
                    quantity=quantity,
                    places=places,
                    slopes=slopes[which][kept],
                    node=rows[kept[0]].node,
                    logs=logs[kept],
                    same_group=devices[:, None] == devices[None],
                )
            )
    return found


def most_likely(groups: Sequence[Group]) -> np.ndarray:
    """Values of the similarities of both quantities, and the doubts."""
    starts = np.log([*_STARTS["tpot"], *_STARTS["ttft"], *_DOUBTS.values()])

    def loss(logs: np.ndarray) -> float:
        return unlikeliness(np.exp(logs), groups) + 0.5 * np.sum(((logs - starts) / _PRIOR_SD) ** 2)

    found = scipy.optimize.minimize(loss, starts, method="L-BFGS-B", options={"maxiter": 12})
    return np.exp(found.x)


def unlikeliness(values: np.ndarray, groups: Sequence[Group]) -> float:
    """Negative logarithm of the likelihood, but for a constant."""
    similarities = {name: similarity_from(name, values) for name in _STARTS}
    sds = doubts_from(values)
    total = 0.0
    for group in groups:
        similarity, doubts = similarities[group.quantity], group.slopes * doubts_of(group.node, sds)
        covariance = similarity.between(group.places, group.places)
        covariance += in_common(doubts, doubts, group.same_group)
        covariance += similarity.accident**2 * np.eye(len(group.logs))
        factor = np.linalg.cholesky(covariance)
        whitened = np.linalg.solve(factor, group.logs)
        total += 0.5 * whitened @ whitened + np.log(np.diag(factor)).sum()
    return float(total)


def similarity_from(quantity: str, values: np.ndarray) -> Similarity:
    start = list(_STARTS).index(quantity) * _FIELDS
    whole, engine, storage, near, accident, *reach = map(float, values[start : start + _FIELDS])
    return Similarity(
        quantity=quantity,
        all=whole,
        engine=engine,
        storage=storage,
        near=near,
        accident=accident,
        reach_octaves=(reach[0], reach[1], reach[2], reach[3]),
    )


def doubts_from(values: np.ndarray) -> dict[str, float]:
    """Doubts by cause and kind of link."""
    return dict(zip(_DOUBTS, map(float, values[2 * _FIELDS :]), strict=True))


def document(values: np.ndarray) -> str:
    lines = ["# Written by benchmarks/prediction/similarity.py --write, do not edit."]
    for quantity in _STARTS:
        lines += ["", f"[{quantity}]"]
        for name, value in msgspec.structs.asdict(similarity_from(quantity, values)).items():
            if isinstance(value, float):
                lines.append(f"{name} = {value:.3f}")
            elif isinstance(value, tuple):
                lines.append(f"{name} = [{', '.join(f'{each:.2f}' for each in value)}]")
    lines += ["", "[causes]"]
    lines += [f"{name} = {sd:.3f}" for name, sd in doubts_from(values).items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
