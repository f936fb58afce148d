"""IAM policies of a bundle, enforced over an endpoint's whole life."""

import datetime as dt
import json
from typing import Any

import botocore.session
import msgspec
import pytest
from aws_kit import G6, NAME, ROLE, SELDOM, World, change_in, components, deployment, endpoint
from test_features import FULL, QUEUED, STAGED

from servetune.deploy import render_sagemaker
from servetune.deploy.aws import LogGroups, apply, check_live, delete, logs, status, update
from servetune.deploy.aws.client import AwsError
from servetune.deploy.aws.update import mend
from servetune.deploy.cloudformation import TEMPLATE_FILE
from servetune.deploy.deployment import Deployment
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.hosting import Adapter, Hosting, Scaling
from servetune.deploy.policies import (
    ROLE_TO_FILL_IN,
    execution_role_policy,
    operator_policy,
    trust_policy,
)
from servetune.plan import Plan

NOW = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
OTHER = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=64, max_model_len=8192)
ZERO = Scaling(minimum=0, maximum=4, requests_per_copy=50)
ONE = Scaling(minimum=1, maximum=4, requests_per_copy=50)
ALL = components(scaling=ZERO, adapters=(Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz"),))
RESERVED = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"
#: Hostings with the options that each can have.
KINDS: dict[str, tuple[Hosting, dict[str, Any]]] = {
    "plain": (Hosting(instance_types=(G6,)), {}),
    "scaled": (Hosting(instance_types=(G6,), instance_count=2, scaling=ONE), {}),
    "components": (ALL, {"model_source": STAGED}),
    "companies": (Hosting(instance_types=(G6,)), {
        "features": EndpointFeatures(
            subnet=FULL.subnet, security_group=FULL.security_group, kms_key=FULL.kms_key,
            network_isolation=True, data_capture=FULL.data_capture, tag=FULL.tag,
            metrics_every_s=30,
        ),
        "model_source": STAGED,
    }),
    "queued": (Hosting(instance_types=(G6,), scaling=ZERO, queued=True), {"features": QUEUED}),
    "pools": (components(instance_types=(G6, "ml.g5.12xlarge"), provision_timeout_s=600), {}),
    "reserved": (Hosting(instance_types=(G6,), reservation_arn=RESERVED), {}),
}  # fmt: skip


def of_kind(kind: str, **more: Any) -> Deployment:
    hosting, options = KINDS[kind]
    return deployment(hosting, **options, **more)


def life(world: World, first: Deployment, second: Deployment) -> None:
    """Everything that the commands of a bundle do."""
    world.run(check_live(first, world.aws(), now=NOW, hours=1))
    world.run(apply(first, change_in(world, wait=SELDOM)))
    world.run(status(NAME, world.aws(), deployment=first))
    group = f"/aws/sagemaker/Endpoints/{NAME}"
    world.double.services.log_lines[group] = ["line"]
    world.run(logs(LogGroups(endpoint=NAME), world.aws()))
    world.run(update(second, change_in(world, wait=SELDOM)))
    world.run(mend(second, change_in(world, wait=SELDOM)))
    gone = world.run(delete(NAME, change_in(world, wait=SELDOM)))
    assert gone.unseen == ()
    assert world.left() == []


@pytest.mark.parametrize(
    "kind",
    [
        "scaled",
        "components",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("plain", "queued")),
    ],
)
def test_the_operators_policy_is_enough_for_the_whole_life_of_its_endpoint(
    world: World, kind: str
) -> None:
    world.double.policy = operator_policy(of_kind(kind))
    life(world, of_kind(kind), of_kind(kind, plan=OTHER))
    assert "not authorized" not in world.progress_text


def test_the_operators_policy_is_enough_to_put_back_all_scaling_on_other_machines(
    world: World,
) -> None:
    """What a colleague scheduled goes with the target while the instance type changes.

    The colleague's alarm is not the operator's, who is told what to do about it.
    """
    hosting, _ = KINDS["scaled"]
    services, of = world.double.services, of_kind("scaled").scaled
    world.double.policy = operator_policy(of_kind("scaled"))
    world.run(apply(of_kind("scaled"), change_in(world, wait=SELDOM)))
    night = {**of, "ScheduledActionName": "night", "Schedule": "rate(1 day)"}
    services.put_scheduled_action(night)
    step = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": [{"ScalingAdjustment": 1}]}
    services.put_scaling_policy(
        {**of, "PolicyName": "by-hand", "PolicyType": "StepScaling",
         "StepScalingPolicyConfiguration": step}
    )  # fmt: skip
    old_arn = services.policies["by-hand"]["PolicyARN"]
    services.put_metric_alarm({"AlarmName": "theirs", "AlarmActions": [old_arn]})
    other = msgspec.structs.replace(hosting, instance_types=("ml.g5.12xlarge",))
    world.run(update(deployment(other), change_in(world, wait=SELDOM)))
    assert services.scheduled == {"night": night}
    new_arn = services.policies["by-hand"]["PolicyARN"]
    refused = [line for line in world.messages if "not authorized" in line]
    assert [line.partition(":")[0] for line in refused] == [
        "alarm theirs calls a policy that is gone; let it call arn"
    ]
    assert new_arn in refused[0]


def test_another_endpoint_is_not_the_operators(world: World) -> None:
    world.double.policy = operator_policy(of_kind("plain"))
    with pytest.raises(AwsError, match="not authorized to perform sagemaker:DescribeModel"):
        world.run(apply(deployment(endpoint_name="theirs"), change_in(world)))


@pytest.mark.parametrize(
    ("lacking", "resource"),
    [
        ("sagemaker:CreateEndpoint", "endpoint-config/qwen"),
        ("sagemaker:UpdateEndpoint", "endpoint-config/qwen"),
        ("iam:PassRole", ROLE),
    ],
)
def test_an_endpoint_needs_its_configuration_and_its_role(
    world: World, lacking: str, resource: str
) -> None:
    """The rules of AWS that a policy without these breaks; `doubles.iam` has their sources."""
    policy = operator_policy(of_kind("plain"))
    for statement in policy["Statement"]:
        if any(resource in each for each in statement["Resource"]):
            statement["Action"] = [each for each in statement["Action"] if each != lacking]
    world.double.policy = policy
    with pytest.raises(AwsError, match=f"{lacking} on resource: .*{resource}"):
        life(world, of_kind("plain"), of_kind("plain", plan=OTHER))


def test_a_policy_without_the_role_passes_none_until_it_is_filled_in(world: World) -> None:
    hosting, options = KINDS["plain"]
    bundle = render_sagemaker(endpoint(hosting, **options))
    policy = bundle.json("operator-policy.json")
    assert actions(policy, "iam")["PassRole"] == [f"arn:aws:iam::*:role/{ROLE_TO_FILL_IN}"]
    assert ROLE_TO_FILL_IN in bundle.text("README.md")
    world.double.policy = policy
    with pytest.raises(AwsError, match="not authorized to perform iam:PassRole"):
        world.run(apply(of_kind("plain"), change_in(world, wait=SELDOM)))
    filled = bundle.text("operator-policy.json").replace(ROLE_TO_FILL_IN, ROLE.rpartition("/")[2])
    world.double.policy = json.loads(filled)
    life(world, of_kind("plain"), of_kind("plain", plan=OTHER))


def test_every_action_is_an_operation_of_its_service() -> None:
    """Of SageMaker, whose operations the policies are made of by name."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    runtime = botocore.session.get_session().get_service_model("sagemaker-runtime")
    known = {*model.operation_names, *runtime.operation_names}
    for kind in KINDS:
        for statement in operator_policy(of_kind(kind))["Statement"]:
            names = [action.split(":") for action in statement["Action"]]
            assert {name for service, name in names if service == "sagemaker"} <= known


def actions(policy: dict[str, Any], service: str) -> dict[str, list[str]]:
    return {
        action.partition(":")[2]: statement["Resource"]
        for statement in policy["Statement"]
        for action in statement["Action"]
        if action.startswith(f"{service}:")
    }


def test_the_roles_policy_has_what_the_containers_do_and_no_more() -> None:
    plain = execution_role_policy(of_kind("plain"))
    repository = "arn:aws:ecr:us-east-1:763104351884:repository/djl-inference"
    assert actions(plain, "ecr")["BatchGetImage"] == [repository]
    assert not any(actions(plain, service) for service in ("s3", "kms", "ec2"))
    full = execution_role_policy(of_kind("companies"))
    assert actions(full, "s3") == {
        "GetObject": ["arn:aws:s3:::bucket/qwen/*"],
        "ListBucket": ["arn:aws:s3:::bucket"],
        "PutObject": ["arn:aws:s3:::bucket/capture/*"],
        "AbortMultipartUpload": ["arn:aws:s3:::bucket/capture/*"],
    }
    assert actions(full, "kms")["GenerateDataKey"] == [FULL.kms_key]
    assert "CreateNetworkInterface" in actions(full, "ec2")
    queued = actions(execution_role_policy(of_kind("queued")), "s3")
    assert queued["GetObject"] == ["arn:aws:s3:::bucket/*"]
    china = execution_role_policy(deployment(region="cn-north-1"))
    assert actions(china, "ecr")["BatchGetImage"][0].startswith("arn:aws-cn:ecr:cn-north-1:")
    assert trust_policy()["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}


def test_a_bundle_has_its_policies_as_files() -> None:
    bundle = render_sagemaker(endpoint(role_arn=ROLE))
    passed = actions(bundle.json("operator-policy.json"), "iam")["PassRole"]
    assert passed == [ROLE]
    assert bundle.json("execution-role-policy.json")["Version"] == "2012-10-17"
    assert TEMPLATE_FILE not in bundle.names
