"""Errors on measurements that strangers published: `reports.csv`, which no fit reads.

    python benchmarks/prediction/reports.py [--rows] [--write]

Each row is one run of one server that somebody published in an issue, a pull request, a page of
documentation or a post: its address, what was said of server and load, and the means that were
printed. Rows are priced as `servetune estimate --batch` prices them, with shipped factors, and held
against the intervals that ship. `--write` writes docs/accuracy/reports.md and the kinds of sound
runs, which `estimate` names (`perf/roofline/data/published.csv`). Ten seconds; it needs no other
data.

`looked_at` says whether a row's prediction was looked at where a change of the law was chosen; the
others judge. `collected` is the day on which it was read. Where a report does not name a release,
the newest of its day is taken (`version_from`).
"""

from __future__ import annotations

import argparse
import collections
import csv
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from servetune.engines import resolved
from servetune.errors import ServetuneError
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.accuracy import Kind, accuracy_of, cells_csv, kind_of_run
from servetune.prediction.row_models import RowModels
from servetune.prediction.rows import prediction_columns, ran_of, run_of

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("reports.csv")
KINDS = ROOT / "src" / "servetune" / "perf" / "roofline" / "data" / "published.csv"
PAGE = ROOT / "docs" / "accuracy" / "reports.md"
#: Quantity, column of the table, columns of the interval's ends.
QUANTITIES = (
    ("time per token", "tpot_ms", ("tpot_low_ms", "tpot_high_ms")),
    ("first token", "ttft_ms", ("ttft_low_ms", "ttft_high_ms")),
    ("end to end", "e2e_ms", None),
    ("output tokens/s", "output_tokens_per_s", None),
)
#: Fewest rows of a line of the page.
_FEW = 8


_ABOUT = """# Accuracy on strangers' reports

Written by `python benchmarks/prediction/reports.py --write`; do not edit.

{reports} runs that people published in {threads} issues, pull requests, pages and posts
(`benchmarks/prediction/reports.csv` has each with its address), predicted as they stand by the
factors that ship: no fit reads them. They say less than the collections of
[the accuracy page](index.md): the GPU's variant, the release, the lengths or the number of requests
are often not stated and were taken to be the usual ones. So this is what a prediction is worth to
somebody who knows as little of a server. Median / mean error in %, and the share inside the
interval that is stated as 90%.

`Looked at` are the {seen} whose predictions were looked at where a cause was sought: of those
collected first, some; of those collected on 2026-11-28, later on 2026-11-29 (`2026-11-29b` to `f`),
on 2026-11-30 (`b` and `c`, too) and on 2026-12-01, all that are sound; of those before on
2026-11-29, bursts and a few others; and all on H20, RTX and in four bits, of few users of vLLM from
0.17 on, of vLLM 0.8 and 0.9, of SGLang with one user, with 16 or on H100, of eight users at most on
AMD, of networks of GLM, DeepSeek, Kimi, MiniMax, Ling, Step, ERNIE and Nemotron 3 and of hybrids
under SGLang and vLLM, bursts, open loops of SGLang, closed ones of vLLM whose answers vary, several
devices without NVLink, Qwen3-30B-A3B, and answers that a client cuts. Each later collection was
judged once before anybody had looked:

{blind}
The tables below are of the {unseen} that nobody has looked at one by one; their held shares as a
whole were in view where the width of intervals was chosen, so that only the table above judges it.
{doubtful} doubtful ones (failed requests, an abnormal slowness that was reported, parts that were
guessed) count nowhere else.
"""
#: What each later collection said before anything was chosen by it: the law of a commit with this
#: table. Rows were mended in between, see the README.
_BLIND = """| collected | law | rows | time per token | held | rows | first token | held | rows | end to end | rows | output tokens/s |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
| 2026-11-28 | 1fd7ef27 | 72 | 27 / 33 | 60% | 65 | 41 / 43 | 74% | 38 | 28 / 31 | 104 | 25 / 31 |
| 2026-11-29 | 48e89828 | 106 | 18 / 26 | 89% | 87 | 31 / 44 | 85% | 59 | 22 / 26 | 156 | 16 / 28 |
| 2026-11-29b | 01449e45 | 23 | 25 / 29 | 74% | 28 | 33 / 41 | 89% | 32 | 12 / 21 | 27 | 20 / 32 |
| 2026-11-29c | a71cf99d | 26 | 21 / 21 | 88% | 27 | 27 / 33 | 96% | 18 | 10 / 15 | 42 | 21 / 31 |
| 2026-11-29d | 2ce7c9b7 | 94 | 17 / 30 | 77% | 51 | 24 / 32 | 96% | 26 | 16 / 17 | 116 | 11 / 24 |
| 2026-11-29d, networks unknown until then | ba00a9f9 | 47 | 9 / 13 | 94% | 37 | 26 / 33 | 92% | 0 | | 45 | 6 / 12 |
| 2026-11-29c, a GPU unknown until then (RTX 6000D) | 3f80d231 | 15 | 9 / 10 | 100% | 15 | 16 / 22 | 100% | 6 | 13 / 11 | 15 | 12 / 11 |
| 2026-11-29e | db3793df | 62 | 16 / 24 | 79% | 42 | 40 / 59 | 74% | 31 | 14 / 20 | 88 | 17 / 37 |
| 2026-11-29f | 0c631532 | 61 | 21 / 29 | 82% | 47 | 30 / 71 | 74% | 30 | 17 / 23 | 60 | 13 / 17 |
| 2026-11-30 | f944d8ba | 89 | 22 / 29 | 84% | 99 | 36 / 282 | 83% | 61 | 17 / 24 | 94 | 13 / 22 |
| 2026-11-30b | df7c11d6 | 116 | 12 / 23 | 88% | 88 | 32 / 68 | 74% | 41 | 19 / 35 | 126 | 14 / 20 |
| 2026-11-30c | 777aadf3 | 82 | 18 / 21 | 90% | 46 | 40 / 48 | 76% | 57 | 16 / 20 | 95 | 11 / 28 |
| 2026-12-01, mostly T4, RTX 3060 and MI100 | be796985 | 21 | 35 / 36 | 76% | 22 | 34 / 69 | 86% | 9 | 47 / 47 | 24 | 14 / 23 |
"""  # noqa: E501


