"""Cost per machine: the cheapest trial of each that holds the limits."""

from __future__ import annotations

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report.machines import machine_costs
from servetune.store.schema import PredictionInterval


def on(machine, cost, record, **metadata):
    return msgspec.structs.replace(
        record,
        key=f"{machine} {cost}",
        results={**record.results, "cost_per_million_tokens": cost},
        metadata={**record.metadata, "instance_type": machine, **metadata},
    )


def test_the_cheapest_trial_within_the_limits_stands_for_its_machine():
    slow, quick = factory.record(1, users=128), factory.record(4, users=32)
    records = [on("a", 1.0, slow), on("a", 3.0, quick), on("b", 2.0, quick), on("c", 0.5, slow)]
    found = machine_costs(records, parse_constraints("e2e_latency:p99<=30s"))
    assert [(one.machine, one.cost, one.holds) for one in found] == [
        ("b", 2.0, True),
        ("a", 3.0, True),
        ("c", 0.5, False),
    ]
    assert found[2].missed == "misses e2e_latency:p99<=30s"
    assert found[0].usd_per_hour == 5.752
    assert found[0].copies == 1
    unlimited = machine_costs(records, ())
    assert [(one.machine, one.cost) for one in unlimited] == [("c", 0.5), ("a", 1.0), ("b", 2.0)]


def test_a_cost_has_the_interval_of_what_it_rests_on():
    interval = PredictionInterval(
        low_factor=0.8, high_factor=1.5, ttft_low_factor=1, ttft_high_factor=1
    )
    simulated = msgspec.structs.replace(on("a", 2.0, factory.record()), interval=interval)
    measured = on("b", 4.0, factory.record(simulated=False))
    rate = measured.results.output_throughput
    ends = {"output_throughput": [rate / 1.1, rate / 0.9]}
    measured = msgspec.structs.replace(measured, results={**measured.results, "intervals": ends})
    one, other = machine_costs([simulated, measured], ())
    assert (one.low, one.high, one.predicted) == (1.6, 3.0, True)
    assert (other.low, other.high) == (pytest.approx(3.6), pytest.approx(4.4))
    assert not other.predicted


def test_trials_that_failed_or_have_no_price_are_left_out():
    failed = [record for record in factory.sweep() if record.status == "failed"]
    free = factory.record()
    free = msgspec.structs.replace(
        free, results={k: v for k, v in free.results.items() if not k.startswith("cost")}
    )
    assert machine_costs([*failed, free], ()) == ()
    dirty = on("a", 1.0, factory.failing(factory.record(), 14))
    [found] = machine_costs([dirty], ())
    assert not found.holds
    assert found.missed == "too many requests failed"
