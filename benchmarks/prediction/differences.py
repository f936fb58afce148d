"""How far predicted differences of two plans are off, and how often the better one is the better.

    python benchmarks/prediction/differences.py [--data DIR]

Two runs of one publisher that differ in one decision (number of GPUs, how they are split, storage,
settings, engine, device) under one load are a pair. Runs of laboratories are predicted by factors
fitted without their laboratory (`accuracy.py`), published ones (`reports.py`) as they ship.
`accuracy.py --write` writes the tables, and for rankings `order_threshold_sds`: the multiple of
`difference_sds` beyond which nine of ten pairs have the predicted order. Needs scipy; two minutes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import sys
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from reports import publisher
from reports import read as read_reports
from spread import quantile, weights

from servetune.models import NetworkShape
from servetune.perf import RunFeatures, run_features
from servetune.perf.roofline import PlannedRun, length_moments
from servetune.perf.roofline.similarity import Similarity, difference_sds, similarity_of

if TYPE_CHECKING:
    from accuracy import Bench

TIMES = ("tpot", "ttft")
#: Name of the published runs among laboratories.
PUBLISHED = "published"
#: Decisions by what two runs differ in, in the order of the page.
DECISIONS: Mapping[str, frozenset[str]] = {
    "number of GPUs": frozenset({"devices", "split"}),
    "split of as many GPUs": frozenset({"split"}),
    "storage of weights or cache": frozenset({"storage"}),
    "other settings": frozenset({"settings"}),
    "engine": frozenset({"engine", "release", "settings"}),
    "device": frozenset({"device"}),
}
#: Measured difference, as a logarithm, below which two runs are equal.
_EQUAL = 0.03
#: Share of pairs told apart that may have the other order.
_WRONG = 0.1
#: Publishers of a line of the page at least.
_FEWEST = 2
#: Lengths in octaves up to which two runs have the same load: totals of a dataset vary.
_SAME_LENGTH = 0.05
#: Largest number of pairs of one decision and group of rows, evenly spread.
_MOST = 200

_ABOUT = """## Order of two plans

