"""What one long prompt costs those who decode: measured, and as the shipped law says.

    python benchmarks/prediction/prompt_cost.py [--data DIR]

One cell of the table was measured with prompts of 8,192 tokens and answers of 1,024, and with both
the other way round. Per token of an answer many more prompts come in the first, so the difference
of their times per token, times the tokens of an answer, over the other users, is about what the
prompt of one of them takes (with the reading of a longer or shorter context in it). It needs no
burst and no first token, and shows prompts that are priced wrongly whatever the overheads say.
"""

from __future__ import annotations

import argparse
import collections
from pathlib import Path

import numpy as np
from measured import Measured, loops_of, read

from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.step_laws import columns_of

ROOT = Path(__file__).parents[2]
SUMMARISE, REASON = (8192, 1024), (1024, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    rows, _ = read(parser.parse_args().data)
    loops = loops_of(rows)
    laws = [coefficients_for(row.node.device, row.engine, row.version) for row in rows]
    measured_ms = np.array([row.tpot_ms for row in rows])
    predicted_ms = 1e3 * loops.times_s(columns_of(laws))[1]
    cells: dict[tuple[object, ...], dict[tuple[int, int], dict[int, int]]] = (
        collections.defaultdict(lambda: collections.defaultdict(dict))
    )
    for number, row in enumerate(rows):
        cells[_cell(row)][row.nominal_lengths][row.concurrency] = number
    print("| cell | users | measured ms | predicted ms | ratio |\n|---|--:|--:|--:|--:|")
    for cell, by_lengths in sorted(cells.items(), key=str):
        for users in sorted(by_lengths[SUMMARISE].keys() & by_lengths[REASON].keys()):
            long, short = by_lengths[SUMMARISE][users], by_lengths[REASON][users]
            if loops.users[long] < 4:
                continue
            tokens = loops.outputs[long] / (loops.users[long] - 1)
            ours, theirs = ((ms[long] - ms[short]) * tokens for ms in (predicted_ms, measured_ms))
            name = " ".join(map(str, cell))
            print(f"| {name} | {users} | {theirs:.0f} | {ours:.0f} | {theirs / ours:.2f} |")


def _cell(row: Measured) -> tuple[object, ...]:
    plan = row.plan
    experts = "whole experts" if plan.expert_parallel else ""
    drafts = "drafts" if row.speculative else ""
    ways = f"{plan.tensor_parallel}x{plan.data_parallel}"
    return row.model, row.gpu, row.engine, row.version, row.precision, ways, experts, drafts


if __name__ == "__main__":
    main()
