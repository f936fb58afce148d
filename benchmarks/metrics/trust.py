"""How far the statistics of a run can be trusted, on runs whose truth is known.

python benchmarks/metrics/trust.py coverage   # how often intervals hold the truth
python benchmarks/metrics/trust.py stopping   # the same at the stop that --until makes
python benchmarks/metrics/trust.py overload   # when a queue is said to grow without end
python benchmarks/metrics/trust.py knee [40]  # the same of simulated load, of so many runs
python benchmarks/metrics/trust.py rates      # intervals of throughputs beside what runs differ by
python benchmarks/metrics/trust.py cost       # seconds that the extras of a summary take
"""

import heapq
import math
import sys
import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from statistics import NormalDist

import numpy as np

from servetune.hardware import node
from servetune.metrics import PrecisionTarget, Record, summarize
from servetune.metrics.columns import columns_of
from servetune.metrics.distribution import latency_intervals
from servetune.metrics.intervals import (
    bootstrap_interval,
    mean_interval,
    percentile_interval,
    rate_interval,
    throughput_intervals,
)
from servetune.metrics.latency import gaps_of
from servetune.metrics.overload import saturation_of
from servetune.metrics.precision import FIRST_CHECK
from servetune.metrics.resampled import resampled_reaches
from servetune.models import load_shape
from servetune.perf.sim import RunOptions, simulate
from servetune.plan import Plan
from servetune.workload import workload_from_client_args

SIGMA = 0.8
RUNS = 400


def log_normal_runs(rng, runs, count, memory):
    """Neighbours correlated by `memory` in the logarithm; shape (runs, count)."""
    steps = rng.normal(size=(runs, count))
    values = np.empty((runs, count))
    values[:, 0] = steps[:, 0]
    for place in range(1, count):
        values[:, place] = (
            memory * values[:, place - 1] + math.sqrt(1 - memory**2) * steps[:, place]
        )
    return np.exp(SIGMA * values)


def holds(interval, truth):
    low = -math.inf if interval.low is None else interval.low
    return low <= truth <= (math.inf if interval.high is None else interval.high)


def truth_of(percent):
    return math.exp(SIGMA * NormalDist().inv_cdf(percent / 100))


def bootstrapped(runs, percent):
    intervals = [bootstrap_interval(r, lambda d: np.percentile(d, percent, axis=-1)) for r in runs]
    return np.mean([holds(interval, truth_of(percent)) for interval in intervals])


def coverage():
    rng = np.random.default_rng(1)
    print(f"share of {RUNS} runs whose 95 % interval holds the truth (bootstrap: of 100)")
    print("memory  requests  mean   p50    p95    p99    bootstrap p50  p95    p99")
    for memory in (0.0, 0.6, 0.9):
        for count in (100, 500, 2000, 10000):
            runs = log_normal_runs(rng, RUNS, count, memory)
            shares = [np.mean([holds(mean_interval(r), math.exp(SIGMA**2 / 2)) for r in runs])]
            for percent in (50, 95, 99):
                truth = truth_of(percent)
                shares.append(
                    np.mean([holds(percentile_interval(r, percent), truth) for r in runs])
                )
            if count <= 2000:
                shares += [bootstrapped(runs[:100], percent) for percent in (50, 95, 99)]
            print(
                f"{memory:6}  {count:8}  " + "  ".join(f"{share:.3f}" for share in shares),
                flush=True,
            )


