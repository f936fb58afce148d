"""What a plan's engine does in the simulator where the plan is silent."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import RunOptions, performance_at
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.factors import plan_coefficients
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import LengthLaws, Poisson, Workload

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
OPEN = Workload.of(LengthLaws.fixed(300, 60), request_count=80, arrivals=Poisson(4.0))
CLOSED = Workload.of(LengthLaws.fixed(300, 60), request_count=80, concurrency=8)
PEOPLE = Workload.of(LengthLaws.ranged(300, 60, 0.0), request_count=80, concurrency=8)


def records(load: Workload, machine: str = "L4", *, ahead: bool | None = None, **fields: object):  # type: ignore[no-untyped-def]
    """With steps as long as they are where the plan says nothing."""
    extra = () if ahead is None else (("async_scheduling", ahead),)
    device = node(gpu=machine)
    silent = Plan(model="m", **fields)  # type: ignore[arg-type]
    plan = msgspec.structs.replace(silent, extra=extra)
    coefficients = plan_coefficients(device.device, silent)
    return simulate(plan, SHAPE, device, load, coefficients=coefficients).records


def open_run(plan: Plan, lengths: LengthLaws, rate_per_s: float, **fields: object) -> PlannedRun:
    """Open loop of 200 requests on an H100."""
    whole: dict[str, object] = {"shape": SHAPE, "concurrency": 1, "request_count": 200} | fields
    return PlannedRun(
        node=node(gpu="H100"),
        plan=plan,
        lengths=lengths,
        protocol="open",
        rate_per_s=rate_per_s,
        warmed=True,
        **whole,  # type: ignore[arg-type]
    )


def simulated_ttft_ms(run: PlannedRun, seed: int = 1) -> float:
    """Mean time to the first token of an open loop, in virtual time."""
    load = Workload.of(
        run.lengths, request_count=run.request_count, arrivals=Poisson(run.rate_per_s), seed=seed
    )
    options = RunOptions(each_token=False)
    found = simulate(run.plan, run.shape, run.node, load, options=options).records
    return 1e3 * sum(each.ttft_s or 0.0 for each in found) / len(found)


@pytest.mark.parametrize(
    ("load", "fields", "ahead"),
    [
        (OPEN, {}, True),  # vLLM 0.32 on a GPU
        (OPEN, {"engine": "vllm"}, True),
        (CLOSED, {}, False),  # its fitted waits have the step already
        (PEOPLE, {}, True),  # who wait in no clumps
        (PEOPLE, {"engine_version": "0.13.0"}, False),
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


@pytest.mark.parametrize("users", [4, 32])
def test_users_with_answers_of_all_lengths_miss_a_step_by_formula_and_simulated(users: int) -> None:
    """As published first tokens of conversations show (ShareGPT under vLLM 0.14 and later)."""
    lengths, machine = LengthLaws.ranged(400, 400, 0.0), node(gpu="H100")
    load = Workload.of(lengths, request_count=40 * users, concurrency=users)
    found = []
    for release in ("0.13.0", "0.32.0"):
        plan = Plan(model="m", engine="vllm", engine_version=release)
        run = PlannedRun(
            shape=SHAPE,
            node=machine,
            plan=plan,
            lengths=lengths,
            concurrency=users,
            request_count=40 * users,
            warmed=True,
        )
        (whole,) = predict_runs([run])
        steady = performance_at(SHAPE, machine, plan, load, users)
        simulated = simulate(plan, SHAPE, machine, load).records[users:]
        times_ms = [1e3 * record.ttft_s for record in simulated if record.ttft_s is not None]
        found.append((whole.point.ttft_ms, steady.ttft_ms, sum(times_ms) / len(times_ms)))
    before, now = found
    step_ms = performance_at(SHAPE, machine, Plan(model="m"), load, users).itl_ms
    for earlier, later in zip(before, now, strict=True):
        assert 0.5 * step_ms < later - earlier < 2 * step_ms
    assert now == pytest.approx([now[2]] * 3, rel=0.15)


def test_first_tokens_of_a_capped_open_loop_do_not_come_sooner_where_it_fills() -> None:
    """It is a closed loop then, whose prompts miss a step as they did before."""
    plan = Plan(model="m", engine="vllm", engine_version="0.32.0")
    lengths = LengthLaws.ranged(400, 400, 0.0)
    runs = [
        open_run(plan, lengths, rate, concurrency=8, request_count=2000, capped=True)
        for rate in (5.0, 20.0, 60.0)
    ]
    few, some, full = (each.point.ttft_ms for each in predict_runs(runs))
    assert few < 1.05 * some
    assert some < 1.05 * full


@pytest.mark.parametrize("ahead", [True, False])
def test_a_setting_says_whether_steps_are_composed_ahead(ahead: bool) -> None:
    """Formulas as the simulator."""
    lengths, machine = LengthLaws.ranged(400, 400, 0.0), node(gpu="H100")
    runs = [
        PlannedRun(
            shape=SHAPE,
            node=machine,
            plan=Plan(model="m", engine="vllm", engine_version=release, extra=extra),
            lengths=lengths,
            concurrency=16,
            request_count=320,
            warmed=True,
        )
        for release in ("0.13.0", "0.32.0")
        for extra in ((), (("async_scheduling", ahead),))
    ]
    before, told_before, now, told_now = (each.point.ttft_ms for each in predict_runs(runs))
    assert (told_before > before + 2) is ahead
    assert (told_now < now - 2) is not ahead
    if not ahead:
        assert told_before == before
    else:
        assert told_now == now


@pytest.mark.parametrize(("release", "ahead"), [("0.5.9", True), ("0.3.6", False)])
def test_sglang_composes_ahead_from_its_fourth_release_on(release: str, ahead: bool) -> None:
    """By formula and simulated, unless it is told not to."""
    silent, told = (
        open_run(
            Plan(model="m", engine="sglang", engine_version=release, extra=extra),
            LengthLaws.fixed(300, 200),
            8.0,
        )
        for extra in ((), (("disable_overlap_schedule", True),))
    )
    first, second = (each.point for each in predict_runs([silent, told]))
    simulated_ms = [simulated_ttft_ms(run) for run in (silent, told)]
    assert (first.ttft_ms > second.ttft_ms + 2) is ahead
    assert (second.tpot_ms > first.tpot_ms + 0.5) is ahead  # the device waits for the host
    assert (simulated_ms[0] > simulated_ms[1] + 2) is ahead
    assert first.ttft_ms == pytest.approx(simulated_ms[0], rel=0.15)


def test_a_step_that_is_missed_may_be_one_of_prompts() -> None:
    """Where a third of the time is of prompts, the mean step is longer than one that decodes."""
    shape = load_shape("meta-llama/Llama-3.1-8B-Instruct", catalogue_first=True)
    plan = Plan(model="m", engine="sglang", engine_version="0.5.9")
    run = open_run(plan, LengthLaws.fixed(1024, 32), 20.0, shape=shape, request_count=400)
    [prediction] = predict_runs([run])
    simulated_ms = sum(simulated_ttft_ms(run, seed) for seed in (1, 2, 3)) / 3
    assert prediction.point.ttft_ms == pytest.approx(simulated_ms, rel=0.03)


@pytest.mark.parametrize(
    ("engine", "name", "release", "waits"),
    [
        ("vllm", "async_scheduling=false", "0.32.0", True),
        ("vllm", "async_scheduling=false", "0.13.0", False),
        ("sglang", "disable_overlap_schedule=true", "0.5.9", True),
        ("sglang", "disable_overlap_schedule=true", "0.4.1", True),
        ("sglang", "disable_overlap_schedule=true", "0.3.6", False),
        ("trtllm", "disable_overlap_scheduler=true", "1.1", True),
        ("trtllm", "disable_overlap_scheduler=true", "0.17", False),
    ],
)
def test_told_not_to_compose_ahead_the_device_waits_for_the_host(
    engine: str, name: str, release: str, waits: bool
) -> None:
    """In rows, and in plans of engines that have one; where it would not have, nothing changes."""
    setting, value = name.split("=")
    told = ((setting, value == "true"),)
    planned = engine if engine != "trtllm" else "vllm"
    plans = [
        Plan(model="m", engine=planned, engine_version=release, extra=extra) for extra in ((), told)
    ]
    lengths = LengthLaws.fixed(300, 200)
    silent, slower = predict_runs(
        [open_run(plan, lengths, 8.0, engine=engine, engine_version=release) for plan in plans]
    )
    assert (slower.point.tpot_ms > silent.point.tpot_ms + 0.5) is waits
    assert (slower.point.ttft_ms < silent.point.ttft_ms - 2) is waits
    if not waits:
        assert slower.point == silent.point
    if planned == engine:
        steps_s = [plan_coefficients(node(gpu="H100").device, plan).host.step_s for plan in plans]
        assert (steps_s[1] > steps_s[0]) is waits


@pytest.mark.parametrize("fields", [{"pipeline_parallel": 2}, {"draft_tokens": 2}])
def test_what_is_not_composed_ahead_costs_no_more_where_it_is_told_so(fields) -> None:  # type: ignore[no-untyped-def]
    device = node(gpu="H100").device
    for engine, setting, value in (
        ("vllm", "async_scheduling", False),
        ("sglang", "disable_overlap_schedule", True),
    ):
        silent = Plan(model="m", engine=engine, **fields)
        told = msgspec.structs.replace(silent, extra=((setting, value),))
        assert plan_coefficients(device, told) == plan_coefficients(device, silent)
