"""`servetune compare` on a real engine: an A/A pair and an A/B pair through `servetune bench`.

    SERVETUNE_VLLM=.venv-vllm/bin/vllm python benchmarks/metrics/regression_gate_engine.py \
        --model .cache/tiny-qwen3 [--runs 5] [--requests 80] [--out out/regression-gate] \
        [--servers URL_OF_A URL_OF_B]

Two servers of the same model on this machine, B with half of A's `max_num_seqs`. Each round sends
the requests of one seed to A, to A again and to B, in turn; prefix caches are off, so that A knows
nothing of the first time. A must pass against itself, and B must fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import servetune as st
from servetune.cli.main import cli

GATE = "ttft:p99>+10%;output_throughput<-5%"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
USERS = 8


def compare(*words: str) -> int:
    """Exit status of the command; run in this process, as `bench` is, which saves imports."""
    print(f"$ servetune compare {' '.join(words)}", flush=True)
    status = cli.main(["compare", *words], standalone_mode=False)
    sys.stdout.flush()
    return status


@contextmanager
def server(model: str, seqs: int, log: Path):
    """Address of a vLLM with so many sequences at most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        os.environ.get("SERVETUNE_VLLM", "vllm"), "serve", model, "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--enforce-eager",
        "--dtype", "float32", "--max-num-seqs", str(seqs), "--no-enable-prefix-caching",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**ENVIRONMENT, **os.environ},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended with {process.returncode}; see {log}")
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except OSError:
                time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".cache/tiny-qwen3")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--output-tokens", default="kind=uniform,min=16,max=48")
    parser.add_argument("--out", type=Path, default=Path("out/regression-gate"))
    parser.add_argument("--servers", nargs=2, metavar="URL", help="A and B, where they run already")
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with ExitStack() as stack:
        a, b = given.servers or (
            stack.enter_context(server(given.model, seqs, given.out / f"{seqs}.log"))
            for seqs in (USERS, USERS // 2)
        )
        for seed in range(given.runs + 1):
            for name, url in (("base", a), ("again", a), ("new", b)):
                out = given.out / ("warm-up" if seed == 0 else name) / f"{name}-{seed}"
                found = st.bench(
                    url,
                    model="tiny",
                    concurrency=USERS,
                    requests=8 if seed == 0 else given.requests,
                    input_tokens="64",
                    output_tokens=given.output_tokens,
                    seed=seed,
                    out=out,
                )
                if found.status:
                    raise SystemExit(f"bench ended with {found.status}; see {out}")
                print(out, f"{found.record.results.output_throughput:.0f} tokens/s", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    base, again, new = (str(given.out / name) for name in ("base", "again", "new"))
    statuses = [
        compare(base, side, "--fail-on", GATE, "--junit", f"{side}.xml") for side in (again, new)
    ]
    compare(base, again, "--plan-run")
    print(f"exit status A/A {statuses[0]} (0 is right), A/B {statuses[1]} (1 is right)")
    sys.exit(statuses != [0, 1])


if __name__ == "__main__":
    main()
