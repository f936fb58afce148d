"""Changing, looking at and taking away what stands, against the double, in virtual time."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from aws_kit import G6, NAME, SELDOM, World, change_in, components, deployment
from doubles.server import Crash

from servetune.deploy.aws import LogGroups, StateFile, apply, delete, logs, orphans, status, update
from servetune.deploy.aws.teardown import delete_resource
from servetune.deploy.deployment import Deployment, read_deployment, with_tags
from servetune.deploy.hosting import Adapter, Hosting, Scaling
from servetune.errors import DeployError
from servetune.plan import Plan

FULL = components(
    adapters=(Adapter(name="support", artifact_url="s3://bucket/support.tar.gz"),),
    scaling=Scaling(minimum=0, maximum=4, requests_per_copy=51.2),
)
OTHER = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64, max_model_len=8192)
NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def make(world: World, wanted: Deployment) -> None:
    world.run(apply(wanted, change_in(world, wait=SELDOM)))


def remove(world: World, wanted: Deployment | None = None, **crash: Any) -> list[str]:
    gone = world.run(delete(NAME, change_in(world, **crash), deployment=wanted))
    return list(gone.deleted)


def change(world: World, wanted: Deployment, **crash: Any) -> list[str]:
    done: list[str] = world.run(update(wanted, change_in(world, **crash)))
    return done


# Delete


def test_everything_goes_in_the_order_that_sagemaker_allows(world: World) -> None:
    make(world, deployment(FULL))
    world.double.calls.clear()
    remove(world)
    assert world.double.operations() == [
        "DeregisterScalableTarget",
        "DeregisterScalableTarget",
        "DeleteAlarms",
        "DeleteInferenceComponent",
        "DeleteInferenceComponent",
        "DeleteEndpoint",
        "DeleteEndpointConfig",
        "DeleteModel",
    ]
    assert world.left() == []


def test_a_name_alone_finds_all_of_it_and_an_empty_place_is_no_error(world: World) -> None:
    make(world, deployment(FULL))
    gone = remove(world, None)
    assert len(gone) == 7
    assert remove(world, None) == []


def test_an_endpoint_that_is_being_created_is_waited_for(world: World) -> None:
    wanted = deployment()
    with pytest.raises(Crash):
        world.run(apply(wanted, change_in(world, crash_at=2, when="after")))
    begin_s = world.clock.now_s()
    remove(world)
    assert world.left() == []
    assert world.clock.now_s() - begin_s >= 300
    assert "it can be deleted when that has ended" in world.progress_text


def test_components_that_go_slowly_are_waited_for_before_the_endpoint(world: World) -> None:
    make(world, deployment(FULL))
    world.double.control.delete_s = 900
    remove(world)
    assert world.left() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "crash_at", [2, 5, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 1, 3, 4, 6, 7))]
)
def test_a_deletion_that_died_anywhere_goes_on(world: World, crash_at: int, when: str) -> None:
    wanted = deployment(FULL)
    make(world, wanted)
    with pytest.raises(Crash):
        remove(world, wanted, crash_at=crash_at, when=when)
    remove(world, wanted)
    assert world.left() == []


def test_a_thing_that_rests_and_refuses_all_the_same_is_asked_again(world: World) -> None:
    make(world, deployment(FULL))
    world.double.busy["DeleteEndpoint"] = 3
    world.double.busy["DeleteInferenceComponent"] = 2
    remove(world)
    assert world.left() == []


@pytest.mark.parametrize(
    "by_name",
    [
        pytest.param(True, id="by name"),
        pytest.param(False, id="by bundle", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "denied",
    [
        "DeregisterScalableTarget", "DescribeAlarms", "ListInferenceComponents", "ListTags",
        "DeleteModel",
        *(
            pytest.param(call, marks=pytest.mark.slow)
            for call in (
                "DescribeScalingPolicies", "DeleteAlarms", "ListModels", "ListEndpointConfigs",
                "DescribeInferenceComponent", "DescribeEndpointConfig",
            )
        ),
    ],
)  # fmt: skip
def test_who_lacks_a_permission_beside_it_still_ends_what_costs(
    world: World, denied: str, by_name: bool
) -> None:
    wanted = deployment(components(scaling=Scaling(minimum=0, maximum=4, requests_per_copy=9)))
    make(world, wanted)
    world.double.denied = {denied}
    gone = world.run(delete(NAME, change_in(world), deployment=None if by_name else wanted))
    kinds = {kind for kind, _ in world.left()}
    assert not kinds & {"Endpoint", "InferenceComponent"}
    if denied == "DescribeScalingPolicies":  # it is not asked for
        assert gone.unseen == ()
        assert kinds == set()
    else:
        assert [line for line in gone.unseen if denied in line]
        assert f"{denied} was refused" in world.progress_text


def test_a_component_of_another_endpoint_is_never_taken_for_ours(world: World) -> None:
    """Its name is the one that ours would have."""
    make(world, deployment())
    world.double.control.stand("theirs", f"{NAME}-base")
    for denied in (set(), {"ListInferenceComponents"}):
        world.double.denied = denied
        world.run(delete(NAME, change_in(world), deployment=deployment(components())))
        assert ("InferenceComponent", f"{NAME}-base") in world.double.control.rows
        make(world, deployment())


def test_components_that_others_put_on_the_endpoint_do_not_keep_it(world: World) -> None:
    make(world, deployment(components()))
    world.double.control.put(
        "InferenceComponent",
        {"InferenceComponentName": "theirs", "EndpointName": NAME, "Specification": {}},
        copies=1, had=1,
    )  # fmt: skip
    assert "component theirs" in remove(world)
    assert world.left() == []


def test_a_refusal_that_never_ends_is_reported(world: World) -> None:
    make(world, deployment())
    world.double.busy["DeleteEndpoint"] = 10**6
    with pytest.raises(DeployError, match="DeleteEndpoint was refused"):
        remove(world)


def test_a_strangers_endpoint_of_the_same_name_is_not_touched(world: World) -> None:
    make(world, deployment())
    for tags in world.double.control.tags.values():
        tags.clear()
    with pytest.raises(DeployError, match="was not made by servetune"):
        remove(world)
    assert ("Endpoint", NAME) in world.double.control.rows


# Status and logs


def test_status_tells_what_is_missing_beside_what_is_there(world: World) -> None:
    wanted = deployment(FULL)
    make(world, wanted)
    control = world.double.control
    del control.rows["InferenceComponent", "qwen-support"]
    rows = {row.name: row.status for row in world.run(status(NAME, world.aws(), deployment=wanted))}
    assert rows["qwen-support"] == "gone"
    assert rows["qwen-base"] == rows[NAME] == "InService"
    assert rows[wanted.only("model").name] == "there"


def test_logs_are_in_order_and_without_credentials(world: World) -> None:
    planted = ["hf_" + "Q1w2" * 9, "AKIA" + "ABCD" * 4]
    world.double.services.log_lines["/aws/sagemaker/Endpoints/qwen"] = ["one", f"key {planted[1]}"]
    world.double.services.log_lines["/aws/sagemaker/InferenceComponents/qwen-base"] = [
        f"token={planted[0]}"
    ]
    where = LogGroups(endpoint=NAME, components=("qwen-base",))
    lines = world.run(logs(where, world.aws()))
    assert lines[0] == "one"
    assert len(lines) == 3
    assert not any(secret in line for secret in planted for line in lines)
    assert world.run(logs(where, world.aws(), containing="one")) == ["one"]


def test_an_endpoint_without_logs_says_that_it_has_not_started(world: World) -> None:
    with pytest.raises(DeployError, match="has written a log"):
        world.run(logs(LogGroups(endpoint=NAME), world.aws()))


# Orphans


def left_over(world: World, now: dt.datetime = NOW) -> list[tuple[str, str, float | None]]:
    found = world.run(orphans(world.aws(), now=now, prices={G6: 5.752}))
    return [(each.resource.kind, each.reason, each.usd_per_hour) for each in found]


def test_what_serves_is_no_orphan(world: World) -> None:
    make(world, deployment(FULL))
    assert left_over(world) == []


@pytest.mark.parametrize("crash_at", range(1, 4))
def test_what_a_crash_left_is_found(world: World, crash_at: int) -> None:
    wanted = deployment(FULL)
    with pytest.raises(Crash):
        world.run(apply(wanted, change_in(world, crash_at=crash_at)))
    world.clock._now_s += 1e4
    found = left_over(world)
    if crash_at == 3:  # the endpoint stands, and nothing on it
        kind, reason, per_hour = found[0]
        assert kind == "endpoint"
        assert "has none" in reason
        assert per_hour == pytest.approx(5.752)
    assert ("model", f"nothing of endpoint {NAME} uses it", 0.0) in found


def test_an_endpoint_past_the_time_that_its_user_gave_is_reported_with_its_cost(
    world: World,
) -> None:
    hosting = Hosting(instance_types=(G6,), instance_count=2)
    make(world, with_tags(deployment(hosting), delete_after="2026-11-21T11:00:00+00:00"))
    assert left_over(world, NOW - dt.timedelta(hours=2)) == []
    (found,) = world.run(orphans(world.aws(), now=NOW, prices={G6: 5.752}))
    assert found.resource.kind == "endpoint"
    assert "was asked to end" in found.reason
    assert found.usd_per_hour == pytest.approx(2 * 5.752)
    assert found.in_service
    # Its user stays longer, and what was rendered by earlier versions has no end any more.
    make(world, with_tags(deployment(hosting), delete_after="2026-11-21T13:00:00+00:00"))
    assert left_over(world) == []


def test_what_the_endpoint_of_somebody_else_uses_is_no_orphan(world: World) -> None:
    wanted = deployment()
    with pytest.raises(Crash):  # model and configuration are there, the endpoint never came
        world.run(apply(wanted, change_in(world, crash_at=2)))
    assert len(left_over(world)) == 2
    world.double.clients()("sagemaker").create_endpoint(
        EndpointName="theirs", EndpointConfigName=wanted.only("endpoint-config").name
    )
    assert left_over(world) == []


def test_what_somebody_makes_just_now_is_no_orphan(world: World) -> None:
    with pytest.raises(Crash):
        world.run(apply(deployment(), change_in(world, crash_at=2)))
    made = dt.datetime.fromtimestamp(world.clock.now_s(), dt.UTC)
    assert left_over(world, made + dt.timedelta(minutes=10)) == []
    assert len(left_over(world, made + dt.timedelta(minutes=20))) == 2


def test_reserved_instances_cost_nothing_on_demand(world: World) -> None:
    plan = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"
    reserved = Hosting(instance_types=(G6,), reservation_arn=plan)
    make(world, with_tags(deployment(reserved), delete_after="2026-11-21T11:00:00+00:00"))
    assert [cost for _, _, cost in left_over(world)] == [0.0]


def test_an_alarm_of_an_endpoint_that_is_gone_is_found_and_deleted(world: World) -> None:
    make(world, deployment(FULL))
    alarms = world.double.services.alarms
    assert left_over(world) == []
    alarms["servetune-other-no-capacity"] = {}  # somebody deleted endpoint `other` by hand
    alarms["servetune-costs"] = {}  # a stranger's
    assert left_over(world) == [("alarm", "its endpoint other is not there", 0.0)]
    (orphan,) = world.run(orphans(world.aws(), now=NOW, prices={}))
    world.run(
        delete_resource(
            orphan.resource,
            change_in(world),
        )
    )
    assert sorted(alarms) == ["servetune-costs", f"servetune-{NAME}-no-capacity"]
    world.double.denied = {"DescribeAlarms"}
    assert left_over(world) == []


def test_a_failed_endpoint_is_found_among_many_pages_of_strangers(world: World) -> None:
    world.double.control.page_size = 3
    client = world.double.clients()("sagemaker")
    for number in range(10):
        client.create_model(
            ModelName=f"stranger-{number:08x}",
            ExecutionRoleArn="arn:aws:iam::123456789012:role/x",
            PrimaryContainer={"Image": "x"},
        )
    world.double.control.no_capacity = {G6}
    with pytest.raises(DeployError, match="InsufficientInstanceCapacity"):
        make(world, deployment())
    assert left_over(world) == [("endpoint", "it failed", 0.0)]


# The value itself


def test_a_deployment_goes_through_its_file_and_back() -> None:
    wanted = deployment(FULL)
    assert read_deployment(wanted.to_json()) == wanted
    with pytest.raises(DeployError, match="cannot be read"):
        read_deployment("{}")
    newer = wanted.to_json().replace('"version": 1', '"version": 2')
    with pytest.raises(DeployError, match="newer servetune"):
        read_deployment(newer)


def test_a_torn_state_file_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"endpoint": "x"')
    with pytest.raises(DeployError, match="cannot be read") as caught:
        StateFile(tmp_path)
    assert "found by name" in caught.value.hint
