"""The README's commands of the AWS CLI, run by bash against the double of AWS."""

import json
from pathlib import Path
from typing import Any

import pytest
from aws_kit import NAME, ROLE, World, endpoint
from doubles import FakeAws
from msgspec import structs
from shell import Shell, shell_blocks
from test_policies import KINDS

from servetune.deploy import render_sagemaker
from servetune.deploy.deployment import deployment_of
from servetune.deploy.policies import ROLE_TO_FILL_IN


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_the_aws_cli_make_and_delete_all_that_apply_would(
    world: World, tmp_path: Path, kind: str
) -> None:
    """With the operator's policy of the bundle, and nothing more."""
    hosting, options = KINDS[kind]
    made = endpoint(hosting, **options)
    bundle = render_sagemaker(made)
    world.double.close()
    world.double = FakeAws(look_s=600.0)
    policy = bundle.text("operator-policy.json")
    world.double.policy = json.loads(policy.replace(ROLE_TO_FILL_IN, ROLE.rpartition("/")[2]))
    shell = Shell(bundle, world.double, tmp_path / "bundle")
    (script,) = shell_blocks(bundle, "Without servetune")
    make, delete = script.split("# when it is needed no more:\n")
    assert shell.run(make, SAGEMAKER_ROLE_ARN=ROLE) == ""
    steps = deployment_of(made).steps
    assert len(world.left()) == len(steps)
    sent = [_known(request) for _, _, request in shell.sent]
    assert all(_known(step.request) in sent for step in steps)
    if kind == "components":
        (alarm,) = world.double.services.alarms.values()
        assert alarm["AlarmActions"][0].endswith(f"{NAME}-from-zero")
    assert shell.run(delete) == ""
    assert world.left() == []


def _known(request: dict[str, Any]) -> dict[str, Any]:
    """A request without what only AWS or the shell knows."""
    return {
        key: value
        for key, value in request.items()
        if key not in ("ExecutionRoleArn", "AlarmActions")
    }


def test_a_role_that_is_known_is_in_the_files_and_a_token_in_none() -> None:
    made = endpoint(KINDS["components"][0], role_arn=ROLE)
    (script,) = shell_blocks(render_sagemaker(made), "Without servetune")
    assert "--execution-role-arn" not in script
    gated = structs.replace(made, plan=structs.replace(made.plan, model="meta-llama/Llama-3.1-8B"))
    bundle = render_sagemaker(gated)
    (script,) = shell_blocks(bundle, "Without servetune")
    assert "HF_TOKEN = env.HF_TOKEN' model.json | aws" in script
    assert "HF_TOKEN" not in bundle.text("model.json")
