"""Updates of endpoints that serve, against the double and its rules, in virtual time."""

from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, SELDOM, World, change_in, components, deployment
from doubles.server import Crash

from servetune.deploy.alarms import LatencyLimit, latency_limit
from servetune.deploy.aws import apply, update
from servetune.deploy.aws.update import batch_of
from servetune.deploy.deployment import Deployment
from servetune.deploy.hosting import Adapter, Hosting, Routing, Scaling
from servetune.errors import DeployError, InputError
from servetune.metrics import parse_constraints
from servetune.plan import Plan

OTHER = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64, max_model_len=8192)
RANDOM = Routing(strategy="random")


def make(world: World, wanted: Deployment) -> None:
    world.run(apply(wanted, change_in(world, wait=SELDOM)))


def change(
    world: World, wanted: Deployment, *, canary: int | None = None, **crash: Any
) -> list[str]:
    work = update(wanted, change_in(world, **crash), canary_percent=canary)
    done: list[str] = world.run(work)
    return done


def sent(world: World, operation: str) -> Any:
    """The last request of an operation."""
    return [asked for _, name, asked in world.double.calls if name == operation][-1]


def instances(world: World) -> int:
    said = world.double.control.describe_endpoint({"EndpointName": NAME})
    count: int = said["ProductionVariants"][0]["CurrentInstanceCount"]
    return count


def test_instances_are_rolled_over_and_the_old_settings_go(world: World) -> None:
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=4)))
    wanted = deployment(Hosting(instance_types=(G6,), instance_count=4), plan=OTHER)
    done = change(world, wanted)
    assert f"endpoint {NAME} runs {wanted.only('endpoint-config').name}" in done
    policy = sent(world, "UpdateEndpoint")["DeploymentConfig"]["RollingUpdatePolicy"]
    batch = policy["MaximumBatchSize"]
    assert batch == {"Type": "INSTANCE_COUNT", "Value": 2}
    assert {name for _, name in world.double.control.rows} == {
        NAME, wanted.only("model").name, wanted.only("endpoint-config").name,
    }  # fmt: skip
    assert change(world, wanted) == []


def test_a_component_is_rolled_over_copy_by_copy_and_grows(world: World) -> None:
    make(world, deployment(components()))
    wanted = deployment(components(copies=4, instance_count=2), plan=OTHER)
    done = change(world, wanted)
    row = world.double.control.rows["InferenceComponent", "qwen-base"]
    assert row["request"]["Specification"]["ModelName"] == wanted.only("model").name
    assert row["copies"] == 4
    assert "component qwen-base has 4 copies" in done
    assert any("deleted model" in line for line in done)


def test_what_an_endpoint_shall_have_no_more_goes_and_other_files_come(world: World) -> None:
    def hosting(scaling: Scaling | None, **adapters: str) -> Hosting:
        made = tuple(
            Adapter(name=name, artifact_url=f"s3://bucket/{place}.tar.gz")
            for name, place in adapters.items()
        )
        return components(adapters=made, scaling=scaling)

    zero = Scaling(minimum=0, maximum=4, requests_per_copy=50)
    make(world, deployment(hosting(zero, fr="fr", de="de")))
    assert len(world.double.services.policies) == 2

    one = Scaling(minimum=1, maximum=4, requests_per_copy=50)
    done = change(world, deployment(hosting(one, fr="fr2")))
    assert f"adapter {NAME}-fr is s3://bucket/fr2.tar.gz" in done
    assert f"deleted adapter {NAME}-de" in done
    assert f"deleted scaling-policy {NAME}-from-zero" in done
    row = world.double.control.rows["InferenceComponent", f"{NAME}-fr"]["request"]
    assert row["Specification"]["Container"]["ArtifactUrl"] == "s3://bucket/fr2.tar.gz"
    assert ("InferenceComponent", f"{NAME}-de") not in world.double.control.rows
    assert list(world.double.services.policies) == [f"{NAME}-requests-in-flight"]
    assert f"servetune-{NAME}-no-capacity" not in world.double.services.alarms

    done = change(world, deployment(hosting(None, fr="fr2")))
    assert f"deleted scalable-target inference-component/{NAME}-base" in done
    assert world.double.services.targets == {}
    assert change(world, deployment(hosting(None, fr="fr2"))) == []


def test_who_may_not_change_scaling_may_still_update(world: World) -> None:
    make(world, deployment())
    world.double.denied = {"DeregisterScalableTarget", "DescribeAlarms", "DeleteAlarms"}
    wanted = deployment(plan=OTHER)
    assert f"endpoint {NAME} runs {wanted.only('endpoint-config').name}" in change(world, wanted)
    assert "DeregisterScalableTarget was refused" in world.progress_text


def test_an_adapter_with_other_files_is_not_taken_for_the_wanted_one(world: World) -> None:
    def wanted(place: str) -> Deployment:
        adapter = Adapter(name="fr", artifact_url=f"s3://bucket/{place}.tar.gz")
        return deployment(components(adapters=(adapter,)))

    make(world, wanted("old"))
    with pytest.raises(DeployError, match=r"ArtifactUrl is s3://bucket/old.tar.gz"):
        make(world, wanted("new"))


