"""How well a fleet's day in windows agrees with the same traffic request by request.

python benchmarks/simulation/fleet_day.py [--picked]

Small fleets with an autoscaler are played twice over two hours: in windows of ten seconds, as
`servetune fleet` plays a day, and with every request, copy, start and stop simulated; of one type,
and of a type that is scaled beside others that always run. Printed side by side: instance-hours,
dollars, requests in flight, the p99 latencies, and the share of requests within the limits. The
ratio of windows to requests is 1 where they agree. With `--picked` it is the fleets that
`servetune fleet` picks for a day, in two hours of it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np

import servetune as st
from servetune.hardware import Node, instance
from servetune.metrics import parse_constraints
from servetune.metrics.record import Record
from servetune.models import load_shape
from servetune.perf.copy_curve import CopyCurve
from servetune.perf.fleet_day import Base, Fleet, PlayedDay, play
from servetune.perf.sim.copy_load import SimulatedCopy
from servetune.perf.sim.fleet_requests import FixedInstances, FleetRun, simulate_fleet
from servetune.perf.sim.simulation import PreparedRun, RunOptions, prepared_run
from servetune.perf.sweep import sweep
from servetune.perf.target_tracking import ScalingPolicy
from servetune.plan import Plan
from servetune.workload import SHAREGPT, Workload
from servetune.workload.arrivals import Piecewise
from servetune.workload.day import HOUR_S, Traffic, traffic_of

START_UP_S, MODEL = 420.0, "Qwen/Qwen3-4B"
ASKED = "ttft:p99<=2s;e2e_latency:p99<=40s"
LIMITS = parse_constraints(ASKED)
#: Name, rates at equal times over two hours, least and most instances, target as a share of full.
DAYS: tuple[tuple[str, tuple[float, ...], int, int, float], ...] = (
    ("slow hill, low target", (2, 4, 8, 8, 4, 2), 2, 8, 0.6),
    ("slow hill, full target", (2, 4, 8, 8, 4, 2), 1, 8, 1.0),
    ("jump, low target", (2, 2, 7, 7, 2, 2), 2, 8, 0.6),
    ("flat, fixed", (5, 5), 3, 3, 1.0),
    ("flat, one copy, fixed", (1.8, 1.8), 1, 1, 1.0),
    ("overload, fixed", (4, 8, 8, 4), 1, 1, 1.0),
)
#: The same for two types: further the type that is scaled, and which and how many always run.
MIXES: tuple[tuple[str, tuple[float, ...], int, int, float, str, str, int], ...] = (
    ("hill, L4s beside an A10G", (4, 8, 14, 14, 8, 4), 1, 8, 0.6, "ml.g6", "ml.g5", 1),
    ("hill, A10Gs beside an L40S", (12, 24, 36, 36, 24, 12), 1, 8, 0.6, "ml.g5", "ml.g6e", 1),
    ("flat, an L4 beside two A10Gs, fixed", (15, 15), 1, 1, 1.0, "ml.g6", "ml.g5", 2),
)
#: Fleets that are picked for the day of the guide: instances to choose from, and the number whose
#: loss they bear.
PICKED = (
    ("ml.g6e.xlarge,ml.g5.xlarge", 1),
    ("ml.g7e.2xlarge,ml.g6e.xlarge,ml.g5.xlarge", 0),
)
PICKED_FROM_H, PICKED_HOURS = 8.0, 2.0


def hours(name: str, rates: Sequence[float], lasts_s: float = 2 * HOUR_S) -> Traffic:
    """Traffic of straight lines between rates at equal times."""
    times = np.linspace(0, lasts_s, len(rates))
    return Traffic(name=name, times_s=tuple(times.tolist()), rates_per_s=tuple(map(float, rates)))


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a type of instance: its curve in windows, its requests one by one."""

    node: Node
    plan: Plan
    copies: int
    curve: CopyCurve
    start_up_s: float = START_UP_S

    def fleet(self) -> Fleet:
        assert self.node.price is not None
        return Fleet(
            curve=self.curve,
            copies=self.copies,
            start_up_s=self.start_up_s,
            usd_per_hour=self.node.price.usd_per_hour,
        )

    def run(self, workload: Workload) -> PreparedRun:
        one = msgspec.structs.replace(self.plan, replicas=1)
        alone = msgspec.structs.replace(self.node, device_count=one.device_count)
        shape = load_shape(MODEL)
        return prepared_run(one, shape, alone, workload, options=RunOptions(each_token=False))


