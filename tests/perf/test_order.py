"""Order of predicted plans: which a prediction tells apart from the best."""

from __future__ import annotations

import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, RunFeatures, calibrated, run_features
from servetune.perf.roofline import Contender, OperatingPoint, as_good_as_first
from servetune.perf.roofline.local_corrections import steady_run
from servetune.perf.roofline.similarity import difference_sds, similarity_of
from servetune.perf.roofline.steady_state import length_moments
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
LOAD = Workload.of(LengthLaws.fixed(1024, 512), request_count=640)
FOUR = node(gpu="L4", count=4)


def plan(degree: int) -> Plan:
    return Plan(model=SHAPE.name, tensor_parallel=degree, replicas=4 // degree)


def point(rate: float) -> OperatingPoint:
    return OperatingPoint(
        concurrency=64,
        running=60.0,
        ttft_ms=200.0,
        itl_ms=30.0,
        e2e_ms=15_000.0,
        requests_per_s=rate / 512,
        input_tokens_per_s=2 * rate,
        output_tokens_per_s=rate,
        queued=False,
    )


def contender(
    degree: int, rate: float | None, machine: str = "L4", slope: float = 1.0
) -> Contender:
    return Contender(
        plan=plan(degree),
        node=node(gpu=machine, count=4),
        point=point(rate or 1000),
        merit=rate,
        slope=slope,
    )


def places(*degrees: int) -> list[RunFeatures]:
    moments = length_moments(LOAD.lengths)
    return run_features([steady_run(plan(each), SHAPE, moments, FOUR, 64) for each in degrees])


def test_plans_that_are_predicted_alike_are_not_told_apart() -> None:
    found = as_good_as_first([contender(1, 1000), contender(4, 990)], SHAPE, LOAD)
    assert found == (True, True)


def test_a_plan_that_is_predicted_at_a_third_is_told_apart() -> None:
    rates = (1000, 999, 333)
    found = as_good_as_first([contender(4, each) for each in rates], SHAPE, LOAD)
    assert found == (True, True, False)


def test_plans_of_one_split_are_told_apart_by_less_than_those_of_others() -> None:
    """They share the doubt about the link between four devices, which one device does not have."""
    same, other = (
        max(
            rate
            for rate in range(400, 1000, 10)
            if not as_good_as_first([contender(4, 1000), contender(degree, rate)], SHAPE, LOAD)[1]
        )
        for degree in (4, 1)
    )
    assert other < 0.95 * same


def test_devices_of_other_kinds_share_no_error() -> None:
    both, similarity = places(4, 4), similarity_of("tpot")
    here, there = (
        difference_sds(both, similarity, same_device=[same])[0] for same in (True, False)
    )
    assert there > 3 * here
    rates = [contender(4, 1000), contender(4, 700, "A10G")]
    assert as_good_as_first(rates, SHAPE, LOAD) == (True, True)
    # A run of the first tells of its device, not of the other.
    told = difference_sds(both, similarity, same_device=[False], measured=both[:1], logs=[0.0])
    assert here < told[0] < 0.9 * there


def test_measured_runs_that_contradict_each_other_tell_less() -> None:
    both, similarity = places(4, 1), similarity_of("tpot")
    agreed, contrary = (
        difference_sds(both, similarity, measured=both * 2, logs=logs)[0]
        for logs in ([0.1, 0.1, 0.1, 0.1], [0.5, 0.5, -0.5, -0.5])
    )
    assert contrary > 1.5 * agreed


def test_a_rate_that_a_limit_allows_is_less_sure() -> None:
    """A tenth more time is a third less rate where the slope is four."""
    rates = [contender(4, 1000), contender(4, 600)]
    assert as_good_as_first(rates, SHAPE, LOAD) == (True, False)
    steep = [contender(4, 1000), contender(4, 600, slope=4.0)]
    assert as_good_as_first(steep, SHAPE, LOAD) == (True, True)


def test_a_plan_without_a_price_is_not_compared() -> None:
    found = as_good_as_first([contender(4, 1000), contender(4, None)], SHAPE, LOAD)
    assert found == (True, None)


def test_one_plan_is_as_good_as_itself() -> None:
    assert as_good_as_first([contender(4, 1000)], SHAPE, LOAD) == (True,)
    assert as_good_as_first([], SHAPE, LOAD) == ()


def test_measured_runs_of_both_plans_tell_them_apart() -> None:
    """Doubts about compute, memory and links were most of what could turn the order round."""
    anchors = [
        Anchor(
            predicted_ttft_ms=200,
            predicted_tpot_ms=30,
            measured_ttft_ms=200,
            measured_tpot_ms=30,
            place=place,
        )
        for place in places(1, 4)
    ]
    close = [contender(4, 1000), contender(1, 830)]
    assert as_good_as_first(close, SHAPE, LOAD) == (True, True)
    assert as_good_as_first(close, SHAPE, LOAD, calibrated(anchors)) == (True, False)


@pytest.mark.parametrize("quantity", ["tpot", "ttft"])
def test_the_difference_of_two_runs_is_surer_than_two_runs_apart(quantity: str) -> None:
    similarity = similarity_of(quantity)
    runs = places(4, 4, 2, 1)
    shared = difference_sds(runs, similarity)
    apart = difference_sds(runs, similarity, same_device=[False] * 3)
    assert (shared < apart).all()
    assert shared[0] == pytest.approx(similarity.accident * np.sqrt(2))
    assert (np.diff(shared) > 0).all()
