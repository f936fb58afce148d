"""Apply: the resources of a Deployment are made, from wherever an earlier run stopped.

Each step is described first and made only where it is not there. Resources are named by a
digest of their contents, so running the same deployment twice makes nothing twice,
whatever the first run left.
"""

from __future__ import annotations

from servetune.deploy.aws.client import AwsClient, AwsError, is_denied
from servetune.deploy.aws.drift import difference
from servetune.deploy.aws.resources import Change, call_once_visible, describe
from servetune.deploy.aws.scaling import put_scaling_back
from servetune.deploy.aws.service_model import problems
from servetune.deploy.aws.waiting import ResourceStatus, WaitOptions
from servetune.deploy.deployment import (
    DELETE_AFTER_TAG,
    NO_END,
    Deployment,
    Step,
    from_zero_policy,
)
from servetune.deploy.startup import PROVISION_S
from servetune.errors import CannotRender, DeployError
from servetune.json_value import JsonObject

#: Words in AWS's reason of a failure, and how to go on.
_HINTS = (
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
    deployment: Deployment, change: Change, *, now: str = "", secrets: dict[str, str] | None = None
) -> None:
    """Make every resource and wait until the endpoint serves.

    Args:
        deployment: The deployment, with its role.
        change: Clients, state and progress.
        now: ISO time, for the state.
        secrets: Variables added to the container's environment as it is sent, and kept
            nowhere else.

    Raises:
        AwsError: AWS refused.
        CannotRender: A request is wrong; nothing was sent.
        DeployError: A resource failed, or is there with other settings.
    """
    _require_sound(deployment)
    change.state.begin(deployment.endpoint, deployment.region, now)
    await _prepare_endpoint(deployment, change)
    for step in deployment.steps:
        found = await _existing(step, change)
        if found is None:
            await make(await _completed_step(step, deployment, change.aws), change, secrets)
        elif step.kind == "endpoint":
            await _write_end(step, found, change)
        change.state.created(step.kind, step.name, _arn(found))
        if step.kind in ("endpoint", "component", "adapter"):
            await _require_served(step, change)
    await put_scaling_back(deployment, change, as_before=False)


async def stands(deployment: Deployment, aws: AwsClient) -> bool:
    """Whether the endpoint is there with these settings already, and costs what it costs."""
    answer = await describe(aws, "endpoint", deployment.endpoint)
    return (
        answer is not None
        and answer["EndpointStatus"] not in ("Failed", "Deleting")
        and answer.get("EndpointConfigName") == deployment.only("endpoint-config").name
    )


async def _write_end(step: Step, existing: JsonObject, change: Change) -> None:
    """Write the time at which an endpoint that stands shall end, or that it shall not any more.

    The last command decides: an end that an earlier one asked for does not outlast one that asks
    for none, or the endpoint would be listed as left over while somebody works with it.
    """
    arn = existing["EndpointArn"]
    tags = [tag for tag in step.request["Tags"] if tag["Key"] == DELETE_AFTER_TAG]
    if not tags:
        try:
            answer = await change.aws.call("sagemaker", "ListTags", ResourceArn=arn)
        except AwsError as error:
            if not is_denied(error):
                raise
            return
        held = {tag["Key"]: tag["Value"] for tag in answer.get("Tags", [])}.get(DELETE_AFTER_TAG)
        if held in (None, NO_END):
            return
        change.on_progress(f"{step.name} was to end at {held}, and has no end now: give --hours")
        tags = [{"Key": DELETE_AFTER_TAG, "Value": NO_END}]
    await change.aws.call("sagemaker", "AddTags", ResourceArn=arn, Tags=tags)


def _require_sound(deployment: Deployment) -> None:
    """Check every request before the first: a wrong last one would leave the others standing."""
    for step in deployment.steps:
        wrong = problems(step.service, step.operation, step.request)
        if wrong:
            raise CannotRender(
                f"{step.operation} would be refused: {'; '.join(wrong)}",
                hint="nothing was sent; see servetune deploy sagemaker --plan",
            )


def wait_options_of(deployment: Deployment) -> WaitOptions:
    """Capacity, download and start-up together, and as long again for each further copy."""
    provision_s = deployment.hosting.provision_timeout_s or PROVISION_S
    pools = len(deployment.hosting.instance_types)
    copies = deployment.hosting.copies or 1
    return WaitOptions(timeout_s=pools * provision_s + copies * deployment.startup_timeout_s + 600)


