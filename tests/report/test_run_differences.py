"""Differences between two runs, and whether their intervals tell them apart."""

from __future__ import annotations

import math

import msgspec
import pytest
import report_records as factory

from servetune.report.run_differences import run_differences


def run(scale, reach):
    """Three trials whose throughput is `scale` times the usual, known to a share of `reach`."""
    made = []
    for users in (32, 64, 128):
        results = factory.results(4, 8192, users, scale=scale)
        rate = results["output_throughput"]
        if reach is not None:
            results["intervals"] = {
                "output_throughput": [rate * math.exp(-reach), rate * math.exp(reach)]
            }
        made.append(factory.record(4, 8192, users, simulated=False, results=results))
    return made


def throughputs(here, there):
    found = [one for one in run_differences(here, there) if one.quantity == "output_throughput"]
    assert [one.key for one in found] == [record.key for record in here]
    return found


def test_the_interval_of_a_difference_is_that_of_two_independent_runs():
    for one in throughputs(run(1.1, 0.03), run(1.0, 0.04)):
        assert one.change_fraction == pytest.approx(0.1)
        assert one.change_low == pytest.approx(1.1 * math.exp(-0.05) - 1)
        assert one.change_high == pytest.approx(1.1 * math.exp(0.05) - 1)
        assert one.told_apart is True
    assert [one.told_apart for one in throughputs(run(1.1, 0.09), run(1.0, 0.04))] == [False] * 3
    assert [one.told_apart for one in throughputs(run(0.9, 0.03), run(1.0, 0.04))] == [True] * 3


def test_without_both_intervals_nothing_is_told():
    for one in throughputs(run(1.1, None), run(1.0, 0.04)):
        assert (one.change_low, one.change_high, one.told_apart) == (None, None, None)
        assert one.there_ends != (None, None)


def test_configurations_of_one_run_alone_have_no_difference():
    here, there = run(1.0, 0.01), run(1.0, 0.01)[1:]
    assert {one.key for one in run_differences(here, there)} == {record.key for record in there}
    other_gpu = [
        msgspec.structs.replace(r, metadata={**r.metadata, "gpu_type": "H100"}) for r in there
    ]
    assert run_differences(here, other_gpu) == ()
    predicted = [msgspec.structs.replace(record, simulated=True) for record in there]
    assert run_differences(predicted, there) == ()
    assert run_differences(predicted, predicted)
