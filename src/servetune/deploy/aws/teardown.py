"""Deletion of everything of an endpoint, in the order that SageMaker allows.

Scaling first, or it would bring copies back; adapters before the component that they stand
on; components before the endpoint; then configurations and models. Deleting a component is
asynchronous and an endpoint that is being created refuses, so each is waited for. Running
it again goes on where it stopped.
"""

from __future__ import annotations

from servetune.deploy.aws.client import AwsClient, AwsError, is_missing
from servetune.deploy.aws.resources import (
    DELETIONS,
    Change,
    Resource,
    describe,
    resource_status,
    specifications,
    tagged_resources,
)
from servetune.deploy.deployment import VARIANT, Deployment, alarm_name, from_zero_policy
from servetune.errors import DeployError

#: Parts of the refusal of a busy resource.
_BUSY = ("in-progress", "in progress", "Cannot update", "must be", "has inference components")


async def delete(
    endpoint: str, change: Change, *, deployment: Deployment | None = None
) -> list[str]:
    """Delete all resources of an endpoint; what is not there is passed over.

    Args:
        endpoint: Name of the endpoint.
        change: Clients, progress, and the state, whose file is removed when nothing is left.
        deployment: Resources that should stand; without it tags alone say what is ours.

    Returns:
        Deleted resources, as `kind name`.

    Raises:
        DeployError: The endpoint is not ours, or a resource would not go in time.
    """
    aws, state = change.aws, change.state
    resources = await tagged_resources(aws, endpoint)
    await _require_ours(endpoint, aws, resources, deployment)
    components = [resource.name for resource in resources if resource.kind == "component"]
    adapters, bases = await _adapters_and_bases(aws, components)
    deleted = await _stop_scaling(endpoint, bases, deployment, aws)
    for names in (adapters, bases):
        for name in names:
            await _begin_deletion("component", name, change)
        for name in names:
            await _wait_until_gone("component", name, change)
            deleted.append(f"component {name}")
            state.deleted("component", name)
            state.deleted("adapter", name)
    for kind in ("endpoint", "endpoint-config", "model"):
        for name in _names(kind, resources, deployment):
            if await _delete(kind, name, change):
                deleted.append(f"{kind} {name}")
            state.deleted(kind, name)
    state.close()
    return deleted


async def remove_unused(deployment: Deployment, change: Change) -> list[str]:
    """Delete the adapters and the scaling that an endpoint had and shall have no more.

    Returns:
        Changes, a line each.
    """
    aws, endpoint = change.aws, deployment.endpoint
    kept = {step.name for step in deployment.of_kind("component", "adapter")}
    resources = await tagged_resources(aws, endpoint)
    components = [resource.name for resource in resources if resource.kind == "component"]
    adapters, bases = await _adapters_and_bases(aws, components)
    deleted: list[str] = []
    scaling = deployment.hosting.scaling
    if scaling is None:
        try:
            deleted += await _stop_scaling(endpoint, bases, None, aws)
        except AwsError as error:
            if "AccessDenied" not in error.code:  # who may not scale has not scaled
                raise
            change.on_progress(f"its autoscaling cannot be read: {error.message}")
    elif scaling.minimum > 0:
        deleted += await _remove_step_from_zero(deployment, aws)
    for name in adapters:
        if name not in kept:
            await _begin_deletion("component", name, change)
            await _wait_until_gone("component", name, change)
            deleted.append(f"adapter {name}")
            change.state.deleted("adapter", name)
    return [f"deleted {name}" for name in deleted]


async def delete_resource(resource: Resource, change: Change) -> None:
    """Delete a single resource that stands alone, such as an orphan."""
    if resource.kind == "alarm":
        await change.aws.call("cloudwatch", "DeleteAlarms", AlarmNames=[resource.name])
    else:
        await _delete(resource.kind, resource.name, change)


async def delete_settled(aws: AwsClient, kind: str, name: str) -> bool:
    """Delete a resource that is never busy; whether there was one."""
    operation, member = DELETIONS[kind]
    return await _called(aws, "sagemaker", operation, {member: name})


def _names(kind: str, resources: list[Resource], deployment: Deployment | None) -> list[str]:
    """Names found by tag, and those that the deployment would have made beside them."""
    found = [resource.name for resource in resources if resource.kind == kind]
    planned = [step.name for step in deployment.of_kind(kind)] if deployment else []
    return list(dict.fromkeys([*found, *planned]))


