"""How far the load generator's times are from the truth, and what a token costs it.

The shipped fake server runs as a process on one core and logs when each token left, on the
clock that the client stamps with; the client runs on another core. Run it from the root of
the repository:

    python benchmarks/loadgen/truth.py --concurrency 64 --requests 640

Both are Python here, so the server's own lateness is in the truth: compare reported and true,
not either with the nominal times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from servetune.loadgen import LoadResult, Target, run_load_blocking
from servetune.workload import LengthLaws, Workload
from servetune.workload.prompts import token_prompts


def main() -> None:
    options = read_options()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "truth.jsonl"
        server, port = start_server(options, log, cores[-1])
        try:
            result, cpu_s = measure(options, port)
        finally:
            server.kill()
            server.wait()
        # The first truth is the warm-up request's.
        truths = [json.loads(line) for line in log.read_text().splitlines()]
        show(result, sorted(truths, key=lambda truth: truth["index"])[1:], cpu_s)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--ttft-s", type=float, default=0.05)
    parser.add_argument("--itl-s", type=float, default=0.01)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--input-tokens", type=int, default=128)
    return parser.parse_args()


def start_server(
    options: argparse.Namespace, log: Path, core: int
) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "servetune.testing.fake_server", "--truth", str(log)]
    command += ["--ttft-s", str(options.ttft_s), "--itl-s", str(options.itl_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(server.pid, {core})
    assert server.stdout is not None
    return server, int(server.stdout.readline().split()[-1])


def measure(options: argparse.Namespace, port: int) -> tuple[LoadResult, float]:
    workload = Workload.of(
        LengthLaws.fixed(options.input_tokens, options.output_tokens),
        request_count=options.requests,
        concurrency=options.concurrency,
    )
    prompts = token_prompts(workload.requests(), 32_000, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    target = Target(base_url=f"http://127.0.0.1:{port}", model="fake")
    result = run_load_blocking(target, workload, prompts)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(result: LoadResult, truths: list[dict[str, object]], cpu_s: float) -> None:
    failed = [record for record in result.records if record.outcome != "ok"]
    assert not failed, failed[0]
    assert len(truths) == len(result.records)
    tokens = sum(record.output_tokens for record in result.records)
    true_ttft = [truth["sent_s"][0] - truth["received_s"] for truth in truths]
    true_gaps = np.concatenate([np.diff(truth["sent_s"]) for truth in truths])
    gaps = np.concatenate([np.diff(record.chunk_times_s) for record in result.records])
    rows = {
        "TTFT from due": ([record.ttft_s for record in result.records], true_ttft),
        "TTFT from sent": (
            [record.chunk_times_s[0] - record.sent_s for record in result.records],
            true_ttft,
        ),
        "ITL": (gaps, true_gaps),
    }
    print(f"{'ms: reported / true = ratio':28}{'mean':>24}{'p50':>24}{'p99':>24}")
    for name, (reported, true) in rows.items():
        cells = [
            f"{1e3 * law(reported):9.2f} /{1e3 * law(true):7.2f} ={law(reported) / law(true):6.3f}"
            for law in (np.mean, np.median, lambda values: np.percentile(values, 99))
        ]
        print(f"{name:28}" + "".join(cells))
    print(f"{tokens / result.duration_s:,.0f} tokens/s, {cpu_s:.2f} CPU-s of the client")
    print(f"{cpu_s / tokens * 1e6:.1f} CPU-s per million tokens (prompts excluded)")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print(result.instrument)


if __name__ == "__main__":
    main()
