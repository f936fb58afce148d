"""How well the law predicts runs that it has not seen, on all data at hand.

    python benchmarks/prediction/accuracy.py [--data DIR] [--write] [--splits pair,source]

Fits the factors again with whole groups left out (`tools/fit_step_law.py`, needs scipy), predicts
those, and prints medians and means of absolute errors and the share that the intervals hold; each
interval is made without the group that it is judged by. `--write` stores what ships with the
package: the kinds of measured runs (`perf/roofline/data/accuracy.csv`), the spread by traits
(`intervals.toml`) and the pages of `docs/accuracy/`. 20 minutes on two cores.

| split | groups left out whole, in turn |
|---|---|
| pair | pairs of model and GPU, a fifth of them at a time |
| device | kinds of device, a sixth at a time |
| silicon | architectures |
| source | laboratories |
| release | engines' releases, a sixth at a time |
| family | families of models, a sixth at a time |
| format | storage of weights |
| link | links between devices |
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import multiprocessing
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(Path(__file__).parent)]

from fit_step_law import Problem, fitted  # noqa: E402
from measured import Measured, read  # noqa: E402

from servetune.perf import most_informative  # noqa: E402
from servetune.perf.roofline.accuracy import Kind, Ran, cell_of, kind_of_run  # noqa: E402
from servetune.perf.roofline.calibration import Anchor, calibrated  # noqa: E402
from servetune.perf.roofline.interval import all_measured, log_spread, seen_among, traits  # noqa: E402
from servetune.perf.roofline.similarity import remaining_sd, similarity_of  # noqa: E402

OUT = ROOT / "src" / "servetune" / "perf" / "roofline" / "data"
DOCS = ROOT / "docs" / "accuracy"
#: Rows of one source, model, GPU, engine, release, storage and degree that a fit reads.
ROWS_IN_FIT = 8
#: One-sided confidences whose quantiles are stored for `safety_factors_of`.
LEVELS = (0.6, 0.7, 0.8, 0.9, 0.95)
#: Share of left-out rows between the stored quantiles, a little more than the 90% that is stated,
#: as an unseen group is further off than those at hand.
HELD = 0.92
#: Weight of a term of the spread against no term, and width over which its loss is smooth.
_RIDGE, _SMOOTH = 2.0, 0.05

Key = Callable[[Measured], str]


def _hashed(text: str, folds: int) -> str:
    return f"part {zlib.crc32(text.encode()) % folds + 1}"


def _family(model: str) -> str:
    return (
        model.rsplit("/", maxsplit=1)[-1]
        .lower()
        .replace("meta-", "")
        .split("-")[0]
        .rstrip("0123456789.")
    )


def _link(row: Measured) -> str:
    alone = row.plan.tensor_parallel * row.plan.data_parallel == 1
    return "one device" if alone else row.node.link.name


SPLITS: dict[str, Key] = {
    "pair": lambda row: _hashed(f"{row.model} {row.gpu}", 5),
    "device": lambda row: _hashed(row.node.device.name, 6),
    "silicon": lambda row: row.node.device.architecture,
    "source": lambda row: row.source,
    "release": lambda row: _hashed(f"{row.engine} {row.version[:6]}", 6),
    "family": lambda row: _hashed(_family(row.model), 6),
    "format": lambda row: f"{row.precision} {row.network}",
    "link": _link,
}
#: Splits whose errors the spread is fitted to; the others are judged by it unseen. Whoever asks is
#: a source that no fit has seen, so pairs of seen sources are not among them.
_SPREAD = ("device", "silicon", "source")
#: Traits whose terms of the spread may not fall from one to the next: what is less known, or harder
#: to know, is not surer, whatever the few rows of it say.
_ORDERED = (
    ("seen:device", "seen:architecture", "seen:nothing"),
    ("link:one", "link:peer", "link:staged"),
)
#: Least step to a term from the one before it in its order: hosts through whose memory devices
#: exchange differ by a factor of three, and few of them were served. A judgement.
_STEPS = {"link:staged": 0.3}


class Bench:
    """All rows, and their errors where a fit has not seen their group.

    Attributes:
        left_out: Split to logarithms of predicted over measured, shape (2, rows): own time (per
            token, of the batch, or one over the rate), first token.
        seen: Split to what of each row the fit had measured (`interval.traits`).
    """

    def __init__(self, data: Path) -> None:
        self.rows, self.refused = read(data)
        self.problem = Problem(self.rows)
        self.kinds = [
            kind_of_run(row.node, row.plan, row.shape, Ran(engine=row.engine, version=row.version))
            for row in self.rows
        ]
        self.measured = [all_measured(row.shape) for row in self.rows]
        self.left_out: dict[str, np.ndarray] = {}
        self.seen: dict[str, list[str]] = {}
        rng = np.random.default_rng(1)
        groups = collections.defaultdict(list)
        for number, row in enumerate(self.rows):
            plan = row.plan
            degrees = (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel > 1)
            key = (row.source, row.model, row.gpu, row.engine, row.version, row.precision, degrees)
            groups[key].append(number)
        self.read_by_fits = np.zeros(len(self.rows), dtype=bool)
        for numbers in groups.values():
            self.read_by_fits[rng.permutation(numbers)[:ROWS_IN_FIT]] = True

    def fitted_without(self, out: np.ndarray) -> np.ndarray:
        """Values of the problem's factors from rows that are not left out."""
        chosen = np.flatnonzero(~out & self.read_by_fits)
        part = Problem([self.rows[number] for number in chosen])
        values, _ = fitted(part)
        found = dict(zip(part.scopes, values, strict=True))
        return np.array([found.get(scope, 0.0) for scope in self.problem.scopes])

    def leave_out(self, split: str) -> None:
        fold = np.array([SPLITS[split](row) for row in self.rows])
        logs = np.full((2, len(fold)), np.nan)
        seen = [""] * len(fold)
        for name in sorted(set(fold)):
            out = fold == name
            logs[:, out] = self.problem.logs(self.fitted_without(out))[:, out]
            known = {kind for kind, o in zip(self.kinds, out, strict=True) if not o}
            seen_of = {
                kind: seen_among(known, kind)
                for kind in {kind for kind, o in zip(self.kinds, out, strict=True) if o}
            }
            for number in np.flatnonzero(out):
                seen[number] = seen_of[self.kinds[number]]
        self.left_out[split], self.seen[split] = logs, seen


