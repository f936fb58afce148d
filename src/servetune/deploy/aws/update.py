"""Update: an endpoint that serves is rolled over to other settings, a batch at a time.

The new model and configuration are made beside the old; then instances (or copies) are
exchanged in batches, or all at once where there is only one, and only when all serve are the old
ones deleted. Where the new ones fail, or an alarm rings, SageMaker rolls back and the old ones
stay. Counts that autoscaling has chosen are kept.
"""

from __future__ import annotations

from servetune.deploy.aws.apply import apply, failure, make
from servetune.deploy.aws.client import AwsError
from servetune.deploy.aws.drift import RESUMED, drift
from servetune.deploy.aws.resources import (
    Change,
    call_once_visible,
    describe,
    specifications,
    tagged_resources,
)
from servetune.deploy.aws.rollout import (
    Exchange,
    Running,
    is_otherwise,
    machines,
    rollout_of,
    running,
)
from servetune.deploy.aws.scaling import put_scaling_back, take_scaling_off
from servetune.deploy.aws.teardown import delete_settled, remove_unused
from servetune.deploy.deployment import VARIANT, Deployment, Step
from servetune.errors import DeployError
from servetune.json_value import JsonObject


async def update(
    deployment: Deployment,
    change: Change,
    *,
    now: str = "",
    secrets: dict[str, str] | None = None,
    canary_percent: int | None = None,
) -> list[str]:
    """Roll an endpoint over to a deployment, and delete what it no longer needs.

    Args:
        deployment: The deployment, with its role.
        change: Clients, state and progress.
        now: ISO time, for the state.
        secrets: Variables added to the container's environment as it is sent.
        canary_percent: Share of the traffic that goes to new instances first, all other traffic
            after `BAKE_S`; `None` for batches.

    Returns:
        Changes, a line each; empty where the endpoint was so already.

    Raises:
        DeployError: There is no such endpoint, it changed its kind, or SageMaker rolled back.
        InputError: It has too few instances for a canary, or no place for new copies beside the
            old ones; nothing was changed.
    """
    name, aws, state = deployment.endpoint, change.aws, change.state
    if await describe(aws, "endpoint", name) is not None:
        await change.settled("endpoint", name)
    found = await running(deployment, aws)
    if found is None:
        raise DeployError(f"there is no endpoint '{name}' to update", hint="make it with --apply")
    _require_same_kind(deployment, found)
    rollout = rollout_of(deployment, found, canary_percent)
    state.begin(name, deployment.region, now)
    for step in deployment.of_kind("model", "endpoint-config"):
        if await describe(aws, step.kind, step.name) is None:
            await make(step, change, secrets)
            state.created(step.kind, step.name)
    if rollout.beside:
        change.on_progress(
            f"endpoint {name}: new instances ({rollout.beside} at most) run beside the old ones "
            "and cost money until the old ones go"
        )
    exchanged = rollout.instances or rollout.copies
    alarms = await _put_alarms(deployment, change) if exchanged else {}
    components = deployment.of_kind("component")
    changes: list[str] = []
    for step in components:
        changes += await _set_copies(step, deployment, change, fewer=True)
    if rollout.instances:
        changes += await _roll_endpoint(deployment, found, rollout.instances, alarms, change)
    for step in components:
        if rollout.copies:
            changes += await _roll_component(step, rollout.copies, alarms, change)
        changes += await _set_copies(step, deployment, change)
    for step in deployment.of_kind("adapter"):
        changes += await _roll_adapter(step, change)
    changes += await remove_unused(deployment, change)
    # Adapters and scaling that were not there yet.
    await apply(deployment, change, now=now, secrets=secrets)
    changes += await _delete_old(deployment, change)
    return changes


async def mend(
    deployment: Deployment,
    change: Change,
    *,
    now: str = "",
    secrets: dict[str, str] | None = None,
) -> list[str]:
    """Change what stands otherwise than a deployment says back to that; its configuration runs.

    What somebody else made beside it is left.

    Returns:
        Changes, a line each.
    """
    changes = []
    found = await drift(deployment, change.aws)
    ours = [each for each in found if not (each.others or each.gone or each.hidden)]
    # A resource may have several differences.
    for each in {(each.kind, each.name, each.suspended): each for each in ours}.values():
        if each.kind == "scaling-policy":
            await change.aws.call(
                "application-autoscaling",
                "DeleteScalingPolicy",
                PolicyName=each.name,
                **deployment.scaled,
            )
            changes.append(f"deleted scaling-policy {each.name}")
        elif each.kind == "scalable-target" and each.suspended:
            request = {**deployment.scaled, "SuspendedState": RESUMED}
            await change.aws.call("application-autoscaling", "RegisterScalableTarget", **request)
            changes.append(f"autoscaling of {each.name} is resumed")
        elif each.kind == "endpoint" and deployment.hosting.scaling is None:
            count = deployment.hosting.instance_count
            await change.aws.call(
                "sagemaker",
                "UpdateEndpointWeightsAndCapacities",
                EndpointName=deployment.endpoint,
                DesiredWeightsAndCapacities=[
                    {"VariantName": VARIANT, "DesiredInstanceCount": count}
                ],
            )
            changes.append(f"endpoint {deployment.endpoint} has {count} instances")
    return changes + await update(deployment, change, now=now, secrets=secrets)


def _require_same_kind(deployment: Deployment, running: Running) -> None:
    """Refuse to make an endpoint of components into one of models, or the other way round."""
    if running.variants and running.has_components != (deployment.hosting.copies is not None):
        without = "of" if running.has_components else "without"
        raise DeployError(
            f"endpoint '{deployment.endpoint}' is made {without} inference components, which an "
            "update cannot change",
            hint="deploy under another --endpoint-name, move the traffic, and delete the old one",
        )


