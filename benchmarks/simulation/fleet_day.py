"""How well a fleet's day in windows agrees with the same traffic request by request.

python benchmarks/simulation/fleet_day.py

Small fleets with an autoscaler are played twice over two hours: in windows of ten seconds, as
`servetune fleet` plays a day, and with every request, copy, start and stop simulated. Printed side
by side: instance-hours, requests in flight, the p99 latencies, and the share of requests within the
limits. The ratio of windows to requests is 1 where they agree.
"""

from __future__ import annotations

import math
import time

import msgspec
import numpy as np

from servetune.hardware import node
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.perf.copy_curve import CopyCurve
from servetune.perf.fleet_day import Fleet, PlayedDay, play
from servetune.perf.sim.copy_load import SimulatedCopy
from servetune.perf.sim.fleet_requests import FleetRun, simulate_fleet
from servetune.perf.sim.simulation import RunOptions, prepared_run
from servetune.perf.sweep import sweep
from servetune.perf.target_tracking import ScalingPolicy
from servetune.plan import Plan
from servetune.workload import SHAREGPT, Workload
from servetune.workload.arrivals import Piecewise
from servetune.workload.day import Traffic

START_UP_S, HOUR_S = 420.0, 3600.0
LIMITS = parse_constraints("ttft:p99<=2s;e2e_latency:p99<=40s")
#: Name, rates at equal times over two hours, least and most instances, target as a share of full.
DAYS: tuple[tuple[str, tuple[float, ...], int, int, float], ...] = (
    ("slow hill, low target", (2, 4, 8, 8, 4, 2), 2, 8, 0.6),
    ("slow hill, full target", (2, 4, 8, 8, 4, 2), 1, 8, 1.0),
    ("jump, low target", (2, 2, 7, 7, 2, 2), 2, 8, 0.6),
    ("flat, fixed", (5, 5), 3, 3, 1.0),
    ("flat, one copy, fixed", (1.8, 1.8), 1, 1, 1.0),
    ("overload, fixed", (4, 8, 8, 4), 1, 1, 1.0),
)


def hours(name: str, rates: tuple[float, ...], lasts_s: float = 2 * HOUR_S) -> Traffic:
    """Traffic of straight lines between rates at equal times."""
    times = np.linspace(0, lasts_s, len(rates))
    return Traffic(name=name, times_s=tuple(times.tolist()), rates_per_s=tuple(map(float, rates)))


class Served:
    """A model on a device: its curve in windows, its requests one by one."""

    def __init__(self, model: str, gpu: str) -> None:
        self.shape, self.node = load_shape(model), node(gpu=gpu, count=1)
        self.plan = Plan(model=model)
        self.workload = Workload.of(SHAREGPT, request_count=1000)
        most = max(
            each.point.requests_per_s
            for each in sweep([self.plan], self.shape, self.node, self.workload)
        )
        copy = SimulatedCopy(
            self.plan, self.shape, self.node, self.workload, LIMITS, most_per_s=most
        )
        curve = copy.curve()
        assert curve is not None
        self.curve: CopyCurve = curve

    def fleet(self) -> Fleet:
        return Fleet(curve=self.curve, copies=1, start_up_s=START_UP_S, usd_per_hour=1.0)

    def by_requests(self, traffic: Traffic, policy: ScalingPolicy, first: int) -> FleetRun:
        rates = traffic.windows(60.0)
        arrivals = Piecewise(steps=tuple((60.0, max(1e-3, rate)) for rate in rates.tolist()))
        count = math.ceil(float(rates.sum()) * 60)
        workload = msgspec.structs.replace(
            self.workload, arrivals=arrivals, request_count=count, concurrency=None
        )
        run = prepared_run(
            self.plan, self.shape, self.node, workload, options=RunOptions(each_token=False)
        )
        return simulate_fleet(run, policy, copies=1, start_up_s=START_UP_S, first=first)


def p99_of_windows(served: Served, traffic: Traffic, day: PlayedDay, field: int) -> float:
    """Mean over requests of the p99 at their window's load, and their wait, in seconds."""
    rates = traffic.windows()
    limit = LIMITS[field]
    values = [
        served.curve.value(limit, min(rate / count, served.curve.most_per_s)) / 1000 + wait_s
        for rate, count, wait_s in zip(rates.tolist(), day.serving, day.wait_s, strict=True)
    ]
    return float(np.average(values, weights=rates))


def main() -> None:
    served = Served("Qwen/Qwen3-4B", "L4")
    fleet = served.fleet()
    full = fleet.target_at(fleet.capacity_per_s)
    print(
        f"one copy: {fleet.capacity_per_s:.2f} requests/s within the limits, {full:.1f} in flight"
    )
    head = f"{'day':<24}{'':<10}{'inst-h':>8}{'in flight':>10}{'ttft p99':>10}{'e2e p99':>9}"
    print(head + f"{'within':>9}{'CPU s':>8}")
    for name, rates, least, most, share in DAYS:
        traffic = hours(name, rates)
        policy = ScalingPolicy(minimum=least, maximum=most, target=share * full)
        began = time.process_time()
        windows = play(traffic, fleet, policy)
        windows_s = time.process_time() - began
        began = time.process_time()
        run = served.by_requests(traffic, policy, windows.serving[0])
        run_s = time.process_time() - began
        good = [record for record in run.records if record.outcome == "ok"]
        ttft = np.array([record.ttft_s for record in good])
        e2e = np.array([record.e2e_s for record in good])
        within = float(np.mean((ttft * 1000 <= LIMITS[0].value) & (e2e * 1000 <= LIMITS[1].value)))
        last_s = traffic.lasts_s  # what is still in flight then counts until then
        seen = (
            sum(min(record.end_s, last_s) - min(record.due_s, last_s) for record in good) / last_s
        )
        counted = np.array(windows.in_flight) * np.array(windows.serving)
        by_windows = (
            windows.instance_hours,
            float(counted.mean()),
            p99_of_windows(served, traffic, windows, 0),
            p99_of_windows(served, traffic, windows, 1),
            windows.within_fraction,
            windows_s,
        )
        by_requests = (
            run.instance_s / HOUR_S,
            seen,
            float(np.percentile(ttft, 99)),
            float(np.percentile(e2e, 99)),
            within,
            run_s,
        )
        rows = (("windows", *by_windows), ("requests", *by_requests))
        for label, hours_, flight, ttft_s, e2e_s, share_within, cpu_s in rows:
            print(
                f"{name if label == 'windows' else '':<24}{label:<10}{hours_:>8.2f}{flight:>10.1f}"
                f"{ttft_s:>9.2f}s{e2e_s:>8.1f}s{share_within:>9.2%}{cpu_s:>8.2f}"
            )
        ratio = [rows[0][place] / rows[1][place] for place in (1, 2, 3, 4, 5)]
        print(
            f"{'':<24}{'ratio':<10}{ratio[0]:>8.3f}{ratio[1]:>10.3f}{ratio[2]:>10.3f}"
            f"{ratio[3]:>9.3f}{ratio[4]:>9.3f}"
        )


if __name__ == "__main__":
    main()
