"""Ridge and share of the spread (`spread.RIDGES`, `spread.HELD`), chosen without what judges them.

    python benchmarks/prediction/spread_choice.py [--data DIR]

Each source is left out in turn. On the others, left out one at a time besides, the ridge with the
best intervals is taken, then the least share between the quantiles with which nine in ten rows are
held in the mean of sources; both then make the intervals of the source that was left out. Intervals
are scored by their width and 20 times what rows lie outside them, in logarithms, as the geometric
mean of sources. Published runs that were looked at are five of them, by publisher. Sources of fewer
than 30 rows are in the fits but judge nothing. Needs scipy; ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from accuracy import ROOT, TIMES, Bench, errors_of, published_errors
from spread import Errors, Spread, ends

RIDGES = (0.01, 0.03, 0.1, 0.3)
SHARES = (0.88, 0.89, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95)
_FEW = 30
_ALPHA = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    bench = Bench(parser.parse_args().data)
    bench.leave_out("source")
    for which, time in enumerate(TIMES):
        print(f"{time}: left out, chosen ridge and share; its rows, held, width, score")
        errors = errors_of(bench, which, "source").joined(published_errors(which)).known
        names = [name for name in sorted(set(errors.source)) if sum(errors.source == name) >= _FEW]
        judged = {
            (ridge, one, other): judge(errors, one, other, ridge)
            for ridge in RIDGES
            for one in names
            for other in names
        }
        outer = []
        for name in [*names, "nothing"]:
            rest = [each for each in names if each != name]
            ridge, share = chosen(judged, rest, name)
            text = f"  {name:12s} {ridge:<5g} {share:.2f}"
            if name != "nothing":
                outer.append(judged[ridge, name, name][SHARES.index(share)])
                held, width, score = outer[-1]
                rows = int(sum(errors.source == name))
                text += f"  {rows:5d} {100 * held:3.0f}% {width:5.2f} {score:5.2f}"
            print(text, flush=True)
        print(f"  mean held {100 * np.mean(outer, axis=0)[0]:.1f}%")
    return 0


def judge(errors: Errors, name: str, other: str, ridge: float) -> np.ndarray:
    """Share held, median width as a factor and score of one source's rows, for each share.

    The intervals are made without that source and the other; shape (shares, 3).
    """
    spread = Spread(errors.part((errors.source != name) & (errors.source != other)), ridge)
    mine = errors.part(errors.source == name)
    sds = spread.of(mine.traits)
    found = []
    for share in SHARES:
        low, high = (end * sds for end in ends(spread.scaled, spread.weight, share))
        outside = np.maximum(0, low - mine.logs) + np.maximum(0, mine.logs - high)
        score = float(np.mean(high - low + 2 / _ALPHA * outside))
        found.append((np.mean(outside == 0), np.exp(np.median(high - low)), score))
    return np.array(found)


def chosen(
    judged: dict[tuple[float, str, str], np.ndarray], names: list[str], without: str
) -> tuple[float, float]:
    """Ridge and share that are best for some sources, each made without one other as well."""

    def of(ridge: float) -> np.ndarray:
        kept = [judged[ridge, name, without if without in seen else name] for name in names]
        return np.array(kept)

    seen = {other for _, _, other in judged}
    ridge = min(RIDGES, key=lambda each: np.log(of(each)[:, :, 2]).mean(axis=0).min())
    held = of(ridge)[:, :, 0].mean(axis=0)
    enough = [share for share, part in zip(SHARES, held, strict=True) if part >= 1 - _ALPHA]
    return ridge, enough[0] if enough else SHARES[-1]


if __name__ == "__main__":
    sys.exit(main())
