"""Load generators side by side against the compiled server, each pinned to one core.

    python benchmarks/loadgen/rivals.py                       # servetune, the yardsticks, vLLM
    python benchmarks/loadgen/rivals.py --rivals              # all that are installed
    python benchmarks/loadgen/rivals.py --shapes              # token counts, shape by shape

The client has the first core, the server and this script the last one; nothing else should run.
Rounds are interleaved (every client once, then all again) and medians shown. What the server
knows is the truth: tokens per second and the CPU time of the load are counted between the first
request that it saw and the last token that it sent, for every client alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import rival_clients
import shapes
import targets
from clients import CLIENTS, Client, Load, Place, Reported
from watched import Truth, Watched, serving, watch
from word_tokenizer import word_tokenizer

LIMIT_S = 900.0


@dataclass(frozen=True)
class Scenario:
    """One row of what is compared: how the server answers, and what is asked of it."""

    title: str
    server: tuple[str, ...]
    load: Load
    slow_share: float = 1.0  # of `load`, for clients with a share below one


STEADY = ("--ttft-us", "50000", "--itl-us", "10000")
SCENARIOS: Mapping[str, Scenario] = {
    "fast": Scenario("as fast as it can, one token a write, 64 users", (), Load(64, 6400, 32, 256)),
    "bursts": Scenario(
        "as fast as it can, 16 tokens a write, 64 users",
        ("--chunks-per-write", "16"),
        Load(64, 12800, 32, 256),
    ),
    "steady": Scenario("TTFT 50 ms, ITL 10 ms, 64 users", STEADY, Load(64, 640, 32, 128), 4.0),
    "crowd": Scenario(
        "TTFT 50 ms, ITL 10 ms, 1,024 users, 10,000 requests",
        STEADY,
        Load(1024, 10_000, 32, 128),
        4.0,
    ),
}


@dataclass(frozen=True)
class Run:
    """One client's run: what the server knows, what was seen, and what the client said."""

    client: str
    requests: int
    tokens_per_s: float
    cpu_s_per_million: float
    all_cpu_s_per_million: float
    server_busy: float
    peak_mb: float
    first_request_s: float
    counts_agree: bool
    true_ttft_ms: Mapping[str, float]
    ttft_ms: Mapping[str, float | None]
    true_itl_ms: Mapping[str, float]
    itl_ms: Mapping[str, float | None]


def main() -> int:
    options = read_options()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the client, one for the server")
    os.sched_setaffinity(0, {cores[-1]})
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
        tokenizer = options.tokenizer or word_tokenizer(Path(folder))
        clients = chosen_clients(options)
        if options.shapes:
            return shapes.check(clients, cores, tokenizer)
        compare(clients, cores, tokenizer, options)
    return 0


def compare(
    clients: list[Client], cores: list[int], tokenizer: Path, options: argparse.Namespace
) -> None:
    print_machine(cores)
    for name in options.scenarios:
        scenario = shrunk(SCENARIOS[name], options.shrink)
        runs = rounds(scenario, clients, cores, tokenizer, options.repeat)
        print_scenario(name, scenario, runs)
        if options.out:
            keep(options.out, name, runs)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--clients", nargs="+", help="only these, by name")
    parser.add_argument("--rivals", action="store_true", help="AIPerf, guidellm, inference-perf")
    parser.add_argument("--shapes", action="store_true", help="check token counts instead")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shrink", type=float, default=1.0, help="divide every load by this")
    parser.add_argument("--tokenizer", type=Path, help="folder; one of whole words is made")
    parser.add_argument("--out", type=Path, help="file for every single run, as JSON lines")
    return parser.parse_args()


def chosen_clients(options: argparse.Namespace) -> list[Client]:
    known = dict(CLIENTS)
    if options.rivals or options.clients:
        known |= rival_clients.CLIENTS
    if options.clients:
        unknown = set(options.clients) - set(known)
        if unknown:
            raise SystemExit(f"no client '{unknown.pop()}': known are {', '.join(known)}")
        known = {name: known[name] for name in options.clients}
    return list(known.values())


