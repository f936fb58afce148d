"""The simulated scheduler beside vLLM's own, step by step, on random workloads.

    SERVETUNE_VLLM=path/to/vllm python benchmarks/simulation/ticks.py [--each 40]

Each workload has random requests, arrivals at random steps and random limits. vLLM's scheduler
class runs under vLLM's own interpreter (`vllm_ticks.py`), ours in this one; both say for every
step which request gets how many tokens, in which order. Printed is the share of identical steps
and of wholly identical workloads by category, and how often what the category is named for
happened. A step is identical when its number, its requests, their order and their tokens are;
after a first difference hardly any other can be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.scheduler_choice import scheduler_for
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.simulation import known_pieces
from servetune.workload.request import Request

VLLM_SIDE = Path(__file__).with_name("vllm_ticks.py")

#: `[step, [[request, tokens], ...]]`
Tick = list[Any]
Workload = dict[str, Any]


class OneSecond:
    """Every step takes a second, so that a step's end is its number."""

    def seconds(self, *_: float) -> float:
        return 1.0

    def decode_run_s(self, _sequences: int, _context: float, steps: int) -> np.ndarray:
        return np.ones(steps)


def our_ticks(workload: Workload) -> tuple[list[Tick], Scheduler]:
    """What the simulator puts into each step, and the scheduler after the last of them."""
    limits = {name: value for name, value in workload["rules"].items() if name != "max_model_len"}
    scheduler = scheduler_for(msgspec.convert(limits, SchedulerConfig), OneSecond())  # type: ignore[arg-type]
    arrivals = sorted(workload["requests"], key=lambda asked: asked["step"])
    step, given, ticks = 0, 0, []

    def enqueue(asked: Mapping[str, Any]) -> None:
        request = Request(
            index=asked["index"],
            due_s=0.0,
            input_tokens=asked["input_tokens"],
            output_tokens=asked["output_tokens"],
            prefix=tuple((content, tokens) for content, tokens in asked["prefix"]),
            answer_id=asked["answer_id"],
            priority=asked["priority"],
        )
        scheduler.enqueue(
            Sequence(
                request.index,
                request.input_tokens,
                request.output_tokens,
                pieces=known_pieces(request),
                priority=request.priority,
            )
        )

    while True:
        while given < len(arrivals) and arrivals[given]["step"] <= step:
            enqueue(arrivals[given])
            given += 1
        end_s = scheduler.plan(float(step))
        if end_s is None:
            if given == len(arrivals):
                return ticks, scheduler
            step = arrivals[given]["step"]
            continue
        # In the midst of a stretch: it must be cut as if every step were planned alone.
        while given < len(arrivals) and arrivals[given]["step"] < (scheduler.planned_end_s or 0):
            enqueue(arrivals[given])
            scheduler.interrupt(arrivals[given]["step"] - 0.5)
            given += 1
        composed = [list(pair) for pair in scheduler.planned_tokens().items()]
        for _ in range(scheduler.planned_steps):
            ticks.append([step, composed])
            step += 1
        scheduler.commit()


