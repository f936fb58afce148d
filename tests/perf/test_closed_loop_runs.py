"""Runs priced in bulk are the runs priced alone, and nothing that ran is refused."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.plan.plan import Plan
from servetune.workload import LengthLaws

SHAPE = load_shape("Qwen/Qwen3-32B", catalogue_first=True)


def run(users: int = 16, engine: str | None = None, **fields: object) -> PlannedRun:
    plan = Plan(model=SHAPE.name, max_num_seqs=users, **fields)  # type: ignore[arg-type]
    return PlannedRun(
        shape=SHAPE,
        node=node(gpu="H100", count=plan.device_count),
        plan=plan,
        lengths=LengthLaws.ranged(1024, 512, 0.8),
        concurrency=users,
        request_count=10 * users,
        engine=engine,
    )


RUNS = [
    run(tensor_parallel=2),
    run(64, tensor_parallel=4, kv_cache_dtype="fp8"),
    run(tensor_parallel=4, engine="sglang"),
    run(tensor_parallel=4, quantization="fp8"),
]


def test_a_run_does_not_depend_on_its_neighbours() -> None:
    together = predict_runs(RUNS)
    for one, found in zip(RUNS, together, strict=True):
        alone = predict_runs([one])[0]
        assert msgspec.structs.astuple(found.point) == pytest.approx(
            msgspec.structs.astuple(alone.point), rel=1e-9
        )
    assert predict_runs([]) == []


def test_what_does_not_fit_is_priced_and_said() -> None:
    found = predict_runs([run(tensor_parallel=1, max_model_len=40960)])[0]
    assert found.misfit is not None
    assert "H100" in found.misfit
    assert found.point.tpot_ms > 0
    assert predict_runs([run(tensor_parallel=4)])[0].misfit is None


def test_an_engine_without_a_plan_of_its_own_has_its_own_overheads() -> None:
    usual, other = predict_runs([run(tensor_parallel=4), run(engine="trtllm", tensor_parallel=4)])
    assert usual.point.tpot_ms != other.point.tpot_ms
