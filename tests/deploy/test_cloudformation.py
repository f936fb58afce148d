"""Templates of CloudFormation, and the commands that make and change their stacks."""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, ROLE, World, components, deployment, endpoint
from doubles import FakeAws
from doubles.cloudformation import Stack
from doubles.control import Refusal
from shell import Shell, shell_blocks
from test_policies import KINDS, OTHER, of_kind

from servetune.deploy import Bundle, render_sagemaker
from servetune.deploy.cloudformation import TEMPLATE_FILE, template
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.hosting import Hosting, Scaling
from servetune.deploy.policies import ROLE_TO_FILL_IN, SECRET_TO_FILL_IN
from servetune.errors import CannotRender

GATED = "meta-llama/Llama-3.1-8B-Instruct"
_NOUNS = {
    "model": "Model",
    "endpoint-config": "EndpointConfig",
    "endpoint": "Endpoint",
    "component": "InferenceComponent",
    "adapter": "InferenceComponent",
}
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf"


def stacked(kind: str, model: str = "Qwen/Qwen3-4B", **more: Any) -> Bundle:
    """The bundle of a stack."""
    hosting, options = KINDS[kind]
    made = endpoint(hosting, **options)
    plan = msgspec.structs.replace(made.plan, model=model)
    return render_sagemaker(msgspec.structs.replace(made, plan=plan), as_stack=True, **more)


@pytest.mark.parametrize(
    "kind",
    [
        *("components", "pools"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("companies", "queued", "reserved")
        ),
    ],
)
def test_a_template_is_what_cloudformation_takes(kind: str) -> None:
    """Types, properties, values and references, by CloudFormation's own schemas."""
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed (group validators)")
    model = GATED if kind == "pools" else "Qwen/Qwen3-4B"
    found = api.lint(stacked(kind, model).text(TEMPLATE_FILE), regions=["us-east-1"])
    assert [str(each) for each in found] == []


