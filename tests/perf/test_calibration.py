"""What anchors do to predictions, and what they must not do."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from servetune.hardware import Node, node
from servetune.models import NetworkShape, load_shape
from servetune.perf import (
    Anchor,
    Calibration,
    RunFeatures,
    calibrated,
    estimate,
    performance_at,
    run_features,
    simulate,
)
from servetune.perf.load_steps import whole_load
from servetune.perf.roofline import (
    PlannedRun,
    RunPoint,
    at_a_rate,
    coefficients_for,
    predict_runs,
)
from servetune.perf.sweep import LADDER, cheapest_offers, layouts, sweep
from servetune.plan.plan import Plan
from servetune.workload import LengthLaws, Workload
from servetune.workload.arrivals import Poisson
from servetune.workload.lengths import Lengths

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
    factors = [calibrated([anchor(1.2, 1.2)] * count).tpot_factor for count in (0, 1, 2, 5, 200)]
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
    load = Workload.of(LengthLaws.fixed(500, 100), request_count=8, concurrency=1)
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


SHAPE, MACHINE = load_shape("Qwen/Qwen3-4B", catalogue_first=True), node(gpu="H100")
PLAN = Plan(model=SHAPE.name, max_num_seqs=256)
LOAD = Workload.of(LengthLaws.fixed(500, 100), request_count=8)
BOTH = Calibration(tpot_factor=1.2, ttft_factor=1.8, tpot_anchors=3, ttft_anchors=3)


def test_a_request_alone_takes_exactly_the_factors() -> None:
    plain, corrected = (
        performance_at(SHAPE, MACHINE, PLAN, LOAD, 1, calibration=given) for given in (None, BOTH)
    )
    assert corrected.itl_ms == pytest.approx(1.2 * plain.itl_ms)
    assert corrected.ttft_ms == pytest.approx(1.8 * plain.ttft_ms)
    assert corrected.e2e_ms == pytest.approx(1.8 * plain.ttft_ms + 99 * 1.2 * plain.itl_ms)


def test_littles_law_holds_under_a_calibration() -> None:
    for users in (1, 7, 64, 300):
        point = performance_at(SHAPE, MACHINE, PLAN, LOAD, users, calibration=BOTH)
        in_flight = point.requests_per_s * point.e2e_ms / 1000
        assert in_flight == pytest.approx(users, rel=1e-3)


def test_slower_steps_serve_more_requests_of_a_rate_at_a_time() -> None:
    rate = 0.9 * performance_at(SHAPE, MACHINE, PLAN, LOAD, 16).requests_per_s
    slow = Calibration(tpot_factor=1.2, tpot_anchors=3)
    plain, found = (at_a_rate(PLAN, SHAPE, MACHINE, LOAD, rate, given) for given in (None, slow))
    load = Workload.of(LengthLaws.fixed(500, 100), request_count=400, arrivals=Poisson(rate))
    records = simulate(PLAN, SHAPE, MACHINE, load, calibration=slow).records
    simulated_s = np.mean([record.end_s - record.sent_s for record in records])
    assert found.e2e_ms / 1000 == pytest.approx(simulated_s, rel=0.05)
    assert found.running > 1.2 * plain.running
    late = msgspec.structs.replace(slow, ttft_factor=2.4, ttft_anchors=3)
    later = at_a_rate(PLAN, SHAPE, MACHINE, LOAD, rate, late)
    assert later.ttft_ms == pytest.approx(2 * found.ttft_ms)
    assert later.e2e_ms == pytest.approx(found.e2e_ms + found.ttft_ms)


def test_first_tokens_that_nobody_measured_follow_the_steps() -> None:
    steps_only = Calibration(tpot_factor=1.2, tpot_anchors=3)
    plain, corrected = (
        performance_at(SHAPE, MACHINE, PLAN, LOAD, 1, calibration=given)
        for given in (None, steps_only)
    )
    assert corrected.ttft_ms == pytest.approx(1.2 * plain.ttft_ms)


def test_estimate_sweep_and_offers_correct_alike() -> None:
    answer = estimate(SHAPE, MACHINE, PLAN, LOAD, calibration=BOTH)
    swept = next(sweep([PLAN], SHAPE, MACHINE, LOAD, concurrencies=(1,), calibration=BOTH))
    assert swept.point == answer.best_latency
    offer, plain = (
        cheapest_offers(
            PLAN, SHAPE, [MACHINE], LOAD, holds=lambda _on, _swept: True, calibrations=calibrations
        )[0].best
        for calibrations in ({"H100": BOTH}, {"L4": BOTH})
    )
    assert offer is not None
    assert plain is not None
    at = offer.point.concurrency
    expected = performance_at(SHAPE, MACHINE, offer.plan, LOAD, at, calibration=BOTH)
    assert offer.point == expected
    assert plain.point == performance_at(SHAPE, MACHINE, plain.plan, LOAD, plain.point.concurrency)


def place_of(
    plan: Plan,
    users: float,
    *,
    shape: NetworkShape = SHAPE,
    machine: Node = MACHINE,
    lengths: Lengths = LOAD.lengths,
) -> RunFeatures:
    run = PlannedRun(
        shape=shape,
        node=machine,
        plan=plan,
        lengths=lengths,
        concurrency=max(1, round(users)),
        request_count=10 * max(1, round(users)),
    )
    (found,) = run_features([run], in_flight=[users])
    return found


def calibrated_at(*measured: tuple[int, float]) -> Calibration:
    """Calibration by runs of numbers of users, with measured over predicted times."""
    return calibrated(
        [
            msgspec.structs.replace(anchor(ratio, ratio), place=place_of(PLAN, users))
            for users, ratio in measured
        ]
    )


def test_a_sweep_asks_what_the_runs_say_of_each_place() -> None:
    found = calibrated_at((2, 0.8), (256, 1.4))
    users = (2, 256)
    plain, corrected = (
        list(sweep([PLAN], SHAPE, MACHINE, LOAD, concurrencies=users, calibration=given))
        for given in (None, found)
    )
    ratios = [b.point.itl_ms / a.point.itl_ms for a, b in zip(plain, corrected, strict=True)]
    assert ratios[0] < 1 < ratios[1]
    for one in corrected:
        at = one.point.concurrency
        (there,) = found.at(place_of(PLAN, at))
        assert one.correction is not None
        for name in ("tpot_factor", "ttft_factor", "tpot_doubt", "ttft_doubt"):
            assert getattr(one.correction, name) == pytest.approx(getattr(there, name))
        # the law itself made slower, and not its answers
        slower = there.coefficients(coefficients_for(MACHINE.device, "vllm"))
        expected = performance_at(
            SHAPE,
            MACHINE,
            PLAN,
            LOAD,
            at,
            coefficients=slower,
            calibration=Calibration(ttft_factor=there.first_token_factor, ttft_anchors=1),
        )
        for name in ("itl_ms", "ttft_ms", "e2e_ms", "output_tokens_per_s", "running"):
            assert getattr(one.point, name) == pytest.approx(getattr(expected, name), rel=1e-6)
    assert plain[0].correction is None


@pytest.mark.parametrize("ratios", [None, (0.9, 0.93, 1.4), (1.9, 1.0, 1.0)])
@pytest.mark.parametrize(("limit", "most"), [("itl_ms", 15.0), ("e2e_ms", 9000.0), ("", 0.0)])
def test_an_offer_is_the_best_of_the_whole_search(
    ratios: tuple[float, ...] | None, limit: str, most: float
) -> None:
    """Runs that correct each number of users by themselves let fewer users have more tokens."""
    given = calibrated_at(*zip((4, 64, 256), ratios, strict=True)) if ratios else None
    plan = msgspec.structs.replace(PLAN, max_num_seqs=8)
    holding = []
    for laid_out in layouts(plan, SHAPE, MACHINE):
        tried = [users for users in range(1, 1025) if users == whole_load(users)]
        swept = sweep([laid_out], SHAPE, MACHINE, LOAD, concurrencies=tried, calibration=given)
        by_users = {each.point.concurrency: each.point for each in swept}
        good = {n: not limit or getattr(by_users[n], limit) <= most for n in tried}
        for low, high in itertools.pairwise(LADDER):
            refined = good[low] and not good[high]
            between = [n for n in tried if low < n < high and refined and good[n]]
            holding += [by_users[n] for n in (low, *between, high) if good[n]]
    (offer,) = cheapest_offers(
        plan,
        SHAPE,
        [MACHINE],
        LOAD,
        holds=lambda _on, swept: not limit or getattr(swept.point, limit) <= most,
        calibrations={"H100": given} if given else {},
    )
    assert holding
    assert offer.best is not None
    fastest = max(point.output_tokens_per_s for point in holding)
    assert offer.best.point.output_tokens_per_s == pytest.approx(fastest)
    fewest = min(p.concurrency for p in holding if p.output_tokens_per_s > fastest * (1 - 1e-9))
    assert offer.best.point.concurrency == fewest


def test_a_slower_first_token_lets_fewer_prompts_come_together() -> None:
    late = Calibration(ttft_factor=2.0, ttft_anchors=2, tpot_anchors=2)
    plain, slowed = (
        estimate(SHAPE, MACHINE, PLAN, LOAD, calibration=given).limits for given in (None, late)
    )
    assert plain is not None
    assert slowed is not None
    assert slowed.prefill < plain.prefill
    assert slowed.decode == plain.decode


def test_runs_are_corrected_each_by_its_own_calibration() -> None:
    run = PlannedRun(
        shape=SHAPE,
        node=MACHINE,
        plan=PLAN,
        lengths=LengthLaws.fixed(500, 100),
        concurrency=8,
        request_count=80,
    )
    plain, corrected = predict_runs([run, run], [None, BOTH])
    assert plain == predict_runs([run])[0]
    assert corrected.point == BOTH.on(plain.point)


def test_a_calibration_survives_json() -> None:
    found = calibrated([anchor(1.5, 0.9)])
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found


def test_an_open_loop_is_corrected_at_its_own_number_in_flight() -> None:
    """Two anchors that say 5% less at that number move it by most of that, far ones hardly."""
    shape, machine = load_shape("Qwen/Qwen3-8B", catalogue_first=True), node(gpu="H100")
    plan, lengths = Plan(model="m"), LengthLaws.fixed(512, 256)
    load = Workload.of(lengths, request_count=300, arrivals=Poisson(12.0), seed=2)

    def tpot_ms(calibration: Calibration | None) -> float:
        records = simulate(plan, shape, machine, load, calibration=calibration).records
        return 1e3 * float(np.mean([(r.e2e_s - r.ttft_s) / 255 for r in records]))

    plain_ms = tpot_ms(None)
    in_flight = 12.0 * 255 * plain_ms / 1e3

    def moved(users: float) -> float:
        place = place_of(plan, users, shape=shape, machine=machine, lengths=lengths)
        low = msgspec.structs.replace(anchor(0.95, 0.95), place=place)
        return tpot_ms(calibrated([low, low])) / plain_ms - 1

    # Faster steps leave fewer in flight, which makes them a little faster still.
    assert -0.065 < moved(in_flight) < -0.03
    assert moved(in_flight) < moved(40 * in_flight) < 0
