"""A fleet through a day: curves, autoscaler, and windows against every request."""

import math

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.metrics import parse_constraints, summarize
from servetune.metrics.record import Record
from servetune.models import load_shape
from servetune.perf.copy_curve import (
    CopyCurve,
    CurvePoint,
    Level,
    open_curve,
    point_of,
    point_of_records,
)
from servetune.perf.fleet_day import (
    Base,
    Fleet,
    cheapest_policy,
    day_usd,
    play,
    reserved_count,
    reserved_usd,
)
from servetune.perf.sim.copy_load import SimulatedCopy
from servetune.perf.sim.fleet_requests import FixedInstances, simulate_fleet
from servetune.perf.sim.simulation import RunOptions, prepared_run
from servetune.perf.target_tracking import ScalingPolicy, TargetTracker
from servetune.plan import Plan
from servetune.workload import Workload
from servetune.workload.arrivals import Piecewise
from servetune.workload.day import Traffic, traffic_of
from servetune.workload.laws import Uniform
from servetune.workload.parts import Part

LIMITS = parse_constraints("ttft:p99<=1s;e2e_latency:p99<=10s")


def queue(most=10.0, service_s=1.0):
    """Curve of a queue whose times grow as 1 / (1 - load)."""
    points = []
    for share in (0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98):
        mean_s = service_s / (1 - share)
        values = {"p99_ttft_ms": 1000 * mean_s / 10, "p99_e2e_latency_ms": 1000 * mean_s}
        rate = share * most
        points.append(
            CurvePoint(
                rate_per_s=rate, in_flight=rate * mean_s, values=values, within_fraction=0.99
            )
        )
    return CopyCurve(points=tuple(points), limits=LIMITS)


def test_capacity_is_where_the_first_limit_is_reached():
    assert queue().capacity_per_s() == pytest.approx(9.0, rel=0.01)  # 10 s and 1 s, at 90%
    assert queue(service_s=20.0).capacity_per_s() is None
    assert queue(service_s=0.1).capacity_per_s() == pytest.approx(9.8)  # none within what is known


def test_a_slower_copy_serves_as_time_that_runs_slower():
    slow = queue().slower(2.0)
    assert slow.most_per_s == pytest.approx(4.9)
    assert slow.value(LIMITS[1], 2.0) == pytest.approx(2 * queue().value(LIMITS[1], 4.0))
    assert slow.in_flight(3.0) == pytest.approx(queue().in_flight(6.0))
    assert slow.capacity_per_s() == pytest.approx(4.0, rel=0.02)  # 10 s = 2 s / (1 - 0.8)
    firsts = queue().slower(1.0, 2.0)
    assert firsts.capacity_per_s() == pytest.approx(8.0, rel=0.02)  # the first token binds
    assert slow.value(LIMITS[1], 5.0) == math.inf


def test_closed_loops_become_the_queue_that_they_are():
    """One server of rate 1: X(n) = 1 for any n, so that random arrivals see an M/M/1 queue."""
    limits = parse_constraints("e2e_latency<=1s")
    levels = [
        Level(users=users, rate_per_s=1.0, results={"mean_e2e_latency_ms": 1000.0 * users})
        for users in (1, 2, 5, 20, 100)
    ]
    curve = open_curve(levels, limits)
    for rate in (0.3, 0.5, 0.8):
        assert curve.in_flight(rate) == pytest.approx(rate / (1 - rate), rel=0.02)
    assert open_curve(levels[:1], limits) is None


def test_target_tracking_waits_for_its_alarms_starts_and_cooldowns():
    policy = ScalingPolicy(minimum=2, maximum=10, target=10)
    tracker = TargetTracker(policy, 100, 2)
    assert [tracker.observe(10 * n, 50.0) for n in range(3)] == [0, 0, 3]  # 25 each, five in all
    assert (tracker.serving, tracker.starting) == (2, 3)
    assert tracker.observe(30, 500.0) == 0  # nothing more while they start
    assert tracker.advance(119.0) == 0
    assert tracker.advance(120.0) == 3
    assert [tracker.observe(120 + 10 * n, 500.0) for n in range(18)] == [0] * 18  # cooldown
    assert tracker.observe(300, 500.0) == 5  # to the maximum
    tracker.advance(400)
    quiet = [tracker.observe(400 + 10 * n, 30.0) for n in range(100)]
    assert quiet.index(-7) == policy.in_periods - 1  # 30 / 10 are left, after fifteen minutes
    assert tracker.serving == 3


