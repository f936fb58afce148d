"""Open loops after one measured open loop of the same model on the same machine.

    python benchmarks/prediction/open_anchors.py [--data DIR]

Each open loop in turn is the anchor of the others of its source, model, GPU, engine and storage.
Median / mean errors in % without an anchor, with its times taken as those of steps (until
2026-12-01), and with the factor on steps that its time per token implies, as `calibrate` does now;
last, first tokens that follow from such steps alone, as in simulations until then. Runs are by
formula, where `calibrate` simulates; steps are slower in all predictions, as in `simulate` and
`estimate --rate`. A minute.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import reports  # noqa: E402
from measured import read  # noqa: E402

from servetune.perf import Anchor, Calibration, RunFeatures, calibrated, run_features  # noqa: E402
from servetune.perf.roofline import PlannedRun, predict_runs, requests_in_flight  # noqa: E402

#: Logarithms of factors on steps between which times are interpolated.
_STEPS = np.linspace(-0.7, 0.7, 29)
_TPOT, _TTFT = 0, 1
Means = tuple[float, float]


class Table:
    """Times of runs by the factor on every step.

    Attributes:
        logs: Logarithms of times per token and first tokens, shape (factors, 2, runs).
    """

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self.logs = np.empty((len(_STEPS), 2, len(runs)))
        for step, log in enumerate(_STEPS):
            slower = Calibration(tpot_factor=float(np.exp(log)))
            points = [each.point for each in predict_runs(runs, [slower] * len(runs))]
            self.logs[step] = np.log([[p.tpot_ms for p in points], [p.ttft_ms for p in points]])

    def ms(self, run: int, which: int, log: float = 0.0) -> float:
        return float(np.exp(np.interp(log, _STEPS, self.logs[:, which, run])))

    def steps_of(self, run: int, tpot_ms: float) -> float:
        """Logarithm of the factor on steps with which a run has a time per token."""
        rising = np.maximum.accumulate(self.logs[:, _TPOT, run]) + 1e-9 * np.arange(len(_STEPS))
        return float(np.interp(np.log(tpot_ms), rising, _STEPS))


def errors(
    table: Table,
    measured: Sequence[Means],
    places: Sequence[RunFeatures],
    groups: Mapping[object, Sequence[int]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Logarithms of predicted over measured of both times, by what was made of the anchor."""
    found = {name: ([], []) for name in ("no anchor", "times", "steps", "steps alone")}
    for mine in groups.values():
        for at in mine:
            tpot_ms, ttft_ms = measured[at]
            others = [number for number in mine if number != at]
            if np.isnan(tpot_ms) or not others:
                continue
            log = table.steps_of(at, tpot_ms)
            made = {"no anchor": None, "times": 0.0, "steps": log}
            for name, taken in made.items():
                corrections = [Calibration()] * len(others)
                if taken is not None:
                    factor = np.exp(taken)
                    predicted_ms = [table.ms(at, which, taken) / factor for which in (0, 1)]
                    anchor = Anchor(
                        predicted_tpot_ms=predicted_ms[_TPOT],
                        predicted_ttft_ms=predicted_ms[_TTFT],
                        measured_tpot_ms=tpot_ms,
                        measured_ttft_ms=None if np.isnan(ttft_ms) else ttft_ms,
                        place=places[at],
                    )
                    corrections = calibrated([anchor]).at(*[places[number] for number in others])
                for number, one in zip(others, corrections, strict=True):
                    slower = float(np.log(one.tpot_factor))
                    both = (1.0, one.first_token_factor)
                    for which, more in enumerate(both):
                        off = table.ms(number, which, slower) / measured[number][which]
                        found[name][which].append(float(np.log(off * more)))
                        if name == "steps" and which == _TTFT:
                            found["steps alone"][which].append(float(np.log(off)))
    return found


def line(name: str, found: Mapping[str, tuple[list[float], list[float]]]) -> str:
    cells = [name]
    for which in (_TPOT, _TTFT):
        known = [np.array(logs[which]) for logs in found.values() if logs[which]]
        known = [100 * np.abs(np.expm1(logs[~np.isnan(logs)])) for logs in known]
        cells.append(f"{len(known[0]):,}")
        cells += [f"{np.median(off):.1f} / {off.mean():.1f}" for off in known]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    made = "no anchor | its times | its steps"
    print(
        f"| source | time per token: pairs | {made} | first token: pairs | {made} | steps alone |"
    )
    print("|---" + 9 * "|--:" + "|")
    rows = [row for row in read(given.data)[0] if row.run.protocol == "open"]
    table = Table([row.run for row in rows])
    measured = [(row.tpot_ms, row.ttft_ms) for row in rows]
    by_source = collections.defaultdict(lambda: collections.defaultdict(list))
    for number, row in enumerate(rows):
        by_source[row.source][row.model, row.gpu, row.engine, row.precision].append(number)
    for source, groups in by_source.items():
        print(line(source, errors(table, measured, [row.place for row in rows], groups)))
    published = [
        each
        for each in reports.read()[0]
        if each.row["check"] == "ok" and each.run.protocol == "open"
    ]
    runs = [each.run for each in published]
    places = run_features(runs, in_flight=requests_in_flight(runs, predict_runs(runs)))
    groups = collections.defaultdict(list)
    for number, each in enumerate(published):
        groups[tuple(each.row[name] for name in ("url", "model", "gpu", "engine"))].append(number)
    measured = [(each.measured("tpot_ms"), each.measured("ttft_ms")) for each in published]
    print(line("published", errors(Table(runs), measured, places, groups)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
