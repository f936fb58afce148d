"""Simulated runs whose figures are kept: a faster simulator has to give the very same ones.

Written on 2026-11-24 by the simulator as it was before runs with drafts became faster. A change
of the scheduler or of a coefficient changes them; then `python tests/perf/test_golden_runs.py`
writes them anew, and the commit says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servetune.hardware import node
from servetune.metrics import Record
from servetune.models import load_shape
from servetune.perf import simulate
from servetune.perf.sim import RunOptions
from servetune.plan import Plan
from servetune.trials.record import simulation_results
from servetune.workload import LengthLaws, Poisson, Workload
from servetune.workload.arrivals import AllAtOnce

PATH = Path(__file__).parents[1] / "golden" / "simulated_runs.json"

DRAFTS = {"draft_tokens": 3, "draft_acceptance_fraction": 0.7}
#: Name, engine and settings, GPU, requests per second; without these 48 users.
CASES: dict[str, tuple[dict[str, Any], str, float | None]] = {
    "drafts, users": (DRAFTS, "L40S", None),
    "drafts, arrivals, pipeline": ({**DRAFTS, "pipeline_parallel": 2}, "L40S", 3.0),
    "drafts, preemptions": (
        {**DRAFTS, "max_num_seqs": 200, "gpu_memory_fraction": 0.405},
        "L40S",
        None,
    ),
    "arrivals": ({}, "H100", 8.0),
    "sglang": ({"engine": "sglang"}, "L40S", None),
    "tgi": ({"engine": "tgi"}, "H100", None),
}


def figures(name: str) -> dict[str, Any]:
    """Results of one case, and what its requests' records say."""
    fields, gpu, rate = CASES[name]
    run = simulate(
        Plan(model="Qwen/Qwen3-8B", max_model_len=2048, **fields),
        load_shape("Qwen/Qwen3-8B", catalogue_first=True),
        node(gpu=gpu, count=2),
        Workload.of(
            LengthLaws.ranged(200, 500, 0.6),
            request_count=120,
            arrivals=Poisson(rate) if rate else AllAtOnce(),
            concurrency=None if rate else 48,
        ),
        options=RunOptions(timeout_s=12.0),
    )
    results = simulation_results(run, percentiles=(97.3,))
    return {
        **{key: results[key] for key in ("quantiles", "server", "duration", "failures")},
        **{key: value for key, value in results.items() if key.startswith(("mean", "std"))},
        "pieces": sum(len(record.chunk_times_s) for record in run.records),
        "token_moments": [sum(map(weighted, run.records)), run.busy_s],
        "kv_use": sum(value for _, value in run.kv_use),
    }


def weighted(record: Record) -> float:
    """Sum of a request's token times, weighted so that each of them counts otherwise."""
    tokens = record.chunk_tokens or [1] * len(record.chunk_times_s)
    pairs = enumerate(zip(record.chunk_times_s, tokens, strict=True))
    return sum((place % 7 + 1) * count * time_s for place, (time_s, count) in pairs)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Numbers and texts by where they are."""
    found: dict[str, Any] = {}
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        place = f"{name}.{key}"
        found |= flat(each, place) if isinstance(each, dict | list) else {place: each}
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_figures_that_it_had(name: str) -> None:
    kept, found = flat(json.loads(PATH.read_text())[name]), flat(figures(name))
    assert found.keys() == kept.keys()
    for place, value in kept.items():
        expected = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
        assert found[place] == expected, place


if __name__ == "__main__":
    PATH.write_text(json.dumps({name: figures(name) for name in CASES}, indent=1) + "\n")
