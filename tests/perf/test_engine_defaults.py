"""What a plan's engine does in the simulator where the plan is silent."""

from __future__ import annotations

import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
OPEN = Workload.of(LengthLaws.fixed(300, 60), request_count=80, arrivals=Poisson(4.0))
CLOSED = Workload.of(LengthLaws.fixed(300, 60), request_count=80, concurrency=8)


def records(load: Workload, machine: str = "L4", *, ahead: bool | None = None, **fields: object):  # type: ignore[no-untyped-def]
    extra = () if ahead is None else (("async_scheduling", ahead),)
    plan = Plan(model="m", extra=extra, **fields)  # type: ignore[arg-type]
    return simulate(plan, SHAPE, node(gpu=machine), load).records


@pytest.mark.parametrize(
    ("load", "fields", "ahead"),
    [
        (OPEN, {}, True),  # vLLM 0.32 on a GPU
        (OPEN, {"engine": "vllm"}, True),
        (CLOSED, {}, False),  # its fitted waits have the step already
        (OPEN, {"pipeline_parallel": 1, "draft_tokens": 2}, False),
    ],
)
def test_steps_are_composed_ahead_where_vllm_does_and_the_law_has_no_such_wait(
    load, fields, ahead
) -> None:
    silent = records(load, **fields)
    assert silent == records(load, ahead=False, **fields) or ahead
    if not fields.get("draft_tokens"):
        assert (silent == records(load, ahead=True, **fields)) == ahead


def test_a_prompt_waits_a_step_longer_where_steps_are_composed_ahead() -> None:
    ahead, after = (records(OPEN, ahead=each) for each in (True, False))
    steps_s = [after[0].chunk_times_s[i + 1] - after[0].chunk_times_s[i] for i in range(10)]
    more_s = sum(a.ttft_s - b.ttft_s for a, b in zip(ahead, after, strict=True)) / len(ahead)
    assert 0.3 * min(steps_s) < more_s < 2 * max(steps_s)


def test_other_engines_do_not_compose_ahead() -> None:
    silent = records(OPEN, engine="sglang")
    assert silent == records(OPEN, engine="sglang", ahead=False)
