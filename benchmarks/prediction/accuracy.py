"""How well the law predicts runs that it has not seen, on all data at hand.

    python benchmarks/prediction/accuracy.py [--data DIR] [--write] [--splits pair,source]

Fits the factors again with whole groups left out (`tools/fit_step_law.py`, needs scipy), predicts
those, and prints medians and means of absolute errors and the share that the intervals hold; each
interval is made without the group that it is judged by. Published runs of `reports.py` whose
predictions were looked at count as one more laboratory of the intervals. `--write` stores what
ships with the package: the kinds of measured runs (`perf/roofline/data/accuracy.csv`), the spread
by traits (`intervals.toml`) and the pages of `docs/accuracy/`. Twenty minutes on two cores.

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
import functools
import multiprocessing
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(Path(__file__).parent)]

import differences  # noqa: E402
from fit_step_law import Problem, fitted  # noqa: E402
from measured import Measured, read  # noqa: E402
from reports import kind_of, log_errors, publisher  # noqa: E402
from reports import read as read_reports  # noqa: E402
from spread import HELD, RIDGES, Errors, Spread, ends, quantile, weights  # noqa: E402

from servetune.engines import resolved  # noqa: E402
from servetune.perf import most_informative  # noqa: E402
from servetune.perf.roofline import length_moments  # noqa: E402
from servetune.perf.roofline.accuracy import Kind, Ran, cells, cells_csv, kind_of_run  # noqa: E402
from servetune.perf.roofline.calibration import Anchor, calibrated  # noqa: E402
from servetune.perf.roofline.interval import all_measured, seen_among, traits  # noqa: E402
from servetune.prediction.rows import ran_of  # noqa: E402

OUT = ROOT / "src" / "servetune" / "perf" / "roofline" / "data"
DOCS = ROOT / "docs" / "accuracy"
#: Rows of one source, model, GPU, engine, release, storage and degree that a fit reads.
ROWS_IN_FIT = 8
#: Own time (per token, of the batch, or one over the rate) and first token.
TIMES = ("tpot", "ttft")

#: Name of the published runs among laboratories, and what makes a group of them.
PUBLISHED, _REPORT_GROUP = "published", ("url", "model", "gpu", "engine")

#: One-sided confidences whose quantiles are stored for `safety_factors_of`.
LEVELS = (0.6, 0.7, 0.8, 0.9, 0.95)
#: Table of quantiles -> numbers of anchors whose rows they are of.
ANCHORS = {"anchored": (2,), "doubt": (1, 2, 4)}

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


class Bench:
    """All rows, and their errors where a fit has not seen their group.

    Attributes:
        left_out: Split to logarithms of predicted over measured, shape (2, rows): own time (per
            token, of the batch, or one over the rate), first token.
        seen: Split to what of each row the fit had measured (`interval.traits`).
    """

    def __init__(self, data: Path, *, disputed: bool = False) -> None:
        self.rows, self.refused = read(data, disputed=disputed)
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
        self.read_by_fits &= [row.teaches for row in self.rows]

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


@functools.cache
def traits_in(bench: Bench, split: str) -> list[tuple[str, ...]]:
    return [
        traits(
            kind,
            row.node,
            row.plan,
            seen,
            ran_of(row.run),
            measured=measured,
        )
        for kind, row, seen, measured in zip(
            bench.kinds, bench.rows, bench.seen[split], bench.measured, strict=True
        )
    ]


def errors_of(bench: Bench, which: int, split: str) -> Errors:
    """Errors of own times (0) or first tokens (1) of all rows, unmeasured ones too."""
    rows = bench.rows
    sources = [row.source for row in rows]
    return Errors(
        logs=-bench.left_out[split][which],
        traits=traits_in(bench, split),
        weight=weights([(row.source, row.model, row.gpu, row.engine) for row in rows], sources),
        source=np.array(sources),
    )


@functools.cache
def published_errors(which: int) -> Errors:
    """Errors of own times (0) or first tokens (1) of published runs that were looked at.

    They weigh as one more laboratory, whose runs no fit reads. Its publishers are left out a fifth
    at a time, as whoever asks is one more of them. Those not looked at judge the intervals.
    """
    reports = [
        report
        for report in read_reports()[0]
        if report.row["check"] == "ok" and report.row["looked_at"] == "yes"
    ]
    found = []
    for report in reports:
        run, kind = report.run, kind_of(report)
        plan = resolved(run.plan, run.shape, run.node.device)
        seen = seen_among((cell.kind for cell in cells()), kind)
        measured = all_measured(run.shape)
        found.append(traits(kind, run.node, plan, seen, ran_of(run), measured=measured))
    groups = [tuple(report.row[name] for name in _REPORT_GROUP) for report in reports]
    return Errors(
        logs=-log_errors(reports, which),
        traits=found,
        weight=weights(groups, [PUBLISHED] * len(reports)),
        source=np.array([f"{PUBLISHED}, {_hashed(publisher(report), 5)}" for report in reports]),
    )


def spread_of(bench: Bench, which: int, kept: np.ndarray | None = None) -> Spread:
    """Spread of own times (0) or first tokens (1), by rows whose source the law has not seen."""
    errors = errors_of(bench, which, "source")
    errors = errors if kept is None else errors.part(kept)
    return Spread(errors.joined(published_errors(which)), RIDGES[TIMES[which]])


def held(bench: Bench, split: str) -> np.ndarray:
    """Whether each row lies in its interval, made without the row's group; NaN if unmeasured."""
    found = np.full((2, len(bench.rows)), np.nan)
    fold = np.array([SPLITS[split](row) for row in bench.rows])
    for which in (0, 1):
        errors = errors_of(bench, which, split)
        for name in sorted(set(fold)):
            out = fold == name
            spread, mine = spread_of(bench, which, ~out), errors.part(out)
            low, high = spread.bounds(HELD[TIMES[which]])
            scaled = mine.logs / spread.of(mine.traits)
            inside = (low <= scaled) & (scaled <= high)
            found[which, out] = np.where(np.isnan(scaled), np.nan, inside)
    return found