def served(name: str) -> Served:
    """The model on one GPU of an instance, with its curve."""
    plan, shape, machine = Plan(model=MODEL), load_shape(MODEL), instance(f"{name}.xlarge")
    workload = Workload.of(SHAREGPT, request_count=1000)
    most = max(each.point.requests_per_s for each in sweep([plan], shape, machine, workload))
    copy = SimulatedCopy(plan, shape, machine, workload, LIMITS, most_per_s=most)
    curve = copy.curve()
    assert curve is not None
    return Served(node=machine, plan=plan, copies=1, curve=curve)


def by_requests(
    scaled: Served, traffic: Traffic, policy: ScalingPolicy, first: int, other: Served, count: int
) -> FleetRun:
    """Traffic with every request simulated; `count` of the other type always run."""
    rates = traffic.windows(60.0)
    arrivals = Piecewise(steps=tuple((60.0, max(1e-3, rate)) for rate in rates.tolist()))
    workload = Workload.of(SHAREGPT, request_count=math.ceil(float(rates.sum()) * 60))
    workload = msgspec.structs.replace(workload, arrivals=arrivals, concurrency=None)
    capacity = other.fleet().capacity_per_s / scaled.fleet().capacity_per_s
    return simulate_fleet(
        scaled.run(workload),
        policy,
        copies=scaled.copies,
        start_up_s=scaled.start_up_s,
        first=first,
        fixed=FixedInstances(
            run=other.run(workload), copies=other.copies, count=count, relative_capacity=capacity
        )
        if count
        else None,
    )


def p99_of_windows(
    types: Sequence[tuple[Served, np.ndarray]], traffic: Traffic, day: PlayedDay, field: int
) -> float:
    """Mean over requests of the p99 at their window's load, and their wait, in seconds.

    Args:
        types: Each type with its number of instances by window.
        traffic: The traffic.
        day: The traffic as it was played.
        field: Place of the limit.
    """
    rates = traffic.windows()
    capacity = sum(counts * each.fleet().capacity_per_s for each, counts in types)
    total = 0.0
    for each, counts in types:
        curve, fleet = each.curve, each.fleet()
        shares = counts * fleet.capacity_per_s / capacity
        for rate, share, count, wait_s in zip(rates, shares, counts, day.wait_s, strict=True):
            alone = min(rate * share / count / fleet.copies, curve.most_per_s)
            total += rate * share * (curve.value(LIMITS[field], alone) / 1000 + wait_s)
    return float(total / rates.sum())


def seconds_of(records: Sequence[Record], name: str) -> np.ndarray:
    return np.array([getattr(each, name) for each in records if each.outcome == "ok"])


