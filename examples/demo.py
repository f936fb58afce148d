"""The main job from end to end on the simulated engine, on any laptop.

The sweep of the published walk-through: Qwen3-4B on four L4 GPUs, ShareGPT's lengths, nine
server configurations under three loads. Every command is printed before it runs, so that
each can be pasted and changed.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = "e2e_latency:p99<=60s;request_throughput>=5"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    summary = out / "qwen3-4b.json"
    if out.exists():  # the demo's own folder, made anew each time
        shutil.rmtree(out)
    started_s = time.monotonic()
    servetune(
        "estimate",
        "--model",
        "Qwen/Qwen3-4B",
        "--gpu",
        "L4",
        "--num-gpus",
        "4",
        "--input-len",
        "302",
        "--output-len",
        "196",
    )
    servetune(
        "tune",
        "--engine",
        "simulated",
        "--model",
        "Qwen/Qwen3-4B",
        "--instance",
        "ml.g6.12xlarge",
        "--server-args",
        "tensor_parallel_size=[1,2,4];max_num_batched_tokens=[4096,8192,16384]",
        "--client-args",
        "max_concurrency=[32,64,128];num_prompts=1000;dataset_name=sharegpt",
        "--constraints",
        CONSTRAINTS,
        "--compare",
        str(HERE / "published" / "qwen3-4b-4xl4.jsonl"),
        "--output-json",
        str(summary),
    )
    servetune("recommend", str(summary.with_suffix(".jsonl")), "--objective", "throughput")
    servetune("deploy", "sagemaker", str(summary), "--out", str(out / "sagemaker"))
    print(f"\nall of it took {time.monotonic() - started_s:.1f} s; look at {out}/ :")
    for path in sorted(out.rglob("*")):
        if path.is_file():
            print(f"  {path}")
    return 0


def servetune(*arguments: str) -> None:
    """Print a servetune command and run it; stop the demo when it fails."""
    print(f"\n$ {shlex.join(['servetune', *arguments])}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "servetune", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    sys.exit(main())
