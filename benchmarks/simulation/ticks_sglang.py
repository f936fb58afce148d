"""The simulated SGLang scheduler beside SGLang's own, step by step, on random workloads.

    python benchmarks/simulation/ticks_sglang.py --sglang FOLDER --python PATH [--each 40]

FOLDER holds the package (`pip download sglang --no-deps`, unpacked), PATH is a Python with torch
and transformers, such as that of a vLLM for CPUs; neither needs a GPU. Workloads are those of
`ticks.py` with pages of one token and SGLang's settings. A step is identical when its number, its
requests and the tokens of each are; order inside a step is not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import ticks
from ticks import Tick, Workload

SGLANG_SIDE = Path(__file__).with_name("sglang_ticks.py")


def random_workload(category: str, seed: int) -> Workload:
    """A workload of one category.

    Of odd seeds the server knows the lengths of answers; two of four compose steps ahead.
    """
    rng = np.random.default_rng([sorted(CATEGORIES).index(category), seed])
    workload = {"category": category, "seed": seed, **CATEGORIES[category](rng)}
    config = workload["rules"]
    for name in ("policy", "max_model_len"):
        config.pop(name)
    config["async_scheduling"] = seed // 2 % 2 == 1
    config["block_tokens"] = 1
    variant = {
        "max_prefill_tokens": int(rng.integers(50, 400)),
        "conservativeness": float(rng.choice([0.02, 0.3, 1.0, 1.4])),
        "longest_prefix_first": False,
        "mixed_chunk": False,
        "ignore_eos": seed % 2 == 1,
    }
    config["variant"] = {"type": "prefill_first"} | variant | workload.pop("variant", {})
    return workload


def _roomy(workload: Workload) -> Workload:
    workload["rules"]["capacity_blocks"] = 20_000
    return workload


def _tight(workload: Workload, rng: np.random.Generator) -> Workload:
    """The longest request, what SGLang wants beside it, and a little more; long answers."""
    for asked in workload["requests"]:
        if asked["answer_id"] is None:
            asked["output_tokens"] = int(rng.integers(1, 120))
    longest = max(asked["input_tokens"] + asked["output_tokens"] for asked in workload["requests"])
    workload["rules"]["capacity_blocks"] = int((longest + 3) * rng.uniform(1.0, 2.5))
    workload["rules"]["max_num_seqs"] = int(rng.integers(3, 12))
    return workload


def _plain(rng: np.random.Generator, *, cached: bool = True, tight: bool = False) -> Workload:
    workload = {
        "rules": ticks._config(rng, prefix_caching=cached),
        "requests": ticks._requests(rng),
    }
    return _tight(workload, rng) if tight else _roomy(workload)


def _whole(rng: np.random.Generator) -> Workload:
    workload = _plain(rng, tight=rng.random() < 0.5)
    workload["rules"]["chunked_prefill"] = False
    return workload


def _mixed(rng: np.random.Generator) -> Workload:
    return _plain(rng, tight=rng.random() < 0.5) | {"variant": {"mixed_chunk": True}}


def _shared(rng: np.random.Generator, *, lpm: bool = False, tight: bool = False) -> Workload:
    workload = _plain(rng)
    ticks._share(rng, workload["requests"])
    if tight:
        _tight(workload, rng)
    return workload | {"variant": {"longest_prefix_first": lpm}}


def _tiny(rng: np.random.Generator) -> Workload:
    """A few short requests in a cache where each token counts, often without its prefixes."""
    config = ticks._config(rng, prefix_caching=bool(rng.random() < 0.5))
    requests = ticks._requests(rng, count=8, longest=14)
    for asked in requests:
        asked["step"], asked["output_tokens"] = int(rng.integers(12)), int(rng.integers(1, 16))
    longest = max(asked["input_tokens"] + asked["output_tokens"] for asked in requests)
    config["capacity_blocks"] = int(longest * rng.uniform(1.2, 3.5)) + 3
    config["max_num_seqs"] = int(rng.integers(2, 6))
    return {"rules": config, "requests": requests}


def _of_ticks(
    make: Callable[[np.random.Generator], Workload], rng: np.random.Generator
) -> Workload:
    workload = make(rng)
    return _tight(workload, rng) if rng.random() < 0.7 else _roomy(workload)


CATEGORIES: Mapping[str, Callable[[np.random.Generator], Workload]] = {
    "chunked prefill": _plain,
    "chunked prefill off": _whole,
    "retraction": lambda rng: _plain(rng, tight=True),
    "retraction, no radix cache": lambda rng: _plain(rng, cached=False, tight=True),
    "mixed chunks": _mixed,
    "shared prefixes": _shared,
    "shared prefixes, retraction": lambda rng: _shared(rng, tight=True),
    "shared prefixes, longest first": lambda rng: _shared(rng, lpm=True),
    "conversations": lambda rng: _of_ticks(ticks._conversations, rng),
    "very small caches": _tiny,
    "traces with block hashes": lambda rng: _of_ticks(ticks._traced, rng),
}


def sglang_ticks(workloads: list[Workload], interpreter: Path, folder: Path) -> list[list[Tick]]:
    """The same from SGLang's scheduler."""
    done = subprocess.run(
        [interpreter, SGLANG_SIDE, folder],
        input=json.dumps(workloads),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: SGLang's scheduler stopped\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def our_ticks(workload: Workload) -> tuple[list[Tick], Any]:
    ours, scheduler = ticks.our_ticks(workload)
    return [[step, sorted(content)] for step, content in ours], scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, required=True, help="folder with the package")
    parser.add_argument("--python", type=Path, required=True, help="with torch and transformers")
    parser.add_argument("--each", type=int, default=40, help="workloads per category")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--record", type=Path, help="write the workloads and SGLang's steps here")
    arguments = parser.parse_args()
    workloads = [
        random_workload(category, seed)
        for category in CATEGORIES
        for seed in range(arguments.first, arguments.first + arguments.each)
    ]
    theirs = sglang_ticks(workloads, arguments.python, arguments.sglang)
    if arguments.record:
        rows = [
            json.dumps(workload | {"runs": ticks.merged(expected)}, separators=(",", ":")) + "\n"
            for workload, expected in zip(workloads, theirs, strict=True)
        ]
        arguments.record.write_text("".join(rows))
    ticks.report(list(zip(workloads, theirs, strict=True)), CATEGORIES, our_ticks)


if __name__ == "__main__":
    main()