def batching(most=10.0):
    """Curve of an engine that batches: times double up to its largest rate, nine tenths hold."""
    points = []
    for share in (0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0):
        rate, mean_s = share * most, 1 + share
        values = {"p99_ttft_ms": 100.0, "p99_e2e_latency_ms": 10_000 * mean_s / 1.9}
        seen = rate * mean_s
        points.append(
            CurvePoint(rate_per_s=rate, in_flight=seen, values=values, within_fraction=0.99)
        )
    return CopyCurve(points=tuple(points), limits=LIMITS)


def fleet(start_up_s=300.0, lost=0):
    return Fleet(curve=batching(), copies=2, start_up_s=start_up_s, usd_per_hour=3.0, lost=lost)


def hill(peak):
    """Eight hours: a slow rise by four times, and a fall."""
    times = tuple(3600.0 * hour for hour in (0, 1, 4, 5, 8))
    return Traffic(
        name="hill", times_s=times, rates_per_s=tuple(peak * s for s in (0.25, 0.25, 1, 1, 0.25))
    )


def test_a_steady_day_needs_what_arithmetic_says():
    flat = traffic_of("flat", 100)
    found = cheapest_policy(flat, fleet())
    assert found.played.held
    assert found.policy.minimum == found.policy.maximum == math.ceil(100 / 18)
    assert found.played.usd == pytest.approx(24 * 6 * 3)
    assert found.played.requests == pytest.approx(100 * 86_400)


def test_the_day_that_is_answered_was_held_and_beats_a_fixed_fleet():
    day = hill(600)
    found = cheapest_policy(day, fleet())
    fixed = fleet().needed(600)
    assert found.played.held
    assert found.played.usd < 0.9 * 8 * 3 * fixed
    assert found.policy.target < fleet().target_at(fleet().capacity_per_s)
    full = ScalingPolicy(
        minimum=found.policy.minimum,
        maximum=found.policy.maximum,
        target=fleet().target_at(fleet().capacity_per_s),
    )
    assert not play(day, fleet(), full).held  # a rise during the start-up is not borne at the limit
    again = play(day, fleet(), found.policy)
    assert again == found.played


def test_slow_starts_cost_more_and_a_lost_instance_too():
    day = hill(400)
    usd = [
        cheapest_policy(day, each).played.usd
        for each in (fleet(60.0), fleet(900.0), fleet(60.0, lost=1))
    ]
    assert usd[0] < usd[1]
    assert usd[0] < usd[2]


def test_what_cannot_be_served_waits_and_is_missed():
    flat = Traffic(name="hour", times_s=(0.0, 3600.0), rates_per_s=(40.0, 40.0))
    one = ScalingPolicy(minimum=1, maximum=1, target=10)
    found = play(flat, fleet(), one)
    assert found.held_fraction == 0
    assert found.within_fraction == 0
    # 40 come and 20 are served, a second; the last wait for all that are left
    assert found.wait_s[-1] == pytest.approx((40 - 20) * 3600 / 20, rel=0.01)


def test_a_fleet_that_never_holds_is_an_error():
    made = Fleet(curve=queue(service_s=20.0), copies=1, start_up_s=1.0, usd_per_hour=1.0)
    with pytest.raises(InputError, match="at no load"):
        cheapest_policy(traffic_of("flat", 1), made)


def test_reserving_pays_where_instances_run_long_enough():
    chance = np.random.default_rng(3)
    for _ in range(20):
        paid = chance.integers(1, 12, size=50).tolist()
        discount = float(chance.uniform(0.05, 0.9))
        found = reserved_count(paid, discount)
        costs = [reserved_usd(paid, count, discount, 2.0, 3600.0) for count in range(13)]
        assert costs[found] == pytest.approx(min(costs))