class Spread:
    """Spread of log(measured / predicted) by traits, and quantiles over it.

    The 90% quantile of the logarithm of the absolute error is regressed on traits: the pinball
    loss, smoothed, with a ridge towards no term. Rows of one group share a weight.
    """

    def __init__(self, errors: np.ndarray, of: Sequence[Sequence[str]], weight: np.ndarray) -> None:
        from scipy.optimize import minimize

        known = ~np.isnan(errors)
        errors, weight = errors[known], weight[known]
        of = [each for each, kept in zip(of, known, strict=True) if kept]
        self.names = sorted({trait for each in of for trait in each})
        # Few combinations of traits: each is one column of the design.
        distinct = sorted(set(of))
        place = np.array([{each: n for n, each in enumerate(distinct)}[each] for each in of])
        design = np.array([[name in each for name in self.names] for each in distinct], float)
        target = np.log(np.maximum(np.abs(errors), 0.01))
        start = np.zeros(1 + len(self.names))
        start[0] = np.quantile(target, 0.9)

        def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
            fitted_logs = values[0] + design @ values[1:]
            off = target - fitted_logs[place]
            smooth = np.logaddexp(0, off / _SMOOTH) * _SMOOTH
            total = float(np.sum(weight * (smooth - (1 - 0.9) * off)))
            slope = weight * (1 / (1 + np.exp(-off / _SMOOTH)) - (1 - 0.9))
            per_kind = -np.bincount(place, slope, minlength=len(distinct))
            gradient = np.concatenate([[per_kind.sum()], design.T @ per_kind])
            total += _RIDGE / 2 * float(values[1:] @ values[1:])
            gradient[1:] += _RIDGE * values[1:]
            return total, gradient

        found = minimize(loss, start, jac=True, method="L-BFGS-B")
        self.base, self.terms = float(found.x[0]), found.x[1:]
        for order in _ORDERED:
            least = -np.inf
            for name in order:
                if name in self.names:
                    place = self.names.index(name)
                    least = max(float(self.terms[place]), least + _STEPS.get(name, 0.0))
                    self.terms[place] = least
        spread = self.spread(of)
        self.scaled, self.weight = -errors / spread, weight
        #: Spread of a typical row, over which others are larger or smaller.
        self.typical = float(np.exp(np.average(np.log(spread), weights=weight)))

    def spread(self, of: Sequence[Sequence[str]]) -> np.ndarray:
        terms = {"base": self.base} | dict(zip(self.names, self.terms, strict=True))
        spreads = {each: np.exp(log_spread(terms, each)) for each in set(of)}
        return np.array([spreads[each] for each in of])

    def quantile(self, share: float) -> float:
        order = np.argsort(self.scaled)
        shares = np.cumsum(self.weight[order]) / self.weight.sum()
        return float(np.interp(share, shares, self.scaled[order]))

    def bounds(self) -> tuple[float, float]:
        rest = (1 - HELD) / 2
        return self.quantile(rest), self.quantile(1 - rest)


