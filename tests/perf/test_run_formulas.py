"""The formula of a whole run against the engine in virtual time, and against the steady state."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from servetune.engines import memory, resolved
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import performance_at, simulate
from servetune.perf.roofline.coefficients import Coefficients, changed
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.operations import operations
from servetune.perf.roofline.run_formulas import RunFormulas, RunPoint
from servetune.perf.roofline.steady_state import length_moments
from servetune.perf.roofline.step_laws import PlanBatch, columns_of
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload
from servetune.workload.lengths import Lengths

MODEL = "Qwen/Qwen3-32B"
SHAPE = load_shape(MODEL, catalogue_first=True)
#: Scheduling of an engine that computes all waiting prompts in steps of their own.
FIRST = {"scheduling.prefill_first": True, "scheduling.separate_prefill": True}


def plain(devices: int, values: dict[str, float] | None = None) -> Coefficients:
    """Coefficients of H100 without what the simulator does not simulate."""
    chosen = coefficients_for(node(gpu="H100", count=devices).device)
    quiet = ("closed_loop.warm_up_s", "closed_loop.clump_prompts", "closed_loop.intake_s")
    return changed(chosen, dict.fromkeys(quiet, 0.0) | (values or {}))


def run(
    lengths: Lengths,
    users: int,
    *,
    devices: int = 2,
    generations: int = 10,
    coefficients: Coefficients | None = None,
    admission_delay_steps: float = 0.0,
    places: int | None = None,
    budget: int | None = None,
    memory_fraction: float | None = None,
) -> RunPoint:
    machine = node(gpu="H100", count=devices)
    plan = Plan(
        model=MODEL,
        tensor_parallel=devices,
        max_num_seqs=places or users,
        max_num_batched_tokens=budget,
        gpu_memory_fraction=memory_fraction,
    )
    filled = resolved(plan, SHAPE, machine.device)
    loops = RunFormulas(
        PlanBatch([(operations(filled, SHAPE), machine, filled)]),
        [filled],
        [memory(filled, SHAPE, machine.device).kv_tokens_per_engine],
        [length_moments(lengths)],
        [users],
        [generations * users],
        admission_delay_steps=[admission_delay_steps],
    )
    return loops.points(columns_of([coefficients or plain(devices)]))[0]


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize(
    ("prompt", "answer", "users"),
    [(1024, 1024, 4), (1024, 1024, 64), (8192, 1024, 16), (4096, 128, 32), (1024, 4096, 32)],
)
def test_a_run_by_formula_agrees_with_the_simulator(
    devices: int, prompt: int, answer: int, users: int
) -> None:
    """Ten generations, lengths 0.8 to 1 of the nominal: what load clients measure."""
    lengths = LengthLaws.ranged(prompt, answer, 0.8)
    simulated = simulate(
        Plan(model=MODEL, tensor_parallel=devices, max_num_seqs=users),
        SHAPE,
        node(gpu="H100", count=devices),
        Workload.of(lengths, request_count=10 * users, concurrency=users),
        coefficients=plain(devices),
    )
    records = simulated.records
    ttft_ms = 1e3 * np.mean([r.ttft_s for r in records])
    tpot_ms = 1e3 * np.mean([(r.e2e_s - r.ttft_s) / (r.output_tokens - 1) for r in records])
    found = run(lengths, users, devices=devices)
    assert found.ttft_ms == pytest.approx(ttft_ms, rel=0.2)
    assert found.tpot_ms == pytest.approx(tpot_ms, rel=0.06)


@pytest.mark.parametrize(
    ("prompt", "answer", "users", "budget"),
    [
        (8192, 1, 16, 2048),
        (8192, 2, 64, 2048),
        (8192, 8, 16, 2048),
        (2048, 2, 64, 2048),
        (2048, 8, 16, 2048),
        (8192, 2, 16, 8192),
        (2048, 2, 16, 8192),
        (256, 2, 64, 8192),
    ],
)
def test_short_answers_cost_the_prompts_that_come_with_them(
    prompt: int, answer: int, users: int, budget: int
) -> None:
    """Prompts then fill every step: whoever waits brings one too, and few decode at all."""
    lengths = LengthLaws.ranged(prompt, answer, 0.8)
    simulated = simulate(
        Plan(model=MODEL, tensor_parallel=2, max_num_seqs=users, max_num_batched_tokens=budget),
        SHAPE,
        node(gpu="H100", count=2),
        Workload.of(lengths, request_count=10 * users, concurrency=users),
        coefficients=plain(2),
    )
    e2e_ms = 1e3 * np.mean([record.e2e_s for record in simulated.records])
    assert run(lengths, users, budget=budget).e2e_ms == pytest.approx(e2e_ms, rel=0.2)


@pytest.mark.parametrize("users", [16, 64])
@pytest.mark.parametrize("answer", [16, 128, 1024])
def test_who_has_a_place_keeps_it_while_the_prompt_is_computed(answer: int, users: int) -> None:
    """A cache for seven of sixteen thousand tokens."""
    lengths, share = LengthLaws.ranged(16_384, answer, 0.8), 0.6
    simulated = simulate(
        Plan(
            model=MODEL,
            tensor_parallel=2,
            max_num_seqs=users,
            gpu_memory_fraction=share,
            max_model_len=16_384 + answer,
        ),
        SHAPE,
        node(gpu="H100", count=2),
        Workload.of(lengths, request_count=10 * users, concurrency=users),
        coefficients=plain(2),
    )
    e2e_ms = 1e3 * np.mean([record.e2e_s for record in simulated.records])
    found = run(lengths, users, memory_fraction=share)
    assert found.e2e_ms == pytest.approx(e2e_ms, rel=0.12)


def test_a_long_run_of_spread_lengths_is_the_steady_state() -> None:
    lengths = LengthLaws.ranged(500, 600, 0.0)
    machine = node(gpu="H100", count=2)
    plan = Plan(model=MODEL, tensor_parallel=2, max_num_seqs=32, engine_version="0.13.0")
    steady = performance_at(
        SHAPE,
        machine,
        plan,
        Workload.of(lengths, request_count=1),
        32,
        coefficients=plain(2),
    )
    found = run(lengths, 32, generations=10_000)
    # A run takes prompts of mean length, evenly spread; those of the steady state come by chance.
    assert found.ttft_ms == pytest.approx(steady.ttft_ms, rel=0.1)
    assert found.tpot_ms == pytest.approx(steady.itl_ms, rel=0.02)


def test_the_burst_weighs_less_in_a_longer_run() -> None:
    lengths = LengthLaws.ranged(4096, 512, 0.8)
    means = [run(lengths, 64, generations=n).ttft_ms for n in (1, 2, 10, 100)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 3 * means[-1]


def test_more_users_never_wait_less_and_never_get_tokens_sooner() -> None:
    points = [run(LengthLaws.ranged(1024, 512, 0.8), users) for users in (1, 2, 4, 16, 64, 256)]
    assert [p.ttft_ms for p in points] == sorted(p.ttft_ms for p in points)
    assert [p.tpot_ms for p in points] == sorted(p.tpot_ms for p in points)


def test_a_cold_run_pays_its_warm_up_once() -> None:
    lengths = LengthLaws.ranged(1024, 512, 0.8)
    warm, cold = (
        run(lengths, 16, coefficients=plain(2, {"closed_loop.warm_up_s": s})) for s in (0.0, 2.0)
    )
    assert cold.ttft_ms - warm.ttft_ms == pytest.approx(2000 / 10)
    assert cold.tpot_ms == warm.tpot_ms


def test_users_in_step_wait_longer_first_and_shorter_between_tokens() -> None:
    lengths = LengthLaws.fixed(2048, 128)
    apart = run(lengths, 64)
    in_step = run(lengths, 64, coefficients=plain(2, FIRST))
    assert in_step.ttft_ms > 2 * apart.ttft_ms
    assert in_step.tpot_ms < apart.tpot_ms


@pytest.mark.parametrize(
    "engine", ["vllm", pytest.param("sglang", marks=pytest.mark.slow), "trtllm"]
)
@pytest.mark.parametrize(("prompt", "answer"), [(1024, 1024), (8192, 1024), (1024, 8192)])
@pytest.mark.parametrize(
    "ratio", [0.0, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.8, 1.0))]
)
@pytest.mark.parametrize("places", [64, 2048])
def test_more_users_than_places_wait_but_change_nothing_else(
    engine: str, prompt: int, answer: int, ratio: float, places: int
) -> None:
    """The cache fills up (and `places` before it): then gaps and throughput stand still."""
    chosen = coefficients_for(node(gpu="H100", count=2).device, engine)
    points = [
        run(LengthLaws.ranged(prompt, answer, ratio), users, coefficients=chosen, places=places)
        for users in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    ]
    for less, more in pairwise(points):
        assert more.tpot_ms >= 0.999 * less.tpot_ms
        assert more.ttft_ms >= 0.999 * less.ttft_ms
        assert more.output_tokens_per_s >= 0.999 * less.output_tokens_per_s
    assert points[-2].queued
    last, before = points[-1].output_tokens_per_s, points[-2].output_tokens_per_s
    assert last == pytest.approx(before, rel=0.01)


def test_prompts_held_back_wait_that_many_steps_once_the_burst_is_over() -> None:
    lengths = LengthLaws.ranged(1024, 1024, 0.8)
    free, held = (
        run(lengths, 32, generations=10_000, admission_delay_steps=n) for n in (0.0, 15.0)
    )
    assert held.ttft_ms - free.ttft_ms == pytest.approx(15 * free.tpot_ms, rel=0.1)


def test_equal_answers_keep_users_in_step_and_spread_ones_do_not() -> None:
    """Under an engine that computes prompts first; half of the prompts then lie before tokens."""
    gaps = [
        run(lengths, 64, coefficients=chosen).tpot_ms
        for lengths in (LengthLaws.fixed(2048, 256), LengthLaws.ranged(4096, 512, 0.0))
        for chosen in (plain(2), plain(2, FIRST))
    ]
    assert gaps[1] < 0.8 * gaps[0]
    assert gaps[3] == pytest.approx(gaps[2], rel=0.1)


def test_whole_answers_leave_fewer_places_where_answers_are_long() -> None:
    lengths = LengthLaws.ranged(1024, 8192, 0.8)
    loose, whole = (
        run(lengths, 512, coefficients=plain(2, {"scheduling.whole_answers": w}))
        for w in (False, True)
    )
    assert whole.running == pytest.approx(loose.running * 0.55, rel=0.02)
    assert whole.ttft_ms > loose.ttft_ms


def test_the_estimate_serves_no_more_prompts_than_steps_compute() -> None:
    """Prompts of many steps with short answers that differ were served 3.6 times too fast."""
    lengths = LengthLaws.ranged(12323, 2, 0.0)
    plan = Plan(model=MODEL, tensor_parallel=8, max_num_batched_tokens=512, max_model_len=32768)
    machine = node(gpu="H100", count=8)
    load = Workload.of(lengths, request_count=60, concurrency=5)
    records = simulate(plan, SHAPE, machine, load).records
    found = performance_at(SHAPE, machine, plan, load, 5)
    assert found.e2e_ms == pytest.approx(1e3 * np.mean([r.e2e_s for r in records]), rel=0.2)