async def _require_ours(
    endpoint: str, aws: AwsClient, resources: list[Resource], deployment: Deployment | None
) -> None:
    if any(resource.kind == "endpoint" for resource in resources):
        return
    answer = await describe(aws, "endpoint", endpoint)
    if answer is None or (
        deployment and answer.get("EndpointConfigName") == deployment.only("endpoint-config").name
    ):
        return
    raise DeployError(
        f"endpoint '{endpoint}' was not made by servetune",
        hint="nothing was deleted; delete it with the tool that made it",
    )


async def _remove_step_from_zero(deployment: Deployment, aws: AwsClient) -> list[str]:
    """Delete the step up from zero, where scaling no longer goes there."""
    target = deployment.only("scalable-target").request
    of = {name: target[name] for name in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
    policy, alarm = from_zero_policy(deployment.endpoint), alarm_name(deployment.endpoint)
    request = {**of, "PolicyName": policy}
    if not await _called(aws, "application-autoscaling", "DeleteScalingPolicy", request):
        return []
    await aws.call("cloudwatch", "DeleteAlarms", AlarmNames=[alarm])
    return [f"scaling-policy {policy}", f"alarm {alarm}"]


async def _stop_scaling(
    endpoint: str, components: list[str], deployment: Deployment | None, aws: AwsClient
) -> list[str]:
    """Delete scalable targets, with which their policies go, and the alarm."""
    targets = [
        (f"inference-component/{name}", "sagemaker:inference-component:DesiredCopyCount")
        for name in components
    ]
    targets.append(
        (f"endpoint/{endpoint}/variant/{VARIANT}", "sagemaker:variant:DesiredInstanceCount")
    )
    if deployment:
        targets += [
            (step.request["ResourceId"], step.request["ScalableDimension"])
            for step in deployment.of_kind("scalable-target")
        ]
    has_alarm = bool(deployment and deployment.of_kind("alarm"))
    deleted = []
    for resource, dimension in dict.fromkeys(targets):
        of = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": resource,
            "ScalableDimension": dimension,
        }
        answer = await aws.call("application-autoscaling", "DescribeScalingPolicies", **of)
        policies = {policy["PolicyName"] for policy in answer["ScalingPolicies"]}
        has_alarm |= from_zero_policy(endpoint) in policies
        if await _called(aws, "application-autoscaling", "DeregisterScalableTarget", of):
            deleted.append(f"scalable-target {resource}")
    if has_alarm:
        await aws.call("cloudwatch", "DeleteAlarms", AlarmNames=[alarm_name(endpoint)])
        deleted.append(f"alarm {alarm_name(endpoint)}")
    return deleted


async def _adapters_and_bases(aws: AwsClient, names: list[str]) -> tuple[list[str], list[str]]:
    """Adapters, and the components that they stand on."""
    adapters: list[str] = []
    bases: list[str] = []
    for name in names:
        answer = await describe(aws, "component", name)
        if answer is not None:
            is_adapter = specifications(answer)[0].get("BaseInferenceComponentName")
            (adapters if is_adapter else bases).append(name)
    return adapters, bases


async def _delete(kind: str, name: str, change: Change) -> bool:
    """Delete a resource and wait until it is gone; whether there was one."""
    if kind in ("endpoint-config", "model"):
        return await delete_settled(change.aws, kind, name)
    begun = await _begin_deletion(kind, name, change)
    if begun:
        await _wait_until_gone(kind, name, change)
    return begun


async def _begin_deletion(kind: str, name: str, change: Change) -> bool:
    """Begin to delete; a resource that is busy is waited for, and the request repeated."""
    aws, begin_s = change.aws, change.aws.clock.now_s()
    while True:
        status = await resource_status(aws, kind, name)
        if status.status == "gone":
            return False
        if status.status == "Deleting":
            return True
        if status.changing:
            change.on_progress(
                f"{kind} {name} is {status.status}: it can be deleted when that has ended"
            )
            await change.settled(kind, name)
            continue
        try:
            return await delete_settled(aws, kind, name)
        except AwsError as error:
            busy = any(word in error.service_message for word in _BUSY)
            if not busy or aws.clock.now_s() - begin_s > change.wait.timeout_s:
                raise
            await aws.clock.sleep(change.wait.poll_s or 1.0)


async def _wait_until_gone(kind: str, name: str, change: Change) -> None:
    status = await change.settled(kind, name)
    if status.status != "gone":
        reason = status.reason or "no reason given"
        raise DeployError(
            f"{kind} {name} is {status.status} instead of gone: {reason}",
            hint="run the same command again; it goes on from here",
        )


async def _called(aws: AwsClient, service: str, operation: str, request: dict[str, str]) -> bool:
    """Whether there was a resource that the operation could be applied to."""
    try:
        await aws.call(service, operation, **request)
    except AwsError as error:
        if is_missing(error):
            return False
        raise
    return True
