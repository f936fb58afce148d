"""What somebody changed since a bundle was applied: seen by status, changed back by apply."""

from typing import Any

import pytest
from aws_kit import G6, NAME, SELDOM, World, change_in, components, deployment

from servetune.deploy.aws import apply, status
from servetune.deploy.aws.drift import difference, drift
from servetune.deploy.aws.update import mend
from servetune.deploy.deployment import Deployment
from servetune.deploy.hosting import Adapter, Hosting, Scaling
from servetune.plan import Plan

BASE = f"{NAME}-base"
ZERO = Scaling(minimum=0, maximum=4, requests_per_copy=51.2)
OTHER = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64, max_model_len=8192)


def make(world: World, wanted: Deployment) -> None:
    world.run(apply(wanted, change_in(world, wait=SELDOM)))


def drifts(world: World, wanted: Deployment) -> list[str]:
    rows = world.run(status(NAME, world.aws(), deployment=wanted))
    return [f"{row.kind} {row.name} {line}" for row in rows for line in row.drift]


def mended(world: World, wanted: Deployment) -> None:
    """Changed back: nothing differs, and nothing more is to be changed."""
    world.run(mend(wanted, change_in(world, wait=SELDOM)))
    assert drifts(world, wanted) == []
    assert world.run(mend(wanted, change_in(world, wait=SELDOM))) == []


@pytest.mark.parametrize(
    "hosting",
    [
        Hosting(instance_types=(G6,), instance_count=2),
        components(),
        components(scaling=ZERO, adapters=(Adapter(name="a", artifact_url="s3://b1/a.tar.gz"),)),
    ],
    ids=["instances", "components", "all"],
)
def test_what_was_just_applied_has_no_drift(world: World, hosting: Hosting) -> None:
    wanted = deployment(hosting)
    assert drifts(world, wanted) == []
    make(world, wanted)
    assert drifts(world, wanted) == []
    rows = world.run(status(NAME, world.aws(), deployment=wanted))
    assert all(row.serves for row in rows)
    assert {row.name for row in rows} >= {step.name for step in wanted.steps}


def test_another_configuration_and_count_are_listed(world: World) -> None:
    wanted = deployment(Hosting(instance_types=(G6,), instance_count=2))
    make(world, wanted)
    world.double.control.scale(NAME, 5)
    assert drifts(world, wanted) == [f"endpoint {NAME} has 5 instances instead of 2"]
    mended(world, wanted)
    other = deployment(Hosting(instance_types=(G6,), instance_count=2), plan=OTHER)
    (line,) = drifts(world, other)
    assert line.startswith(f"endpoint {NAME} runs configuration")


def test_a_component_that_somebody_changed_is_listed_and_changed_back(world: World) -> None:
    wanted = deployment(components())
    make(world, wanted)
    control = world.double.control
    control.put("Model", {"ModelName": "other", "PrimaryContainer": {"Image": "i"}})
    row = control.rows["InferenceComponent", BASE]
    specification = row["request"]["Specification"]
    row["request"] = {
        **row["request"], "Specification": {**specification, "ModelName": "other"},
    }  # fmt: skip
    row |= {"copies": 1, "had": 1}
    model = wanted.only("model").name
    assert drifts(world, wanted) == [
        f"component {BASE} Specification.ModelName is other instead of {model}",
        f"component {BASE} has 1 copies instead of 2",
    ]
    mended(world, wanted)
    assert row["copies"] == 2


def test_scaling_that_is_gone_or_otherwise_is_listed_and_comes_back(world: World) -> None:
    wanted = deployment(components(scaling=ZERO))
    make(world, wanted)
    services = world.double.services
    target = services.targets[f"inference-component/{BASE}"]
    target |= {"MinCapacity": 1, "MaxCapacity": 8}
    del services.policies[f"{NAME}-requests-in-flight"]
    services.alarms.clear()
    step = services.policies[f"{NAME}-from-zero"]["StepScalingPolicyConfiguration"]
    step |= {"Cooldown": 5, "MetricAggregationType": "Average"}
    place = f"scaling-policy {NAME}-from-zero StepScalingPolicyConfiguration"
    assert drifts(world, wanted) == [
        f"scalable-target inference-component/{BASE} MinCapacity is 1 instead of 0",
        f"scalable-target inference-component/{BASE} MaxCapacity is 8 instead of 4",
        f"scaling-policy {NAME}-requests-in-flight is not there",
        f"{place}.MetricAggregationType is Average instead of Maximum",
        f"{place}.Cooldown is 5 instead of 60",
        f"alarm servetune-{NAME}-no-capacity is not there",
    ]
    rows = {row.name: row.status for row in world.run(status(NAME, world.aws(), deployment=wanted))}
    assert rows[f"servetune-{NAME}-no-capacity"] == "gone"
    mended(world, wanted)


