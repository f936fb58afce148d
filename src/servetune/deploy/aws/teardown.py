"""Deletion of everything of an endpoint, in the order that SageMaker allows.

Scaling first, or it would bring copies back; adapters before the component that they stand
on; components before the endpoint; then configurations and models. Deleting a component is
asynchronous and an endpoint that is being created refuses, so each is waited for. Running
it again goes on where it stopped.

What costs money is deleted also by a caller who lacks permissions for what stands beside it:
names that cannot be listed are those of the deployment, and what could not be seen is reported.
"""

from __future__ import annotations

import msgspec

from servetune.deploy.alarms import ALARM_KINDS, alarm_name
from servetune.deploy.aws.client import AwsClient, AwsError, is_denied, is_missing
from servetune.deploy.aws.resources import (
    DELETIONS,
    Change,
    Resource,
    describe,
    listed,
    resource_status,
    specifications,
    tagged_resources,
    with_digest,
)
from servetune.deploy.aws.scaling import own_policies, scheduled_actions
from servetune.deploy.aws.waiting import ResourceStatus
from servetune.deploy.deployment import (
    Deployment,
    component_name,
    from_zero_policy,
    scaled_component,
    scaled_variant,
)
from servetune.deploy.names import name_stem
from servetune.errors import DeployError
from servetune.json_value import JsonObject

#: Parts of the refusal of a busy resource.
_BUSY = ("in-progress", "in progress", "Cannot update", "must be", "has inference components")


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted of an endpoint.

    Attributes:
        deleted: Resources, as `kind name`.
        unseen: Resources that could not be looked at or deleted for want of a permission, a line
            each.
    """

    deleted: tuple[str, ...]
    unseen: tuple[str, ...] = ()


class _Denials:
    """Requests that the caller may not send: noted once each, and gone on without."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.lines: dict[str, str] = {}

    def note(self, error: AwsError) -> None:
        operation = error.message.partition(" ")[0]
        if operation not in self.lines:
            self.lines[operation] = error.message
            self._change.on_progress(f"{error.message}; going on without")

    def excuse(self, error: AwsError) -> None:
        """Note a denial; raise any other error again."""
        if not is_denied(error):
            raise error
        self.note(error)

    async def describe(self, kind: str, name: str) -> JsonObject:
        """A resource's description; empty where it is not there, or may not be looked at."""
        try:
            return await describe(self._change.aws, kind, name) or {}
        except AwsError as error:
            self.excuse(error)
            return {}


async def delete(
    endpoint: str, change: Change, *, deployment: Deployment | None = None
) -> Deletion:
    """Delete all resources of an endpoint; what is not there is passed over.

    Args:
        endpoint: Name of the endpoint.
        change: Clients, progress, and the state, whose file is removed when nothing is left.
        deployment: Resources that should stand; without it tags alone say what is ours.

    Raises:
        DeployError: The endpoint is not ours, or a resource would not go in time.
    """
    aws, state, denials = change.aws, change.state, _Denials(change)
    resources = await tagged_resources(aws, endpoint, on_denied=denials.note)
    answer = await denials.describe("endpoint", endpoint)
    _require_ours(endpoint, answer, resources, deployment, denials)
    adapters, bases = await _adapters_and_bases(endpoint, change, deployment, denials)
    configured = await _configured(endpoint, answer, bases, denials)
    deleted = await _stop_scaling(endpoint, bases, deployment, aws, denials)
    deleted += await _delete_alarms(endpoint, ALARM_KINDS, aws, denials)
    for names in (adapters, bases):
        begun = [name for name in names if await _begin_deletion("component", name, change)]
        for name in names:
            if name in begun:
                await _wait_until_gone("component", name, change)
                deleted.append(f"component {name}")
            state.deleted("component", name)
            state.deleted("adapter", name)
    for kind in ("endpoint", "endpoint-config", "model"):
        for name in _names(kind, [*resources, *configured], deployment):
            try:
                if await _delete(kind, name, change):
                    deleted.append(f"{kind} {name}")
            except AwsError as error:
                if kind == "endpoint":
                    raise
                denials.excuse(error)
            state.deleted(kind, name)
    state.close()
    return Deletion(deleted=tuple(deleted), unseen=tuple(denials.lines.values()))


