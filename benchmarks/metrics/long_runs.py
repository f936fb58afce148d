"""Time and memory of `report` and `recommend` on long journals, against their limits.

    python benchmarks/metrics/long_runs.py [--trials 50000] [--folder DIR]

A small simulated study is repeated with other settings and figures until the journal has that many
trials, and, for `recommend`, until it has 1 GB. Limits: a report in 20 s and 2 GB with a page of
10 MB, a recommendation in 1 GB.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

GB = 10**9
STUDY = (
    "tune --engine simulated --model Qwen/Qwen3-4B --gpu L4 --num-gpus 2 -c 8,32 --server-args "
    "tensor_parallel_size=[1,2];max_num_seqs=[64,128] --client-args num_prompts=100 "
    "--constraints e2e_latency:p99<=60s --output-json seed.json"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        run(folder, STUDY.split())
        rows = [msgspec.json.decode(line) for line in (folder / "seed.jsonl").open("rb")]
        size = write(folder / "long.jsonl", rows, trials=arguments.trials)
        print(f"journal of {arguments.trials:,} trials, {size / GB:.2f} GB")
        took_s, peak_bytes = run(folder, ["report", "long.jsonl"])
        page = (folder / "long.html").stat().st_size
        show("report, time", took_s, 20, "s")
        show("report, memory", peak_bytes / GB, 2, "GB")
        show("report, page", page / 1e6, 10, "MB")
        for path in folder.glob("long.*"):
            path.unlink()
        size = write(folder / "long.jsonl", rows, size_bytes=GB)
        took_s, peak_bytes = run(folder, ["recommend", "long.jsonl"])
        show(f"recommend of {size / GB:.2f} GB in {took_s:.1f} s, memory", peak_bytes / GB, 1, "GB")


def show(what: str, value: float, limit: float, unit: str) -> None:
    print(f"{what}: {value:.3g} {unit}, {value / limit:.2f} of the limit of {limit} {unit}")


def run(folder: Path, words: list[str]) -> tuple[float, int]:
    """Seconds that a command took, and the most memory that it had."""
    begun_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "servetune", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return time.monotonic() - begun_s, used.ru_maxrss * 1024


def write(
    path: Path, rows: list[Any], *, trials: int | None = None, size_bytes: int | None = None
) -> int:
    """Write a journal of so many trials or bytes; its size in bytes."""
    rng, written, index = random.Random(1), 0, 0
    with path.open("wb") as journal:
        while index != trials and (size_bytes is None or written < size_bytes):
            written += journal.write(
                msgspec.json.encode(varied(rows[index % len(rows)], index, rng))
            )
            written += journal.write(b"\n")
            index += 1
    return written


def varied(row: dict[str, Any], index: int, rng: random.Random) -> dict[str, Any]:
    """A trial with other settings, and results up to a tenth larger."""
    config = row["config"]
    server = {
        **config["server_args"],
        "max_num_seqs": 16 << index % 7,
        "max_num_batched_tokens": 512 * (1 + index // 7 % 20),
        "block_size": 8 << index // 140 % 3,
    }
    client = {**config["client_args"], "max_concurrency": 1 + index // 420}
    return {
        **row,
        "key": f"{index:016x}",
        "config": {**config, "server_args": server, "client_args": client},
        "results": shaken(row["results"], rng),
    }


def shaken(value: Any, rng: random.Random) -> Any:
    if isinstance(value, float):
        return value * (1 + 0.1 * rng.random())
    if isinstance(value, dict):
        return {name: shaken(item, rng) for name, item in value.items()}
    return [shaken(item, rng) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
