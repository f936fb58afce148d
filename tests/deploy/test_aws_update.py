"""Updates of endpoints that serve, against the double and its rules, in virtual time."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, SELDOM, World, change_in, components, deployment
from doubles.server import Crash

from servetune.deploy.alarms import LatencyLimit, latency_limit
from servetune.deploy.aws import StateFile, apply, status, update
from servetune.deploy.aws.rollout import Exchange, Rollout
from servetune.deploy.batches import instance_batch
from servetune.deploy.deployment import Deployment, scaled_variant
from servetune.deploy.hosting import Adapter, Hosting, Routing, Scaling
from servetune.errors import DeployError, InputError
from servetune.metrics import parse_constraints
from servetune.plan import Plan

OTHER = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64, max_model_len=8192)
RANDOM = Routing(strategy="random")
ONE = Scaling(minimum=1, maximum=8, requests_per_copy=50)
OF = scaled_variant(NAME)
VARIANT = OF["ResourceId"]
BASE = ("InferenceComponent", f"{NAME}-base")


def make(world: World, wanted: Deployment) -> None:
    world.run(apply(wanted, change_in(world, wait=SELDOM)))


def change(
    world: World, wanted: Deployment, *, canary: int | None = None, **crash: Any
) -> list[str]:
    work = update(wanted, change_in(world, wait=SELDOM, **crash), canary_percent=canary)
    done: list[str] = world.run(work)
    return done


def sent(world: World, operation: str) -> Any:
    """The last request of an operation."""
    return [asked for _, name, asked in world.double.calls if name == operation][-1]


def scaling_of(world: World) -> list[Any]:
    """All of autoscaling as AWS describes it, without ARNs, which change when it is made again."""
    services = world.double.services
    found = [
        *services.describe_scalable_targets({})["ScalableTargets"],
        *services.describe_scaling_policies({})["ScalingPolicies"],
        *services.describe_scheduled_actions({})["ScheduledActions"],
    ]
    return [
        {name: value for name, value in each.items() if not name.endswith("ARN")} for each in found
    ]


def by_hand(world: World, policy: str) -> None:
    """What a colleague puts on the endpoint: a policy, a scheduled action, a suspended scale-in."""
    services = world.double.services
    of = dict(OF)
    services.put_scaling_policy({**services.policies[policy], "PolicyName": "by-hand"})
    services.put_scheduled_action(
        {**of, "ScheduledActionName": "night", "Schedule": "cron(0 20 * * ? *)",
         "ScalableTargetAction": {"MinCapacity": 1}}
    )  # fmt: skip
    services.register_scalable_target(of | {"SuspendedState": {"DynamicScalingInSuspended": True}})


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
    world.double.denied = {"DescribeScalingPolicies", "DescribeAlarms", "DeleteAlarms"}
    wanted = deployment(plan=OTHER)
    assert f"endpoint {NAME} runs {wanted.only('endpoint-config').name}" in change(world, wanted)
    assert "DescribeScalingPolicies was refused" in world.progress_text


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
@pytest.mark.parametrize(
    "crash_at", [2, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 1, 3, 4))]
)
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


@pytest.mark.parametrize(
    "count", [1, 2, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5, 6, 8))]
)
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
    assert instance_batch((40, 2)) is None
    assert instance_batch((4, 6)) == 2


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
        policy = rolling["RollingUpdatePolicy"]
        assert 0.05 <= policy["MaximumBatchSize"]["Value"] / copies <= 0.5
        assert policy["RollbackMaximumBatchSize"] == policy["MaximumBatchSize"]
        # The instances are full: SageMaker adds one for the batch.
        assert "new instances (1 at most) run beside the old ones" in world.progress_text


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
    before = scaling_of(world)
    world.double.control.ringing = {f"servetune-{NAME}-5xx"}
    wanted = Hosting(instance_types=("ml.g5.12xlarge",), instance_count=2, scaling=scaling)
    with pytest.raises(DeployError, match="rolled back"):
        change(world, deployment(wanted))
    assert scaling_of(world) == before
    assert f"autoscaling of {VARIANT} is as it was before" in world.progress_text


def test_scaling_from_zero_is_put_back_with_its_alarm(world: World) -> None:
    scaling = Scaling(minimum=0, maximum=8, requests_per_copy=50)
    make(world, deployment(components(scaling=scaling)))
    services = world.double.services
    before = scaling_of(world)
    world.double.failing["UpdateEndpoint"] = 10**6
    wanted = components(
        instance_types=("ml.g5.12xlarge",), scaling=scaling,
        memory_mib_per_copy={"ml.g5.12xlarge": 65536},
    )  # fmt: skip
    with pytest.raises(DeployError, match="UpdateEndpoint was refused"):
        change(world, deployment(wanted))
    assert scaling_of(world) == before
    alarm = services.alarms[f"servetune-{NAME}-no-capacity"]
    # Another ARN than before: the policy was made again.
    assert alarm["AlarmActions"] == [services.policies[f"{NAME}-from-zero"]["PolicyARN"]]


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


# Scaling that an update takes off


@pytest.mark.parametrize(("crash_at", "off"), [(3, True), (4, True), (5, False)])
def test_scaling_that_a_killed_update_took_off_comes_back(
    world: World, tmp_path: Path, crash_at: int, off: bool
) -> None:
    """Killed after DeregisterScalableTarget, after UpdateEndpoint, and while it is put back."""
    made = Hosting(instance_types=(G6,), instance_count=2, scaling=ONE)
    world.run(apply(deployment(made), kept_in(world, tmp_path)))
    by_hand(world, f"{NAME}-requests-in-flight")
    wanted = deployment(msgspec.structs.replace(made, instance_types=("ml.g5.12xlarge",)))
    with pytest.raises(Crash):
        world.run(update(wanted, kept_in(world, tmp_path, crash_at=crash_at, when="after")))
    assert (VARIANT not in world.double.services.targets) == off

    state = StateFile(tmp_path).state
    assert f"autoscaling of {VARIANT} is off" in state.scaling_note
    rows = world.run(status(NAME, world.aws(), deployment=wanted, state=state))
    drift = [line for row in rows if row.name == VARIANT for line in row.drift]
    assert "was taken off by an update that did not end" in drift

    world.run(update(wanted, kept_in(world, tmp_path)))
    services = world.double.services
    assert set(services.policies) == {f"{NAME}-requests-in-flight", "by-hand"}
    assert set(services.scheduled) == {"night"}
    assert services.targets[VARIANT]["SuspendedState"]["DynamicScalingInSuspended"] is True
    assert StateFile(tmp_path).state.taken_off == ()


def kept_in(world: World, folder: Path, **crash: Any) -> Any:
    """A change whose state is in a folder."""
    change = change_in(world, wait=SELDOM, **crash)
    return msgspec.structs.replace(change, state=StateFile(folder))


def test_a_bundle_without_scaling_leaves_what_somebody_else_made(world: World) -> None:
    make(world, deployment(Hosting(instance_types=(G6,), instance_count=2, scaling=ONE)))
    by_hand(world, f"{NAME}-requests-in-flight")
    done = change(world, deployment(Hosting(instance_types=(G6,), instance_count=2)))
    assert f"deleted scaling-policy {NAME}-requests-in-flight" in done
    assert "somebody else made it: scaling-policy by-hand, scheduled-action night" in (
        world.progress_text
    )
    assert set(world.double.services.policies) == {"by-hand"}
    assert VARIANT in world.double.services.targets


# Room and time for copies


def test_copies_that_nothing_has_room_for_are_not_begun(world: World) -> None:
    hosting = components(copies=4, instance_count=2, scaling=Scaling(
        minimum=1, maximum=4, requests_per_copy=50))  # fmt: skip
    make(world, deployment(hosting))
    world.double.control.rows[BASE] |= {"copies": 6, "had": 6}  # somebody registered more
    world.double.calls.clear()
    with pytest.raises(InputError, match="6 copies fill 3 instances, and 1 new ones") as caught:
        change(world, deployment(hosting, plan=OTHER))
    assert "--scale MIN:MAX" in caught.value.hint
    assert world.double.operations() == []


def test_the_roll_out_has_time_for_the_copies_that_scaling_made(world: World) -> None:
    hosting = components(copies=2, scaling=Scaling(minimum=1, maximum=8, requests_per_copy=50))
    wanted = deployment(hosting, plan=OTHER)
    world.double.control.copy_s = wanted.startup_timeout_s - 1.0
    make(world, deployment(hosting))
    world.double.control.rows[BASE] |= {"copies": 7, "had": 7}
    world.double.control.scale(NAME, 4)
    assert f"component {NAME}-base runs {wanted.only('model').name}" in change(world, wanted)
    assert world.double.control.rows[BASE]["copies"] == 7


@pytest.mark.parametrize("why", ["alarm", "no quota"])
def test_copies_that_were_rolled_back_are_not_taken_for_the_new_ones(
    world: World, why: str
) -> None:
    before = deployment(components())
    make(world, before)
    if why == "alarm":
        world.double.control.ringing = {f"servetune-{NAME}-5xx"}
    else:
        world.double.control.quota[G6] = 1  # none for the instance that the batch needs
    with pytest.raises(DeployError, match=f"{NAME}-base was rolled back to {NAME}-") as caught:
        change(world, deployment(components(), plan=OTHER))
    assert "the old copies serve on" in caught.value.hint
    running = world.double.control.rows[BASE]["request"]["Specification"]["ModelName"]
    assert running == before.only("model").name
    assert ("Model", running) in world.double.control.rows


def test_copies_go_before_the_instances_that_they_stand_on(world: World) -> None:
    make(world, deployment(components(copies=8, instance_count=4)))
    done = change(world, deployment(components(copies=2, instance_count=1)))
    assert done[0] == f"component {NAME}-base has 2 copies"
    assert instances(world) == 1


def test_the_price_of_an_update_counts_old_and_new_together() -> None:
    roll = Exchange(config={}, beside=2, limit_s=600)
    rolling = Rollout(instances=roll, before=4, after=4)
    assert rolling.peak_usd_per_hour(4 * 5.0, 5.0) == 6 * 5.0
    # Dear ones that give way to cheap ones, and the other way round.
    assert rolling.peak_usd_per_hour(4 * 10.0, 1.0) == 4 * 10.0 + 2 * 1.0
    assert rolling.peak_usd_per_hour(4 * 1.0, 10.0) == 4 * 10.0 + 2 * 1.0
    blue_green = Rollout(instances=roll, before=2, after=2)
    assert blue_green.peak_usd_per_hour(2 * 5.0, 5.0) == 4 * 5.0
    assert blue_green.peak_usd_per_hour(None, 5.0) is None
    assert Rollout(copies=Exchange(config={}, beside=1, limit_s=600), after=2).peak_usd_per_hour(
        10.0, 5.0
    ) == pytest.approx(15.0)
    assert Rollout().peak_usd_per_hour(10.0, 5.0) == 0.0
