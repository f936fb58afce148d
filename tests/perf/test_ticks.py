"""The simulated scheduler is vLLM's, step by step: recorded schedules, and the real class."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmark_scripts import script

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "vllm_ticks.jsonl"


ticks = script("simulation/ticks.py")
RECORDED = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=lambda row: f"{row['category'].replace(' ', '-')}-{row['seed']}"
)
def test_every_step_has_the_requests_and_tokens_that_vllm_recorded(recorded) -> None:
    ours, scheduler = ticks.our_ticks(recorded)
    assert ticks.merged(ours) == recorded["runs"]
    assert scheduler.cache.free_blocks == scheduler.cache.capacity_blocks


def test_the_recorded_workloads_reach_what_their_categories_are_named_for() -> None:
    reached = {category: [0, 0] for category in ticks.CATEGORIES}
    for recorded in RECORDED:
        _, scheduler = ticks.our_ticks(recorded)
        reached[recorded["category"]][0] += scheduler.preemptions
        reached[recorded["category"]][1] += scheduler.cached_prompt_tokens
    for category, (preemptions, cached_tokens) in reached.items():
        assert preemptions > 0 or "preemption" not in category
        assert cached_tokens > 0 or not {"shared", "conversations", "traces"} & set(
            category.replace(",", "").split()
        )


@pytest.mark.parametrize(
    ("category", "limits"),
    [
        ("preemption", {"whole_prompt_fits": False}),
        ("preemption, own blocks found again", {"prefix_caching": False}),
        ("shared prefixes", {"prefix_caching": False}),
        ("priority, preemption", {"policy": "fcfs"}),
        ("chunked prefill off", {"chunked_prefill": True}),
        ("shared prefixes, preemption", {"capacity_blocks": 2000}),
        ("chunked prefill", {"async_scheduling": False}),
        ("chunked prefill", {"async_scheduling": True}),
    ],
)
def test_with_another_rule_the_recorded_steps_are_missed(category, limits) -> None:
    missed = 0
    for recorded in RECORDED:
        if recorded["category"] == category:
            other = recorded | {"rules": recorded["rules"] | limits}
            missed += ticks.merged(ticks.our_ticks(other)[0]) != recorded["runs"]
    assert missed


@pytest.mark.engine
def test_real_vllm_schedules_the_same_steps() -> None:
    vllm = os.environ.get("SERVETUNE_VLLM")
    if not vllm:
        pytest.skip("SERVETUNE_VLLM names no engine")
    workloads = [
        ticks.random_workload(category, 5000 + seed)
        for category in ticks.CATEGORIES
        for seed in range(4)
    ]
    for workload, theirs in zip(
        workloads, ticks.vllm_ticks(workloads, ticks.interpreter_of(vllm)), strict=True
    ):
        ours, _ = ticks.our_ticks(workload)
        assert ours == theirs, (workload["category"], workload["seed"])