def shrunk(scenario: Scenario, by: float) -> Scenario:
    load = scenario.load
    requests = max(load.concurrency, round(load.requests / by))
    return replace(scenario, load=replace(load, requests=requests))


def rounds(
    scenario: Scenario, clients: list[Client], cores: list[int], tokenizer: Path, repeat: int
) -> dict[str, list[Run] | str]:
    """Each client's runs, or why there are none."""
    found: dict[str, list[Run]] = {client.name: [] for client in clients}
    reasons: dict[str, str] = {}
    for number in range(repeat):
        for client in clients:
            if client.name in reasons:
                continue
            print(f"# {scenario.title}: {client.name}, round {number + 1}", file=sys.stderr)
            run = one_run(scenario, client, cores, tokenizer)
            if isinstance(run, str):
                reasons[client.name] = run
            else:
                found[client.name].append(run)
    return {name: reasons.get(name) or runs for name, runs in found.items()}


def one_run(scenario: Scenario, client: Client, cores: list[int], tokenizer: Path) -> Run | str:
    load = given_to(client, scenario)
    folder = Path(tempfile.mkdtemp(prefix="loadgen-"))
    try:
        with serving(scenario.server, cores[-1]) as server:
            place = Place(server.port, folder, tokenizer)
            if reason := client.missing():
                return reason
            busy_s = server.cpu_s()
            seen = watch(client.command(load, place), cores[0], cwd=folder, limit_s=LIMIT_S)
            busy_s = server.cpu_s() - busy_s
            truth = server.stop()
            if seen.exit_code != 0:
                return f"exit code {seen.exit_code}: {seen.last_line}"
            if len(truth.arrived_s) < load.requests:
                return f"sent {len(truth.arrived_s)} of {load.requests} requests"
            report = client.report(place, seen.output)
            return judged(client, load, truth, seen, report, busy_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def given_to(client: Client, scenario: Scenario) -> Load:
    load = scenario.load
    share = min(1.0, client.share * scenario.slow_share)
    requests = max(4 * load.concurrency, round(load.requests * share))
    return replace(load, requests=min(requests, load.requests))


def judged(
    client: Client, load: Load, whole: Truth, seen: Watched, report: Reported, busy_s: float
) -> Run:
    truth = whole.last(load.requests)
    first_s, last_s = float(truth.arrived_s[0]), truth.last_sent_s
    tokens = load.requests * load.output_tokens
    cpu_s = seen.cpu_between_s(first_s, last_s)
    return Run(
        client=client.name,
        requests=load.requests,
        tokens_per_s=truth.tokens / truth.duration_s,
        cpu_s_per_million=1e6 * cpu_s / truth.tokens,
        all_cpu_s_per_million=1e6 * seen.cpu[-1][1] / truth.tokens,
        server_busy=busy_s / whole.duration_s,
        peak_mb=seen.peak_mb,
        first_request_s=float(whole.arrived_s[0]) - seen.started_s,
        counts_agree=report.tokens == truth.tokens == tokens and report.completed == load.requests,
        true_ttft_ms=law(truth.ttft_ms),
        ttft_ms=report.ttft_ms,
        true_itl_ms=law(truth.itl_ms),
        itl_ms=report.itl_ms,
    )


def law(values: np.ndarray) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(values.mean()), "p50": float(p50), "p99": float(p99)}


# What is shown


def print_machine(cores: Sequence[int]) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    load = os.getloadavg()[0]
    print(f"{cpu}, {len(cores)} cores, load before the first run {load:.2f}\n")


HEADINGS = (
    "client", "tokens/s", "CPU-s per million tokens, load / all", "TTFT said, mean / p50 / p99 ms",
    "true TTFT", "ITL said, p50 / p99 ms", "true ITL", "peak MB", "first request s", "counts",
    "server busy",
)  # fmt: skip