def whole_requests(rows: Sequence[Measured], logs: np.ndarray) -> np.ndarray:
    """Logarithms of predicted over measured end-to-end times, by those of their two parts."""
    tokens = np.array([length_moments(row.run.lengths).output_tokens for row in rows])
    first_ms, each_ms, whole_ms = (
        np.array([getattr(row, name) for row in rows]) for name in ("ttft_ms", "tpot_ms", "e2e_ms")
    )
    predicted_ms = first_ms * np.exp(logs[1]) + (tokens - 1) * each_ms * np.exp(logs[0])
    return np.asarray(np.log(predicted_ms / whole_ms))


def line(
    name: str,
    errors: np.ndarray,
    inside: np.ndarray,
    of: np.ndarray,
    rows: Sequence[Measured] = (),
) -> str:
    """One line of a table: rows, errors and held share of own times and first tokens.

    With `rows` errors of end-to-end times, too, where a row has all three.
    """
    cells = [name, str(int(of.sum()))]
    for which in (0, 1):
        cells.append(_percent(errors[which][of]))
        kept = inside[which][of]
        cells.append("" if np.isnan(kept).all() else f"{100 * np.nanmean(kept):.0f}%")
    if rows:
        cells.append(_percent(whole_requests(rows, errors)[of]))
    return "| " + " | ".join(cells) + " |"


def _percent(logs: np.ndarray) -> str:
    percent = 100 * np.abs(np.expm1(logs[~np.isnan(logs)]))
    return f"{np.median(percent):.1f} / {percent.mean():.1f}" if percent.size else ""


HEAD = (
    "| left out | rows | time per token, median / mean % | held | first token | held "
    "| end to end |\n|---|--:|--:|--:|--:|--:|--:|"
)
#: What is left out for each table by strata; pairs of model and GPU where it is not named.
LEFT_OUT = {"source": "source", "device": "device", "release": "release"}
#: Rows of the smallest release that has a line.
_FEW = 10


def _minor(version: str) -> str:
    """Major and minor of a release, or what a table has in its place."""
    found = re.match(r"v?(\d+\.\d+)", version)
    return found[1] if found else version.split(" ", maxsplit=1)[0] or "not named"