def traits_in(bench: Bench, split: str) -> list[tuple[str, ...]]:
    return [
        traits(
            kind,
            row.node,
            row.plan,
            seen,
            row.run.protocol,
            measured=measured,
        )
        for kind, row, seen, measured in zip(
            bench.kinds, bench.rows, bench.seen[split], bench.measured, strict=True
        )
    ]


def weights(rows: Sequence[Measured]) -> np.ndarray:
    """Weight of each row: a group counts as the root of its rows."""
    groups = [(row.source, row.model, row.gpu, row.engine) for row in rows]
    counts = collections.Counter(groups)
    return np.array([counts[group] ** -0.5 for group in groups])


def spread_of(bench: Bench, which: int, without: np.ndarray | None = None) -> Spread:
    """Spread of own times (0) or first tokens (1), from the splits at hand."""
    splits = [split for split in _SPREAD if split in bench.left_out]
    keep = np.ones(len(bench.rows), dtype=bool) if without is None else ~without
    errors = np.concatenate([bench.left_out[split][which][keep] for split in splits])
    of = [
        each for split in splits for each, k in zip(traits_in(bench, split), keep, strict=True) if k
    ]
    return Spread(errors, of, np.tile(weights(bench.rows)[keep], len(splits)))


def held(bench: Bench, split: str) -> np.ndarray:
    """Whether each row lies in its interval, made without the row's source; NaN if unmeasured."""
    found = np.full((2, len(bench.rows)), np.nan)
    of = traits_in(bench, split)
    source = np.array([row.source for row in bench.rows])
    fold = np.array([SPLITS[split](row) for row in bench.rows])
    judged_by = source if split in ("source",) else fold
    for which in (0, 1):
        errors = bench.left_out[split][which]
        for name in sorted(set(judged_by)):
            out = judged_by == name
            spread = spread_of(bench, which, out)
            low, high = spread.bounds()
            mine = [each for each, o in zip(of, out, strict=True) if o]
            scaled = -errors[out] / spread.spread(mine)
            inside = (low <= scaled) & (scaled <= high)
            found[which, out] = np.where(np.isnan(scaled), np.nan, inside)
    return found


