"""The main job from end to end on the simulated engine, on any laptop.

The sweep of the published walk-through: Qwen3-4B on four L4 GPUs, ShareGPT's lengths, nine
server configurations under three loads. Every command is printed before it runs, so that
each can be pasted and changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from steps import Demo

HERE = Path(__file__).parent
CONSTRAINTS = "e2e_latency:p99<=60s;request_throughput>=5"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    demo = Demo(parser, "out/demo")
    out = demo.out
    summary = out / "qwen3-4b.json"
    demo.servetune(
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
    demo.servetune(
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
    demo.servetune("recommend", str(summary.with_suffix(".jsonl")), "--objective", "throughput")
    demo.servetune("deploy", "sagemaker", str(summary), "--out", str(out / "sagemaker"))
    return demo.finish()


if __name__ == "__main__":
    sys.exit(main())
