"""Delete: everything of an endpoint, in the order that SageMaker allows.

Scaling first, or it would bring copies back; adapters before the component that they stand
on; components before the endpoint; then configurations and models. Deleting a component is
asynchronous and an endpoint that is being created refuses, so each is waited for. Running
it again goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from servetune.deploy.aws.door import Aws, Refused, is_missing
from servetune.deploy.aws.looking import describe, see_component, see_endpoint
from servetune.deploy.aws.owned import Thing, owned
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.waiting import Patience, Seen, until_rest
from servetune.deploy.deployment import VARIANT, Deployment, alarm_name
from servetune.errors import DeployError

__all__ = ["delete", "delete_thing", "trimmed"]

Tell = Callable[[str], None]

#: What a busy resource says instead of going.
_BUSY = ("in-progress", "in progress", "Cannot update", "must be", "has inference components")


async def delete(
    endpoint: str,
    aws: Aws,
    *,
    state: StateFile,
    tell: Tell,
    patience: Patience | None = None,
    deployment: Deployment | None = None,
) -> list[str]:
    """Take away all that stands for an endpoint; what is not there is passed over.

    Args:
        endpoint: Its name.
        aws: The door.
        state: Closed when nothing is left.
        tell: Progress.
        patience: With busy resources.
        deployment: What was meant to stand; without it tags alone say what is ours.

    Returns:
        What was deleted, as `kind name`.

    Raises:
        DeployError: The endpoint is not ours, or something would not go in time.
    """
    patience = patience or Patience(timeout_s=5400.0)
    things = await owned(aws, endpoint)
    await _refuse_strangers(endpoint, aws, things, deployment)
    gone: list[str] = []
    components = [thing.name for thing in things if thing.kind == "component"]
    adapters, bases = await _by_standing(aws, components)
    await _stop_scaling(endpoint, bases, deployment, aws, gone)
    for names in (adapters, bases):
        for name in names:
            await _start(aws, "component", name, patience, tell)
        for name in names:
            await _until_gone(aws, "component", name, patience, tell)
            gone.append(f"component {name}")
            state.gone("component", name)
            state.gone("adapter", name)
    for kind in ("endpoint", "endpoint-config", "model"):
        for name in _names(kind, things, deployment):
            if await _removed(aws, kind, name, patience, tell):
                gone.append(f"{kind} {name}")
            state.gone(kind, name)
    state.close()
    return gone


async def trimmed(
    deployment: Deployment, aws: Aws, *, state: StateFile, tell: Tell, patience: Patience
) -> list[str]:
    """Take away the adapters and the scaling that an endpoint had and shall have no more.

    Returns:
        What was changed, a line each.
    """
    kept = {step.name for step in deployment.of_kind("component", "adapter")}
    components = [
        thing.name for thing in await owned(aws, deployment.endpoint) if thing.kind == "component"
    ]
    adapters, bases = await _by_standing(aws, components)
    gone: list[str] = []
    scaling = deployment.hosting.scaling
    if scaling is None:
        try:
            await _stop_scaling(deployment.endpoint, bases, None, aws, gone)
        except Refused as error:
            if "AccessDenied" not in error.code:  # who may not scale has not scaled
                raise
            tell(f"whether it still scales is not known: {error.message}")
    elif scaling.minimum > 0:
        await _stay_above_zero(deployment, aws, gone)
    for name in adapters:
        if name not in kept:
            await _start(aws, "component", name, patience, tell)
            await _until_gone(aws, "component", name, patience, tell)
            gone.append(f"adapter {name}")
            state.gone("adapter", name)
    return [f"deleted {name}" for name in gone]


async def _stay_above_zero(deployment: Deployment, aws: Aws, gone: list[str]) -> None:
    """The step up from zero, where scaling no longer goes there."""
    target = deployment.only("scalable-target").request
    of = {name: target[name] for name in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
    policy = f"{deployment.endpoint}-from-zero"
    request = {**of, "PolicyName": policy}
    if await _asked_away(aws, "application-autoscaling", "DeleteScalingPolicy", request):
        alarm = alarm_name(deployment.endpoint)
        await aws.ask("cloudwatch", "DeleteAlarms", AlarmNames=[alarm])
        gone += [f"scaling-policy {policy}", f"alarm {alarm}"]


async def delete_thing(aws: Aws, thing: Thing, *, tell: Tell, patience: Patience) -> None:
    """Take away a single thing that stands alone, such as an orphan."""
    if thing.kind == "component":
        await _start(aws, "component", thing.name, patience, tell)
        await _until_gone(aws, "component", thing.name, patience, tell)
    elif thing.kind == "alarm":
        await aws.ask("cloudwatch", "DeleteAlarms", AlarmNames=[thing.name])
    else:
        await _removed(aws, thing.kind, thing.name, patience, tell)


def _names(kind: str, things: list[Thing], deployment: Deployment | None) -> list[str]:
    """Found by tag, and what the deployment would have made beside it."""
    found = [thing.name for thing in things if thing.kind == kind]
    meant = [step.name for step in deployment.of_kind(kind)] if deployment else []
    return list(dict.fromkeys([*found, *meant]))


async def _refuse_strangers(
    endpoint: str, aws: Aws, things: list[Thing], deployment: Deployment | None
) -> None:
    if any(thing.kind == "endpoint" for thing in things):
        return
    said = await describe(aws, "endpoint", endpoint)
    if said is None or (
        deployment and said.get("EndpointConfigName") == deployment.only("endpoint-config").name
    ):
        return
    raise DeployError(
        f"endpoint '{endpoint}' was not made by servetune",
        hint="nothing was deleted; delete it with the tool that made it",
    )


async def _stop_scaling(
    endpoint: str,
    components: list[str],
    deployment: Deployment | None,
    aws: Aws,
    gone: list[str],
) -> None:
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
    alarms = bool(deployment and deployment.of_kind("alarm"))
    for resource, dimension in dict.fromkeys(targets):
        of = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": resource,
            "ScalableDimension": dimension,
        }
        said = await aws.ask("application-autoscaling", "DescribeScalingPolicies", **of)
        alarms |= any(
            policy["PolicyName"] == f"{endpoint}-from-zero" for policy in said["ScalingPolicies"]
        )
        # Its policies go with it.
        if await _asked_away(aws, "application-autoscaling", "DeregisterScalableTarget", of):
            gone.append(f"scalable-target {resource}")
    if alarms:
        await aws.ask("cloudwatch", "DeleteAlarms", AlarmNames=[alarm_name(endpoint)])
        gone.append(f"alarm {alarm_name(endpoint)}")


async def _by_standing(aws: Aws, names: list[str]) -> tuple[list[str], list[str]]:
    """Adapters, and the components that they stand on."""
    adapters: list[str] = []
    bases: list[str] = []
    for name in names:
        said = await describe(aws, "component", name)
        if said is None:
            continue
        stands_on = (said.get("Specification") or {}).get("BaseInferenceComponentName")
        (adapters if stands_on else bases).append(name)
    return adapters, bases


async def _removed(aws: Aws, kind: str, name: str, patience: Patience, tell: Tell) -> bool:
    if kind == "endpoint":
        started = await _start(aws, kind, name, patience, tell)
        if started:
            await _until_gone(aws, kind, name, patience, tell)
        return started
    operation, member = {
        "endpoint-config": ("DeleteEndpointConfig", "EndpointConfigName"),
        "model": ("DeleteModel", "ModelName"),
    }[kind]
    return await _asked_away(aws, "sagemaker", operation, {member: name})


async def _start(aws: Aws, kind: str, name: str, patience: Patience, tell: Tell) -> bool:
    """Begin to delete; a thing that is busy is waited for and asked again."""
    look = _looker(aws, kind, name)
    begin_s = aws.clock.now_s()
    while True:
        seen = await look()
        if seen.status == "gone":
            return False
        if seen.status == "Deleting":
            return True
        if seen.moving:
            tell(f"{kind} {name} is {seen.status}: it can be deleted when that has ended")
            await until_rest(f"{kind} {name}", look, aws.clock, patience, tell)
            continue
        operation, member = {
            "endpoint": ("DeleteEndpoint", "EndpointName"),
            "component": ("DeleteInferenceComponent", "InferenceComponentName"),
        }[kind]
        try:
            await aws.ask("sagemaker", operation, **{member: name})
        except Refused as error:
            if is_missing(error):
                return False
            busy = any(word in error.service_message for word in _BUSY)
            if not busy or aws.clock.now_s() - begin_s > patience.timeout_s:
                raise
            await aws.clock.sleep(patience.poll_s or 1.0)
            continue
        return True


async def _until_gone(aws: Aws, kind: str, name: str, patience: Patience, tell: Tell) -> None:
    seen = await until_rest(f"{kind} {name}", _looker(aws, kind, name), aws.clock, patience, tell)
    if seen.status != "gone":
        raise DeployError(
            f"{kind} {name} is {seen.status} instead of gone: {seen.reason or 'no reason given'}",
            hint="run the same command again; it goes on from here",
        )


def _looker(aws: Aws, kind: str, name: str) -> Callable[[], Awaitable[Seen]]:
    see = see_endpoint if kind == "endpoint" else see_component
    return lambda: see(aws, name)


async def _asked_away(aws: Aws, service: str, operation: str, request: dict[str, str]) -> bool:
    """Whether there was something to delete."""
    try:
        await aws.ask(service, operation, **request)
    except Refused as error:
        if is_missing(error):
            return False
        raise
    return True
