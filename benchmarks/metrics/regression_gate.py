"""False alarms and power of `servetune compare`, on simulated runs whose truth is known.

    python benchmarks/metrics/regression_gate.py [--runs 80] [--trials 300] [--workers 2]
    python benchmarks/metrics/regression_gate.py --single --runs 30 --only "5 requests"

Each run is one of `perf/sim` with lengths and arrivals of its own seed on a machine whose every
time is multiplied by exp(N(0, s)): what differs from run to run, s = 0.5% and 2%. A is that
machine; "-5%" has every time divided by 0.95, so that a closed loop has 5% less throughput; "+10%"
is as much slower as makes the p99 of the time to first token 10% longer on average over the
runs.

A trial draws 5 or 10 pilot runs of A, asks them for the recommended run length (as `--plan-run`
does), draws as many runs of both sides, 200 at most, and asks the gate
`ttft:p99>+10%;output_throughput<-5%`. "pairs" have the same seeds on both sides, and the pilot is
5 such pairs. Runs are drawn with replacement from a pool of `--runs` for each side, and of "runs"
both sides of A/A from the same pool.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import numpy as np

from servetune.hardware import node
from servetune.metrics import summarize
from servetune.metrics.columns import columns_of
from servetune.metrics.differences import Difference, difference_of_runs
from servetune.metrics.gate import judge_gate, parse_gate
from servetune.metrics.resampled import resampled_reaches
from servetune.metrics.run_length import MOST_RUNS, likely_most, runs_for, with_uneven_effect
from servetune.models import load_shape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.sim import RunOptions, simulate
from servetune.plan import Plan
from servetune.report.changes import RunResults, changes, judged
from servetune.report.run_comparison import tail_spread
from servetune.workload import workload_from_client_args

MODEL = "Qwen/Qwen3-4B"
RANDOM = {"dataset_name": "random", "random_range_ratio": 0.3}
SCENARIOS = {
    "random, 4 users (light)": {
        **RANDOM, "random_input_len": 512, "random_output_len": 128, "max_concurrency": 4,
        "num_prompts": 500,
    },
    "random, 64 users (knee)": {
        **RANDOM, "random_input_len": 1024, "random_output_len": 256, "max_concurrency": 64,
        "num_prompts": 1000,
    },
    "chat (sharegpt), 16 users": {
        "dataset_name": "sharegpt", "max_concurrency": 16, "num_prompts": 1000,
    },
    "rag_document_qa, 8 users": {"workload": "rag_document_qa", "num_prompts": 500},
    "chat, 2 requests/s (light)": {
        "dataset_name": "sharegpt", "request_rate": 2.0, "num_prompts": 1000,
    },
    "chat, 5 requests/s (knee)": {
        "dataset_name": "sharegpt", "request_rate": 5.0, "num_prompts": 1000,
    },
    # Loads taken before their rows were seen. Those of 1 request/s prompted `_UNEVEN` later; on the
    # others no rule of the gate was chosen.
    "left out: multi_turn_chat, 10 users": {"workload": "multi_turn_chat", "num_prompts": 500},
    "left out: production_traffic_mix, 16 users": {
        "workload": "production_traffic_mix", "num_prompts": 500,
    },
    "4,096 tokens in, 1 request/s (knee)": {
        **RANDOM, "random_input_len": 4096, "random_output_len": 128, "request_rate": 1.0,
        "num_prompts": 500,
    },
    "left out: chat in bursts, 3 requests/s": {
        "dataset_name": "sharegpt", "arrivals": "kind=gamma,rate_per_s=3,burstiness=0.5",
        "num_prompts": 1000,
    },
    "left out: 256 tokens in, 10 requests/s": {
        **RANDOM, "random_input_len": 256, "random_output_len": 64, "request_rate": 10.0,
        "num_prompts": 1000,
    },
}  # fmt: skip
NOISES = (0.005, 0.02)
GATE = parse_gate("ttft:p99>+10%;output_throughput<-5%")
#: Pilot runs or pairs, and whether they are pairs.
PILOTS = ((5, False), (10, False), (5, True))
#: Runs whose requests are resampled, for comparisons of one run a side.
RESAMPLED = 30


@cache
def machine():
    return load_shape(MODEL, catalogue_first=True), node(gpu="L4", count=1)


def run(job):
    """Results of a run, and the reaches by its requests where they are wanted."""
    args, seed, slower, resampled = job
    shape, l4 = machine()
    workload = workload_from_client_args({**args, "seed": seed}, model=MODEL)
    made = simulate(
        Plan(model=MODEL, max_model_len=16384),
        shape,
        l4,
        workload,
        calibration=Calibration(tpot_factor=slower, ttft_factor=slower),
        options=RunOptions(each_token=False),
    )
    results = summarize(made.records, duration_s=made.duration_s, extras=False)
    reaches = resampled_reaches(made.records) if resampled else None
    ttft_s = columns_of(made.records).ttft_s
    iid = float(np.std(ttft_s) / math.sqrt(len(ttft_s)) / ttft_s.mean())
    return RunResults(results=results, reaches=reaches), iid


def slowdown(pool, args, seeds, base, new, longer):
    """Factor on all times that makes the p99 of the time to first token so many times as long.

    Args:
        base: Factor of each seed's run on the base, which is what the machine does.
        new: The same of the runs that are to be slower.
    """

    def logs(factors):
        jobs = [(args, *each, False) for each in zip(seeds, factors.tolist(), strict=True)]
        found = pool.map(run, jobs, chunksize=4)
        return np.mean([math.log(results.results["p99_ttft_ms"]) for results, _ in found])

    low, high, was = 1.0, longer * 1.05, logs(base)
    for _ in range(6):
        middle = (low + high) / 2
        shorter = logs(middle * new) - was < math.log(longer)
        low, high = (middle, high) if shorter else (low, middle)
    return (low + high) / 2


def differences(base, new, *, paired):
    found = []
    for condition in GATE:
        sides = [[each.figure(condition.metric, condition.statistic, None) for each in side]
                 for side in (base, new)]  # fmt: skip
        found.append(difference_of_runs(*sides, paired=paired))
    return found


@cache
def runs_needed(effect, spread_ppm, paired):
    return runs_for(effect, spread_ppm / 1e6, paired=paired, tests=len(GATE))


def planned(pilot, pilot_new, *, paired, conditions, closed):
    """Runs that the pilot recommends, the most of its conditions."""
    most = 0
    for condition in conditions:
        logs = [
            np.log(
                [each.figure(condition.metric, condition.statistic, None).value for each in side]
            )
            for side in (pilot, pilot_new)
        ]
        values = logs[1] - logs[0] if paired else logs[0]
        spread = likely_most(float(np.std(values, ddof=1)), len(pilot) - 1, paired=paired)
        if not paired:
            spread = max(spread, tail_spread(condition, pilot))
        effect = abs(math.log1p(condition.threshold(Difference(base=1.0, new=None))))
        if not closed:
            spread = with_uneven_effect(spread, effect)
        needed = runs_needed(effect, math.ceil(spread * 1e6 / 500) * 500, paired)
        most = max(most, needed or 10**6)
    return most


def gate(base, new, *, paired):
    tests = zip(GATE, differences(base, new, paired=paired), strict=True)
    return [each.verdict for each in judge_gate(list(tests))]


def table_alarm(base, new, *, paired, band=None):
    """Whether any of all metrics is called better or worse."""
    rows = changes(base, new, paired=paired, band=band)
    return any(
        row.verdict in ("better", "worse") for row in judged(rows, [band or 0.0] * len(rows))
    )


def bootstrap_alarm(base, new, rng):
    """The same of the throughput alone, by a percentile bootstrap over the runs."""
    logs = [np.log([each.results["output_throughput"] for each in side]) for side in (base, new)]
    means = [own[rng.integers(len(own), size=(500, len(own)))].mean(axis=1) for own in logs]
    low, high = np.quantile(means[1] - means[0], (0.025, 0.975))
    return not low <= 0 <= high


def percent(count, of):
    return f"{100 * count / of:5.1f}%" if of else "    -"


def count(runs):
    return f"{runs:4.0f}" if runs <= MOST_RUNS else f">{MOST_RUNS}"


def judge(name, noise, pools, trials, pilots, paired, closed):
    """Line of a scenario: run length, false alarms and power."""
    rng = np.random.default_rng(7)
    size = len(pools["base"])
    conditions = GATE if closed else GATE[:1]
    lengths, drawn = [], 0
    alarms = table = boot = caught_rate = caught_tail = undecided = 0
    for trial in range(trials):
        pilot = rng.integers(size, size=pilots)
        runs = planned([pools["base"][i] for i in pilot], [pools["same"][i] for i in pilot],
                       paired=paired, conditions=conditions, closed=closed)  # fmt: skip
        lengths.append(runs)
        drawn += 1
        runs = min(runs, MOST_RUNS)
        first = rng.integers(size, size=runs)
        second = first if paired else rng.integers(size, size=runs)
        base = [pools["base"][i] for i in first]
        sides = {kind: [pools[kind][i] for i in second] for kind in ("same", "slow", "tail")}
        if not paired:
            sides["same"] = [pools["base"][i] for i in second]
        verdicts = gate(base, sides["same"], paired=paired)
        alarms += "failed" in verdicts
        undecided += "cannot tell" in verdicts[: len(conditions)]
        if trial % 5 == 0:
            table += table_alarm(base, sides["same"], paired=paired)
            boot += bootstrap_alarm(base[:5], sides["same"][:5], rng)
        caught_rate += gate(base, sides["slow"], paired=paired)[1] == "failed"
        caught_tail += gate(base, sides["tail"], paired=paired)[0] == "failed"
    some = -(-drawn // 5)
    print(
        f"{name:42} {noise:4.1%} {pilots:2} {'pairs' if paired else 'runs ':5} "
        f"{count(np.median(lengths))} {count(np.percentile(lengths, 90))} {drawn:5} "
        f"{percent(alarms, drawn)} {percent(table, some)} {percent(boot, some)} "
        f"{percent(undecided, drawn)} "
        f"{percent(caught_rate, drawn) if closed else '    -'} {percent(caught_tail, drawn)}",
        flush=True,
    )
    return alarms, drawn


def judge_single(name, noise, pools):
    """Line of comparisons of one run a side of A: false alarms by several rules."""
    base, same = pools["base"][:RESAMPLED], pools["same"][:RESAMPLED]
    pairs = [(i, j) for i in range(len(base)) for j in range(len(same)) if i != j]
    alarms = table = naive = iid = 0
    for i, j in pairs:
        tests = []
        for condition in GATE:
            one, other = (
                each.figure(condition.metric, condition.statistic, None)
                for each in (base[i], same[j])
            )
            tests.append((condition, difference_of_runs([one], [other])))
        alarms += any(each.verdict == "failed" for each in judge_gate(tests, 0.05))
        table += table_alarm([base[i]], [same[j]], paired=False, band=0.05)
        naive += any(abs(d.change) >= c.amount and (d.change < 0) == c.falls for c, d in tests)
        shift = math.log(same[j].results["mean_ttft_ms"] / base[i].results["mean_ttft_ms"])
        iid += abs(shift) > 1.96 * math.hypot(pools["iid"][0][i], pools["iid"][1][j])
    of = len(pairs)
    print(f"{name:42} {noise:4.1%} {percent(alarms, of)} {percent(table, of)} "
          f"{percent(naive, of)} {percent(iid, of)}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--single", action="store_true", help="one run a side alone")
    given = parser.parse_args()
    began_s = time.monotonic()
    singles, alarms, drawn = [], 0, 0
    print("A/A: gate / any metric / bootstrap over 5 runs (throughput) / gate cannot tell")
    print(
        f"{'scenario':42} {'s':4} {'pilot':8} runs  p90 trials  gate    any   boot   open    -5%"
        "  +10%"
    )
    with ProcessPoolExecutor(given.workers) as pool:
        for name, args in SCENARIOS.items():
            if given.only not in name:
                continue
            seeds = range(1, given.runs + 1)
            kinds = ["base", "same"] if given.single else ["base", "same", "slow", "tail"]
            for noise in NOISES:
                rng = np.random.default_rng(11)
                pools, machines = {}, {}
                for kind in kinds:
                    drawn_noise = rng.normal(size=given.runs)
                    drawn_noise -= drawn_noise.mean()  # so that a pool is as much slower as it says
                    machines[kind] = np.exp(noise * drawn_noise)
                if not given.single:
                    machines["slow"] /= 0.95
                    sides = machines["base"], machines["tail"]
                    machines["tail"] *= slowdown(pool, args, seeds, *sides, 1.1)
                for kind, factors in machines.items():
                    jobs = [
                        (args, seed, float(factor), kind in ("base", "same") and seed <= RESAMPLED)
                        for seed, factor in zip(seeds, factors, strict=True)
                    ]
                    found = list(pool.map(run, jobs, chunksize=4))
                    pools[kind] = [results for results, _ in found]
                    pools.setdefault("iid", []).append([iid for _, iid in found])
                singles.append((name, noise, pools))
                for pilots, paired in () if given.single else PILOTS:
                    closed = "max_concurrency" in args or "workload" in args
                    one = judge(name, noise, pools, given.trials, pilots, paired, closed)
                    alarms, drawn = alarms + one[0], drawn + one[1]
    print(f"all: {percent(alarms, drawn)} false alarms of the gate in {drawn:,} trials")
    print("\none run a side of 500 or 1,000 requests, A/A: gate / any metric / estimate past the "
          "threshold /\nmean TTFT by 95% intervals of independent requests")  # fmt: skip
    for each in singles:
        judge_single(*each)
    print(f"{time.monotonic() - began_s:.0f} s, {time.process_time():.0f} s of this process")


if __name__ == "__main__":
    main()