def vllm_ticks(workloads: list[Workload], interpreter: Path) -> list[list[Tick]]:
    """The same from vLLM's scheduler."""
    done = subprocess.run(
        [interpreter, VLLM_SIDE],
        input=json.dumps(workloads),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: vLLM's scheduler stopped\n{done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def interpreter_of(vllm: str) -> Path:
    """The Python that a `vllm` command belongs to."""
    return Path(vllm).with_name("python")


def random_workload(category: str, seed: int) -> Workload:
    """A workload of one category; the same for the same seed.

    Odd seeds have asynchronous scheduling.
    """
    rng = np.random.default_rng([sorted(CATEGORIES).index(category), seed])
    workload = {"category": category, "seed": seed, **CATEGORIES[category](rng)}
    workload["rules"]["async_scheduling"] = seed % 2 == 1
    return workload


def _config(rng: np.random.Generator, **fields: object) -> dict[str, Any]:
    places = int(rng.integers(1, 12))
    usual = {
        "max_num_seqs": places,
        "max_num_batched_tokens": int(max(places, rng.integers(8, 100))),
        "block_tokens": int(rng.choice([4, 8, 16])),
        "capacity_blocks": 2000,
        "chunked_prefill": True,
        "prefix_caching": False,
        "policy": "fcfs",
        "async_scheduling": False,
        "max_model_len": 400,
    }
    return usual | fields


def _requests(rng: np.random.Generator, count: int = 40, longest: int = 100) -> list[Workload]:
    gap = rng.choice([0.0, 2.0, 8.0])
    steps = np.cumsum(rng.exponential(gap, count) if gap else np.zeros(count)).astype(int)
    return [
        {
            "index": index,
            "step": int(steps[index]),
            "input_tokens": int(rng.integers(1, longest)),
            "output_tokens": int(rng.integers(1, 40)),
            "prefix": [],
            "answer_id": None,
            "priority": 0,
        }
        for index in range(count)
    ]


def _tight(rng: np.random.Generator, config: dict[str, Any], requests: list[Workload]) -> None:
    """A cache of the longest request and a little more: preemptions without end."""
    longest = max(asked["input_tokens"] + asked["output_tokens"] for asked in requests)
    blocks = -(-longest // config["block_tokens"])
    config["capacity_blocks"] = int(blocks * rng.uniform(1.0, 2.5))
    config["max_num_seqs"] = int(rng.integers(3, 12))
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["max_num_seqs"])


def _share(rng: np.random.Generator, requests: list[Workload]) -> None:
    """A few system prompts, some of them beginning alike."""
    prompts = [[[0, 24], [1, 40]], [[0, 24], [2, 17]], [[3, int(rng.integers(1, 90))]]]
    for asked in requests:
        prefix = prompts[int(rng.integers(len(prompts)))]
        length = sum(tokens for _, tokens in prefix)
        asked["prefix"] = prefix
        # Sometimes there is nothing else: then the last token is computed again.
        asked["input_tokens"] = length + int(rng.choice([0, 0, *range(1, 60)]))


def _plain(rng: np.random.Generator) -> Workload:
    return {"rules": _config(rng), "requests": _requests(rng)}


def _whole_prompts(rng: np.random.Generator) -> Workload:
    config = _config(rng, chunked_prefill=False, max_model_len=140)
    config["max_num_batched_tokens"] = int(rng.integers(140, 300))
    requests = _requests(rng)
    if rng.random() < 0.5:
        _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


def _preempted(rng: np.random.Generator, *, prefix_caching: bool = False) -> Workload:
    config, requests = _config(rng, prefix_caching=prefix_caching), _requests(rng)
    _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


def _shared(rng: np.random.Generator, *, tight: bool = False) -> Workload:
    config, requests = _config(rng, prefix_caching=True), _requests(rng)
    _share(rng, requests)
    if tight:
        _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


def _conversations(rng: np.random.Generator) -> Workload:
    """Turns that begin with all turns before them, in a cache that loses some of it."""
    config, requests = _config(rng, prefix_caching=True), []
    content = iter(range(100, 10_000))
    for _ in range(8):
        step, prefix = int(rng.integers(0, 300)), [[0, 20]]
        for _ in range(int(rng.integers(2, 6))):
            prefix = [*prefix, [next(content), int(rng.integers(1, 30))]]
            asked = {
                "index": len(requests),
                "step": step,
                "input_tokens": sum(tokens for _, tokens in prefix),
                "output_tokens": int(rng.integers(1, 30)),
                "prefix": prefix,
                "answer_id": next(content),
                "priority": 0,
            }
            requests.append(asked)
            prefix = [*prefix, [asked["answer_id"], asked["output_tokens"]]]
            step += int(rng.integers(20, 200))
    if rng.random() < 0.7:
        _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


def _traced(rng: np.random.Generator) -> Workload:
    """One content id for each 32 tokens, as traces with hashes have them."""
    config, requests = _config(rng, prefix_caching=True), _requests(rng, longest=200)
    for asked in requests:
        tree = [int(rng.integers(3))]
        while len(tree) * 32 < asked["input_tokens"]:
            tree.append(tree[-1] * 3 + int(rng.integers(3)) + 10)
        last = asked["input_tokens"] - 32 * (len(tree) - 1)
        asked["prefix"] = [[node, 32] for node in tree[:-1]] + [[tree[-1], last]]
    if rng.random() < 0.7:
        _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


def _by_priority(rng: np.random.Generator, *, tight: bool, shared: bool = False) -> Workload:
    config = _config(rng, policy="priority", prefix_caching=shared)
    requests = _requests(rng)
    for asked in requests:
        asked["priority"] = int(rng.integers(-2, 3))
    if shared:
        _share(rng, requests)
    if tight:
        _tight(rng, config, requests)
    return {"rules": config, "requests": requests}


CATEGORIES: Mapping[str, Callable[[np.random.Generator], Workload]] = {
    "chunked prefill": _plain,
    "chunked prefill off": _whole_prompts,
    "preemption": _preempted,
    "preemption, own blocks found again": lambda rng: _preempted(rng, prefix_caching=True),
    "shared prefixes": _shared,
    "shared prefixes, preemption": lambda rng: _shared(rng, tight=True),
    "conversations": _conversations,
    "traces with block hashes": _traced,
    "priority": lambda rng: _by_priority(rng, tight=False),
    "priority, preemption": lambda rng: _by_priority(rng, tight=True),
    "priority, preemption, shared prefixes": lambda rng: _by_priority(rng, tight=True, shared=True),
}


def compare(ours: list[Tick], theirs: list[Tick]) -> tuple[int, int]:
    """Identical steps, and steps of the longer schedule."""
    same = sum(mine == yours for mine, yours in zip(ours, theirs, strict=False))
    return same, max(len(ours), len(theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=40, help="workloads per category, of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--record", type=Path, help="write the seeds and vLLM's steps here")
    arguments = parser.parse_args()
    vllm = os.environ.get("SERVETUNE_VLLM")
    if not vllm:
        sys.exit("error: no vLLM\nhint: SERVETUNE_VLLM=path/to/vllm, see CONTRIBUTING.md")
    workloads = [
        random_workload(category, seed)
        for category in CATEGORIES
        for seed in range(arguments.first, arguments.first + 2 * arguments.each)
    ]
    theirs = vllm_ticks(workloads, interpreter_of(vllm))
    if arguments.record:
        rows = [
            json.dumps(workload | {"runs": merged(ticks)}, separators=(",", ":")) + "\n"
            for workload, ticks in zip(workloads, theirs, strict=True)
        ]
        arguments.record.write_text("".join(rows))
    report(list(zip(workloads, theirs, strict=True)))


def merged(ticks: list[Tick]) -> list[list[Any]]:
    """Steps in a row with the same content as one: `[first step, steps, content]`."""
    runs: list[list[Any]] = []
    for step, content in ticks:
        if runs and runs[-1][2] == content and runs[-1][0] + runs[-1][1] == step:
            runs[-1][1] += 1
        else:
            runs.append([step, 1, content])
    return runs


def report(
    schedules: list[tuple[Workload, list[Tick]]],
    categories: Iterable[str] = CATEGORIES,
    played: Callable[[Workload], tuple[list[Tick], Scheduler]] = our_ticks,
) -> None:
    """A table of synchronous scheduling, and one of asynchronous."""
    for asynchronous in (False, True):
        print(f"\n{'asynchronous' if asynchronous else 'synchronous'} scheduling\n")
        rows = [row for row in schedules if row[0]["rules"]["async_scheduling"] is asynchronous]
        _table(rows, categories, played)


def _table(
    schedules: list[tuple[Workload, list[Tick]]],
    categories: Iterable[str],
    played: Callable[[Workload], tuple[list[Tick], Scheduler]],
) -> None:
    print("| category | workloads | identical | steps | identical | preemptions | cached tokens |")
    print("|---|---|---|---|---|---|---|")
    sums = np.zeros(7, dtype=int)
    for category in categories:
        row = np.zeros(7, dtype=int)
        for workload, expected in schedules:
            if workload["category"] != category:
                continue
            ours, after = played(workload)
            same, steps = compare(ours, expected)
            cached = (after.cached_prompt_tokens, after.admitted_prompt_tokens)
            row += (1, same == steps, steps, same, after.preemptions, *cached)
            if same != steps:
                print(f"differs: {category} seed {workload['seed']}", file=sys.stderr)
        sums += row
        print(_line(category, row))
    print(_line("all", sums))


def _line(name: str, row: np.ndarray) -> str:
    workloads, whole, steps, same, preemptions, cached, prompts = (int(count) for count in row)
    return (
        f"| {name} | {workloads} | {whole} | {steps:,} | {same / steps:.2%} "
        f"| {preemptions:,} | {cached / max(prompts, 1):.1%} |"
    )


if __name__ == "__main__":
    main()
