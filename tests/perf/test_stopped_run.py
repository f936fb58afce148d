"""A run that is stopped is the beginning of the run that is not."""

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import Constant, LengthLaws, Poisson, Workload

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
NODE = node(gpu="L4", count=2)
LOADS = {
    "closed loop": Workload.of(LengthLaws.ranged(300, 80, 0.3), request_count=80, concurrency=8),
    "open loop": Workload.of(
        LengthLaws.ranged(300, 80, 0.3), request_count=80, arrivals=Poisson(6.0)
    ),
    "overload behind a limit": Workload.of(
        LengthLaws.fixed(400, 60), request_count=150, arrivals=Constant(40.0), concurrency=16
    ),
    "replicas": Workload.of(LengthLaws.fixed(400, 60), request_count=150, arrivals=Constant(20.0)),
}


def play(name, duration_s=None):
    plan = Plan(model="m", replicas=2 if name == "replicas" else 1)
    workload = msgspec.structs.replace(LOADS[name], duration_s=duration_s)
    return simulate(plan, SHAPE, NODE, workload)


@pytest.mark.parametrize("stop_s", [0.3, 1.7, 6.0])
@pytest.mark.parametrize("name", LOADS)
def test_nothing_that_happened_before_the_stop_is_changed_by_it(name, stop_s):
    whole = {record.index: record for record in play(name).records}
    stopped = play(name, stop_s)
    assert stopped.records
    for record in stopped.records:
        truth = whole[record.index]
        wanted = tuple(time_s for time_s in truth.chunk_times_s if time_s <= stop_s)
        assert record.chunk_times_s == wanted
        assert record.due_s == truth.due_s <= stop_s
        if record.outcome == "ok":
            assert record == truth
        else:
            assert record.outcome == "cancelled"
            assert record.end_s == stop_s < truth.end_s
    left_out = whole.keys() - {record.index for record in stopped.records}
    assert all(whole[index].due_s > stop_s for index in left_out)


def test_a_stop_after_the_last_answer_changes_nothing():
    assert play("closed loop", 1e6) == play("closed loop")


def test_a_rate_beyond_capacity_stops_in_time_and_is_called_saturated():
    stopped = play("overload behind a limit", 3.0)
    assert stopped.saturated
    assert stopped.duration_s == 3.0
    assert not play("open loop", 3.0).saturated


def test_a_crowd_that_is_on_its_way_together_is_called_saturated():
    crowd = Workload.of(LengthLaws.fixed(400, 60), request_count=300, arrivals=Constant(1e6))
    assert simulate(Plan(model="m"), SHAPE, NODE, crowd).saturated
    stopped = msgspec.structs.replace(crowd, duration_s=1.0)
    assert simulate(Plan(model="m"), SHAPE, NODE, stopped).saturated


def test_prompts_are_taken_up_between_due_and_first_token():
    simulation = play("overload behind a limit")
    for record, admitted_s in zip(simulation.records, simulation.admitted_s, strict=True):
        assert record.sent_s <= admitted_s < record.chunk_times_s[0]


def test_the_cache_in_use_over_time_stays_within_its_peak():
    simulation = play("closed loop")
    shares = [share for _, share in simulation.kv_use]
    assert 0 < max(shares) <= simulation.kv_peak_fraction
    assert all(0 <= share <= 1 for share in shares)