@pytest.fixture
def stack(world: World) -> Stack:
    world.double.close()
    world.double = FakeAws(look_s=600.0)
    return Stack(world.double, {SECRET: "the token"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_makes_what_apply_makes(world: World, stack: Stack, kind: str) -> None:
    made = of_kind(kind)
    stack.deploy(template(made))
    rows = world.double.control.rows
    for step in made.steps:
        if step.service == "sagemaker":
            held = rows[_NOUNS[step.kind], step.name]["request"]
            wanted = {name: each for name, each in step.request.items() if name != "Tags"}
            assert {name: held[name] for name in wanted} == wanted, step.kind
    assert set(world.double.services.policies) == {
        step.name for step in made.of_kind("scaling-policy")
    }
    alarms = {step.name for step in (*made.of_kind("alarm"), *made.rollback_alarms)}
    assert set(world.double.services.alarms) == alarms


def test_a_stack_asks_for_the_secret_of_a_gated_model(world: World, stack: Stack) -> None:
    held = stacked("plain", GATED).json(TEMPLATE_FILE)
    with pytest.raises(Refusal, match=r"\[HfTokenSecretArn\] must have values"):
        stack.deploy(held, ExecutionRoleArn=ROLE)
    with pytest.raises(Refusal, match="must match pattern"):
        stack.deploy(held, ExecutionRoleArn=ROLE, HfTokenSecretArn="hf_" + "x" * 30)
    assert world.left() == []
    stack.deploy(held, ExecutionRoleArn=ROLE, HfTokenSecretArn=SECRET)
    (model,) = [row for (noun, _), row in world.double.control.rows.items() if noun == "Model"]
    assert model["request"]["PrimaryContainer"]["Environment"]["HF_TOKEN"] == "the token"


def test_the_operators_policy_reads_the_secret_of_the_bundle_and_no_other(
    world: World, stack: Stack
) -> None:
    bundle = stacked("plain", GATED, token_secret=SECRET)
    policy = bundle.text("operator-policy.json").replace(ROLE_TO_FILL_IN, ROLE.rpartition("/")[2])
    world.double.policy = json.loads(policy)
    stack.deploy(bundle.json(TEMPLATE_FILE), ExecutionRoleArn=ROLE)
    world.double.services.secrets[f"{SECRET}2"] = "another's"
    with pytest.raises(Refusal, match="not authorized to perform secretsmanager:GetSecretValue"):
        stack.deploy(bundle.json(TEMPLATE_FILE), HfTokenSecretArn=f"{SECRET}2")
    without = stacked("plain", GATED)
    assert SECRET_TO_FILL_IN in without.text("operator-policy.json")
    assert SECRET_TO_FILL_IN in without.text("README.md")


@pytest.mark.parametrize(("held", "told", "left"), [(4, 4, 4), (4, None, 2), (1, 1, 1)])
def test_an_update_of_a_stack_rolls_over_and_keeps_the_copies_that_it_is_told(
    world: World, stack: Stack, held: int, told: int | None, left: int
) -> None:
    """Without the README's command the copies that autoscaling made would be set back.

    Instances have a place for a batch beside the copies, not for all of them twice.
    """
    stack.deploy(template(of_kind("components")))
    base = world.double.control.rows["InferenceComponent", f"{NAME}-base"]
    base |= {"copies": held, "had": held}  # by autoscaling
    world.double.control.scale(NAME, math.ceil(held / 2))
    second = of_kind("components", plan=OTHER)
    stack.deploy(template(second), **({} if told is None else {"Copies": told}))
    assert base["request"]["Specification"]["ModelName"] == second.only("model").name
    assert base["copies"] == left
    models = [name for noun, name in world.double.control.rows if noun == "Model"]
    assert models == [second.only("model").name]  # the old one went


def test_an_update_of_a_stack_is_rolled_back_by_its_alarms(world: World, stack: Stack) -> None:
    stack.deploy(template(of_kind("plain")))
    first = of_kind("plain").only("endpoint-config").name
    world.double.control.ringing = {f"servetune-{NAME}-5xx"}
    with pytest.raises(Refusal, match="rolled back"):
        stack.deploy(template(of_kind("plain", plan=OTHER)))
    _, answer = world.double.json("sagemaker", "DescribeEndpoint", {"EndpointName": NAME})
    assert answer["EndpointConfigName"] == first
    assert ("EndpointConfig", first) in world.double.control.rows


def test_a_template_has_each_step_and_refers_to_what_it_stands_on() -> None:
    made = of_kind("components")
    held = template(made)
    resources = held["Resources"]
    assert len(resources) == len(made.steps) + len(made.rollback_alarms)
    base = resources["Component"]["Properties"]["Specification"]
    assert base["ModelName"] == {"Fn::GetAtt": ["Model", "ModelName"]}
    adapter = resources["Adapter"]["Properties"]["Specification"]
    assert adapter["BaseInferenceComponentName"] == f"{NAME}-base"
    assert resources["Adapter"]["DependsOn"] == "Component"
    assert resources["Alarm"]["Properties"]["AlarmActions"] == [{"Ref": "ScalingPolicy2"}]
    assert resources["ScalableTarget"]["DependsOn"] == "Component"
    assert resources["Endpoint"]["Properties"]["RetainAllVariantProperties"] is True


def test_a_gated_model_gets_its_token_from_the_secret_and_no_file_has_one() -> None:
    """CloudFormation asks for the secret's ARN, and makes nothing without it."""
    bundle = stacked("plain", GATED)
    held = bundle.json(TEMPLATE_FILE)
    environment = held["Resources"]["Model"]["Properties"]["PrimaryContainer"]["Environment"]
    assert environment["HF_TOKEN"]["Fn::If"][1] == {
        "Fn::Sub": "{{resolve:secretsmanager:${HfTokenSecretArn}}}"
    }
    parameter = held["Parameters"]["HfTokenSecretArn"]
    assert "Default" not in parameter
    assert re.fullmatch(parameter["AllowedPattern"], SECRET)
    assert not re.fullmatch(parameter["AllowedPattern"], "")
    assert 'HfTokenSecretArn="$HF_TOKEN_SECRET_ARN"' in bundle.text("README.md")
    given = stacked("plain", GATED, token_secret=SECRET)
    assert given.json(TEMPLATE_FILE)["Parameters"]["HfTokenSecretArn"]["Default"] == SECRET
    assert "HF_TOKEN_SECRET_ARN" not in given.text("README.md")
    free = stacked("plain").json(TEMPLATE_FILE)["Parameters"]["HfTokenSecretArn"]
    assert free["Default"] == ""
    assert re.fullmatch(free["AllowedPattern"], "")
    staged = stacked("components", GATED).json(TEMPLATE_FILE)  # its files are in S3
    assert "HfTokenSecretArn" not in staged["Parameters"]


def test_an_update_of_a_stack_keeps_the_copies_that_autoscaling_made(
    world: World, tmp_path: Path
) -> None:
    """Their number is a parameter, which the README's command reads from what runs."""
    bundle = stacked("components")
    held = bundle.json(TEMPLATE_FILE)
    component = held["Resources"]["Component"]["Properties"]
    assert component["RuntimeConfig"] == {"CopyCount": {"Ref": "Copies"}}
    assert held["Parameters"]["Copies"]["Default"] == 2
    (script, *_) = shell_blocks(bundle, "As a stack of CloudFormation")
    read, deploy, *_ = script.splitlines()
    assert deploy.partition("   #")[0].endswith('Copies="$copies"')
    shell = Shell(bundle, world.double, tmp_path / "bundle")
    assert shell.run(f'{read}\ntest "$copies" = 2') == ""  # there is none yet
    world.double.control.stand(NAME, f"{NAME}-base")
    world.double.control.rows["InferenceComponent", f"{NAME}-base"]["copies"] = 7
    assert shell.run(f'{read}\ntest "$copies" = 7') == ""
    fixed = stacked("pools").json(TEMPLATE_FILE)
    assert "Copies" not in fixed["Parameters"]


@pytest.mark.parametrize(
    ("kind", "resource", "policy"),
    [
        ("plain", "Endpoint", "BlueGreenUpdatePolicy"),  # one instance is 100% of itself
        ("scaled", "Endpoint", "BlueGreenUpdatePolicy"),  # autoscaling may have left one
        ("pools", "Component", "RollingUpdatePolicy"),
        ("components", "Component", "RollingUpdatePolicy"),
    ],
)
def test_alarms_roll_an_update_of_a_stack_back(kind: str, resource: str, policy: str) -> None:
    bundle = stacked(kind)
    resources = bundle.json(TEMPLATE_FILE)["Resources"]
    exchange = resources[resource]["Properties"]["DeploymentConfig"]
    if kind == "components":  # autoscaling may have left one, or none
        condition, exchange, other = exchange["Fn::If"]
        assert (condition, other) == ("InBatches", {"Ref": "AWS::NoValue"})
    alarms = [name for name in resources if name.startswith("RollbackAlarm")]
    assert list(exchange) == [policy, "AutoRollbackConfiguration"]
    named = exchange["AutoRollbackConfiguration"]["Alarms"]
    assert named == [{"AlarmName": {"Ref": name}} for name in alarms]
    assert shell_blocks(bundle, "As a stack of CloudFormation")[1:] == []


@pytest.mark.parametrize(
    "hosting",
    [
        components(copies=1),
        components(scaling=Scaling(minimum=0, maximum=30, requests_per_copy=50)),
    ],
    ids=["one copy", "no batch fits 2 and 30"],
)
def test_cloudformation_itself_watches_the_alarms_where_no_batches_can(hosting: Hosting) -> None:
    bundle = render_sagemaker(endpoint(hosting), as_stack=True)
    held = bundle.json(TEMPLATE_FILE)
    assert "DeploymentConfig" not in held["Resources"]["Component"]["Properties"]
    assert "InBatches" not in held["Conditions"]
    (script,) = shell_blocks(bundle, "As a stack of CloudFormation")[1:]
    assert "--rollback-configuration" in script


@pytest.mark.parametrize(
    ("count", "scaling", "batch"),
    [
        (2, None, 1),
        (10, None, 5),
        (4, Scaling(minimum=4, maximum=40, requests_per_copy=50), 2),  # 5% of 40
        (4, Scaling(minimum=2, maximum=40, requests_per_copy=50), None),
    ],
)
def test_batches_are_5_to_50_percent_whatever_autoscaling_chose(
    count: int, scaling: Scaling | None, batch: int | None
) -> None:
    hosting = Hosting(instance_types=(G6,), instance_count=count, scaling=scaling)
    exchange = template(deployment(hosting))["Resources"]["Endpoint"]["Properties"]
    policy = exchange["DeploymentConfig"].get("RollingUpdatePolicy")
    size = policy and policy["MaximumBatchSize"]
    assert size == (batch and {"Type": "INSTANCE_COUNT", "Value": batch})


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_names_every_file(kind: str) -> None:
    bundle = stacked(kind)
    files = bundle.text("README.md").partition("## Files")[2]
    assert {name for name in bundle.names if f"`{name}`" not in files} == {"README.md"}


def test_what_cloudformation_cannot_say_is_refused() -> None:
    metrics = EndpointFeatures(metrics_path="/metrics")
    with pytest.raises(CannotRender, match="no path of metrics"):
        template(deployment(features=metrics))
