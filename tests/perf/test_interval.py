"""Intervals and cautions: how they widen, and that they meet where they should."""

from __future__ import annotations

import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, Calibration, RunFeatures, calibrated
from servetune.perf.roofline import interval_of, safety_factors_of
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.roofline.interval import log_spread
from servetune.plan import Plan
from servetune.workload.lengths import SHAREGPT, LengthLaws

SHAPE = load_shape("Qwen/Qwen3-8B", catalogue_first=True)
H100, L4, MI300X = (node(gpu=name, count=4) for name in ("H100", "L4", "MI300X"))
LEVELS = (0.5, 0.55, 0.6, 0.75, 0.8, 0.9, 0.93, 0.95)


@pytest.mark.parametrize("on", [H100, L4, MI300X])
@pytest.mark.parametrize("degree", [1, 4])
def test_caution_begins_at_face_value_and_rises_with_confidence(on, degree) -> None:  # type: ignore[no-untyped-def]
    plan = Plan(model="m", tensor_parallel=degree)
    cautions = [safety_factors_of(on, plan, SHAPE, level) for level in LEVELS]
    assert (cautions[0].tpot_factor, cautions[0].ttft_factor) == (1.0, 1.0)
    for name in ("tpot_factor", "ttft_factor"):
        factors = [getattr(each, name) for each in cautions]
        assert factors == sorted(factors)
        assert factors[-1] > factors[3] > 1


def test_caution_stays_within_the_interval_whose_upper_end_it_approaches() -> None:
    for on in (H100, L4):
        plan = Plan(model="m", tensor_parallel=4)
        most, band = safety_factors_of(on, plan, SHAPE, 0.95), interval_of(on, plan, SHAPE)
        assert 0.8 * band.high_factor < most.tpot_factor <= band.high_factor
        assert most.ttft_factor <= band.ttft_high_factor


def test_a_device_is_not_less_sure_for_having_been_measured() -> None:
    """Of 22 runs of one laboratory on A100 with 80 GB some were off by 64%, six authors' by 42%."""
    plan = Plan(model="m")
    large, small = (interval_of(node(gpu=f"A100-{size}GB"), plan, SHAPE) for size in (80, 40))
    assert large.low_factor >= small.low_factor
    assert large.high_factor <= small.high_factor


def test_a_host_path_asks_for_more_caution_and_anchors_for_less() -> None:
    alone, split = (Plan(model="m", tensor_parallel=degree) for degree in (1, 4))
    assert (
        safety_factors_of(L4, split, SHAPE, 0.8).tpot_factor
        > safety_factors_of(L4, alone, SHAPE, 0.8).tpot_factor
    )
    anchored = safety_factors_of(L4, split, SHAPE, 0.8, Calibration(tpot_anchors=2, ttft_anchors=2))
    assert anchored.tpot_factor < safety_factors_of(L4, split, SHAPE, 0.8).tpot_factor


def measured_at(users: float, tpot_ms: tuple[float, float] = (11, 11)) -> Calibration:
    """What two runs at 16 users say of another number of them; 10 ms were predicted."""
    places = [
        RunFeatures(
            engine="vllm",
            storage="none",
            devices=4,
            concurrency=concurrency,
            input_tokens=1024,
            output_tokens=512,
        )
        for concurrency in (16, 16, users)
    ]
    anchors = [
        Anchor(
            predicted_ttft_ms=100,
            predicted_tpot_ms=10,
            measured_ttft_ms=110,
            measured_tpot_ms=measured_ms,
            place=place,
        )
        for place, measured_ms in zip(places[:2], tpot_ms, strict=True)
    ]
    (found,) = calibrated(anchors).at(places[2])
    return found


def test_lengths_of_conversations_leave_more_doubt_than_lengths_that_are_stated() -> None:
    on, plan = node(gpu="H100"), Plan(model="m")
    stated, mixed = (
        interval_of(on, plan, SHAPE, ran=Ran.of(lengths))
        for lengths in (LengthLaws.ranged(512, 256, 0.0), SHAREGPT)
    )
    assert mixed.low_factor < stated.low_factor
    assert mixed.high_factor > stated.high_factor


def test_the_doubt_of_a_place_widens_its_interval_and_its_caution() -> None:
    plan = Plan(model="m", tensor_parallel=4)
    near, far = (measured_at(users) for users in (16, 1024))
    bands = [interval_of(H100, plan, SHAPE, each) for each in (near, far)]
    assert bands[0].low_factor > bands[1].low_factor
    assert bands[0].ttft_high_factor < bands[1].ttft_high_factor
    for level in LEVELS[1:]:
        one, other = (safety_factors_of(H100, plan, SHAPE, level, each) for each in (near, far))
        assert 1 <= one.tpot_factor < other.tpot_factor
        assert 1 <= one.ttft_factor < other.ttft_factor
    assert all(band.calibrated and band.extrapolation == "anchored" for band in bands)


def test_caution_meets_its_interval_at_a_place_too() -> None:
    plan = Plan(model="m")
    for users in (16, 256):
        most = safety_factors_of(H100, plan, SHAPE, 0.95, measured_at(users))
        band = interval_of(H100, plan, SHAPE, measured_at(users))
        assert 0.75 * band.high_factor < most.tpot_factor <= band.high_factor


def test_anchors_that_contradict_each_other_leave_more_doubt() -> None:
    """Runs of 0.7 and 1.4 times the prediction gave an interval of 0.91 to 1.11."""
    agreeing, contradicting = (measured_at(16, (10, 10)), measured_at(16, (7, 14)))
    band, wide = (
        interval_of(H100, Plan(model="m"), SHAPE, each) for each in (agreeing, contradicting)
    )
    assert band.high_factor < 1.2
    assert wide.low_factor * contradicting.tpot_factor < 0.75
    assert wide.high_factor * contradicting.tpot_factor > 1.35


@pytest.mark.parametrize("confidence", [0.0, 0.49, 0.951, 1.0])
def test_a_confidence_that_no_rows_stand_behind_is_refused(confidence: float) -> None:
    with pytest.raises(InputError, match=r"0\.5 to 0\.95"):
        safety_factors_of(H100, Plan(model="m"), SHAPE, confidence)


def test_what_was_never_measured_is_less_sure_than_the_least_sure_of_its_kind() -> None:
    terms = {"base": -1.0, "engine:a": -0.3, "engine:b": 0.4, "link:one": 0.1}
    known = log_spread(terms, ("engine:b", "link:one"))
    assert known == pytest.approx(-0.5)
    assert log_spread(terms, ("engine:unheard", "link:one")) == pytest.approx(known + 0.7)
    assert log_spread(terms, ("engine:b", "link:unheard")) == known  # one link says no more


def test_an_engine_without_runs_may_be_several_times_as_slow_as_the_one_it_is_taken_for() -> None:
    """llama.cpp's 409 runs of one laboratory took 4.1 times as long as vLLM's law says."""
    plan = Plan(model="m")
    known, other = (
        interval_of(H100, plan, SHAPE, ran=Ran(engine=engine)) for engine in ("vllm", "llama_cpp")
    )
    assert known.high_factor < 2
    assert other.high_factor > 4.1
    assert other.ttft_high_factor > known.ttft_high_factor
    assert "taken to be vLLM's" in other.basis
    caution = safety_factors_of(H100, plan, SHAPE, 0.9, ran=Ran(engine="llama_cpp"))
    assert 2.5 < caution.tpot_factor < other.high_factor
