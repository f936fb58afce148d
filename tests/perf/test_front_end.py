"""The HTTP front end streams no more tokens than its processes can, in formulas and simulator."""

from __future__ import annotations

import msgspec
import pytest

from servetune.engines import engine
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import estimate, performance_at, simulate
from servetune.perf.roofline import PlannedRun, interval_of, predict_runs
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.runs import Protocol
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

SHAPE = load_shape("Qwen/Qwen3-8B", catalogue_first=True)
B200 = node(gpu="B200")
LENGTHS = LengthLaws.fixed(16, 256)
USERS = 512


def plan(**settings: int) -> Plan:
    return Plan(model="m", engine="sglang", quantization="fp8", extra=tuple(settings.items()))


def most(sglang: Plan) -> float:
    """Tokens per second that one process streams."""
    return 1 / coefficients_for(B200.device, sglang.engine).host.stream_token_s


def streamed(sglang: Plan) -> float:
    load = Workload.of(LENGTHS)
    return performance_at(SHAPE, B200, sglang, load, USERS).output_tokens_per_s


def run(sglang: Plan, protocol: Protocol = "closed") -> PlannedRun:
    return PlannedRun(
        shape=SHAPE,
        node=B200,
        plan=sglang,
        lengths=LENGTHS,
        concurrency=USERS,
        request_count=USERS if protocol == "static" else 10 * USERS,
        protocol=protocol,
    )


def test_the_steady_state_streams_what_its_processes_can_and_no_more() -> None:
    one, two, many = (streamed(plan(tokenizer_worker_num=count)) for count in (1, 2, 64))
    assert 0.8 * most(plan()) < one <= most(plan())
    assert one < two <= 2 * most(plan())
    assert two < many  # which the device limits
    assert streamed(plan(stream_interval=64)) == pytest.approx(many)


def test_copies_have_front_ends_of_their_own() -> None:
    single = streamed(plan())
    eight = node(gpu="B200", count=8)
    copies = msgspec.structs.replace(plan(), replicas=8)
    found = performance_at(SHAPE, eight, copies, Workload.of(LENGTHS), 8 * USERS)
    # All but what eight copies on one host cost each other.
    assert found.output_tokens_per_s == pytest.approx(8 * single, rel=0.002)


def test_the_simulator_streams_as_much_as_the_formula_says() -> None:
    load = Workload.of(LENGTHS, request_count=4 * USERS, concurrency=USERS)
    for settings in ({}, {"tokenizer_worker_num": 8}):
        simulated = simulate(plan(**settings), SHAPE, B200, load)
        tokens = sum(record.output_tokens for record in simulated.records)
        assert tokens / simulated.duration_s == pytest.approx(streamed(plan(**settings)), rel=0.15)


def test_static_batches_are_not_streamed() -> None:
    def rate(sglang: Plan, protocol: Protocol) -> float:
        (found,) = predict_runs([run(sglang, protocol)])
        return found.point.output_tokens_per_s

    free = plan(tokenizer_worker_num=64)
    assert rate(plan(), "static") == rate(free, "static") > most(plan())
    assert rate(plan(), "closed") <= most(plan()) < rate(free, "closed")


def test_each_data_parallel_rank_of_vllm_has_an_api_process_unless_told_otherwise() -> None:
    front = engine("vllm").behaviour.front_end
    ranks = Plan(model="m", data_parallel=8)
    one = msgspec.structs.replace(ranks, extra=(("api-server-count", 1),))
    assert front.process_share(ranks) == 1
    assert front.process_share(one) == 8
    assert engine("sglang").behaviour.front_end.process_share(ranks) == 8


def test_the_interval_is_wide_where_the_front_end_is_the_limit() -> None:
    free, bound = (
        interval_of(B200, plan(), SHAPE, output_tokens_per_s=rate) for rate in (1e3, most(plan()))
    )
    assert free.high_factor == pytest.approx(interval_of(B200, plan(), SHAPE).high_factor)
    assert bound.high_factor == pytest.approx(1.5 * free.high_factor)
    assert bound.low_factor == pytest.approx(free.low_factor / 1.5)


def test_an_estimate_names_the_setting_that_starts_more_processes() -> None:
    load = Workload.of(LENGTHS)
    notes = [
        " ".join(estimate(SHAPE, B200, each, load).notes)
        for each in (plan(), plan(tokenizer_worker_num=64))
    ]
    assert "front end limits" in notes[0]
    assert "raise tokenizer_worker_num" in notes[0]
    assert "front end" not in notes[1]
