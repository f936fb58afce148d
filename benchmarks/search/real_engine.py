"""Searches of a real engine: vLLM on this machine's CPU, a space of 24 trials measured once.

    SERVETUNE_VLLM=.venv-vllm/bin/vllm python benchmarks/search/real_engine.py \
        --model .cache/tiny-qwen3 --out out/real-search [--trials 8]

`tune --strategy grid` measures every trial (ten minutes on two cores that do nothing else; a
journal that exists already is read). Then each strategy searches the records: it is told of the
trials that it asks for, at most eight. Printed is the share of the best throughput within the
limits that its pick reaches.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from servetune.api.inputs import read_records
from servetune.api.request import request_of
from servetune.api.study_request import Study
from servetune.api.study_setup import study_setup
from servetune.search.strategies.guided import Guided
from servetune.store import TrialRecord
from servetune.trials import AskedTrials, ExecutionPolicy

SERVER = (
    "max_num_seqs=[2,4,8,16];max_num_batched_tokens=[128,1024];"
    "max_model_len=2048;enforce_eager=True;dtype=float32"
)
LOAD = (
    "max_concurrency=[4,8,16];random_input_len=128;random_output_len=64;num_prompts=64;"
    "warmup_requests=4"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".cache/tiny-qwen3")
    parser.add_argument("--out", type=Path, default=Path("out/real-search"))
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--strategies", default="guided,tpe,random")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    journal = given.out / "grid.jsonl"
    if not journal.exists():
        words = (
            *(sys.executable, "-m", "servetune", "tune", "--model", given.model),
            *("--engine", "vllm", "--server-args", SERVER, "--client-args", LOAD),
            *("--strategy", "grid", "--output-json", str(given.out / "grid.json")),
        )
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"} | os.environ
        subprocess.run(words, check=False, env=environment)
    records = {record.key: record for record in read_records(journal)}
    ended = [record for record in records.values() if record.status == "ok"]
    if not ended:
        print("no trial ended well: see the journal", file=sys.stderr)
        return 1
    rates = sorted(record.results["output_throughput"] for record in ended)
    print(f"{len(ended)} trials, {rates[0]:.0f} to {rates[-1]:.0f} output tokens/s\n")
    print("| limit | strategy | of the best | at least 97% of it | trials |\n|---|---|--:|--:|--:|")
    waits = [record.results["mean_ttft_ms"] for record in ended]
    for limit in ("", *(f"ttft:mean<={np.quantile(waits, q):.0f}ms" for q in (0.5, 0.25))):
        for name in given.strategies.split(","):
            seeds = 1 if name == "guided" else given.seeds
            found = [searched(given, limit, name, seed, records) for seed in range(seeds)]
            shares = [share for share, *_ in found]
            line = (
                f"| {limit or 'none'} | {name} | {np.mean(shares):.1%} | "
                f"{np.mean(np.array(shares) >= 0.97):.0%} | "
                f"{np.mean([count for _, count, _ in found]):.1f} |"
            )
            print(line + found[0][2], flush=True)
    return 0


def searched(
    given: argparse.Namespace, limit: str, name: str, seed: int, records: dict[str, TrialRecord]
) -> tuple[float, int, str]:
    """Share of the best rate that a search's pick reaches, its trials, and what it says of it."""
    words = {"engine": "vllm", "server_args": SERVER, "client_args": LOAD, "constraints": limit}
    setup = study_setup(request_of(Study, given.model, words))
    policy = ExecutionPolicy(strategy=name, seed=seed, max_trials=given.trials)
    asked = AskedTrials(setup.groups, frozenset(), setup.context, policy)
    told = []
    while (following := asked.next()) is not None:
        record = records[following[1].key]
        asked.tell(record)
        told.append(record)
    holding = [
        record
        for record in records.values()
        if record.status == "ok"
        and all(each.holds(record.results) for each in setup.context.constraints)
    ]
    best = max(record.results["output_throughput"] for record in holding)
    mine = [record.results["output_throughput"] for record in told if record in holding]
    doubt = asked.summary().doubt
    said = f" said: {doubt.best:.0%}" if isinstance(asked._strategy, Guided) and doubt else ""
    return max(mine, default=0.0) / best, len(told), said


if __name__ == "__main__":
    sys.exit(main())