def test_new_settings_that_do_not_answer_are_rolled_back_and_the_old_serve_on(
    world: World,
) -> None:
    before = deployment()
    make(world, before)
    world.double.control.unhealthy = {"'64'"}
    wanted = deployment(plan=OTHER)
    with pytest.raises(DeployError, match="rolled back") as caught:
        change(world, wanted)
    assert "the old settings serve on" in caught.value.hint
    said = world.double.control.describe_endpoint({"EndpointName": NAME})
    assert said["EndpointStatus"] == "InService"
    assert said["EndpointConfigName"] == before.only("endpoint-config").name
    assert ("Model", before.only("model").name) in world.double.control.rows


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash_at", range(5))
def test_an_update_that_died_anywhere_goes_on(world: World, crash_at: int, when: str) -> None:
    make(world, deployment())
    wanted = deployment(plan=OTHER)
    with pytest.raises(Crash):
        change(world, wanted, crash_at=crash_at, when=when)
    change(world, wanted)
    assert len(world.double.control.rows) == 3
    said = world.double.control.describe_endpoint({"EndpointName": NAME})
    assert said["EndpointConfigName"] == wanted.only("endpoint-config").name


def test_an_endpoint_cannot_change_its_kind(world: World) -> None:
    make(world, deployment())
    with pytest.raises(DeployError, match="made without inference components"):
        change(world, deployment(components()))


def test_there_must_be_something_to_update(world: World) -> None:
    with pytest.raises(DeployError, match="no endpoint 'qwen'"):
        change(world, deployment())


# Rules of the service


@pytest.mark.parametrize("count", range(1, 9))
def test_a_rollout_keeps_to_the_bounds_of_the_service(world: World, count: int) -> None:
    """A batch is 5% to 50% of all instances, so that one instance needs another way."""
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=count)))
    wanted = deployment(Hosting(instance_types=(G6,), instance_count=count), plan=OTHER)
    change(world, wanted)
    config = sent(world, "UpdateEndpoint")["DeploymentConfig"]
    assert ("RollingUpdatePolicy" in config) == (count > 1)
    assert instances(world) == count
    if count == 1:
        assert "run beside the old ones and cost money" in world.progress_text


def test_no_batch_fits_both_a_large_and_a_tiny_fleet() -> None:
    assert batch_of((40, 2)) is None
    assert batch_of((4, 6)) == 2


@pytest.mark.parametrize("copies", [1, 2, 30])
def test_copies_are_exchanged_within_the_bounds_of_the_service(world: World, copies: int) -> None:
    hosting = components(copies=copies, instance_count=-(-copies // 2))
    world.double.control.copy_s = 10.0
    make(world, deployment(hosting))
    change(world, deployment(hosting, plan=OTHER))
    rolling = sent(world, "UpdateInferenceComponent").get("DeploymentConfig")
    if copies == 1:
        assert rolling is None
    else:
        size = rolling["RollingUpdatePolicy"]["MaximumBatchSize"]["Value"]
        assert 0.05 <= size / copies <= 0.5


def test_copies_that_scaling_made_stay_for_a_change_of_routing(world: World) -> None:
    scaling = Scaling(minimum=1, maximum=8, requests_per_copy=50)
    hosting = components(copies=4, instance_count=2, scaling=scaling)
    make(world, deployment(hosting))
    world.double.control.rows["InferenceComponent", f"{NAME}-base"] |= {"copies": 7, "had": 7}
    world.double.control.scale(NAME, 4)
    done = change(world, deployment(msgspec.structs.replace(hosting, routing=RANDOM)))
    assert [line for line in done if line.startswith(f"endpoint {NAME} runs")]
    assert world.double.control.rows["InferenceComponent", f"{NAME}-base"]["copies"] == 7
    assert instances(world) == 4


def test_instances_that_scaling_made_stay_and_others_follow_the_bundle(world: World) -> None:
    scaling = Scaling(minimum=1, maximum=8, requests_per_copy=50)
    scaled = Hosting(instance_types=(G6,), instance_count=2, scaling=scaling)
    make(world, deployment(scaled))
    world.double.control.scale(NAME, 5)
    change(world, deployment(msgspec.structs.replace(scaled, routing=RANDOM)))
    assert instances(world) == 5
    change(world, deployment(Hosting(instance_types=(G6,), instance_count=3)))
    assert instances(world) == 3


def test_scaling_is_off_while_the_type_changes_and_back_afterwards(world: World) -> None:
    scaling = Scaling(minimum=1, maximum=8, requests_per_copy=50)
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=2, scaling=scaling)))
    world.double.calls.clear()
    more = msgspec.structs.replace(scaling, maximum=6)
    wanted = Hosting(instance_types=("ml.g5.12xlarge",), instance_count=2, scaling=more)
    change(world, deployment(wanted))
    order = [
        name
        for name in world.double.operations()
        if "Alarm" not in name and not name.startswith("Delete")
    ]
    assert order == [
        "CreateEndpointConfig", "DeregisterScalableTarget", "UpdateEndpoint",
        "RegisterScalableTarget", "PutScalingPolicy",
    ]  # fmt: skip
    (target,) = world.double.services.targets.values()
    assert target["MaxCapacity"] == 6


