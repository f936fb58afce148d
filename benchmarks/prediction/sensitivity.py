"""What the figures of `accuracy.py` depend on: rows that count, anchors, and kinds of GPU.

    python benchmarks/prediction/sensitivity.py [--data DIR]

Prints medians and means of absolute errors in %, of the time per token and of first tokens, with
pairs of model and GPU or laboratories left out whole. 4 minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from accuracy import ROOT, Bench, Key, anchored_logs
from measured import CONTRADICTION, SILICON, disbelieved_rows

#: NVIDIA's GPUs with a driver for data centres, as rows name them.
DATA_CENTRE = (
    "A10", "A10G", "A100", "B200", "GB200", "GH200", "H100", "H200", "L4", "L40S", "T4", "V100",
    "V100S",
)  # fmt: skip
#: What anchors share with the rows that they correct, besides source, model and GPU.
SHARED: dict[str, Key] = {
    "model and GPU": lambda _row: "",
    "model, GPU and engine": lambda row: row.engine,
    "model, GPU, engine and storage": lambda row: f"{row.engine} {row.place.storage}",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    data = parser.parse_args().data
    bench = Bench(data)
    for split in ("pair", "source"):
        bench.leave_out(split)
    everything = np.ones(len(bench.rows), dtype=bool)
    show("pair left out", bench.left_out["pair"], everything)
    for name, shared in SHARED.items():
        logs, _ = anchored_logs(bench, 2, shared)
        show(f"two anchors of {name}", logs, ~np.isnan(logs[0]))
    gpus = [row.gpu.upper().replace("_", "-").split("-")[0] for row in bench.rows]
    centre = np.array([gpu in DATA_CENTRE for gpu in gpus])
    others = np.array([row.source != SILICON for row in bench.rows])
    show("source left out, NVIDIA's data-centre GPUs", bench.left_out["source"], others & centre)
    show("source left out, other devices", bench.left_out["source"], others & ~centre)
    show_disputed(Bench(data, disputed=True), {row.id for row in bench.rows})
    return 0


def show_disputed(bench: Bench, counted: set[str]) -> None:
    """Errors of pairs where disputed rows are learnt from, and judged or not."""
    bench.leave_out("pair")
    logs = bench.left_out["pair"]
    show(
        "pair left out, disputed rows learnt from and judged", logs, np.ones(len(bench.rows), bool)
    )
    usual = set(dict(disbelieved_rows(bench.rows)))
    for ratio in (1.1, 1.25, CONTRADICTION, 2.0, 3.0):
        out = set(dict(disbelieved_rows(bench.rows, ratio)))
        of = [row.id in (counted | usual) - out for row in bench.rows]
        show(f"  learnt from, judged but contradictions of {ratio:g}", logs, np.array(of))


def show(name: str, logs: np.ndarray, of: np.ndarray) -> None:
    cells = [name, f"{of.sum():,}"]
    for errors in logs[:, of]:
        percent = 100 * np.abs(np.expm1(errors[~np.isnan(errors)]))
        cells.append(f"{np.median(percent):.1f} / {percent.mean():.1f}")
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
