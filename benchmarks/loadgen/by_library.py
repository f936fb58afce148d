"""servetune's load generator asked as a library, with the options and the report of the readers.

What it measures beside `servetune bench` is what the command line adds: the workload's
preparation, the metrics and the report.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys

import numpy as np

from servetune.loadgen import LoadResult, Target, run_load_blocking
from servetune.workload import LengthLaws, Workload
from servetune.workload.prompts import text_prompts


def main() -> None:
    options = read_options()
    workload = Workload.of(
        LengthLaws.fixed(options.input_tokens, options.output_tokens),
        request_count=options.requests,
        concurrency=options.concurrency,
        api="chat",
    )
    prompts = text_prompts(workload.requests(), seed=1)
    target = Target(base_url=f"http://127.0.0.1:{options.port}", model="fake")
    before_s = cpu_s()
    result = run_load_blocking(target, workload, prompts)
    told(result, cpu_s() - before_s)


def told(result: LoadResult, used_s: float) -> None:
    records = result.records
    answered = [record for record in records if record.outcome == "ok"]
    tokens = sum(record.output_tokens for record in answered)
    gaps = [np.diff(np.asarray(record.chunk_times_s)) for record in answered]
    found = {
        "client": "servetune-library",
        "requests": len(records),
        "failed": len(records) - len(answered),
        "tokens": tokens,
        "wall_s": result.duration_s,
        "tokens_per_s": tokens / result.duration_s,
        "cpu_s": used_s,
        "ttft_ms": law(np.array([record.ttft_s for record in answered], dtype=float)),
        "itl_ms": law(np.concatenate(gaps) if gaps else np.empty(0)),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(found) + "\n")


def law(times_s: np.ndarray) -> dict[str, float] | None:
    if not len(times_s):
        return None
    p50_s, p99_s = np.percentile(times_s, [50, 99])
    return {"mean": 1e3 * times_s.mean(), "p50": 1e3 * p50_s, "p99": 1e3 * p99_s}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--input-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    main()
