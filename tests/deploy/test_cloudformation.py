"""Templates of CloudFormation, and the commands that make and change their stacks."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, World, deployment, endpoint
from shell import Shell, shell_blocks
from test_policies import KINDS, of_kind

from servetune.deploy import Bundle, render_sagemaker
from servetune.deploy.cloudformation import TEMPLATE_FILE, template
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.hosting import Hosting, Scaling
from servetune.errors import CannotRender

GATED = "meta-llama/Llama-3.1-8B-Instruct"
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf"


def stacked(kind: str, model: str = "Qwen/Qwen3-4B", **more: Any) -> Bundle:
    """The bundle of a stack."""
    hosting, options = KINDS[kind]
    made = endpoint(hosting, **options)
    plan = msgspec.structs.replace(made.plan, model=model)
    return render_sagemaker(msgspec.structs.replace(made, plan=plan), as_stack=True, **more)


@pytest.mark.parametrize("kind", ["components", "companies", "queued", "pools", "reserved"])
def test_a_template_is_what_cloudformation_takes(kind: str) -> None:
    """Types, properties, values and references, by CloudFormation's own schemas."""
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed (group validators)")
    model = GATED if kind == "pools" else "Qwen/Qwen3-4B"
    found = api.lint(stacked(kind, model).text(TEMPLATE_FILE), regions=["us-east-1"])
    assert [str(each) for each in found] == []


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
        ("components", "Component", ""),  # autoscaling may have left none
    ],
)
def test_alarms_roll_an_update_of_a_stack_back(kind: str, resource: str, policy: str) -> None:
    bundle = stacked(kind)
    resources = bundle.json(TEMPLATE_FILE)["Resources"]
    exchange = resources[resource]["Properties"].get("DeploymentConfig", {})
    alarms = [name for name in resources if name.startswith("RollbackAlarm")]
    assert alarms
    if policy:
        assert list(exchange) == [policy, "AutoRollbackConfiguration"]
        named = exchange["AutoRollbackConfiguration"]["Alarms"]
        assert named == [{"AlarmName": {"Ref": name}} for name in alarms]
    else:
        assert not exchange
    update = shell_blocks(bundle, "As a stack of CloudFormation")[1:]
    assert bool(update) == (not policy)  # then CloudFormation itself watches them
    assert all("--rollback-configuration" in script for script in update)


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