def test_scaling_that_somebody_switched_off_is_listed_and_comes_back(world: World) -> None:
    wanted = deployment(components(scaling=ZERO))
    make(world, wanted)
    services = world.double.services
    services.register_scalable_target(
        wanted.scaled
        | {"SuspendedState": {"DynamicScalingOutSuspended": True,
                              "ScheduledScalingSuspended": True}}
    )  # fmt: skip
    services.alarms[f"servetune-{NAME}-no-capacity"]["ActionsEnabled"] = False
    target = f"scalable-target inference-component/{BASE}"
    assert drifts(world, wanted) == [
        f"{target} DynamicScalingOutSuspended is true",
        f"{target} ScheduledScalingSuspended is true",
        f"alarm servetune-{NAME}-no-capacity has its actions disabled, so that it wakes nobody",
    ]
    mended(world, wanted)


@pytest.mark.parametrize("scaling", [ZERO, None], ids=["scaled", "not scaled"])
def test_what_somebody_else_made_is_listed_and_left(world: World, scaling: Scaling | None) -> None:
    wanted = deployment(components(scaling=scaling))
    make(world, wanted)
    services = world.double.services
    if scaling is None:
        services.register_scalable_target(wanted.scaled | {"MinCapacity": 1, "MaxCapacity": 3})
    services.put_scaling_policy(
        wanted.scaled | {"PolicyName": "by-hand", "PolicyType": "StepScaling"}
    )
    listed = drifts(world, wanted)
    assert "scaling-policy by-hand is there and not in the bundle, made by somebody else" in listed
    assert len(listed) == (1 if scaling else 2)
    assert world.run(mend(wanted, change_in(world, wait=SELDOM))) == []
    assert "by-hand" in services.policies
    assert f"inference-component/{BASE}" in services.targets


def test_an_alarm_that_calls_another_policy_wakes_nobody(world: World) -> None:
    wanted = deployment(components(scaling=ZERO))
    make(world, wanted)
    world.double.services.alarms[f"servetune-{NAME}-no-capacity"]["AlarmActions"] = ["arn:x"]
    (line,) = drifts(world, wanted)
    assert line.endswith(f"does not call {NAME}-from-zero")
    mended(world, wanted)


def test_counts_that_scaling_chose_are_no_drift(world: World) -> None:
    wanted = deployment(components(scaling=Scaling(minimum=1, maximum=8, requests_per_copy=9)))
    make(world, wanted)
    world.double.control.rows["InferenceComponent", BASE] |= {"copies": 7, "had": 7}
    world.double.control.scale(NAME, 4)
    assert drifts(world, wanted) == []


def test_what_may_not_be_looked_at_is_no_drift(world: World) -> None:
    wanted = deployment(components(scaling=ZERO))
    make(world, wanted)
    world.double.denied = {"DescribeScalableTargets", "DescribeAlarms"}
    found: list[Any] = world.run(drift(wanted, world.aws()))
    assert {each.hidden for each in found} == {True}
    rows = world.run(status(NAME, world.aws(), deployment=wanted))
    assert [row.status for row in rows][-2:] == ["hidden", "hidden"]
    assert all(row.serves for row in rows)


def test_only_what_both_sides_say_is_compared() -> None:
    assert difference({"A": {"B": 1}, "Tags": []}, {"A": {"B": 1, "C": 2}, "Tags": [1]}) == ""
    assert difference({"A": {"B": 1}}, {}) == ""
    assert difference({"A": [{"B": 1}]}, {"A": [{"B": 2}]}) == "A.B is 2 instead of 1"
    assert difference({"A": [1]}, {"A": [1, 2]}) == "A has 2 members instead of 1"
