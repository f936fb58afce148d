"""What anchors do to predictions, and what they must not do."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, Calibration, calibrated, estimate, simulate
from servetune.perf.roofline import RunPoint
from servetune.plan.plan import Plan
from servetune.workload import Fixed, Workload

POINT = RunPoint(
    ttft_ms=100.0,
    tpot_ms=10.0,
    e2e_ms=1100.0,
    output_tokens_per_s=500.0,
    running=5.0,
    queued=False,
)


def anchor(ttft: float | None, tpot: float | None) -> Anchor:
    return Anchor(
        predicted_ttft_ms=100,
        predicted_tpot_ms=10,
        measured_ttft_ms=None if ttft is None else 100 * ttft,
        measured_tpot_ms=None if tpot is None else 10 * tpot,
    )


def test_no_anchor_and_perfect_anchors_change_nothing() -> None:
    assert calibrated([]).on(POINT) == POINT
    assert calibrated([anchor(1, 1)] * 3).on(POINT) == POINT


def test_more_anchors_that_agree_are_believed_more_and_never_more_than_fully() -> None:
    factors = [calibrated([anchor(1.2, 1.2)] * count).tpot_factor for count in (0, 1, 2, 5, 1000)]
    assert factors == sorted(factors)
    assert factors[0] == 1.0
    assert 1.1 < factors[-1] < 1.2


def test_one_accident_counts_little_more_than_a_large_error() -> None:
    large, accident = (calibrated([anchor(r, r)]) for r in (3.0, 100.0))
    assert accident.tpot_factor < 1.1 * large.tpot_factor
    assert accident.ttft_factor < 1.3 * large.ttft_factor


def test_what_was_not_measured_is_not_corrected() -> None:
    found = calibrated([anchor(None, 1.3)])
    assert found.ttft_factor == 1.0
    assert found.ttft_anchors == 0
    assert found.tpot_anchors == 1


def test_a_corrected_point_still_adds_up() -> None:
    found = Calibration(tpot_factor=1.5, ttft_factor=2.0).on(POINT)
    assert found.ttft_ms == 200
    assert found.tpot_ms == 15
    assert found.e2e_ms == 200 + 1000 * 1.5
    assert found.output_tokens_per_s == pytest.approx(500 * 1100 / 1700)


def test_a_calibration_slows_estimate_and_simulation_alike() -> None:
    shape, machine = load_shape("Qwen/Qwen3-4B", catalogue_first=True), node(gpu="H100")
    plan = Plan(model=shape.name, max_num_seqs=8)
    load = Workload(lengths=Fixed(500, 100), request_count=8, max_concurrency=1)
    slow = Calibration(tpot_factor=2.0, tpot_anchors=3)
    plain, slowed = (
        estimate(shape, machine, plan, load, calibration=given) for given in (None, slow)
    )
    assert plain.best_latency is not None
    assert slowed.best_latency is not None
    assert slowed.best_latency.itl_ms == pytest.approx(2 * plain.best_latency.itl_ms)
    assert slowed.interval.calibrated
    assert slowed.interval.extrapolation == "anchored"
    assert not plain.interval.calibrated
    usual, late = (simulate(plan, shape, machine, load, calibration=c) for c in (None, slow))
    assert late.busy_s == pytest.approx(2 * usual.busy_s)


def test_a_calibration_survives_json() -> None:
    found = calibrated([anchor(1.5, 0.9)])
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found
