"""Apply: make what a Deployment says, from wherever an earlier run stopped.

Each step looks first and makes only what is not there. Things are named by what they hold,
so running the same deployment twice makes nothing twice, whatever the first run left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servetune.deploy.aws.door import Aws, Refused
from servetune.deploy.aws.looking import describe, see_component, see_endpoint
from servetune.deploy.aws.shapes import problems
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.waiting import Patience, Seen, until_rest
from servetune.deploy.deployment import Deployment, Step
from servetune.errors import CannotRender, DeployError

__all__ = ["apply", "failure", "patience_of"]

#: What AWS says a thing failed by -> how to go on.
_CURES = (
    (
        ("InsufficientInstanceCapacity", "insufficient capacity", "Unable to provision"),
        "AWS has no such machine free: add --fallback TYPE, try another region, or reserve one",
    ),
    (
        ("health check", "ping"),
        "read servetune deploy logs; a large model needs servetune stage or more start-up time",
    ),
    (
        ("service limit", "quota"),
        "ask for a higher quota in AWS Service Quotas, or choose another instance type",
    ),
    (
        ("AccessDenied", "not authorized", "Access denied"),
        "the execution role may not read the model or the image",
    ),
)


async def apply(
    deployment: Deployment,
    aws: Aws,
    *,
    state: StateFile,
    tell: Callable[[str], None],
    now: str = "",
    patience: Patience | None = None,
    secrets: dict[str, str] | None = None,
) -> None:
    """Make everything and wait until it serves.

    Args:
        deployment: With its role.
        aws: The door.
        state: Notes what was begun.
        tell: Progress, a line at a time.
        now: ISO time, for the state.
        patience: From the deployment's time-outs where left out.
        secrets: Variables added to the container's environment as they are sent, and kept
            nowhere else.

    Raises:
        Refused: AWS said no.
        CannotRender: A request is wrong; nothing was sent.
        DeployError: Something failed, or is there with other settings.
    """
    _require_sound(deployment)
    patience = patience or patience_of(deployment)
    state.begin(deployment.endpoint, deployment.region, now)
    await _check_endpoint(deployment, aws, tell, patience, state)
    for step in deployment.steps:
        found = await _there(step, aws)
        if found is None:
            await _make(await _sent(step, deployment, aws, secrets), aws, state)
            tell(f"made {step.kind} {step.name}")
        state.there(step.kind, step.name, _arn(found))
        await _wait(step, aws, tell, patience)


def _require_sound(deployment: Deployment) -> None:
    """All requests, before the first: a wrong one at the end would leave the others standing."""
    for step in deployment.steps:
        wrong = problems(step.service, step.operation, step.request)
        if wrong:
            raise CannotRender(
                f"{step.operation} would be refused: {'; '.join(wrong)}",
                hint="nothing was sent; see servetune deploy sagemaker --plan",
            )


def patience_of(deployment: Deployment) -> Patience:
    """Capacity, download and start-up together, and as long again for each further copy."""
    provision_s = deployment.hosting.provision_timeout_s or 1800
    pools = len(deployment.hosting.instance_types)
    copies = deployment.hosting.copies or 1
    return Patience(timeout_s=pools * provision_s + copies * deployment.startup_timeout_s + 600)


def failure(what: str, seen: Seen, *, running_usd: str = "") -> DeployError:
    """A thing that failed, in one line, with what to do about it."""
    reason = seen.reason or "AWS gives no reason"
    hint = next(
        (cure for words, cure in _CURES if any(word in reason for word in words)),
        "read servetune deploy logs, then run the same command again or delete",
    )
    return DeployError(f"{what} is {seen.status}: {reason}{running_usd}", hint=hint)


async def _check_endpoint(
    deployment: Deployment,
    aws: Aws,
    tell: Callable[[str], None],
    patience: Patience,
    state: StateFile,
) -> None:
    """An endpoint of other settings is not touched; a failed one of ours makes room."""
    said = await describe(aws, "endpoint", deployment.endpoint)
    if said is None:
        return
    wanted = deployment.only("endpoint-config").name
    if said.get("EndpointConfigName") != wanted:
        raise DeployError(
            f"endpoint '{deployment.endpoint}' exists with other settings "
            f"({said.get('EndpointConfigName')})",
            hint="change it with servetune deploy update, or choose another --endpoint-name",
        )
    look = lambda: see_endpoint(aws, deployment.endpoint)  # noqa: E731
    if said["EndpointStatus"] == "Deleting":
        await until_rest(f"endpoint {deployment.endpoint}", look, aws.clock, patience, tell)
    elif said["EndpointStatus"] == "Failed":
        tell(f"endpoint {deployment.endpoint} failed before; deleting it to try again")
        await aws.ask("sagemaker", "DeleteEndpoint", EndpointName=deployment.endpoint)
        await until_rest(f"endpoint {deployment.endpoint}", look, aws.clock, patience, tell)
        state.gone("endpoint", deployment.endpoint)


async def _there(step: Step, aws: Aws) -> dict[str, Any] | None:
    """What exists of a step; a failed component of ours is taken away first."""
    if step.service != "sagemaker":
        return None  # registering, putting a policy and putting an alarm all replace
    said = await describe(aws, step.kind, step.name)
    if said is None or step.kind not in ("component", "adapter"):
        return said
    if said.get("InferenceComponentStatus") in ("Failed", "Deleting"):
        await _cleared(step, said, aws)
        return None
    other = _other_settings(step, said)
    if other:
        raise DeployError(
            f"{step.kind} '{step.name}' exists with other settings ({other})",
            hint="change it with servetune deploy update",
        )
    return said


async def _cleared(step: Step, said: dict[str, Any], aws: Aws) -> None:
    if said["InferenceComponentStatus"] == "Failed":
        await aws.ask("sagemaker", "DeleteInferenceComponent", InferenceComponentName=step.name)
    await until_rest(
        f"{step.kind} {step.name}",
        lambda: see_component(aws, step.name),
        aws.clock,
        Patience(),
        lambda _: None,
    )


def _other_settings(step: Step, said: dict[str, Any]) -> str:
    """How a component that is there differs from the one that is wanted."""
    wanted = step.request
    if said["EndpointName"] != wanted["EndpointName"]:
        return f"on endpoint {said['EndpointName']}"
    mine = _specifications(wanted)
    for theirs, ours in zip(_specifications(said), mine, strict=False):
        for name in ("ModelName", "BaseInferenceComponentName"):
            if name in ours and theirs.get(name, ours[name]) != ours[name]:
                return f"{name} {theirs[name]}"
        files = (theirs.get("Container") or {}).get("ArtifactUrl")
        if files and files != (ours.get("Container") or {}).get("ArtifactUrl", files):
            return f"files {files}"
    return ""


def _specifications(component: dict[str, Any]) -> list[dict[str, Any]]:
    many = component.get("Specifications")
    return many if many else [component.get("Specification", {})]


async def _make(step: Step, aws: Aws, state: StateFile) -> None:
    state.asked(step.kind, step.name)
    try:
        await aws.ask(step.service, step.operation, **step.request)
    except Refused as error:
        # An answer that got lost: the request was done, and tried again.
        if "already exist" not in error.service_message:
            raise


async def _sent(
    step: Step, deployment: Deployment, aws: Aws, secrets: dict[str, str] | None
) -> Step:
    """The step as it goes out: secrets in a model's environment, and whom an alarm calls."""
    if step.kind == "model" and secrets:
        container = dict(step.request["PrimaryContainer"])
        container["Environment"] = {**container["Environment"], **secrets}
        return step.with_members(PrimaryContainer=container)
    if step.kind == "alarm":
        target = deployment.only("scalable-target").request
        policy = f"{deployment.endpoint}-from-zero"
        said = await aws.ask(
            "application-autoscaling",
            "DescribeScalingPolicies",
            ServiceNamespace="sagemaker",
            ResourceId=target["ResourceId"],
            PolicyNames=[policy],
        )
        return step.with_members(AlarmActions=[said["ScalingPolicies"][0]["PolicyARN"]])
    return step


async def _wait(step: Step, aws: Aws, tell: Callable[[str], None], patience: Patience) -> None:
    if step.kind == "endpoint":
        seen = await until_rest(
            f"endpoint {step.name}",
            lambda: see_endpoint(aws, step.name),
            aws.clock,
            patience,
            tell,
        )
        if seen.status != "InService":
            raise failure(f"endpoint {step.name}", seen)
    elif step.kind in ("component", "adapter"):
        seen = await until_rest(
            f"{step.kind} {step.name}",
            lambda: see_component(aws, step.name),
            aws.clock,
            patience,
            tell,
        )
        if seen.status != "InService":
            raise failure(
                f"{step.kind} {step.name}",
                seen,
                running_usd="; the endpoint's instances run and cost money until deleted",
            )


def _arn(said: dict[str, Any] | None) -> str:
    if not said:
        return ""
    return next((str(value) for key, value in said.items() if key.endswith("Arn")), "")