def test_a_copy_is_given_no_more_than_it_sustains():
    """Limits so loose that only the queue binds: a formula that says more is not believed."""
    part = Part(input_tokens=Uniform(50, 100), output_tokens=Uniform(8, 16))
    copy = SimulatedCopy(
        Plan(model="Qwen/Qwen3-4B"),
        load_shape("Qwen/Qwen3-4B"),
        node(gpu="L4", count=1),
        Workload(parts=(part,), request_count=1000),
        parse_constraints("ttft:p99<=20s"),
        most_per_s=(formula := 75.0),
    )
    assert copy.point(formula) is None
    assert copy.point(0.75 * formula) is None  # 56.25/s, in whose runs a queue grows to their end
    sustained = copy.point(0.66 * formula)
    assert sustained.values["p99_ttft_ms"] < 2000


SHORT_PARTS = (Part(input_tokens=Uniform(200, 400), output_tokens=Uniform(40, 80)),)


@pytest.fixture(scope="module")
def short_fleet():
    """A model on an L4 for short answers, by its curve and as an engine for requests."""
    shape, machine = load_shape("Qwen/Qwen3-4B"), node(gpu="L4", count=1)
    plan = Plan(model="Qwen/Qwen3-4B")
    workload = Workload(parts=SHORT_PARTS, request_count=1000)
    limits = parse_constraints("ttft:p99<=1s;e2e_latency:p99<=6s")
    copy = SimulatedCopy(plan, shape, machine, workload, limits, most_per_s=9.0)
    for rate in (0.5, 3.0, 5.0, 7.0):
        copy.point(rate)
    made = Fleet(curve=copy.known(), copies=1, start_up_s=60.0, usd_per_hour=1.0)

    def run(traffic):
        steps = tuple((60.0, float(rate)) for rate in traffic.windows(60.0))
        count = round(60 * sum(rate for _, rate in steps))
        arrivals = Piecewise(steps=steps)
        asked = msgspec.structs.replace(workload, arrivals=arrivals, request_count=count)
        options = RunOptions(each_token=False)
        return prepared_run(plan, shape, machine, asked, options=options)

    return made, run


def test_windows_agree_with_every_request_of_a_small_fleet(short_fleet):
    """A quarter of an hour of a hill of traffic on one to four copies that come and go."""
    made, run = short_fleet
    traffic = Traffic(
        name="hill", times_s=(0.0, 300.0, 700.0, 1000.0), rates_per_s=(2.0, 7.0, 7.0, 2.0)
    )
    policy = ScalingPolicy(minimum=1, maximum=4, target=made.target_at(3.0), in_periods=12)
    windows = play(traffic, made, policy)
    engine, first = run(traffic), windows.serving[0]
    played = simulate_fleet(engine, policy, copies=1, start_up_s=60.0, first=first)
    assert len(played.records) == len(engine.requests)
    assert {record.outcome for record in played.records} == {"ok"}
    assert max(played.serving) > min(played.serving)
    assert windows.instance_hours == pytest.approx(played.instance_s / 3600, rel=0.15)
    seen = sum(record.e2e_s for record in played.records) / traffic.lasts_s
    counted = float(np.mean(np.array(windows.in_flight) * np.array(windows.serving)))
    assert counted == pytest.approx(seen, rel=0.15)


def test_two_types_request_by_request_agree_with_their_windows(short_fleet):
    """Instances of two copies always run beside those of one that are scaled."""
    made, run = short_fleet
    large = msgspec.structs.replace(made, copies=2, usd_per_hour=1.8)
    times_s, rates_per_s = (0.0, 200.0, 500.0, 700.0), (8.0, 14.0, 14.0, 8.0)
    traffic = Traffic(name="hill", times_s=times_s, rates_per_s=rates_per_s)
    policy = ScalingPolicy(minimum=1, maximum=4, target=made.target_at(3.0), in_periods=12)
    windows = play(traffic, made, policy, Base(fleet=large, count=1))
    engine = run(traffic)
    beside = FixedInstances(run=engine, copies=2, count=1, relative_capacity=2.0)
    first = windows.serving[0]
    played = simulate_fleet(
        engine, policy, copies=1, start_up_s=60.0, first=first, fixed=beside, seed=4
    )
    assert {record.outcome for record in played.records} == {"ok"}
    paid_h = played.instance_s / 3600 + traffic.lasts_s / 3600
    assert windows.instance_hours == pytest.approx(paid_h, rel=0.15)
    own = [record for record in played.records if record.index not in played.fixed_requests]
    counts = np.array(windows.serving)
    share = float(np.average(counts / (counts + 2), weights=traffic.windows()))
    assert len(own) / len(played.records) == pytest.approx(share, rel=0.1)
    seen = sum(record.e2e_s for record in own) / traffic.lasts_s
    assert float((np.array(windows.in_flight) * counts).mean()) == pytest.approx(seen, rel=0.2)