async def remove_unused(deployment: Deployment, change: Change) -> list[str]:
    """Delete the adapters and the scaling that an endpoint had and shall have no more.

    Returns:
        Changes, a line each.
    """
    aws, endpoint, denials = change.aws, deployment.endpoint, _Denials(change)
    kept = {step.name for step in deployment.of_kind("component", "adapter")}
    resources = await tagged_resources(aws, endpoint)
    components = [resource.name for resource in resources if resource.kind == "component"]
    adapters = [name for name in components if await _is_adapter(name, denials)]
    deleted: list[str] = []
    scaling = deployment.hosting.scaling
    if scaling is None:
        deleted += await _remove_own_scaling(endpoint, change, denials)
        deleted += await _delete_alarms(endpoint, ("no-capacity",), aws, denials)
    elif scaling.minimum > 0:
        deleted += await _remove_step_from_zero(deployment, aws, denials)
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


def _require_ours(
    endpoint: str,
    answer: JsonObject,
    resources: list[Resource],
    deployment: Deployment | None,
    denials: _Denials,
) -> None:
    """Refuse an endpoint that neither tags nor, where they are hidden, names show to be ours."""
    if any(resource.kind == "endpoint" for resource in resources):
        return
    if not answer:
        if "DescribeEndpoint" in denials.lines and deployment is None:
            raise DeployError(
                f"endpoint '{endpoint}' may not be looked at, and no tag shows that it is ours",
                hint="name its bundle, or ask for sagemaker:DescribeEndpoint; nothing was deleted",
            )
        return
    config = str(answer.get("EndpointConfigName"))
    if deployment and config == deployment.only("endpoint-config").name:
        return
    hidden = {"ListTags", "ListEndpoints"} & set(denials.lines)
    if hidden and with_digest(config) and config.startswith(name_stem(endpoint)):
        return
    raise DeployError(
        f"endpoint '{endpoint}' was not made by servetune",
        hint="nothing was deleted; delete it with the tool that made it",
    )


async def _configured(
    endpoint: str, answer: JsonObject, bases: list[str], denials: _Denials
) -> list[Resource]:
    """The endpoint, the configuration that it runs and its models, where their names are ours."""
    if not answer:
        return []
    config = str(answer.get("EndpointConfigName", ""))
    about = await denials.describe("endpoint-config", config)
    parts = list(about.get("ProductionVariants", []))
    for name in bases:
        parts += specifications(await denials.describe("component", name))
    names = [("endpoint-config", config)]
    names += [("model", str(part.get("ModelName", ""))) for part in parts]
    own = [
        (kind, name)
        for kind, name in names
        if with_digest(name) and name.startswith(name_stem(endpoint))
    ]
    return [
        Resource(kind=kind, name=name, arn="", endpoint=endpoint)
        for kind, name in (("endpoint", endpoint), *own)
    ]


async def _remove_step_from_zero(
    deployment: Deployment, aws: AwsClient, denials: _Denials
) -> list[str]:
    """Delete the step up from zero, where scaling no longer goes there."""
    policy = from_zero_policy(deployment.endpoint)
    request = {**deployment.scaled, "PolicyName": policy}
    if not await _called(aws, "application-autoscaling", "DeleteScalingPolicy", request):
        return []
    alarms = await _delete_alarms(deployment.endpoint, ("no-capacity",), aws, denials)
    return [f"scaling-policy {policy}", *alarms]


async def _remove_own_scaling(endpoint: str, change: Change, denials: _Denials) -> list[str]:
    """Delete the scaling that servetune made; what somebody else made is left, and told.

    A target is servetune's where one of its policies is, or the state says so.
    """
    own, service, deleted = own_policies(endpoint), "application-autoscaling", []
    made = {entry.name for entry in change.state.state.entries if entry.kind == "scalable-target"}
    for of in (scaled_component(component_name(endpoint)), scaled_variant(endpoint)):
        resource = of["ResourceId"]
        where = {"ServiceNamespace": of["ServiceNamespace"], "ResourceId": resource}
        try:
            answer = await change.aws.call(service, "DescribeScalingPolicies", **where)
            names = [str(each["PolicyName"]) for each in answer.get("ScalingPolicies", [])]
            if resource not in made and not set(own) & set(names):
                continue
            others = [f"scaling-policy {name}" for name in names if name not in own]
            others += [
                f"scheduled-action {each['ScheduledActionName']}"
                for each in await scheduled_actions(where, change)
            ]
            gone = [(f"scalable-target {resource}", "DeregisterScalableTarget", of)]
            if others:
                change.on_progress(f"left, because somebody else made it: {', '.join(others)}")
                gone = [
                    (f"scaling-policy {name}", "DeleteScalingPolicy", {**of, "PolicyName": name})
                    for name in names
                    if name in own
                ]
            deleted += [
                what
                for what, operation, request in gone
                if await _called(change.aws, service, operation, request)
            ]
            change.state.deleted("scalable-target", resource)
        except AwsError as error:
            denials.excuse(error)
    return deleted


