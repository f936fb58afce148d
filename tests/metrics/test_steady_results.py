"""A run without chance: ten requests a second, each ten tokens, one every tenth of a second."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from servetune.metrics import Record, parse_constraints, summarize


def run(count=300):
    records = []
    for index in range(count):
        due_s = index * 0.1
        times_s = due_s + 0.15 + 0.1 * np.arange(10)
        records.append(
            Record(
                index=index,
                input_tokens=7,
                output_tokens=10,
                due_s=due_s,
                sent_s=due_s,
                end_s=float(times_s[-1]),
                chunk_times_s=tuple(times_s),
            )
        )
    return records


def summary(records, **more):
    return summarize(records, duration_s=max(r.end_s for r in records), **more)


def test_ramp_and_drain_are_out_of_the_rates_of_the_steady_part():
    results = summary(run(), per_request_limits=parse_constraints("ttft<=200ms"))
    steady = results["steady"]
    assert steady["settled"]
    assert 0.5 <= steady["start_s"] <= 3
    assert steady["end_s"] == pytest.approx(29.9)
    assert steady["output_throughput"] == pytest.approx(100, rel=0.01)
    assert steady["request_throughput"] == pytest.approx(10, rel=0.01)
    assert steady["input_throughput"] == pytest.approx(70, rel=0.01)
    assert steady["total_throughput"] == pytest.approx(170, rel=0.01)
    assert steady["goodput"] == pytest.approx(10, rel=0.01)
    assert results["output_throughput"] < 0.98 * steady["output_throughput"]
    assert steady["littles_law"]["in_system"] == pytest.approx(10 * 1.05, rel=0.01)
    assert abs(steady["littles_law"]["residual"]) < 0.01


def test_requests_count_by_when_they_were_due():
    steady = summary(run())["steady"]
    due = [record for record in run() if steady["start_s"] <= record.due_s < steady["end_s"]]
    assert steady["requests"] == len(due)
    assert steady["request_fraction"] == pytest.approx(len(due) / 300)
    assert steady["mean_e2e_latency_ms"] == pytest.approx(1050)
    assert steady["mean_itl_ms"] == pytest.approx(100)


def test_tokens_of_requests_that_the_end_of_the_run_cut_off_did_arrive():
    records = []
    for record in run():
        times_s = tuple(at_s for at_s in record.chunk_times_s if at_s <= 30)
        stopped = {
            "end_s": 30.0,
            "chunk_times_s": times_s,
            "output_tokens": len(times_s),
            "outcome": "cancelled",
        }
        records.append(replace(record, **stopped) if len(times_s) < 10 else record)
    steady = summary(records)["steady"]
    assert steady["output_throughput"] == pytest.approx(100, rel=0.01)
    assert steady["end_s"] < 29.2  # those due later are not known whole
    assert steady["unfinished"] == 0


def test_tokens_of_failures_count_for_nothing():
    records = [replace(r, outcome="timeout") if r.index % 10 == 0 else r for r in run()]
    steady = summary(records)["steady"]
    assert steady["output_throughput"] == pytest.approx(90, rel=0.02)
    assert steady["requests"] / (steady["end_s"] - steady["start_s"]) == pytest.approx(10, rel=0.02)


def test_percentiles_that_a_limit_speaks_of_are_there_too():
    results = summary(run(), further_percentiles=(97.5,))
    assert "p97.5_ttft_ms" in results["steady"]
    assert "p97.5_ttft_ms" in results["intervals"]


def test_without_a_steady_part_no_figure_stands_there():
    steady = summary(run(20))["steady"]
    assert not steady["settled"]
    assert set(steady) == {"start_s", "end_s", "reason", "settled"}


def test_the_order_of_records_does_not_matter():
    records = run()
    shuffled = [records[place] for place in np.random.default_rng(0).permutation(len(records))]
    assert summary(shuffled)["intervals"] == summary(records)["intervals"]
    assert summary(shuffled)["steady"] == summary(records)["steady"]


def test_extras_can_be_left_out_and_change_nothing_else():
    with_extras, plain = summary(run()), summary(run(), extras=False)
    assert "intervals" in with_extras
    assert "intervals" not in plain
    assert "steady" not in plain
    assert {name: with_extras[name] for name in plain} == plain


@pytest.mark.parametrize("count", [1, 2, 9, 25])
def test_small_runs_and_empty_ones_go_through_json(count):
    for records in (run(count), [replace(r, outcome="timeout") for r in run(count)], []):
        results = summarize(records, duration_s=5.0 if records else 0.0)
        json.dumps(results, allow_nan=False)


def test_intervals_hold_their_figures(closed_loop):
    results = summary(closed_loop(16, 800, seed=3))
    for field, (low, high) in results["intervals"].items():
        assert low is None or low <= results[field], field
        assert high is None or results[field] <= high, field
    for field in ("mean_ttft_ms", "p99_e2e_latency_ms", "median_itl_ms", "request_throughput"):
        assert field in results["intervals"]


def test_connecting_and_waiting_are_told_apart():
    records = [
        replace(r, sent_s=r.due_s + 0.1, connect_s=0.04 if r.index < 3 else None) for r in run()
    ]
    results = summary(records)
    assert results["connect_ms"]["connections"] == 3
    assert results["connect_ms"]["mean"] == pytest.approx(40)
    assert results["wait_before_send_ms"]["p99"] == pytest.approx(100)
    assert results["from_sent"]["ttft_ms"]["median"] == pytest.approx(50)
    assert results["from_sent"]["e2e_latency_ms"]["max"] == pytest.approx(950)
    assert results["normalized_latency_ms"]["mean"] == pytest.approx(105)
    assert results["output_rate_per_user"]["p5"] == pytest.approx(10)
    assert results["goodput_fraction"] is None