def test_instances_that_always_run_beside_scaled_ones_take_their_share_and_their_price():
    cheap = Fleet(curve=queue(most=40.0), copies=1, start_up_s=1.0, usd_per_hour=2.0, lost=0)
    base, day = Base(fleet=cheap, count=2), hill(300)
    found = cheapest_policy(day, fleet(), base)
    assert found.played.held
    assert found.usd == found.played.usd < cheapest_policy(day, fleet()).usd
    counts = np.array(found.played.serving)
    assert found.played.usd == pytest.approx(8 * 2 * 2 + sum(found.played.paid) / 360 * 3)
    # 36 requests per second of each base instance and 18 of each scaled one, at most.
    assert (day.windows() <= 2 * 36 * 1.02 + 18 * 1.02 * counts).all()
    policy = ScalingPolicy(minimum=1, maximum=1, target=10)
    load = day.windows()[0]
    share = 2 * fleet().capacity_per_s / 2 / (2 * fleet().capacity_per_s / 2 + base.capacity_per_s)
    seen = play(day, fleet(), policy, base).in_flight[0]
    assert seen == pytest.approx(fleet().target_at(share * load), rel=0.01)


def test_the_loss_of_the_larger_of_two_kinds_is_borne():
    large = Fleet(curve=batching(40.0), copies=1, start_up_s=1.0, usd_per_hour=5.0, lost=1)
    base, flat = Base(fleet=large, count=1), traffic_of("flat", 50)
    found = cheapest_policy(flat, fleet(lost=1), base)
    # Without the base of 36 requests per second the scaled ones, 18 each, carry all 50.
    assert found.played.held
    assert found.policy.minimum == math.ceil(50 / 18)
    lonely = msgspec.structs.replace(found.policy, minimum=1, maximum=1)
    assert not play(flat, fleet(lost=1), lonely, base).held


def test_a_discount_counts_where_the_policy_is_chosen():
    day = hill(600)
    plain, reserved = cheapest_policy(day, fleet()), cheapest_policy(day, fleet(), None, 0.6)
    assert reserved.usd < day_usd(plain.played, fleet(), None, 0.6, 10.0)
    assert reserved.policy != plain.policy
    assert plain.usd == plain.played.usd


def test_a_copy_is_narrowed_down_from_above():
    part = Part(input_tokens=Uniform(50, 100), output_tokens=Uniform(8, 16))
    copy = SimulatedCopy(
        Plan(model="Qwen/Qwen3-4B"),
        load_shape("Qwen/Qwen3-4B"),
        node(gpu="L4", count=1),
        Workload(parts=(part,), request_count=1000),
        parse_constraints("ttft:p99<=20s;e2e_latency:p90<=780ms"),
        most_per_s=60.0,
    )
    bounds = [copy.upper_per_s]
    while copy.narrow():
        bounds.append(copy.upper_per_s)
    assert bounds == sorted(bounds, reverse=True)
    assert 2 < len(bounds) < copy.runs < 9
    assert 0.9 * bounds[-1] < copy.known().capacity_per_s() <= bounds[-1]


def test_the_point_of_records_is_that_of_their_results():
    limits = parse_constraints("ttft:p99<=1s;e2e_latency<=10s;tpot:median<=50ms;itl:p95<=1s")
    chance = np.random.default_rng(5)
    records = []
    for index in range(200):
        due_s, gaps_s = index * 0.5, chance.exponential(0.05, size=20)
        times_s = (due_s + np.cumsum([0.5, *gaps_s])).tolist()
        records.append(
            Record(
                index=index, input_tokens=5, output_tokens=21, due_s=due_s, sent_s=due_s,
                end_s=times_s[-1], chunk_times_s=times_s, outcome="ok" if index % 9 else "timeout",
            )
        )  # fmt: skip
    results = summarize(records, duration_s=110.0, further_percentiles=[95, 99], extras=False)
    point = point_of_records(2.0, records, limits)
    assert point.values == pytest.approx(point_of(2.0, 1.0, results, limits).values)
    assert point.in_flight == pytest.approx(2.0 * results["mean_e2e_latency_ms"] / 1000)