async def _stop_scaling(
    endpoint: str,
    components: list[str],
    deployment: Deployment | None,
    aws: AwsClient,
    denials: _Denials,
) -> list[str]:
    """Delete scalable targets, with which their policies go."""
    targets = [*map(scaled_component, components), scaled_variant(endpoint)]
    if deployment and deployment.scaled not in targets:
        targets.append(deployment.scaled)
    deleted = []
    for of in targets:
        try:
            if await _called(aws, "application-autoscaling", "DeregisterScalableTarget", of):
                deleted.append(f"scalable-target {of['ResourceId']}")
        except AwsError as error:
            denials.excuse(error)
    return deleted


async def _delete_alarms(
    endpoint: str, kinds: tuple[str, ...], aws: AwsClient, denials: _Denials
) -> list[str]:
    """Delete the alarms that there are; a name that is not there would keep all from going."""
    names = [alarm_name(endpoint, kind) for kind in kinds]
    try:
        answer = await aws.call("cloudwatch", "DescribeAlarms", AlarmNames=names)
        names = [str(alarm["AlarmName"]) for alarm in answer.get("MetricAlarms", [])]
        batches = [names] if names else []
    except AwsError as error:
        denials.excuse(error)
        batches = [[name] for name in names]
    deleted = []
    for batch in batches:
        try:
            if await _called(aws, "cloudwatch", "DeleteAlarms", {"AlarmNames": batch}):
                deleted += [f"alarm {name}" for name in batch]
        except AwsError as error:
            denials.excuse(error)
    return deleted


async def _adapters_and_bases(
    endpoint: str, change: Change, deployment: Deployment | None, denials: _Denials
) -> tuple[list[str], list[str]]:
    """Adapters, and the components that they stand on, of an endpoint that shall go.

    All that are on the endpoint count, whoever made them, because it cannot go before them.
    """
    on_it = {"EndpointNameEquals": endpoint}
    found = [
        str(item["InferenceComponentName"])
        for item in await listed(change.aws, "component", on_it, on_denied=denials.note)
    ]
    if "ListInferenceComponents" in denials.lines:
        kinds = ("component", "adapter")
        planned = [step.name for step in deployment.of_kind(*kinds)] if deployment else []
        begun = [entry.name for entry in change.state.state.entries if entry.kind in kinds]
        for name in dict.fromkeys((component_name(endpoint), *planned, *begun)):
            about = await denials.describe("component", name)
            if about.get("EndpointName", endpoint) == endpoint:  # not one of another endpoint
                found.append(name)
    adapters = [name for name in found if await _is_adapter(name, denials)]
    return adapters, [name for name in found if name not in adapters]


async def _is_adapter(name: str, denials: _Denials) -> bool:
    """Whether a component stands on another one."""
    about = await denials.describe("component", name)
    return bool(about and specifications(about)[0].get("BaseInferenceComponentName"))


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
        status = await _status(kind, name, change)
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


async def _status(kind: str, name: str, change: Change) -> ResourceStatus:
    """The state of a resource; `hidden` where the caller may not look."""
    try:
        return await resource_status(change.aws, kind, name)
    except AwsError as error:
        if not is_denied(error):
            raise
        return ResourceStatus(status="hidden", changing=False)


async def _wait_until_gone(kind: str, name: str, change: Change) -> None:
    status = await _status(kind, name, change)
    if status.status == "hidden":
        change.on_progress(f"{kind} {name} is asked to go, and may not be watched")
        return
    status = await change.settled(kind, name)
    if status.status != "gone":
        reason = status.reason or "no reason given"
        raise DeployError(
            f"{kind} {name} is {status.status} instead of gone: {reason}",
            hint="run the same command again; it goes on from here",
        )


async def _called(aws: AwsClient, service: str, operation: str, request: JsonObject) -> bool:
    """Whether there was a resource that the operation could be applied to."""
    try:
        await aws.call(service, operation, **request)
    except AwsError as error:
        if is_missing(error):
            return False
        raise
    return True