CHAT = {"dataset_name": "sharegpt", "num_prompts": 1000}
RANDOM = {
    "dataset_name": "random", "random_range_ratio": 0.3, "random_input_len": 1024,
    "random_output_len": 256, "num_prompts": 1000,
}  # fmt: skip
#: Loads on which `UNSEEN` and the rule of tails were chosen, and those that judge them.
CHOSEN = {
    "chat, 3 requests/s": {**CHAT, "request_rate": 3.0},
    "chat, 4.5 requests/s": {**CHAT, "request_rate": 4.5},
    "chat, 24 users": {**CHAT, "max_concurrency": 24},
    "random, 2.5 requests/s": {**RANDOM, "request_rate": 2.5},
}
JUDGES = {
    "chat, 2 requests/s": {**CHAT, "request_rate": 2.0},
    "chat, 4 requests/s": {**CHAT, "request_rate": 4.0},
    "chat, 5 requests/s": {**CHAT, "request_rate": 5.0},
    "chat, 8 users": {**CHAT, "max_concurrency": 8},
    "chat, 64 users": {**CHAT, "max_concurrency": 64},
    "random, 64 users": {**RANDOM, "max_concurrency": 64},
    "rag_document_qa, 8 users": {"workload": "rag_document_qa", "num_prompts": 1000},
    "chat, 5 requests/s, 8,000 requests": {**CHAT, "request_rate": 5.0, "num_prompts": 8000},
}
SEEDS = 120
LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
FIELDS = [f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", "median", "p99")]


def simulated(job):
    """Intervals of one run, and its values by latency: each seventh of the many gaps."""
    args, seed = job
    workload = workload_from_client_args({**args, "seed": seed}, model="Qwen/Qwen3-4B")
    plan = Plan(model="Qwen/Qwen3-4B", max_model_len=16384)
    shape = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
    made = simulate(plan, shape, node(gpu="L4", count=1), workload)
    records = sorted(made.records, key=lambda each: each.due_s)
    columns, gaps = columns_of(records), gaps_of(records)
    values = {
        "ttft": columns.ttft_s, "tpot": columns.tpot_s[~np.isnan(columns.tpot_s)],
        "itl": gaps.seconds[seed % 7 :: 7].astype(np.float32), "e2e_latency": columns.e2e_s,
    }  # fmt: skip
    return latency_intervals(columns, gaps, (50, 99)), values


def knee():
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else SEEDS
    print(f"{seeds} runs: % with an interval, % of those that hold the truth of all runs, and the\n"
          "median half width in % of it (-: no upper end)")  # fmt: skip
    print(f"{'':36}" + "".join(f"{field[:-3]:>19}" for field in FIELDS))
    with ProcessPoolExecutor(2) as pool:
        for name, args in {**CHOSEN, **JUDGES}.items():
            jobs = [(args, seed) for seed in range(1, seeds + 1)]
            runs = list(pool.map(simulated, jobs, chunksize=4))
            line = ""
            for field in FIELDS:
                kind, _, latency = field[:-3].partition("_")
                values = np.concatenate([each[latency] for _, each in runs]) * 1000.0
                truth = {
                    "mean": np.mean, "median": np.median, "p99": lambda v: np.percentile(v, 99)
                }[kind](values)  # fmt: skip
                ends = np.array([found[field] for found, _ in runs], dtype=float)
                ends = ends[~np.isnan(ends).all(axis=1)]
                low, high = np.nan_to_num(ends[:, 0]), np.nan_to_num(ends[:, 1], nan=np.inf)
                held = ((low <= truth) & (truth <= high)).mean() if len(ends) else np.nan
                half = np.median((high - low) / 2 / truth) if len(ends) else np.inf
                width = f"{half * 100:.1f}" if half < np.inf else "-"
                line += f"{len(ends) / seeds * 100:6.0f}{held * 100:7.0f}{width:>6}"
            print(f"{name:36}{line}", flush=True)


FIXED = {"dataset_name": "random"}
#: Loads in view while the rules of rates were made, and loads named before they were first run.
RATES = {
    "fixed lengths, 64 users, 320 requests": {
        **FIXED, "random_input_len": 128, "random_output_len": 48, "max_concurrency": 64,
        "num_prompts": 320,
    },
    "fixed lengths, 16 users": {
        **FIXED, "random_input_len": 1024, "random_output_len": 128, "max_concurrency": 16,
        "num_prompts": 1000,
    },
    "chat, 1 user, 200 requests": {**CHAT, "max_concurrency": 1, "num_prompts": 200},
    "chat, 16 users": {**CHAT, "max_concurrency": 16},
    "chat, 64 users, 500 requests": {**CHAT, "max_concurrency": 64, "num_prompts": 500},
    "random, 64 users": {**RANDOM, "max_concurrency": 64},
    "multi_turn_chat, 10 users": {"workload": "multi_turn_chat", "num_prompts": 500},
    "chat, 5 requests/s": {**CHAT, "request_rate": 5.0},
    "chat, 2 users, 100 requests": {**CHAT, "max_concurrency": 2, "num_prompts": 100},
    "chat, 4 users, 100 requests": {**CHAT, "max_concurrency": 4, "num_prompts": 100},
    "random, 8 users, 100 requests": {**RANDOM, "max_concurrency": 8, "num_prompts": 100},
    "fixed lengths, 48 users, 480 requests": {
        **FIXED, "random_input_len": 2048, "random_output_len": 64, "max_concurrency": 48,
        "num_prompts": 480,
    },
    "chat, 128 users": {**CHAT, "max_concurrency": 128},
    "random, 4 users, 100 requests": {**RANDOM, "max_concurrency": 4, "num_prompts": 100},
    "agent_tool_calling, 12 users": {
        "workload": "agent_tool_calling", "num_prompts": 600, "max_concurrency": 12,
    },
    "shared_system_prompt, 32 users": {
        "workload": "shared_system_prompt", "num_prompts": 600, "max_concurrency": 32,
    },
    "chat, 3.5 requests/s": {**CHAT, "request_rate": 3.5},
    "judge: chat, 6 users, 200 requests": {**CHAT, "max_concurrency": 6, "num_prompts": 200},
    "judge: random, 12 users, 150 requests": {**RANDOM, "max_concurrency": 12, "num_prompts": 150},
    "judge: chat, 32 users, 300 requests": {**CHAT, "max_concurrency": 32, "num_prompts": 300},
    "judge: rag_document_qa, 3 users": {
        "workload": "rag_document_qa", "num_prompts": 150, "max_concurrency": 3,
    },
}  # fmt: skip


def rates_of(job):
    """Logarithm of a run's throughput in output tokens, and the reaches of its intervals."""
    args, seed = job
    workload = workload_from_client_args({**args, "seed": seed}, model="Qwen/Qwen3-4B")
    plan = Plan(model="Qwen/Qwen3-4B", max_model_len=16384)
    shape = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
    one_l4, options = node(gpu="L4", count=1), RunOptions(each_token=False)
    made = simulate(plan, shape, one_l4, workload, options=options)
    columns = columns_of(sorted(made.records, key=lambda each: each.due_s))
    tokens, until_s = columns.output_tokens, made.duration_s
    found = (
        rate_interval(columns.end_s, tokens, 0.0, until_s),
        throughput_intervals(columns, {"tokens": tokens}, 0.0, until_s)["tokens"],
    )
    rate = tokens.sum() / until_s
    reaches = [each.half_width / rate for each in found]
    reaches.append(resampled_reaches(made.records)["output_throughput"])
    return math.log(rate), reaches


def rates():
    print("output tokens/s of 24 runs, in %: 1.96 standard deviations; the median half width and\n"
          "the equal pairs told apart, by slices of time, of records, and of compare")  # fmt: skip
    first, second = np.triu_indices(24, 1)
    with ProcessPoolExecutor(2) as pool:
        for name, args in RATES.items():
            runs = list(pool.map(rates_of, [(args, seed) for seed in range(1, 25)]))
            logs = np.array([log for log, _ in runs])
            line = f"{name:40}{196 * logs.std(ddof=1):7.1f}"
            apart = np.abs(logs[first] - logs[second])
            for reach in np.array([reaches for _, reaches in runs]).T:
                told = (apart > np.hypot(reach[first], reach[second])).mean()
                line += f"{100 * np.median(reach):8.1f}{100 * told:5.1f}"
            print(line, flush=True)


def record(index, due_s, times_s):
    return Record(
        index=index,
        input_tokens=10,
        output_tokens=len(times_s),
        due_s=due_s,
        sent_s=due_s,
        end_s=float(times_s[-1]),
        chunk_times_s=array("d", times_s),
    )


def stopping():
    rng = np.random.default_rng(2)
    print("150 runs: requests at the stop (median), reported 95 % interval holds the truth")
    for memory in (0.0, 0.6):
        for text, percent in (("ttft:mean±10%", None), ("ttft:p95±15%", 95)):
            until = PrecisionTarget.parse(text)
            truth = math.exp(SIGMA**2 / 2) if percent is None else truth_of(percent)
            stops, held = [], 0
            for values in log_normal_runs(rng, 150, 8700, memory):
                records = [record(i, 0.1 * i, (0.1 * i + v,)) for i, v in enumerate(values)]
                look = FIRST_CHECK
                while look < len(records) and not (seen := until.met(records[:look])).met:
                    look = seen.next_check
                stops.append(look)
                kept = values[:look]
                interval = (
                    mean_interval(kept) if percent is None else percentile_interval(kept, percent)
                )
                held += holds(interval, truth)
            print(
                f"{text:15} memory {memory}: {np.median(stops):.0f}, {held / 150:.3f}", flush=True
            )


def queue(rng, load, count, service_s, servers):
    """When each was due, begun and ended; the servers together serve one a second."""
    due_s = np.cumsum(rng.exponential(1 / load, count))
    free_s = [0.0] * servers
    begun_s, end_s = np.empty(count), np.empty(count)
    for place in range(count):
        begun_s[place] = max(heapq.heappop(free_s), due_s[place])
        end_s[place] = begun_s[place] + servers * service_s[place]
        heapq.heappush(free_s, end_s[place])
    return due_s, begun_s, end_s


def first_alarm(due_s, begun_s, end_s, rate):
    """Requests that had come when somebody who asks after each tenth is alarmed."""
    for come in range(50, len(due_s) + 1, 10):
        now_s = due_s[come - 1]
        for left_s in (end_s, begun_s):  # as `saturation` does of records
            known_s = np.where(left_s[:come] <= now_s, left_s[:come], np.inf)
            if saturation_of(due_s[:come], known_s, rate, now_s=now_s).saturated:
                return come
    return None


def overload():
    laws = {
        "exponential": lambda rng, count: rng.exponential(1.0, count),
        "constant": lambda _, count: np.ones(count),
        "log-normal": lambda rng, count: rng.lognormal(-0.5, 1.0, count),
    }
    print("100 runs of 3,000 requests, asked after each tenth: alarms, after (median, p90)")
    for servers in (1, 50):
        for name, law in laws.items():
            for load in (0.5, 0.9, 0.95, 1.1, 1.2, 1.5):
                line = f"{servers:2} servers, {name:11}, load {load:4}: "
                for known in (True, False):
                    rng = np.random.default_rng(3)
                    alarms = [
                        first_alarm(
                            *queue(rng, load, 3000, law(rng, 3000), servers),
                            load if known else None,
                        )
                        for _ in range(100)
                    ]
                    at = [alarm for alarm in alarms if alarm]
                    when = f"{np.median(at):.0f}, {np.percentile(at, 90):.0f}" if at else "-"
                    line += f"rate {'known' if known else 'not known'} {len(at)} ({when}) "
                print(line, flush=True)


def cost():
    rng = np.random.default_rng(0)
    for requests, tokens in ((10_000, 100), (100_000, 2)):
        records, due_s = [], 0.0
        for index in range(requests):
            due_s += rng.exponential(0.01)
            records.append(
                record(index, due_s, due_s + 0.1 + np.cumsum(rng.exponential(0.01, tokens)))
            )
        for extras in (False, True):
            spent_s = []
            for _ in range(3):
                begin_s = time.process_time()
                summarize(records, duration_s=records[-1].end_s, extras=extras)
                spent_s.append(time.process_time() - begin_s)
            print(f"{requests} requests of {tokens} tokens, extras {extras}: {min(spent_s):.3f} s")


if __name__ == "__main__":
    {f.__name__: f for f in (coverage, stopping, overload, knee, rates, cost)}[sys.argv[1]]()
