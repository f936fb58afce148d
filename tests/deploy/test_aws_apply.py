"""Making an endpoint, against the double and real boto3, in virtual time."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, SELDOM, World, components, deployment, no_state
from doubles.server import Crash

from servetune.deploy.aws import StateFile, apply, delete
from servetune.deploy.aws.apply import wait_options_of
from servetune.deploy.aws.client import AwsError
from servetune.deploy.aws.resources import Change
from servetune.deploy.hosting import Adapter, Hosting, Scaling
from servetune.errors import CannotRender, DeployError

FULL = components(
    adapters=(Adapter(name="support", artifact_url="s3://bucket/support.tar.gz"),),
    scaling=Scaling(minimum=0, maximum=4, requests_per_copy=51.2),
)


def make(world: World, wanted: Any = None, *, state: StateFile | None = None, **more: Any) -> None:
    wait = more.pop("wait", None)
    crash = {key: more.pop(key) for key in ("crash_at", "when") if key in more}
    world.run(
        apply(
            wanted or deployment(),
            Change(
                aws=world.aws(**crash),
                state=state or no_state(),
                on_progress=world.messages.append,
                wait=wait or wait_options_of(wanted or deployment()),
            ),
            **more,
        )
    )


def test_a_model_endpoint_is_made_in_order_and_waited_for(world: World) -> None:
    begin_s = world.clock.now_s()
    make(world)
    assert world.double.operations() == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]
    said = world.double.control.describe_endpoint({"EndpointName": NAME})
    assert said["EndpointStatus"] == "InService"
    assert world.clock.now_s() - begin_s >= 300
    assert "Creating" in world.progress_text
    assert "InService" in world.progress_text


def test_components_adapters_and_scaling_follow_the_endpoint(world: World) -> None:
    make(world, deployment(FULL))
    assert world.double.operations() == [
        "CreateModel",
        "CreateEndpointConfig",
        "CreateEndpoint",
        "CreateInferenceComponent",
        "CreateInferenceComponent",
        "RegisterScalableTarget",
        "PutScalingPolicy",
        "PutScalingPolicy",
        "PutMetricAlarm",
    ]
    base = world.double.control.rows["InferenceComponent", "qwen-base"]["request"]
    needs = base["Specification"]["ComputeResourceRequirements"]
    assert needs == {"NumberOfAcceleratorDevicesRequired": 2.0, "MinMemoryRequiredInMb": 65536}
    adapter = world.double.control.rows["InferenceComponent", "qwen-support"]["request"]
    assert adapter["Specification"]["BaseInferenceComponentName"] == "qwen-base"
    policy = world.double.services.policies["qwen-requests-in-flight"]
    tracked = policy["TargetTrackingScalingPolicyConfiguration"]
    assert tracked["TargetValue"] == 51.2
    assert "ConcurrentRequestsPerCopy" in str(tracked)
    alarm = world.double.services.alarms["servetune-qwen-no-capacity"]
    assert alarm["AlarmActions"] == [world.double.services.policies["qwen-from-zero"]["PolicyARN"]]
    assert "1 of 2 copies" in world.progress_text


@pytest.mark.parametrize("container", ["vllm", "lmi"])
def test_a_base_is_told_to_take_adapters_while_it_runs(world: World, container: str) -> None:
    adapter = Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz")
    make(world, deployment(components(adapters=(adapter,)), container=container), wait=SELDOM)
    said = world.double.control.describe_inference_component(
        {"InferenceComponentName": f"{NAME}-fr"}
    )
    assert said["InferenceComponentStatus"] == "InService"
    plain = deployment(components(), container=container).only("model").request
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in plain["PrimaryContainer"]["Environment"]


def test_running_it_again_makes_nothing_again(world: World) -> None:
    make(world, deployment(FULL))
    world.double.calls.clear()
    make(world, deployment(FULL))
    assert [name for name in world.double.operations() if name.startswith("Create")] == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "crash_at",
    [2, 5, 8, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 1, 3, 4, 6, 7))],
)
def test_a_run_that_died_anywhere_is_continued_and_leaves_nothing_twice(
    world: World, tmp_path: Path, crash_at: int, when: str
) -> None:
    wanted = deployment(FULL)
    with pytest.raises(Crash):
        make(world, wanted, state=StateFile(tmp_path), crash_at=crash_at, when=when, wait=SELDOM)
    make(world, wanted, state=StateFile(tmp_path), wait=SELDOM)
    assert set(world.double.control.made.values()) == {1}
    held = json.loads((tmp_path / "state.json").read_text())
    assert {entry["status"] for entry in held["entries"]} == {"there"}
    assert len(held["entries"]) == len(wanted.steps)
    world.run(
        delete(
            NAME,
            Change(aws=world.aws(), state=StateFile(tmp_path), on_progress=world.messages.append),
        )
    )
    assert world.left() == []
    assert not (tmp_path / "state.json").exists()


def test_the_state_knows_what_was_asked_before_the_answer_came(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        make(world, state=StateFile(tmp_path), crash_at=2, when="after")
    entries = StateFile(tmp_path).state.entries
    assert [(entry.kind, entry.status) for entry in entries] == [
        ("model", "there"),
        ("endpoint-config", "there"),
        ("endpoint", "asked"),
    ]


# What goes wrong at AWS


def test_throttled_looks_and_lost_servers_are_waited_out(world: World) -> None:
    world.double.throttled["DescribeEndpoint"] = 5
    world.double.failing["CreateEndpoint"] = 2
    make(world)
    assert world.double.control.made["Endpoint", NAME] == 1


@pytest.mark.parametrize("lag_s", [5.0, 40.0])
def test_what_was_just_made_and_is_not_seen_yet_is_waited_for(world: World, lag_s: float) -> None:
    world.double.control.lag_s = lag_s
    make(world)
    assert set(world.double.control.made.values()) == {1}
    said = world.double.control.describe_endpoint({"EndpointName": NAME})
    assert said["EndpointStatus"] == "InService"


def test_what_is_never_seen_ends_with_its_reason(world: World) -> None:
    world.double.control.lag_s = 1e6
    with pytest.raises(AwsError, match="CreateEndpointConfig was refused: Could not find model"):
        make(world)


def test_an_address_that_cannot_be_reached_is_tried_for_some_seconds(world: World) -> None:
    world.double.close()
    begin_s = world.clock.now_s()
    with pytest.raises(AwsError, match="DescribeEndpoint was refused: Could not connect") as caught:
        make(world)
    assert "cannot be reached from here" in caught.value.hint
    assert world.clock.now_s() - begin_s == 15.0


def test_throttles_without_end_end_with_a_line(world: World) -> None:
    world.double.throttled["DescribeModel"] = 10**6
    with pytest.raises(AwsError, match="DescribeModel was refused: Rate exceeded") as caught:
        make(world)
    assert "goes on from there" in caught.value.hint


def test_no_quota_is_reported_with_the_way_out(world: World) -> None:
    world.double.control.quota[G6] = 0
    with pytest.raises(AwsError, match="is 0 Instances") as caught:
        make(world)
    assert "Service Quotas" in caught.value.hint


def test_no_capacity_is_found_out_after_its_time_out_and_a_rerun_tries_anew(world: World) -> None:
    control = world.double.control
    control.no_capacity = {G6}
    hosting = Hosting(instance_types=(G6,), provision_timeout_s=600)
    begin_s = world.clock.now_s()
    with pytest.raises(DeployError, match="InsufficientInstanceCapacity") as caught:
        make(world, deployment(hosting))
    assert "--fallback" in caught.value.hint
    assert 600 <= world.clock.now_s() - begin_s < 700
    control.no_capacity = set()
    make(world, deployment(hosting))
    assert "failed before" in world.progress_text
    assert control.describe_endpoint({"EndpointName": NAME})["EndpointStatus"] == "InService"
    assert control.made["Model", deployment(hosting).only("model").name] == 1


def test_a_pool_takes_the_next_type_when_the_first_is_not_to_be_had(world: World) -> None:
    world.double.control.no_capacity = {G6}
    pool = Hosting(instance_types=(G6, "ml.g5.12xlarge"), provision_timeout_s=600)
    make(world, deployment(pool))
    variant = world.double.control._variants(deployment(pool).only("endpoint-config").name)[0]
    assert "InstanceType" not in variant
    assert [each["InstanceType"] for each in variant["InstancePools"]] == [G6, "ml.g5.12xlarge"]
    assert world.clock.now_s() - 1.7e9 >= 900


def test_a_container_that_does_not_answer_points_to_its_log(world: World) -> None:
    world.double.control.unhealthy = {"Qwen3-4B"}
    with pytest.raises(DeployError, match="ping health check") as caught:
        make(world)
    assert "servetune deploy logs" in caught.value.hint


def test_a_failed_component_says_that_the_endpoint_still_costs_and_is_made_anew(
    world: World,
) -> None:
    world.double.control.unhealthy = {"Qwen3-4B"}
    with pytest.raises(DeployError, match="cost money until deleted"):
        make(world, deployment(components()))
    world.double.control.unhealthy = set()
    make(world, deployment(components()))
    said = world.double.control.describe_inference_component(
        {"InferenceComponentName": "qwen-base"}
    )
    assert said["InferenceComponentStatus"] == "InService"
    assert world.double.control.made["Endpoint", NAME] == 1


def test_an_endpoint_with_other_settings_is_not_touched(world: World) -> None:
    make(world)
    with pytest.raises(DeployError, match="exists with other settings") as caught:
        make(world, deployment(Hosting(instance_types=(G6,), instance_count=2)))
    assert "servetune deploy update" in caught.value.hint


def test_waiting_ends_and_says_that_it_goes_on(world: World) -> None:
    world.double.control.create_s = 1e9
    with pytest.raises(DeployError, match="is still Creating") as caught:
        make(world)
    assert "run it again" in caught.value.hint


def test_a_wrong_request_is_never_sent(world: World) -> None:
    with pytest.raises(CannotRender, match=r"InstanceType: 'ml\.g99\.xlarge' is none of the"):
        make(world, deployment(Hosting(instance_types=("ml.g99.xlarge",))))
    assert world.double.calls == []


def test_a_wrong_request_at_the_end_keeps_the_first_from_being_sent(world: World) -> None:
    sound = deployment(FULL)
    *others, alarm = sound.steps
    bad = msgspec.structs.replace(alarm, request={**alarm.request, "Statistic": "Mean"})
    with pytest.raises(CannotRender, match="PutMetricAlarm would be refused: Statistic"):
        make(world, msgspec.structs.replace(sound, steps=(*others, bad)))
    assert world.double.calls == []


def test_the_state_of_another_endpoint_is_not_overwritten(world: World, tmp_path: Path) -> None:
    make(world, state=StateFile(tmp_path))
    with pytest.raises(DeployError, match="holds the state of 'qwen'"):
        make(world, deployment(endpoint_name="other"), state=StateFile(tmp_path))


# Tokens


def test_a_token_reaches_the_container_and_nothing_else(world: World, tmp_path: Path) -> None:
    token = "hf_" + "Q1w2" * 9
    state = StateFile(tmp_path)
    make(world, state=state, secrets={"HF_TOKEN": token})
    model = deployment().only("model").name
    sent = world.double.control.rows["Model", model]["request"]["PrimaryContainer"]["Environment"]
    assert sent["HF_TOKEN"] == token
    assert token not in (tmp_path / "state.json").read_text()
    assert token not in world.progress_text


def test_a_token_that_aws_repeats_in_an_error_is_taken_out(world: World) -> None:
    odd = "no-known-form-of-token-0815"
    aws = world.aws(secrets_in_use=(odd,))
    with pytest.raises(AwsError) as caught:
        world.run(aws.call("sagemaker", "DescribeEndpoint", EndpointName=odd))
    assert odd not in caught.value.message
    assert "[redacted]" in caught.value.message