_BESIDE = """All sound runs by how far predictions missed the laboratories' runs that are most like
each (`estimate` names both): published ones are hardly nearer where laboratories' are near, which
is why the intervals of well-known kinds are wider than laboratories' errors.
"""
_BESIDE_HEAD = (
    "| laboratories: nine in ten within | published runs | publishers | median error "
    "| nine in ten within | held, of times per token |\n|---|--:|--:|--:|--:|--:|"
)
#: Ends of the lines of that table, in percent.
_LABORATORIES_WITHIN = (0, 12, 18, 25, 40, 70, math.inf)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One published run and its prediction.

    Attributes:
        row: Column to text.
        predicted: Columns of the prediction.
    """

    row: Mapping[str, str]
    run: PlannedRun
    predicted: Mapping[str, str | float]

    def measured(self, column: str) -> float:
        text = self.row[column]
        return float(text) if text else math.nan

    def ratio(self, column: str) -> float:
        """Predicted over measured; NaN where it was not measured."""
        return float(self.predicted[column]) / self.measured(column)

    def held(self, ends: tuple[str, str]) -> float:
        """One if the measured value lies in the interval, zero if not, NaN if not measured."""
        low, high = (float(self.predicted[name]) for name in ends)
        value = self.measured(ends[0].replace("_low", ""))
        return math.nan if math.isnan(value) else float(low <= value <= high)


def read(models: Path | None = None) -> tuple[list[Report], dict[str, int]]:
    """Reports that can be priced, and the reasons of the others with counts.

    Args:
        models: Folder with configurations of models besides the catalogue's.
    """
    found = RowModels(models)
    refused: collections.Counter[str] = collections.Counter()
    kept: list[tuple[Mapping[str, str], PlannedRun]] = []
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                kept.append((row, run_of(row, found.shape)))
            except ServetuneError as error:
                refused[error.message] += 1
    predicted = predict_runs([run for _, run in kept])
    reports = [
        Report(row=row, run=run, predicted=prediction_columns(run, one))
        for (row, run), one in zip(kept, predicted, strict=True)
    ]
    return reports, dict(refused.most_common())


def publisher(report: Report) -> str:
    """Account of a code host, or the host of a page, that published a run."""
    parts = [*report.row["url"].split("/"), "", ""]
    return parts[3] if parts[2] == "github.com" else parts[2]


def kind_of(report: Report) -> Kind:
    """Kind of a run, as `estimate` compares them."""
    run = report.run
    plan = resolved(run.plan, run.shape, run.node.device)
    return kind_of_run(run.node, plan, run.shape, ran_of(run))


def log_errors(reports: Sequence[Report], which: int) -> np.ndarray:
    """Logarithms of predicted over measured own times (0) or first tokens (1); NaN if unmeasured.

    The own time is that per token or, where a report has none, one over the rate.
    """
    if which:
        return np.log([report.ratio("ttft_ms") for report in reports])
    each, rate = (
        np.log([report.ratio(column) for report in reports])
        for column in ("tpot_ms", "output_tokens_per_s")
    )
    return np.where(np.isnan(each), -rate, each)


def kinds_document(reports: Sequence[Report]) -> str:
    """Kinds of runs and their errors, of runs that have any."""
    logs = np.array([log_errors(reports, which) for which in (0, 1)])
    groups: dict[tuple[str, Kind], list[int]] = collections.defaultdict(list)
    for number in np.flatnonzero(~np.isnan(logs).all(axis=0)):
        groups[publisher(reports[number]), kind_of(reports[number])].append(int(number))
    return cells_csv({group: (logs[0][of], logs[1][of]) for group, of in groups.items()})


def cells(reports: Sequence[Report]) -> list[str]:
    """Median / mean error in % of each quantity, share held where there is an interval."""
    found = []
    for _, column, ends in QUANTITIES:
        ratios = np.array([each.ratio(column) for each in reports])
        known = ~np.isnan(ratios)
        if known.sum() < _FEW:
            found += [""] * (2 if ends is None else 3)
            continue
        errors = 100 * np.abs(ratios[known] - 1)
        found += [str(int(known.sum())), f"{np.median(errors):.0f} / {errors.mean():.0f}"]
        if ends is not None:
            found.append(f"{100 * np.nanmean([each.held(ends) for each in reports]):.0f}%")
    return found


def line(name: str, reports: Sequence[Report]) -> str:
    return "| " + " | ".join([name, *cells(reports)]) + " |"


HEAD = (
    "| | rows | time per token | held | rows | first token | held | rows | end to end "
    "| rows | output tokens/s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
STRATA: Mapping[str, Callable[[Report], str]] = {
    "engine": lambda report: report.row["engine"],
    "how requests come": lambda report: report.run.protocol,
    "device": lambda report: report.run.node.device.name,
}


def table(reports: Sequence[Report], of: Callable[[Report], str]) -> list[str]:
    groups = collections.defaultdict(list)
    for report in reports:
        groups[of(report)].append(report)
    large = sorted(groups.items(), key=lambda each: -len(each[1]))
    return [HEAD, *(line(name, mine) for name, mine in large if len(mine) >= _FEW)]


def beside_laboratories(sound: Sequence[Report]) -> list[str]:
    """Errors of own times by those of the laboratories' runs that are most like them."""
    off = 100 * np.abs(np.expm1(log_errors(sound, 0)))
    most = np.array([accuracy_of(kind_of(each)).most_percent or math.nan for each in sound])
    ends = ("tpot_low_ms", "tpot_high_ms")
    lines = [_BESIDE_HEAD]
    for low, high in itertools.pairwise(_LABORATORIES_WITHIN):
        of = np.flatnonzero((most >= low) & (most < high) & ~np.isnan(off))
        publishers = {publisher(sound[number]) for number in of}
        held = [sound[number].held(ends) for number in of]
        name = f"{low}% to {high}%" if high < math.inf else f"more than {low}%"
        lines.append(
            f"| {name} | {len(of)} | {len(publishers)} | {np.median(off[of]):.0f}% "
            f"| {np.quantile(off[of], 0.9):.0f}% | {100 * np.nanmean(held):.0f}% |"
        )
    return lines


