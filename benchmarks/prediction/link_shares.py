"""Shares of a PCIe slot's rate that devices reach together, judged on publishers left out.

    python benchmarks/prediction/link_shares.py --data DIR   # a minute

Two sets of shares of `perf/roofline/data/collectives.toml` were chosen by runs: those through the
host's memory on machines that are not virtual (`staged`), by published runs (`reports.py`), and
io.net's and AccelMark's; and that of eight cards in slots before PCIe 5 that read each other's
memory (`peer4`), by NVIDIA's table of TensorRT-LLM 0.14. For each publisher, or kind of card, the
share is chosen without it, by the least mean |log error| of the others, each counting once, and
judged on it. The error is that per token, or of the rate where no time was measured.
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / "tools"), str(Path(__file__).parent)]

import reports  # noqa: E402
from measured import read  # noqa: E402

from servetune.models import load_shape  # noqa: E402
from servetune.perf.roofline import (  # noqa: E402
    PlannedRun,
    RunPoint,
    collectives,
    predict_runs,
)
from servetune.prediction.rows import run_of  # noqa: E402

#: NVIDIA's table for Llama 3.1 70B (2024): prompt, answer, devices, and output tokens/s on
#: A100-PCIe in 16 bits and on L40S in fp8.
TABLE = (
    (1000, 1000, 4, 987, 1159), (1000, 1000, 8, 960, 1173),
    (128, 128, 4, 1276, 1428), (128, 128, 8, 1223, 1377),
    (128, 2048, 4, 1472, 1771), (128, 2048, 8, 1589, 1954),
    (128, 4096, 4, 1232, 1279), (128, 4096, 8, 1351, 1494),
    (2048, 128, 4, 150, 169), (2048, 128, 8, 140, 160),
    (2048, 2048, 4, 822, 877), (2048, 2048, 8, 883, 995),
    (500, 2000, 4, 1249, 1469), (500, 2000, 8, 1322, 1636),
    (5000, 500, 4, 210, 235), (5000, 500, 8, 202, 232),
)  # fmt: skip
CARDS = (("A100-PCIe-80GB", "fp16"), ("L40S", "fp8"))
#: Shares that are tried, the first the one that the law had before, by section and devices.
TRIED: Mapping[tuple[str, int], Sequence[float]] = {
    ("staged", 2): (0.14, 0.20, 0.25, 0.30, 0.35, 0.50),
    ("staged", 4): (0.16, 0.20, 0.25, 0.30, 0.40),
    ("staged", 8): (0.075, 0.10, 0.12, 0.14, 0.16, 0.20),
    ("peer4", 8): (0.90, 0.60, 0.45, 0.38, 0.30),
}


class Rate(NamedTuple):
    """A measured run: whose it is, and its time per token or its output tokens per second."""

    whose: str
    run: PlannedRun
    tpot_ms: float
    tokens_per_s: float

    def log_error(self, point: RunPoint) -> float:
        if self.tpot_ms > 0:
            return abs(math.log(point.tpot_ms / self.tpot_ms))
        return abs(math.log(point.output_tokens_per_s / self.tokens_per_s))


def of_table() -> list[Rate]:
    """Rates of NVIDIA's table, by card."""
    found = []
    for prompt, answer, devices, *rates in TABLE:
        for (gpu, storage), rate in zip(CARDS, rates, strict=True):
            row = {
                "model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": gpu, "engine": "trtllm",
                "engine_version": "0.14.0", "precision_weights": storage, "isl": str(prompt),
                "osl": str(answer), "concurrency": "2048", "requests": "3000",
                "tp": str(devices), "protocol": "offline",
            }  # fmt: skip
            run = run_of(row, lambda name: load_shape(name, catalogue_first=True))
            found.append(Rate(gpu, run, math.nan, rate))
    return found


def of_publishers(data: Path) -> list[Rate]:
    """Runs on NVIDIA's cards through the memory of machines that are not virtual."""
    found = [
        Rate(reports.publisher(each), each.run, each.measured("tpot_ms"),
             each.measured("output_tokens_per_s"))
        for each in reports.read()[0]
        if not any(word in each.row["check"] for word in ("patched", "warm prefix"))
    ]  # fmt: skip
    found += [
        Rate(row.source, row.run, row.tpot_ms or math.nan, row.output_tokens_per_s or math.nan)
        for row in read(data, ["accelmark", "iog"])[0]
    ]
    links = ("pcie3", "pcie4", "pcie5")
    return [
        each
        for each in found
        if each.tpot_ms > 0 or each.tokens_per_s > 0
        if each.run.node.link.name in links and each.run.node.device.vendor == "NVIDIA"
    ]


def errors(rates: Sequence[Rate], section: str, devices: int, share: float) -> dict[str, float]:
    """Mean |log error| of each publisher, with a share of the slot's rate for long messages."""
    kinds = collectives._sections()
    *short, long = kinds[section][devices]
    parts = {**kinds[section], devices: (*short, long._replace(rate_fraction=share))}
    changed = {kind: parts if rows is kinds[section] else rows for kind, rows in kinds.items()}
    collectives.all_reduce_law.cache_clear()
    with mock.patch.object(collectives, "_sections", return_value=changed):
        points = [each.point for each in predict_runs([each.run for each in rates])]
    collectives.all_reduce_law.cache_clear()
    found: dict[str, list[float]] = collections.defaultdict(list)
    for rate, point in zip(rates, points, strict=True):
        found[rate.whose].append(rate.log_error(point))
    return {whose: float(np.mean(logs)) for whose, logs in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the shared data")
    published, table = of_publishers(parser.parse_args().data), of_table()
    print("| section | devices | whose | share before | error | chosen without it | error |")
    print("|---|--:|--:|--:|--:|---|--:|")
    for (section, devices), shares in TRIED.items():
        rates = table if section == "peer4" else published
        mine = [rate for rate in rates if rate.run.plan.tensor_parallel == devices]
        by_share = {share: errors(mine, section, devices, share) for share in shares}
        whose = list(by_share[shares[0]])
        chosen = {
            each: min(
                shares,
                key=lambda share, each=each: np.mean(  # type: ignore[misc]
                    [error for other, error in by_share[share].items() if other != each]
                ),
            )
            for each in whose
        }
        before = np.mean([by_share[shares[0]][each] for each in whose])
        after = np.mean([by_share[chosen[each]][each] for each in whose])
        picks = collections.Counter(chosen.values())
        said = ", ".join(f"{share:g} ({count})" for share, count in picks.most_common())
        print(
            f"| {section} | {devices} | {len(whose)} | {shares[0]:g} | {before:.2f} | {said} "
            f"| {after:.2f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