def print_scenario(name: str, scenario: Scenario, runs: Mapping[str, list[Run] | str]) -> None:
    done = {client: found for client, found in runs.items() if not isinstance(found, str)}
    print(f"### {scenario.title}\n\n| {' | '.join(HEADINGS)} |\n|---|{'--:|' * 10}")
    for client, found in done.items():
        print(f"| {client} | {' | '.join(cells(found))} |")
    print()
    print_ratios(name, done)
    for client, found in runs.items():
        if isinstance(found, str):
            print(f"{client}: not run, {found}")
    print(flush=True)


def cells(runs: Sequence[Run]) -> list[str]:
    return [
        f"{middle(runs, 'tokens_per_s'):,.0f}",
        f"{middle(runs, 'cpu_s_per_million'):.1f} / {middle(runs, 'all_cpu_s_per_million'):.1f}",
        laws(runs, "ttft_ms", ("mean", "p50", "p99")),
        laws(runs, "true_ttft_ms", ("mean", "p50", "p99")),
        laws(runs, "itl_ms", ("p50", "p99")),
        laws(runs, "true_itl_ms", ("p50", "p99")),
        f"{middle(runs, 'peak_mb'):,.0f}",
        f"{middle(runs, 'first_request_s'):.2f}",
        "agree" if all(run.counts_agree for run in runs) else "**differ**",
        f"{middle(runs, 'server_busy'):.0%}",
    ]


def middle(runs: Sequence[Run], field: str) -> float:
    return median(getattr(run, field) for run in runs)


def laws(runs: Sequence[Run], field: str, keys: Sequence[str]) -> str:
    return " / ".join(number(of_law(runs, field, key)) for key in keys)


def of_law(runs: Sequence[Run], field: str, key: str) -> float | None:
    values = [getattr(run, field).get(key) for run in runs]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_ratios(scenario: str, done: Mapping[str, list[Run]]) -> None:
    """servetune over each other client, where both ran, and what it means to reach."""
    ours = next((name for name in ("servetune", "servetune library") if name in done), None)
    if ours is None:
        return
    print(f"| {ours} over | tokens/s | CPU-s under load | said p50 TTFT, ms apart "
          "| said p99 TTFT, ms apart | peak memory | start |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, runs in done.items():
        if name != ours:
            print(f"| {name} | {' | '.join(beside(done[ours], runs))} |")
    figures = {name: medians(runs) for name, runs in done.items()}
    print("", *targets.verdicts(scenario, figures[ours], figures), "", sep="\n")


def medians(runs: Sequence[Run]) -> dict[str, float]:
    plain = ("tokens_per_s", "cpu_s_per_million", "peak_mb", "first_request_s")
    return {
        **{name: middle(runs, name) for name in plain},
        "ttft_p50_ms": of_law(runs, "ttft_ms", "p50") or 0.0,
        "ttft_p99_ms": of_law(runs, "ttft_ms", "p99") or 0.0,
        "true_ttft_p50_ms": of_law(runs, "true_ttft_ms", "p50") or 0.0,
    }


def beside(ours: Sequence[Run], theirs: Sequence[Run]) -> list[str]:
    def ratio(field: str) -> str:
        other = middle(theirs, field)
        return f"{middle(ours, field) / other:.2f}" if other else "–"

    def apart(key: str) -> str:
        mine, other = (of_law(runs, "ttft_ms", key) for runs in (ours, theirs))
        return "–" if mine is None or other is None else f"{mine - other:+.2f}"

    return [ratio("tokens_per_s"), ratio("cpu_s_per_million"), apart("p50"), apart("p99"),
            ratio("peak_mb"), ratio("first_request_s")]  # fmt: skip


def keep(path: Path, scenario: str, runs: Mapping[str, list[Run] | str]) -> None:
    with path.open("a") as lines:
        for found in runs.values():
            if not isinstance(found, str):
                for run in found:
                    lines.write(json.dumps({"scenario": scenario, **asdict(run)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