def failure(what: str, status: ResourceStatus, *, cost: str = "") -> DeployError:
    """A resource that failed, in one line, with what to do about it."""
    reason = status.reason or "AWS gives no reason"
    hint = next(
        (hint for words, hint in _HINTS if any(word in reason for word in words)),
        "read servetune deploy logs, then run the same command again or delete",
    )
    return DeployError(f"{what} is {status.status}: {reason}{cost}", hint=hint)


async def make(step: Step, change: Change, secrets: dict[str, str] | None = None) -> None:
    """Send the request of one step; secrets go into a model's environment."""
    if step.kind == "model" and secrets:
        container = dict(step.request["PrimaryContainer"])
        container["Environment"] = {**container["Environment"], **secrets}
        step = step.with_members(PrimaryContainer=container)
    change.state.requested(step.kind, step.name)
    try:
        await call_once_visible(change.aws, step.service, step.operation, step.request)
    except AwsError as error:
        # An answer that got lost: the request was done, and tried again.
        if "already exist" not in error.service_message:
            raise
    change.on_progress(f"made {step.kind} {step.name}")


async def _prepare_endpoint(deployment: Deployment, change: Change) -> None:
    """Refuse an endpoint of other settings; delete a failed one of this deployment."""
    name = deployment.endpoint
    answer = await describe(change.aws, "endpoint", name)
    if answer is None:
        return
    if answer.get("EndpointConfigName") != deployment.only("endpoint-config").name:
        raise DeployError(
            f"endpoint '{name}' exists with other settings ({answer.get('EndpointConfigName')})",
            hint="change it with servetune deploy update, or choose another --endpoint-name",
        )
    if answer["EndpointStatus"] == "Failed":
        change.on_progress(f"endpoint {name} failed before; deleting it to try again")
        await change.aws.call("sagemaker", "DeleteEndpoint", EndpointName=name)
        await change.settled("endpoint", name)
        change.state.deleted("endpoint", name)
    elif answer["EndpointStatus"] == "Deleting":
        await change.settled("endpoint", name)


async def _existing(step: Step, change: Change) -> JsonObject | None:
    """The description of a step's resource; a failed component of ours is deleted first."""
    if step.service != "sagemaker":
        return None  # registering, putting a policy and putting an alarm all replace
    answer = await describe(change.aws, step.kind, step.name)
    if answer is None or step.kind not in ("component", "adapter"):
        return answer
    status = answer.get("InferenceComponentStatus")
    if status == "Failed":
        await change.aws.call(
            "sagemaker", "DeleteInferenceComponent", InferenceComponentName=step.name
        )
    if status in ("Failed", "Deleting"):
        await change.settled(step.kind, step.name)
        return None
    otherwise = difference(step.request, answer)
    if otherwise:
        raise DeployError(
            f"{step.kind} '{step.name}' exists with other settings ({otherwise})",
            hint="change it with servetune deploy update",
        )
    return answer


async def _completed_step(step: Step, deployment: Deployment, aws: AwsClient) -> Step:
    """The step with what only AWS knows: the ARN of the policy that an alarm calls."""
    if step.kind != "alarm":
        return step
    answer = await aws.call(
        "application-autoscaling",
        "DescribeScalingPolicies",
        ServiceNamespace="sagemaker",
        ResourceId=deployment.scaled["ResourceId"],
        PolicyNames=[from_zero_policy(deployment.endpoint)],
    )
    return step.with_members(AlarmActions=[answer["ScalingPolicies"][0]["PolicyARN"]])


async def _require_served(step: Step, change: Change) -> None:
    """Wait for an endpoint or component, and raise unless it is in service."""
    status = await change.visible(step.kind, step.name)
    if status.status != "InService":
        cost = "; the endpoint's instances run and cost money until deleted"
        raise failure(
            f"{step.kind} {step.name}", status, cost="" if step.kind == "endpoint" else cost
        )


def _arn(answer: JsonObject | None) -> str:
    if not answer:
        return ""
    return next((str(value) for key, value in answer.items() if key.endswith("Arn")), "")
