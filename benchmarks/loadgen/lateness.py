"""How late a load client is beside real vLLM, by the niceness of the server's session.

    SERVETUNE_VLLM=.venv-vllm/bin/vllm VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 \\
      python benchmarks/loadgen/lateness.py .cache/tiny-qwen3

What docs/design/0004 rests on. Needs a kernel with autogroups and a machine without other work.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from servetune.engines import engine
from servetune.loadgen import Target, run_load_blocking
from servetune.models import load_shape
from servetune.plan import Plan
from servetune.servers import free_port, server_of
from servetune.workload import workload_from_client_args
from servetune.workload.prompts import token_prompts

NICENESS = (0, 1, 3, 5, 10)
USERS = (4, 16)
ROUNDS = 2


def main(model: str) -> int:
    vllm = engine("vllm")
    plan = Plan(model=model, max_num_seqs=64, max_model_len=2048, enforce_eager=True)
    vocab = load_shape(model).vocab
    with tempfile.TemporaryDirectory() as folder:
        server = server_of(
            vllm, plan, log_path=Path(folder) / "vllm.log", port=free_port("127.0.0.1")
        )
        with server:
            server.wait_ready(300)
            print("| nice of the server's session | worst lateness, ms | over the worst at 0 |")
            print("|--:|--:|--:|")
            at_zero_s = 0.0
            for nice in NICENESS:
                Path(f"/proc/{server.pid}/autogroup").write_text(str(nice))
                worst_s = max(
                    lateness_s(server.url, model, vocab, users, seed=100 * nice + number)
                    for number in range(ROUNDS)
                    for users in USERS
                )
                at_zero_s = at_zero_s or worst_s
                print(f"| {nice} | {worst_s * 1e3:.0f} | {worst_s / at_zero_s:.2f} |", flush=True)
    return 0


def lateness_s(url: str, model: str, vocab: int, users: int, *, seed: int) -> float:
    """The longest that the client's event loop came late in a run of 160 requests."""
    workload = workload_from_client_args(
        {
            "max_concurrency": users,
            "num_prompts": 160,
            "random_input_len": 64,
            "random_output_len": 32,
            "random_range_ratio": 0.5,
            "warmup_requests": 4,
            "seed": seed,
        }
    )
    prompts = token_prompts(workload.requests(), vocab, seed * 31 + users)
    loaded = run_load_blocking(Target(base_url=url, model=model), workload, prompts)
    return loaded.instrument.loop_lag_max_s or 0.0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
