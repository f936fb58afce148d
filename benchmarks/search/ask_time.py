"""Processor time of each decision of a guided search over some 10,000 plans, simulations included.

    python benchmarks/search/ask_time.py [--users 8,16,24,32,48,64,96,128] [--trials 8]
        [--model NAME] [--gpu NAME] [--num-gpus COUNT] [--sla LADDER]

The study is the README's: Qwen3-4B on four L4, `--space auto`, a limit on the 99th percentile of
first tokens. A decision follows each finished trial; before a trial is asked for it is simulated,
and what the simulation says may lead to another one.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from servetune.cli.main import main
from servetune.search.strategies.guided import Guided
from servetune.trials.predictions import PredictedTrials


def run(users: str, trials: int, model: str, gpu: str, num_gpus: int, sla: str) -> None:
    decisions: list[tuple[float, float, int]] = []
    spent = {"s": 0.0, "count": 0}
    decided, simulate = Guided._decided, PredictedTrials._simulate

    def timed_simulation(self, index):
        begin_s = time.process_time()
        simulate(self, index)
        spent["s"] += time.process_time() - begin_s
        spent["count"] += 1

    def timed_decision(self):
        if self._answer is not None:
            return decided(self)
        spent.update(s=0.0, count=0)
        begin_s = time.process_time()
        answer = decided(self)
        decisions.append((time.process_time() - begin_s, spent["s"], spent["count"]))
        return answer

    Guided._decided, PredictedTrials._simulate = timed_decision, timed_simulation
    words = [
        *("tune", "--engine", "simulated", "--model", model, "--gpu", gpu),
        *("--num-gpus", str(num_gpus), "--space", "auto", "-c", users),
        *("--max-trials", str(trials), "--sla", sla),
    ]
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["servetune", *words, "--output-json", str(Path(folder) / "run.json")]
        with contextlib.suppress(SystemExit):
            main()
    print("\ndecision  processor time (s)  simulations  of it simulating (s)")
    for number, (whole_s, simulating_s, count) in enumerate(decisions):
        print(f"{number:8d}  {whole_s:18.2f}  {count:11d}  {simulating_s:20.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="8,16,24,32,48,64,96,128")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--gpu", default="L4")
    parser.add_argument("--num-gpus", type=int, default=4)
    parser.add_argument("--sla", default="ttft:p99<=4s; itl<=60ms; then throughput")
    options = parser.parse_args()
    run(
        options.users,
        options.trials,
        options.model,
        options.gpu,
        options.num_gpus,
        options.sla,
    )