def test_a_type_that_cannot_be_had_leaves_scaling_as_it_was(world: World) -> None:
    scaling = Scaling(minimum=1, maximum=8, requests_per_copy=50)
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=2, scaling=scaling)))
    services = world.double.services
    before = (dict(services.targets), {**services.policies})
    world.double.control.quota["ml.g5.12xlarge"] = 20
    world.double.control.ringing = {f"servetune-{NAME}-5xx"}
    wanted = Hosting(instance_types=("ml.g5.12xlarge",), instance_count=2, scaling=scaling)
    with pytest.raises(DeployError, match="rolled back"):
        change(world, deployment(wanted))
    assert (services.targets, services.policies) == before
    assert "autoscaling is as it was" in world.progress_text


def test_scaling_from_zero_is_put_back_with_its_alarm(world: World) -> None:
    scaling = Scaling(minimum=0, maximum=8, requests_per_copy=50)
    make(world, deployment(components(scaling=scaling)))
    services = world.double.services
    before = (dict(services.targets), dict(services.policies), services.alarms.copy())
    world.double.failing["UpdateEndpoint"] = 10**6
    wanted = components(
        instance_types=("ml.g5.12xlarge",), scaling=scaling,
        memory_mib_per_copy={"ml.g5.12xlarge": 65536},
    )  # fmt: skip
    with pytest.raises(DeployError, match="UpdateEndpoint was refused"):
        change(world, deployment(wanted))
    assert (services.targets, services.policies) == before[:2]
    alarm = services.alarms[f"servetune-{NAME}-no-capacity"]
    assert alarm["AlarmActions"] == before[2][alarm["AlarmName"]]["AlarmActions"]


def test_alarms_on_errors_and_on_the_measured_latency_roll_back(world: World) -> None:
    limit = latency_limit(parse_constraints("e2e_latency:p99<=60s; ttft<=2s"), 41e3)
    before = deployment(Hosting(instance_types=(G6,), instance_count=2), latency_limit=limit)
    make(world, before)
    assert world.double.services.alarms == {}
    wanted = deployment(
        Hosting(instance_types=(G6,), instance_count=2), latency_limit=limit, plan=OTHER
    )
    world.double.control.ringing = {f"servetune-{NAME}-latency"}
    with pytest.raises(DeployError, match="rolled back by alarm servetune-qwen-latency"):
        change(world, wanted)
    alarms = world.double.services.alarms
    latency = alarms[f"servetune-{NAME}-latency"]
    assert (latency["MetricName"], latency["ExtendedStatistic"]) == ("ModelLatency", "p99")
    assert latency["Threshold"] == 60e6  # microseconds
    assert alarms[f"servetune-{NAME}-5xx"]["MetricName"] == "Invocation5XXErrors"
    world.double.control.ringing = set()
    change(world, wanted)
    watched = sent(world, "UpdateEndpoint")["DeploymentConfig"]["AutoRollbackConfiguration"]
    assert {each["AlarmName"] for each in watched["Alarms"]} == set(alarms)


def test_without_a_limit_twice_the_measured_latency_rolls_back() -> None:
    limit = latency_limit(parse_constraints("ttft:p99<=2s"), 41e3)
    assert limit == LatencyLimit(
        statistic="p99", limit_s=82.0, source="2 times the p99 of the trial"
    )
    assert latency_limit((), None) is None


def test_who_may_not_make_alarms_updates_without_them(world: World) -> None:
    make(world, deployment())
    world.double.denied = {"PutMetricAlarm"}
    change(world, deployment(plan=OTHER))
    assert "no alarm rolls this update back" in world.progress_text
    assert "AutoRollbackConfiguration" not in sent(world, "UpdateEndpoint")["DeploymentConfig"]


def test_a_canary_takes_its_share_first_where_there_are_instances_to_share(world: World) -> None:
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=4)))
    wanted = deployment(Hosting(instance_types=(G6,), instance_count=4), plan=OTHER)
    change(world, wanted, canary=25)
    policy = sent(world, "UpdateEndpoint")["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    traffic = policy["TrafficRoutingConfiguration"]
    assert traffic["Type"] == "CANARY"
    assert traffic["CanarySize"] == {"Type": "CAPACITY_PERCENT", "Value": 25}
    with pytest.raises(InputError, match="one instance cannot be split"):
        change(world, deployment(plan=OTHER), canary=25)


def test_a_canary_is_of_instances(world: World) -> None:
    make(world, deployment(components()))
    with pytest.raises(InputError, match="made of inference components"):
        change(world, deployment(components(), plan=OTHER), canary=10)