STRATA: dict[str, Key] = {
    "source": lambda row: row.source,
    "device": lambda row: row.node.device.name,
    "engine": lambda row: row.engine,
    "release": lambda row: f"{row.engine} {_minor(row.version)}",
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
        # intervals are made of sources that are left out, whatever they judge
        for split, logs, seen in pool.imap_unordered(_left_out, dict.fromkeys([*splits, "source"])):
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
        line(split, bench.left_out[split], held(bench, split), everything, bench.rows)
        for split in splits
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
    return cells_csv({group: (logs[0][of], logs[1][of]) for group, of in groups.items()})


def interval_document(bench: Bench) -> str:
    lines = ["# Written by benchmarks/prediction/accuracy.py --write, do not edit."]
    runs = differences.of_laboratories(bench) + differences.of_reports()
    lines += ["", "[order_threshold_sds]"]
    for which, time in enumerate(TIMES):
        threshold = differences.order_threshold_sds(differences.pairs_of(runs, which))
        lines.append(f"{time} = {threshold:.2f}")
    spreads = [spread_of(bench, which) for which in (0, 1)]
    for time, spread in zip(TIMES, spreads, strict=True):
        lines += ["", f"[{time}_spread]", f"base = {spread.terms['base']:.3f}"]
        lines.append(f"typical = {spread.typical:.4f}")
        lines += [f'"{name}" = {term:.3f}' for name, term in spread.terms.items() if name != "base"]
    lines += ["", "[spread]"]
    for which, time in enumerate(TIMES):
        lines += _quantile_lines(time, spreads[which].scaled, spreads[which].weight)
    for table in ANCHORS:
        lines += ["", f"[{table}]"]
        for which, time in enumerate(TIMES):
            lines += _quantile_lines(time, *anchored_scaled(bench, which, table, spreads[which]))
    return "\n".join(lines) + "\n"


def _quantile_lines(time: str, values: np.ndarray, weight: np.ndarray) -> list[str]:
    low, high = ends(values, weight, HELD[time])
    return [f"{time}_low = {low:.3f}", f"{time}_high = {high:.3f}"] + [
        f"{time}_caution_{100 * level:.0f} = {max(0.0, quantile(values, weight, level)):.3f}"
        for level in LEVELS
    ]


def anchored_scaled(
    bench: Bench, which: int, table: str, spread: Spread, kept: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Errors after anchors over their spread, and weights, of the rows that are kept."""
    kept = np.ones(len(bench.rows), dtype=bool) if kept is None else kept
    parts = [anchored_errors(bench, which, table, count, spread) for count in ANCHORS[table]]
    weight = errors_of(bench, which, "pair").weight
    known = [kept & ~np.isnan(logs) for logs, _ in parts]
    return (
        np.concatenate([(logs / sds)[k] for (logs, sds), k in zip(parts, known, strict=True)]),
        np.concatenate([weight[k] for k in known]),
    )


def anchored_errors(
    bench: Bench, which: int, table: str, count: int, spread: Spread
) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of measured over corrected, and the spread that has multiples in a table."""
    logs, doubts = anchored_logs(bench, count)
    by_traits = spread.of(traits_in(bench, "pair"))
    if table == "anchored":
        return -logs[which], by_traits
    return -logs[which], doubts[which] * by_traits / spread.typical


def anchored_held(bench: Bench, count: int) -> np.ndarray:
    """Whether each row lies in its interval after anchors; all numbers are of other sources."""
    found = np.full((2, len(bench.rows)), np.nan)
    source = np.array([row.source for row in bench.rows])
    for which in (0, 1):
        for name in sorted(set(source)):
            out = source == name
            spread = spread_of(bench, which, ~out)
            values, weight = anchored_scaled(bench, which, "doubt", spread, ~out)
            low, high = ends(values, weight, HELD[TIMES[which]])
            logs, sds = anchored_errors(bench, which, "doubt", count, spread)
            scaled = (logs / sds)[out]
            inside = (low <= scaled) & (scaled <= high)
            found[which, out] = np.where(np.isnan(scaled), np.nan, inside)
    return found


@functools.cache
def anchored_logs(
    bench: Bench, count: int, shared: Key | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Errors after `count` chosen rows of each (source, model, GPU), and the doubts left.

    `shared` names what anchors and the rows that they correct have in common besides.

    Anchors themselves, and groups with fewer than twice as many rows, are NaN.
    """
    logs = bench.left_out["pair"].copy()
    doubts = np.full_like(logs, np.nan)
    measured = np.array([np.exp(-logs[0]), np.exp(-logs[1])])
    groups = collections.defaultdict(list)
    for number, row in enumerate(bench.rows):
        groups[(row.source, *row.group, shared(row) if shared else "")].append(number)
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
        doubts[0, mine] = [each.tpot_doubt for each in found]
        doubts[1, mine] = [each.ttft_doubt for each in found]
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
        *(
            line(split, bench.left_out[split], inside[split], everything, bench.rows)
            for split in splits
        ),
    ]
    for count in (1, 2, 4):
        logs, _ = anchored_logs(bench, count)
        name = f"pair, then {count} of its rows as anchors"
        kept = anchored_held(bench, count)
        lines.append(line(name, logs, kept, ~np.isnan(logs[0]), bench.rows))
    logs, _ = anchored_logs(bench, 2, lambda row: row.engine)
    name = "pair, then 2 of its rows under the same engine as anchors"
    lines.append(line(name, logs, np.full_like(logs, np.nan), ~np.isnan(logs[0]), bench.rows))
    runs = differences.of_laboratories(bench) + differences.of_reports()
    lines += ["", differences.section(runs)]
    for title, key in STRATA.items():
        names = np.array([key(row) for row in bench.rows])
        split = LEFT_OUT.get(title, "pair")
        if split not in splits:
            continue
        lines += ["", f"## By {title}", "", f"Left out: {split}.", "", HEAD]
        least = _FEW if title == "release" else 1
        lines += [
            line(name, bench.left_out[split], inside[split], names == name, bench.rows)
            for name, count in collections.Counter(names).most_common()
            if count >= least
        ]
    lines += ["", "## Worst rows", "", *worst(bench)]
    lines += ["", "## Rows without a prediction", "", "| rows | reason |", "|--:|---|"]
    lines += [f"| {count} | {why.replace('|', '/')} |" for why, count in bench.refused.items()]
    return "\n".join(lines) + "\n"


def worst(bench: Bench) -> list[str]:
    logs = bench.left_out["pair"][0]
    order = np.argsort(-np.abs(np.nan_to_num(logs)))[:20]
    lines = ["| row | engine | quantity | predicted / measured |", "|---|---|---|--:|"]
    for number in order:
        row = bench.rows[number]
        engine = f"{row.engine} {row.version.split(' ')[0]}".strip()
        ratio = np.exp(logs[number])
        lines.append(f"| {row.id} | {engine} | {row.own_quantity} | {ratio:.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
