"""The main job on a real engine: real vLLM, real HTTP load, real logs, a tiny random model.

Two server configurations under two loads each, on this machine's CPU (or GPU, with a vLLM of
your own in SERVETUNE_VLLM and any model in --model). The figures are of a toy model and mean
nothing by themselves; the path is the one that real models take.
"""

from __future__ import annotations

import argparse
import os
import sys

from steps import Demo

#: What vLLM's CPU build needs to run small: a cache of 1 GiB, and no look-ups on the hub.
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=".cache/tiny-qwen3")
    demo = Demo(parser, "out/demo-vllm")
    out = demo.out
    summary = out / "tiny.json"
    os.environ.update({k: v for k, v in CPU_ENVIRONMENT.items() if k not in os.environ})
    demo.servetune(
        "tune",
        "--engine",
        "vllm",
        "--model",
        demo.arguments.model,
        "--server-args",
        "max_num_seqs=[4,64];max_num_batched_tokens=2048;max_model_len=2048;enforce_eager=True;dtype=float32",
        "--client-args",
        "max_concurrency=[4,16];num_prompts=160;random_input_len=64;random_output_len=32;"
        "random_range_ratio=0.5;warmup_requests=16",
        "--constraints",
        "ttft:p99<=5s;error_rate<=0",
        "--output-json",
        str(summary),
    )
    demo.servetune("report", str(summary.with_suffix(".jsonl")))
    demo.servetune("recommend", str(summary.with_suffix(".jsonl")), "--objective", "latency")
    return demo.finish()


if __name__ == "__main__":
    sys.exit(main())
