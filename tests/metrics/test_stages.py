"""Results of the steps of a rate, each of the requests that were due in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import servetune as st
from servetune.metrics import Record
from servetune.metrics.stages import by_stage


def answered(due_s: float, ttft_s: float, outcome: str = "ok") -> Record:
    return Record(
        index=0,
        input_tokens=10,
        output_tokens=3,
        due_s=due_s,
        sent_s=due_s,
        end_s=due_s + ttft_s + 0.2,
        chunk_times_s=[due_s + ttft_s + gap for gap in (0.0, 0.1, 0.2)],
        outcome=outcome,
    )


def test_each_request_belongs_to_the_stage_in_which_it_was_due() -> None:
    records = [answered(0.0, 0.1), answered(9.9, 0.3), answered(10.0, 1.0), answered(99.0, 3.0)]
    records.append(answered(11.0, 9.0, "timeout"))
    first, second, third = by_stage(records, [(10, 2), (5, 8), (5, 1)])
    assert (first.requests, second.requests, third.requests) == (2, 2, 1)
    assert first.mean_ttft_ms == pytest.approx(200)
    assert first.mean_tpot_ms == pytest.approx(100)
    assert (second.completed, second.mean_ttft_ms) == (1, pytest.approx(1000))
    assert third.mean_e2e_ms == pytest.approx(3200)


def test_a_stage_without_answers_has_no_times() -> None:
    (only,) = by_stage([], [(10, 0)])
    assert only.requests == 0
    assert only.p99_e2e_ms is None


def test_a_simulation_of_a_stepped_rate_tells_the_steps_apart(tmp_path: Path) -> None:
    found = st.simulate(
        "Qwen/Qwen3-8B",
        gpu="H100",
        arrivals="kind=piecewise,steps=[(20,1),(5,80),(40,1)]",
        requests=440,
        input_tokens=500,
        output_tokens=100,
        out=tmp_path / "out",
    )
    assert isinstance(found, st.SimulationResult)
    calm, flooded, after = found.record.results["stages"]
    assert calm["requests"] + flooded["requests"] + after["requests"] == 440
    assert flooded["mean_ttft_ms"] > 3 * calm["mean_ttft_ms"]
    assert "80" in str(found).split("due from")[1]
    kept = json.loads((tmp_path / "out" / "simulated.jsonl").read_text().splitlines()[0])
    assert kept["results"]["stages"][1] == flooded


def test_a_steady_rate_has_no_stages() -> None:
    found = st.simulate("Qwen/Qwen3-8B", gpu="H100", rate=2, requests=20)
    assert "stages" not in found.record.results