def page(reports: Sequence[Report], refused: Mapping[str, int]) -> str:
    sound = [each for each in reports if each.row["check"] == "ok"]
    unseen = [each for each in sound if each.row["looked_at"] == "no"]
    seen = [each for each in sound if each.row["looked_at"] == "yes"]
    threads = len({each.row["url"] for each in reports})
    lines = [
        _ABOUT.format(
            reports=len(reports),
            threads=threads,
            seen=len(seen),
            unseen=len(unseen),
            doubtful=len(reports) - len(sound),
            blind=_BLIND,
        ),
        HEAD,
        line("not looked at", unseen),
        *(
            line(f"looked at, of {day}", [each for each in seen if each.row["collected"] == day])
            for day in sorted({each.row["collected"] for each in seen})
        ),
        line("doubtful", [each for each in reports if each.row["check"] != "ok"]),
    ]
    for name, of in STRATA.items():
        lines += ["", f"## By {name}", "", *table(unseen, of)]
    lines += ["", "## All sound runs by how requests come", ""]
    lines += table(sound, STRATA["how requests come"])
    lines += ["", "## Beside laboratories", "", _BESIDE, *beside_laboratories(sound)]
    worst = sorted(
        (
            (abs(math.log(ratio)), each, name, ratio)
            for each in unseen
            for name, column, _ in QUANTITIES
            if not math.isnan(ratio := each.ratio(column))
        ),
        key=lambda each: -each[0],
    )
    lines += ["", "## Worst", "", "| row | quantity | predicted / measured |", "|---|---|--:|"]
    lines += [
        f"| [{each.row['id']}]({each.row['url']}) | {name} | {ratio:.2f} |"
        for _, each, name, ratio in worst[:20]
    ]
    lines += ["", "## Rows without a prediction", "", "| rows | reason |", "|--:|---|"]
    lines += [f"| {count} | {reason} |" for reason, count in refused.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    reports, refused = read()
    if given.rows:
        for each in reports:
            told = "  ".join(f"{each.ratio(column):6.2f}" for _, column, _ in QUANTITIES)
            print(f"{each.row['id']:36} {told}  {each.row['check'][:40]}")
    text = page(reports, refused)
    print(text)
    if given.write:
        PAGE.write_text(text)
        KINDS.write_text(kinds_document([each for each in reports if each.row["check"] == "ok"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