def compared(
    name: str, scaled: Served, traffic: Traffic, policy: ScalingPolicy, other: Served, count: int
) -> None:
    """Print a fleet's traffic by windows and by requests; dollars are on demand."""
    fleet, base = scaled.fleet(), Base(fleet=other.fleet(), count=count)
    began = time.process_time()
    windows = play(traffic, fleet, policy, base if count else None)
    windows_s = time.process_time() - began
    began = time.process_time()
    run = by_requests(scaled, traffic, policy, windows.serving[0], other, count)
    run_s = time.process_time() - began
    good = [record for record in run.records if record.outcome == "ok"]
    ttft, e2e = seconds_of(good, "ttft_s"), seconds_of(good, "e2e_s")
    within = float(np.mean((ttft * 1000 <= LIMITS[0].value) & (e2e * 1000 <= LIMITS[1].value)))
    last_s = traffic.lasts_s  # what is still in flight then counts until then
    own = [record for record in good if record.index not in run.fixed_requests]
    seen = sum(min(record.end_s, last_s) - min(record.due_s, last_s) for record in own) / last_s
    serving = np.array(windows.serving)
    types = [(scaled, serving), *([(other, np.full(len(serving), count))] if count else [])]
    always_h = count * traffic.lasts_s / HOUR_S
    run_h = run.instance_s / HOUR_S
    rows = (
        (
            "windows",
            windows.instance_hours,
            windows.usd,
            float((np.array(windows.in_flight) * serving).mean()),
            p99_of_windows(types, traffic, windows, 0),
            p99_of_windows(types, traffic, windows, 1),
            windows.within_fraction,
            windows_s,
        ),
        (
            "requests",
            run_h + always_h,
            run_h * fleet.usd_per_hour + base.usd(traffic.lasts_s),
            seen,
            float(np.percentile(ttft, 99)),
            float(np.percentile(e2e, 99)),
            within,
            run_s,
        ),
    )
    for label, hours_, usd, flight, ttft_s, e2e_s, share_within, cpu_s in rows:
        print(
            f"{name if label == 'windows' else '':<36}{label:<10}{hours_:>8.2f}{usd:>8.2f}"
            f"{flight:>10.1f}{ttft_s:>9.2f}s{e2e_s:>8.1f}s{share_within:>9.2%}{cpu_s:>8.2f}"
        )
    ratio = [rows[0][place] / rows[1][place] for place in range(1, 7)]
    print(
        f"{'':<36}{'ratio':<10}{ratio[0]:>8.3f}{ratio[1]:>8.3f}{ratio[2]:>10.3f}{ratio[3]:>10.3f}"
        f"{ratio[4]:>9.3f}{ratio[5]:>9.3f}"
    )
    if count:
        apart = {
            other.node.name: [each for each in good if each.index in run.fixed_requests],
            scaled.node.name: own,
        }
        for of, records in apart.items():
            first, last = (np.percentile(seconds_of(records, at), 99) for at in ("ttft_s", "e2e_s"))
            share = len(records) / len(good)
            print(f"{'':<36}  {share:.0%} by {of}: p99 {first:.2f} s and {last:.1f} s")
    print(f"{'':<36}  {min(run.serving)} to {max(run.serving)} served", flush=True)


def picked(instances: str, lost: int) -> None:
    """Two hours of a day on the fleet that `servetune fleet` picks for it."""
    found = st.fleet(
        MODEL, dataset="sharegpt", day="office", peak_per_s=60, survive=lost, reserved_discount=0.4,
        constraints=ASKED, instance=instances,
    )  # fmt: skip
    assert found.day is not None
    print(f"{instances}: {' and '.join(f'{one.instance} {one.label}' for one in found.day.parts)}")
    by_name = {
        one.name: Served(
            node=one.node,
            plan=one.plan,
            copies=one.copies,
            curve=one.curve,
            start_up_s=one.start_up_s,
        )
        for one in found.instances
    }
    day, (begin, end) = traffic_of("office", 60.0), (PICKED_FROM_H, PICKED_FROM_H + PICKED_HOURS)
    at_s = np.linspace(begin, end, 121) * HOUR_S
    rates = np.interp(at_s, day.times_s, day.rates_per_s).tolist()
    scaled, base = by_name[found.day.scaling.instance], found.day.base
    other = by_name[base.instance] if base is not None else scaled
    traffic = hours("office", rates, PICKED_HOURS * HOUR_S)
    name = f"{begin:g} to {end:g} h"
    compared(name, scaled, traffic, found.day.policy, other, base.minimum if base else 0)


def main() -> None:
    head = f"{'day':<36}{'':<10}{'inst-h':>8}{'$':>8}{'in flight':>10}{'ttft p99':>10}"
    print(head + f"{'e2e p99':>9}{'within':>9}{'CPU s':>8}")
    if sys.argv[1:] == ["--picked"]:
        for instances, lost in PICKED:
            picked(instances, lost)
        return
    types = {name: served(name) for name in ("ml.g6", "ml.g5", "ml.g6e")}
    rows = [(*day, "ml.g6", "ml.g6", 0) for day in DAYS]
    for name, rates, least, most, share, scaled, other, count in (*rows, *MIXES):
        fleet = types[scaled].fleet()
        target = share * fleet.target_at(fleet.capacity_per_s)
        policy = ScalingPolicy(minimum=least, maximum=most, target=target)
        compared(name, types[scaled], hours(name, rates), policy, types[other], count)


if __name__ == "__main__":
    main()