async def _put_alarms(deployment: Deployment, change: Change) -> JsonObject:
    """Make the alarms that roll back; empty where there are none, or the caller may not."""
    try:
        for step in deployment.rollback_alarms:
            await change.aws.call(step.service, step.operation, **step.request)
    except AwsError as error:
        change.excuse(error, "no alarm rolls this update back")
        return {}
    names = [{"AlarmName": step.name} for step in deployment.rollback_alarms]
    return {"AutoRollbackConfiguration": {"Alarms": names}} if names else {}


async def _roll_endpoint(
    deployment: Deployment,
    found: Running,
    exchange: Exchange,
    alarms: JsonObject,
    change: Change,
) -> list[str]:
    name, config = deployment.endpoint, deployment.only("endpoint-config")
    request: JsonObject = {
        "EndpointName": name,
        "EndpointConfigName": config.name,
        # Else it would go back to the counts that the configuration begins with.
        "RetainAllVariantProperties": deployment.hosting.scaling is not None,
    }
    if deployment.hosting.copies is None:
        request["DeploymentConfig"] = exchange.config | alarms
    if found.machines != machines(tuple(config.request["ProductionVariants"])):
        await take_scaling_off(deployment, change)
    try:
        await call_once_visible(change.aws, "sagemaker", "UpdateEndpoint", request)
    except AwsError:
        await put_scaling_back(deployment, change, as_before=True)
        raise
    status = await change.waiting(exchange.wait_s).settled("endpoint", name)
    answer = await describe(change.aws, "endpoint", name) or {}
    if status.status == "InService" and answer.get("EndpointConfigName") == config.name:
        return [f"endpoint {name} runs {config.name}"]
    await put_scaling_back(deployment, change, as_before=True)
    if status.status != "InService":
        raise failure(f"endpoint {name}", status)
    raise DeployError(
        f"endpoint {name} was rolled back to {answer.get('EndpointConfigName')}: "
        f"{status.reason or 'AWS gives no reason'}",
        hint="the old settings serve on; read servetune deploy logs",
    )


async def _roll_component(
    step: Step, exchange: Exchange, alarms: JsonObject, change: Change
) -> list[str]:
    """Exchange the copies of a component, and look whether they are exchanged.

    After a rollback SageMaker describes it as in service, with its old settings.
    """
    key = "Specifications" if "Specifications" in step.request else "Specification"
    await change.aws.call(
        "sagemaker",
        "UpdateInferenceComponent",
        InferenceComponentName=step.name,
        **({"DeploymentConfig": exchange.config | alarms} if exchange.config else {}),
        **{key: step.request[key]},
    )
    await _require_served(step, change.waiting(exchange.wait_s))
    existing = await describe(change.aws, "component", step.name) or {}
    if is_otherwise(step, existing):
        raise DeployError(
            f"component {step.name} was rolled back to {', '.join(_models(existing))}: a copy did "
            "not answer in time or had no place, or an alarm rang",
            hint="the old copies serve on; read servetune deploy logs and the quota of the "
            "instance type, then run update again",
        )
    return [f"component {step.name} runs {', '.join(_models(step.request))}"]


async def _set_copies(
    step: Step, deployment: Deployment, change: Change, *, fewer: bool = False
) -> list[str]:
    """Make as many copies as the bundle has, unless autoscaling chooses them.

    Args:
        step: The component.
        deployment: The deployment.
        change: Clients, state and progress.
        fewer: Whether copies are only taken away: before instances go that they stand on.
    """
    existing = await describe(change.aws, "component", step.name)
    if existing is None or deployment.hosting.scaling is not None:
        return []
    copies = step.request["RuntimeConfig"]["CopyCount"]
    held = (existing.get("RuntimeConfig") or {}).get("DesiredCopyCount")
    if held == copies or (fewer and (held is None or held < copies)):
        return []
    await change.aws.call(
        "sagemaker",
        "UpdateInferenceComponentRuntimeConfig",
        InferenceComponentName=step.name,
        DesiredRuntimeConfig={"CopyCount": copies},
    )
    await _require_served(step, change)
    return [f"component {step.name} has {copies} copies"]


async def _roll_adapter(step: Step, change: Change) -> list[str]:
    """Exchange an adapter of the same name that has other files now."""
    existing = await describe(change.aws, "adapter", step.name)
    specification = step.request["Specification"]
    files = _files(specification)
    if existing is None or _files(existing.get("Specification")) in ("", files):
        return []
    await change.aws.call(
        "sagemaker",
        "UpdateInferenceComponent",
        InferenceComponentName=step.name,
        Specification=specification,
    )
    await _require_served(step, change)
    return [f"adapter {step.name} is {files}"]


def _files(specification: JsonObject | None) -> str:
    return str(((specification or {}).get("Container") or {}).get("ArtifactUrl", ""))


async def _require_served(step: Step, change: Change) -> None:
    status = await change.settled("component", step.name)
    if status.status != "InService" or status.reason:
        raise failure(f"component {step.name}", status)


def _models(component: JsonObject) -> list[str]:
    return [str(each.get("ModelName", "")) for each in specifications(component)]


async def _delete_old(deployment: Deployment, change: Change) -> list[str]:
    """Delete old configurations and models of this endpoint, now that nothing runs them."""
    kept = {step.name for step in deployment.steps}
    changes = []
    for resource in await tagged_resources(change.aws, deployment.endpoint):
        if resource.kind in ("endpoint-config", "model") and resource.name not in kept:
            await delete_settled(change.aws, resource.kind, resource.name)
            change.state.deleted(resource.kind, resource.name)
            changes.append(f"deleted {resource.kind} {resource.name}")
    return changes