def line(name: str, errors: np.ndarray, inside: np.ndarray, of: np.ndarray) -> str:
    """One line of a table: rows, errors and held share of own times and first tokens."""
    cells = [name, str(int(of.sum()))]
    for which in (0, 1):
        logs, kept = errors[which][of], inside[which][of]
        known = ~np.isnan(logs)
        if not known.any():
            cells += ["", ""]
            continue
        percent = 100 * np.abs(np.expm1(logs[known]))
        cells.append(f"{np.median(percent):.1f} / {percent.mean():.1f}")
        cells.append(f"{100 * np.nanmean(kept):.0f}%")
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| left out | rows | time per token, median / mean % | held | first token | held |\n"
    "|---|--:|--:|--:|--:|--:|"
)
STRATA: dict[str, Key] = {
    "source": lambda row: row.source,
    "device": lambda row: row.node.device.name,
    "engine": lambda row: row.engine,
    "network and storage": lambda row: f"{row.network}, {row.precision}",
    "protocol": lambda row: row.run.protocol,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", action="store_true", help="store tables, intervals and pages")
    parser.add_argument("--splits", default=",".join(SPLITS))
    given = parser.parse_args()
    bench = Bench(given.data)
    splits = given.splits.split(",")
    print(f"{len(bench.rows)} rows, {sum(bench.refused.values())} left out", flush=True)
    with multiprocessing.Pool(2, _prepare, (given.data,)) as pool:
        for split, logs, seen in pool.imap_unordered(_left_out, splits):
            bench.left_out[split], bench.seen[split] = logs, seen
            everything = np.ones(len(bench.rows), dtype=bool)
            print(line(split, logs, np.full_like(logs, np.nan), everything), flush=True)
    print(HEAD)
    pages = [overview(bench, splits)]
    print(pages[0])
    if given.write:
        write(bench, splits)
    return 0


_BENCH: list[Bench] = []


def _prepare(data: Path) -> None:
    _BENCH.append(Bench(data))


def _left_out(split: str) -> tuple[str, np.ndarray, list[str]]:
    _BENCH[0].leave_out(split)
    return split, _BENCH[0].left_out[split], _BENCH[0].seen[split]


def overview(bench: Bench, splits: Sequence[str]) -> str:
    everything = np.ones(len(bench.rows), dtype=bool)
    return "\n".join(
        line(split, bench.left_out[split], held(bench, split), everything) for split in splits
    )


def write(bench: Bench, splits: Sequence[str]) -> None:
    (OUT / "accuracy.csv").write_text(cells_document(bench))
    (OUT / "intervals.toml").write_text(interval_document(bench))
    DOCS.mkdir(exist_ok=True)
    (DOCS / "index.md").write_text(page(bench, splits))


def cells_document(bench: Bench) -> str:
    """Kinds of measured runs, with errors where their source was left out."""
    logs = bench.left_out["source"]
    groups: dict[tuple[str, Kind], list[int]] = {}
    for number, (row, kind) in enumerate(zip(bench.rows, bench.kinds, strict=True)):
        groups.setdefault((row.source, kind), []).append(number)
    lines = [
        cell_of(source, kind, logs[0][numbers], logs[1][numbers])
        for (source, kind), numbers in sorted(groups.items(), key=str)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def interval_document(bench: Bench) -> str:
    lines = ["# Written by benchmarks/prediction/accuracy.py --write, do not edit.", ""]
    spreads = {"tpot": spread_of(bench, 0), "ttft": spread_of(bench, 1)}
    for time, spread in spreads.items():
        lines += [f"[{time}_spread]", f"base = {spread.base:.3f}"]
        lines.append(f"typical = {spread.typical:.4f}")
        lines += [
            f'"{name}" = {term:.3f}' for name, term in zip(spread.names, spread.terms, strict=True)
        ]
        lines.append("")
    lines.append("[spread]")
    for time, spread in spreads.items():
        low, high = spread.bounds()
        lines += [f"{time}_low = {low:.3f}", f"{time}_high = {high:.3f}"]
        for level in LEVELS:
            lines.append(
                f"{time}_caution_{100 * level:.0f} = {max(0.0, spread.quantile(level)):.3f}"
            )
    anchored = {count: anchored_logs(bench, count) for count in (1, 2, 4)}
    of = traits_in(bench, "pair")
    for name, counts in (("anchored", (2,)), ("doubt", (1, 2, 4))):
        lines += ["", f"[{name}]"]
        for which, time in enumerate(("tpot", "ttft")):
            own = spreads[time].spread(of)
            values, shares = [], []
            for count in counts:
                errors, doubts = anchored[count]
                relative = doubts[which] / spreads[time].typical if name == "doubt" else 1.0
                off = -errors[which] / (own * relative)
                known = ~np.isnan(off)
                values.append(off[known])
                shares.append(weights(bench.rows)[known])
            lines += _quantile_lines(time, np.concatenate(values), np.concatenate(shares))
    return "\n".join(lines) + "\n"


def _quantile_lines(time: str, values: np.ndarray, weight: np.ndarray) -> list[str]:
    order = np.argsort(values)
    shares = np.cumsum(weight[order]) / weight.sum()

    def at(share: float) -> float:
        return float(np.interp(share, shares, values[order]))

    rest = (1 - HELD) / 2
    lines = [f"{time}_low = {at(rest):.3f}", f"{time}_high = {at(1 - rest):.3f}"]
    return lines + [
        f"{time}_caution_{100 * level:.0f} = {max(0.0, at(level)):.3f}" for level in LEVELS
    ]


def anchored_logs(bench: Bench, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors after `count` chosen rows of each (source, model, GPU), and the doubts left.

    Anchors themselves, and groups with fewer than twice as many rows, are NaN.
    """
    logs = bench.left_out["pair"].copy()
    doubts = np.full_like(logs, np.nan)
    measured = np.array([np.exp(-logs[0]), np.exp(-logs[1])])
    groups = collections.defaultdict(list)
    for number, row in enumerate(bench.rows):
        groups[(row.source, *row.group)].append(number)
    for numbers in groups.values():
        mine = np.array(numbers)
        if len(mine) < 2 * count + 2:
            logs[:, mine] = np.nan
            continue
        places = [bench.rows[number].place for number in mine]
        chosen = list(most_informative(places, count))
        anchors = [
            Anchor(
                predicted_ttft_ms=1.0,
                predicted_tpot_ms=1.0,
                measured_tpot_ms=float(measured[0, mine[i]]),
                measured_ttft_ms=None
                if np.isnan(measured[1, mine[i]])
                else float(measured[1, mine[i]]),
                place=places[i],
            )
            for i in chosen
        ]
        found = calibrated(anchors).at(*places)
        logs[0, mine] += np.log([each.tpot_factor for each in found])
        logs[1, mine] += np.log([each.ttft_factor for each in found])
        known = [places[i] for i in chosen]
        for which, time in enumerate(("tpot", "ttft")):
            similarity = similarity_of(time)
            left = remaining_sd(places, known, similarity)
            doubts[which, mine] = np.hypot(left, similarity.accident)
        logs[:, mine[chosen]] = np.nan
    return logs, doubts


def page(bench: Bench, splits: Sequence[str]) -> str:
    """The page of `docs/accuracy/`."""
    everything = np.ones(len(bench.rows), dtype=bool)
    inside = {split: held(bench, split) for split in splits}
    lines = [
        "# Accuracy on measured runs",
        "",
        "Written by `python benchmarks/prediction/accuracy.py --data DIR --write`; do not edit.",
        "",
        (
            f"{len(bench.rows):,} sound measured runs of {len({r.source for r in bench.rows})} "
            "public collections, each predicted by factors fitted without the group that it "
            "belongs to: the whole group is left out, and the interval is made without it too. "
            "`held` is the share of rows inside the interval that is stated as 90%."
        ),
        "",
        HEAD,
        *(line(split, bench.left_out[split], inside[split], everything) for split in splits),
    ]
    for count in (1, 2, 4):
        logs, _ = anchored_logs(bench, count)
        known = ~np.isnan(logs[0])
        none = np.full_like(logs, np.nan)
        lines.append(
            line(f"pair, then {count} of its rows as anchors", logs, none, known).replace(
                "nan%", ""
            )
        )
    for title, key in STRATA.items():
        names = np.array([key(row) for row in bench.rows])
        split = "source" if title == "source" else "device" if title == "device" else "pair"
        if split not in splits:
            continue
        lines += ["", f"## By {title}", "", f"Left out: {split}.", "", HEAD]
        counts = collections.Counter(names)
        lines += [
            line(name, bench.left_out[split], inside[split], names == name)
            for name, _ in counts.most_common()
        ]
    lines += ["", "## Worst rows", "", *worst(bench)]
    lines += ["", "## Rows without a prediction", "", "| rows | reason |", "|--:|---|"]
    lines += [f"| {count} | {why.replace('|', '/')} |" for why, count in bench.refused.items()]
    return "\n".join(lines) + "\n"


def worst(bench: Bench) -> list[str]:
    logs = bench.left_out["pair"][0]
    order = np.argsort(-np.abs(np.nan_to_num(logs)))[:20]
    lines = ["| row | engine | predicted / measured |", "|---|---|--:|"]
    for number in order:
        row = bench.rows[number]
        lines.append(f"| {row.id} | {row.engine} {row.version[:12]} | {np.exp(logs[number]):.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
