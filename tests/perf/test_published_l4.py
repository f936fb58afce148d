"""The published walk-through on 4x L4, which no constant was fitted to; it deploys vLLM 0.10.2."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from servetune.hardware import instance
from servetune.metrics import summarize
from servetune.models import load_shape
from servetune.perf import simulate
from servetune.plan.plan import Plan
from servetune.workload.lengths import SHAREGPT
from servetune.workload.workload import Workload

SHARED = Path(os.environ.get("SERVETUNE_SHARED", Path(__file__).parents[3] / "shared"))
RECORDS = SHARED / "data" / "aws_l4_records.jsonl"


def predicted(**plan: int) -> dict[str, Any]:
    users = plan.pop("users")
    load = Workload.of(SHAREGPT, request_count=1000, concurrency=users)
    simulation = simulate(
        Plan(model="Qwen/Qwen3-4B", engine_version="0.10.2", **plan),  # type: ignore[arg-type]
        load_shape("Qwen/Qwen3-4B", catalogue_first=True),
        instance("ml.g6.12xlarge"),
        load,
    )
    return summarize(simulation.records, duration_s=simulation.duration_s)


@pytest.mark.skipif(not RECORDS.exists(), reason="the published records are not beside this tree")
@pytest.mark.parametrize("line", [0, 1, 2])
def test_throughput_and_latency_are_near_the_published_records(line: int) -> None:
    record = json.loads(RECORDS.read_text().splitlines()[line])
    measured, users = record["results"], record["config"]["client_args"]["max_concurrency"]
    found = predicted(tensor_parallel=4, max_num_batched_tokens=8192, users=users)
    assert found["total_input_tokens"] == measured["total_input_tokens"]
    assert found["total_output_tokens"] == measured["total_output_tokens"]
    for name, tolerance in (
        ("request_throughput", 0.15),
        ("output_throughput", 0.15),
        ("mean_e2e_latency_ms", 0.20),
        ("p99_e2e_latency_ms", 0.20),
        ("median_itl_ms", 0.15),
        ("mean_tpot_ms", 0.20),
        ("mean_ttft_ms", 0.35),
    ):
        assert found[name] == pytest.approx(measured[name], rel=tolerance), name


def test_a_smaller_budget_meets_the_published_latency_at_32_users() -> None:
    """Published: 5.63 requests per second, p99 end-to-end below 24 s."""
    found = predicted(tensor_parallel=4, max_num_batched_tokens=4096, users=32)
    assert found["request_throughput"] == pytest.approx(5.63, rel=0.15)
    assert found["p99_e2e_latency_ms"] == pytest.approx(24_000, rel=0.15)
