"""The simulated SGLang scheduler is SGLang's, step by step: schedules that 0.5.23 recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark_scripts import script

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "sglang_ticks.jsonl"
#: Where memory is short and beginnings are shared, SGLang's tree gives up whole leaves; and who is
#: put back while a step that was composed ahead runs loses that step's token there.
INEXACT = {
    *(("shared prefixes, retraction", seed) for seed in range(1000, 1004)),
    ("retraction", 1002),
    ("retraction, no radix cache", 1002),
    ("mixed chunks", 1002),
}


sglang = script("simulation/ticks_sglang.py")
RECORDED = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _exact(row) -> bool:  # type: ignore[no-untyped-def]
    return (row["category"], row["seed"]) not in INEXACT


def _name(row) -> str:  # type: ignore[no-untyped-def]
    return f"{row['category'].replace(' ', '-')}-{row['seed']}"


@pytest.mark.parametrize("recorded", [row for row in RECORDED if _exact(row)], ids=_name)
def test_every_step_has_the_requests_and_tokens_that_sglang_recorded(recorded) -> None:
    ours, scheduler = sglang.our_ticks(recorded)
    assert sglang.ticks.merged(ours) == recorded["runs"]
    assert scheduler.cache.free_blocks == scheduler.cache.capacity_blocks


@pytest.mark.parametrize("recorded", [row for row in RECORDED if not _exact(row)], ids=_name)
def test_nine_of_ten_steps_are_sglangs_where_it_forgets_otherwise(recorded) -> None:
    expected = [
        [first + i, content] for first, count, content in recorded["runs"] for i in range(count)
    ]
    ours, _ = sglang.our_ticks(recorded)
    same, steps = sglang.ticks.compare(ours, expected)
    assert same / steps > 0.9


@pytest.mark.parametrize(
    ("category", "limits"),
    [
        ("retraction", {"ignore_eos": True}),
        ("retraction", {"conservativeness": 0.5}),
        ("mixed chunks", {"mixed_chunk": False}),
        ("shared prefixes, longest first", {"longest_prefix_first": False}),
        ("chunked prefill off", {"max_prefill_tokens": 10_000}),
    ],
)
def test_with_another_rule_the_recorded_steps_are_missed(category, limits) -> None:
    missed = 0
    for recorded in RECORDED:
        if recorded["category"] == category:
            config = recorded["rules"]
            other = recorded | {"rules": config | {"variant": config["variant"] | limits}}
            missed += sglang.ticks.merged(sglang.our_ticks(other)[0]) != recorded["runs"]
    assert missed


def test_steps_one_after_another_are_others_than_those_composed_ahead() -> None:
    for recorded in RECORDED:
        if recorded["category"] == "chunked prefill" and recorded["rules"]["async_scheduling"]:
            rules = recorded["rules"] | {"async_scheduling": False}
            ours, _ = sglang.our_ticks(recorded | {"rules": rules})
            assert sglang.ticks.merged(ours) != recorded["runs"]
