"""The simulated engine over HTTP beside the same simulation in virtual time, metric by metric.

    python benchmarks/simulation/over_http.py [--speed 2]
    python benchmarks/simulation/over_http.py --streams

The first serves two plans under two loads each through servetune's own load client and prints
served / simulated for each metric, times scaled back by the speed. The second raises the
speed of 64 streams: tokens per second, their share of what virtual time says, and the worst
that any token left behind the server's own clock. Client and server share this machine, so
run nothing else: a single spike of the machine is the worst of a run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from servetune.engines.translate import settings_of
from servetune.hardware import node
from servetune.loadgen import Target, fetch_blocking, parse_metrics, run_load_blocking
from servetune.metrics import summarize
from servetune.models import load_shape
from servetune.perf import simulate
from servetune.plan import Plan
from servetune.servers import ServerOptions, ServerProcess, free_port
from servetune.workload import workload_from_client_args
from servetune.workload.prompts import token_prompts

MODEL = "Qwen/Qwen3-4B"
GPU = "L4"
#: Said, as it differs between closed and open loops where it is not, and a server cannot know.
AHEAD = (("async_scheduling", True),)
PLANS = {
    "TP1, 512 tokens a step": Plan(
        model=MODEL, max_num_batched_tokens=512, max_num_seqs=64, extra=AHEAD
    ),
    "TP2, 8192 tokens a step": Plan(
        model=MODEL,
        tensor_parallel=2,
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        extra=AHEAD,
    ),
}
LENGTHS = {
    "random_input_len": 512,
    "random_output_len": 64,
    "random_range_ratio": 0.5,
    "warmup_requests": 2,
}
LOADS = {
    "16 users": {"max_concurrency": 16, "num_prompts": 96, **LENGTHS},
    "Poisson 3/s": {"request_rate": 3.0, "num_prompts": 96, **LENGTHS},
}
METRICS = (
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2e_latency_ms",
    "p99_e2e_latency_ms",
)
STREAMS = 64
SPEEDS = (1, 2, 4, 8, 16, 32, 64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", type=float, default=2.0)
    parser.add_argument("--streams", action="store_true")
    asked = parser.parse_args()
    if asked.streams:
        print_streams()
    else:
        print_ratios(asked.speed)
    return 0


def print_ratios(speed: float) -> None:
    shape = load_shape(MODEL, catalogue_first=True)
    print(f"| plan | load | {' | '.join(METRICS)} | output_throughput | client lag p99 |")
    print(f"|---|---|{'--:|' * (len(METRICS) + 2)}")
    for label, plan in PLANS.items():
        machine = node(gpu=GPU, count=plan.device_count)
        for load, args in LOADS.items():
            served = served_results(plan, args, speed)
            workload = workload_from_client_args(at_speed(args, 1.0))
            simulation = simulate(plan, shape, machine, workload)
            truth = summarize(simulation.records, duration_s=simulation.duration_s)
            ratios = [served[name] * speed / truth[name] for name in METRICS]
            ratios.append(served["output_throughput"] / speed / truth["output_throughput"])
            told = " | ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"| {label} | {load} | {told} | {served['lag_p99_s'] * 1e3:.1f} ms |", flush=True)


def print_streams() -> None:
    plan = Plan(model=MODEL, max_num_seqs=STREAMS, max_num_batched_tokens=8192)
    args = {
        "max_concurrency": STREAMS,
        "num_prompts": STREAMS,
        "random_input_len": 64,
        "random_output_len": 512,
    }
    shape = load_shape(MODEL, catalogue_first=True)
    workload = workload_from_client_args(args)
    simulation = simulate(plan, shape, node(gpu=GPU, count=1), workload)
    truth = summarize(simulation.records, duration_s=simulation.duration_s)
    print("| speed | tokens/s | of the simulated rate | worst behind its clock |")
    print("|--:|--:|--:|--:|")
    for speed in SPEEDS:
        served = served_results(plan, args, float(speed))
        rate = served["output_throughput"]
        share = rate / speed / truth["output_throughput"]
        print(
            f"| {speed} | {rate:,.0f} | {share:.3f} | {served['most_behind_s'] * 1e3:.1f} ms |",
            flush=True,
        )


def at_speed(args: dict, speed: float) -> dict:
    """The same load for an engine whose seconds pass that much faster."""
    if "request_rate" not in args:
        return args
    return {**args, "request_rate": args["request_rate"] * speed}


def served_results(plan: Plan, args: dict, speed: float) -> dict:
    port = free_port()
    words = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings_of(plan).items()
        if value is not None
    ]
    command = (
        *(sys.executable, "-m", "servetune.cli.serve_simulated", plan.model, "--gpu", GPU),
        *("--port", str(port), "--speed", str(speed), *words),
    )
    workload = workload_from_client_args(at_speed(args, speed))
    prompts = token_prompts(workload.requests(), 100_000, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        server = ServerProcess(
            command, log_path=log, port=port, options=ServerOptions(name="simulated")
        )
        with server:
            server.wait_ready(60)
            target = Target(base_url=server.url, model=plan.model)
            loaded = run_load_blocking(target, workload, prompts)
            told = parse_metrics(fetch_blocking(target, "/metrics"))
    results = summarize(loaded.records, duration_s=loaded.duration_s)
    if results["failed"]:
        raise SystemExit(f"{results['failed']} requests failed: {results['failures']}")
    results["lag_p99_s"] = loaded.instrument.loop_lag_p99_s or 0.0
    results["most_behind_s"] = told["servetune_simulated_most_behind_seconds"]
    return results


if __name__ == "__main__":
    sys.exit(main())