Pairs of runs of one publisher under one load that differ in one thing: how far the predicted
difference is from the measured one, and how often the better one was the better, of pairs that were
measured at least 3% apart. `told apart` are those that a ranking would tell apart, by a threshold
made without the laboratory, or without a fifth of the publishers. A publisher counts as the root
of its groups of pairs and a group as the root of its pairs. Nearly all published rows had been
looked at one by one where the law was chosen.
"""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was decided, under which load, and how far its prediction is off.

    Attributes:
        source: Laboratory, or `PUBLISHED`.
        by: Publisher, whose runs alone are compared.
        load: Network, lengths and users; equal for two runs of a pair.
        decided: Parts of the plan, of which `DECISIONS` names those that differ.
        place: What its similarity to other runs is taken from.
        errors: Logarithms of predicted over measured own time and first token; NaN if unmeasured.
        logs: Logarithms of both measured times.
    """

    source: str
    by: str
    load: Hashable
    decided: Mapping[str, Hashable]
    place: RunFeatures
    errors: tuple[float, float]
    logs: tuple[float, float]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs that differ in one decision.

    Attributes:
        predicted: Logarithm of the ratio of their predicted times.
        measured: That of their measured times.
        sd: Standard deviation that similarity has for the difference of both.
    """

    decision: str
    source: str
    by: str
    group: Hashable
    predicted: float
    measured: float
    sd: float

    @property
    def off(self) -> float:
        return self.predicted - self.measured


def of_laboratories(bench: Bench) -> list[Compared]:
    """Runs of laboratories, each predicted without its own."""
    problem, logs = bench.problem, bench.left_out["source"]
    measured = np.log([problem.own_s, problem.ttft_ms / 1e3])
    return [
        Compared(
            source=row.source,
            by=row.source,
            load=_load(row.run, problem.kind[number]),
            decided=_decided(row.run, row.engine, row.version),
            place=row.place,
            errors=(float(logs[0][number]), float(logs[1][number])),
            logs=(float(measured[0][number]), float(measured[1][number])),
        )
        for number, row in enumerate(bench.rows)
    ]


def of_reports() -> list[Compared]:
    """Published runs that are sound."""
    reports = [each for each in read_reports()[0] if each.row["check"] == "ok"]
    found = []
    for report, place in zip(reports, run_features([each.run for each in reports]), strict=True):
        timed = not math.isnan(report.measured("tpot_ms"))
        own, sign = ("tpot_ms", 1) if timed else ("output_tokens_per_s", -1)
        errors = (sign * math.log(report.ratio(own)), math.log(report.ratio("ttft_ms")))
        logs = (sign * math.log(report.measured(own)), math.log(report.measured("ttft_ms")))
        run, row = report.run, report.row
        found.append(
            Compared(
                source=PUBLISHED,
                by=publisher(report),
                load=_load(run, timed),
                decided=_decided(run, row["engine"], row["engine_version"]),
                place=place,
                errors=errors,
                logs=logs,
            )
        )
    return found


def _network(shape: NetworkShape) -> Hashable:
    return shape.architecture, shape.hidden, shape.layer_count, shape.vocab


def _load(run: PlannedRun, kind: Hashable) -> Hashable:
    """Network and load; two runs with the same are told apart by what was decided."""
    moments = length_moments(run.lengths)
    lengths = (moments.input_tokens, moments.output_tokens)
    octaves = tuple(round(math.log2(max(1.0, each)) / _SAME_LENGTH) for each in lengths)
    users = (run.protocol, run.concurrency, run.rate_per_s, run.request_count)
    return _network(run.shape), kind, octaves, users


def _decided(run: PlannedRun, engine: str, version: str) -> Mapping[str, Hashable]:
    plan = run.plan
    degrees = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel")
    storage = (run.shape.quantization, plan.quantization, plan.kv_cache_dtype)
    named = ("model", "engine", "engine_version", "quantization", "kv_cache_dtype", *degrees)
    others = msgspec.structs.asdict(plan)
    return {
        "devices": plan.devices_per_replica * plan.replicas,
        "split": tuple(getattr(plan, name) for name in (*degrees, "replicas")),
        "storage": storage,
        "engine": engine,
        "release": version,
        "settings": str({k: v for k, v in others.items() if k not in (*named, "replicas")}),
        "device": run.node.device.name,
    }


def pairs_of(runs: Iterable[Compared], which: int) -> list[Pair]:
    """Pairs by own times (0) or first tokens (1)."""
    similarity = similarity_of(TIMES[which])
    alike = collections.defaultdict(list)
    for run in runs:
        if not math.isnan(run.errors[which]):
            alike[run.by, run.load].append(run)
    found = collections.defaultdict(list)
    for (by, _), mine in alike.items():
        for one, other in itertools.combinations(mine, 2):
            decision = _decision(one.decided, other.decided)
            if decision:
                group = (by, decision, *sorted((one.decided["device"], other.decided["device"])))
                found[group].append((decision, one, other))
    chosen = []
    for group, mine in found.items():
        every = max(1, -(-len(mine) // _MOST))
        for decision, one, other in mine[::every]:
            measured = one.logs[which] - other.logs[which]
            chosen.append(
                Pair(
                    decision=decision,
                    source=one.source,
                    by=one.by,
                    group=group,
                    predicted=measured + one.errors[which] - other.errors[which],
                    measured=measured,
                    sd=float(_difference_sd(one, other, similarity)),
                )
            )
    return chosen


def _difference_sd(one: Compared, other: Compared, similarity: Similarity) -> float:
    same = one.decided["device"] == other.decided["device"]
    (found,) = difference_sds([one.place, other.place], similarity, same_device=[same])
    return found


def _decision(one: Mapping[str, Hashable], other: Mapping[str, Hashable]) -> str:
    differs = {name for name in one if one[name] != other[name]}
    for decision, among in DECISIONS.items():
        decisive = next(iter(sorted(among & {"devices", "engine"})), "")
        if differs and differs <= among and (not decisive or decisive in differs):
            return decision
    return ""


def weights_of(pairs: Sequence[Pair]) -> np.ndarray:
    return weights([pair.group for pair in pairs], [pair.source for pair in pairs])


def order_threshold_sds(pairs: Sequence[Pair]) -> float:
    """Standard deviations that one pair in ten is off by to the wrong side.

    Errors of a difference are taken for symmetric: which of two runs comes first is chance.
    """
    scaled = np.array([abs(pair.off) / pair.sd for pair in pairs])
    return quantile(scaled, weights_of(pairs), 1 - 2 * _WRONG)


def are_told_apart(pairs: Sequence[Pair]) -> np.ndarray:
    """Whether each is told apart, by what others say: laboratories, a fifth of the publishers."""
    fold = np.array(
        [
            f"{pair.source} {zlib.crc32(pair.by.encode()) % 5 if pair.source == PUBLISHED else ''}"
            for pair in pairs
        ]
    )
    found = np.zeros(len(pairs), dtype=bool)
    for name in set(fold):
        mine = fold == name
        others = [pair for pair, out in zip(pairs, mine, strict=True) if not out]
        threshold = order_threshold_sds(others)
        found[mine] = [
            abs(pair.predicted) > threshold * pair.sd
            for pair, out in zip(pairs, mine, strict=True)
            if out
        ]
    return found


HEAD = (
    "| runs that differ in | pairs | publishers | difference off by, median | nine in ten within "
    "| order right | told apart | order right | order right of the others |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def table(pairs: Sequence[Pair]) -> list[str]:
    """A line for each decision, of laboratories and of published runs; the last are of all."""
    apart = are_told_apart(pairs)
    lines = [HEAD]
    for decision, published in itertools.product((*DECISIONS, "any of these"), (False, True)):
        chosen = [
            number
            for number, pair in enumerate(pairs)
            if (pair.decision == decision or decision not in DECISIONS)
            and (pair.source == PUBLISHED) is published
        ]
        if len({pairs[number].by for number in chosen}) < _FEWEST:
            continue
        mine, sure = [pairs[number] for number in chosen], apart[chosen]
        weight = _by_publisher(mine)
        off = np.abs([pair.off for pair in mine])
        cells = [
            f"{decision}, {PUBLISHED if published else 'laboratories'}",
            f"{len(mine):,}",
            str(len({pair.by for pair in mine})),
            f"{math.expm1(quantile(off, weight, 0.5)):.0%}",
            f"{math.expm1(quantile(off, weight, 0.9)):.0%}",
            _right(mine),
            f"{np.average(sure, weights=weight):.0%}",
            _right([pair for pair, s in zip(mine, sure, strict=True) if s]),
            _right([pair for pair, s in zip(mine, sure, strict=True) if not s]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _by_publisher(pairs: Sequence[Pair]) -> np.ndarray:
    return weights([pair.group for pair in pairs], [pair.by for pair in pairs])


def _right(pairs: Sequence[Pair]) -> str:
    """Share of pairs measured apart that have the predicted order; one predicted equal has half."""
    apart = [pair for pair in pairs if abs(pair.measured) >= _EQUAL]
    if not apart:
        return ""
    right = [0.5 + 0.5 * np.sign(pair.predicted) * np.sign(pair.measured) for pair in apart]
    return f"{np.average(right, weights=_by_publisher(apart)):.0%} of {len(apart):,}"


def section(runs: Sequence[Compared]) -> str:
    """The section of the page of accuracy."""
    lines = [_ABOUT]
    for which, name in enumerate(("Times per token and rates", "First tokens")):
        lines += ["", f"### {name}", "", *table(pairs_of(runs, which))]
    return "\n".join(lines)


def main() -> int:
    from accuracy import ROOT, Bench

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    bench = Bench(parser.parse_args().data)
    bench.leave_out("source")
    runs = of_laboratories(bench) + of_reports()
    for which, time in enumerate(TIMES):
        found = order_threshold_sds(pairs_of(runs, which))
        print(f"{time}: told apart beyond {found:.2f} standard deviations")
    print(section(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
