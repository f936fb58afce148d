"""Update: an endpoint that serves is rolled over to other settings, a batch at a time.

The new model and configuration are made beside the old; then instances (or copies) are
exchanged in batches, or all at once where there is only one, and only when all serve are the old
ones deleted. Where the new ones fail, or an alarm rings, SageMaker rolls back and the old ones
stay. Counts that autoscaling has chosen are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from servetune.deploy.aws.apply import apply, failure, make
from servetune.deploy.aws.client import AwsClient, AwsError, is_denied
from servetune.deploy.aws.drift import difference, drift
from servetune.deploy.aws.orphans import usd_per_hour
from servetune.deploy.aws.resources import (
    Change,
    call_once_visible,
    describe,
    specifications,
    tagged_resources,
)
from servetune.deploy.aws.scaling import put_scaling_back, take_scaling_off
from servetune.deploy.aws.teardown import delete_settled, remove_unused
from servetune.deploy.deployment import VARIANT, Deployment, Step
from servetune.errors import DeployError, InputError
from servetune.json_value import JsonObject

#: Seconds between two batches, in which alarms are watched, and SageMaker's bound on all of them.
BATCH_INTERVAL_S = 120
#: Seconds in which alarms are watched once all traffic, or the canary's, is on the new instances.
BAKE_S = 300
MAX_ROLLOUT_S = 28800
#: Bounds of a batch, as a share of all instances or copies (RollingUpdatePolicy).
LEAST_BATCH, MOST_BATCH = 0.05, 0.5


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint runs before an update.

    Attributes:
        config: Name of its configuration.
        usd_per_hour: Price of its instances; `None` where it is not known.
    """

    config: str
    usd_per_hour: float | None


async def running(
    endpoint: str, aws: AwsClient, prices: Mapping[str, float | None]
) -> Running | None:
    """What an endpoint runs now and what that costs, `None` where it is not there."""
    answer = await describe(aws, "endpoint", endpoint)
    if answer is None:
        return None
    name = str(answer.get("EndpointConfigName", ""))
    config = await describe(aws, "endpoint-config", name)
    if config is None:
        return Running(config=name, usd_per_hour=None)
    counted = answer.get("ProductionVariants", [])
    per_hour = usd_per_hour(config["ProductionVariants"], counted, prices)
    return Running(config=name, usd_per_hour=per_hour)


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
        InputError: It has too few instances for a canary, or is made of components.
    """
    name, aws, state = deployment.endpoint, change.aws, change.state
    running = await describe(aws, "endpoint", name)
    if running is None:
        raise DeployError(f"there is no endpoint '{name}' to update", hint="make it with --apply")
    await change.settled("endpoint", name)
    running_config = str(running["EndpointConfigName"])
    config = await _require_same_kind(deployment, running_config, aws)
    if canary_percent is not None:
        _require_splittable(deployment, _counts(deployment, running))
    state.begin(name, deployment.region, now)
    for step in deployment.of_kind("model", "endpoint-config"):
        if await describe(aws, step.kind, step.name) is None:
            await make(step, change, secrets)
            state.created(step.kind, step.name)
    changes: list[str] = []
    differs = running_config != deployment.only("endpoint-config").name
    components = deployment.of_kind("component")
    rolls = differs or [step for step in components if await _rolls(step, aws)]
    alarms = await _put_alarms(deployment, change) if rolls and deployment.rollback_alarms else {}
    if differs:
        rollout = _rollout(deployment, _counts(deployment, running), canary_percent, change)
        changes += await _roll_endpoint(deployment, config, rollout | alarms, change)
    for step in components:
        changes += await _roll_component(step, deployment, alarms, change)
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

    Returns:
        Changes, a line each.
    """
    changes = []
    for each in await drift(deployment, change.aws):
        if each.kind == "scaling-policy" and not each.gone:
            await change.aws.call(
                "application-autoscaling",
                "DeleteScalingPolicy",
                PolicyName=each.name,
                **deployment.scaled,
            )
            changes.append(f"deleted scaling-policy {each.name}")
        elif each.kind == "endpoint" and deployment.hosting.scaling is None:
            await change.aws.call(
                "sagemaker",
                "UpdateEndpointWeightsAndCapacities",
                EndpointName=deployment.endpoint,
                DesiredWeightsAndCapacities=[
                    {
                        "VariantName": VARIANT,
                        "DesiredInstanceCount": deployment.hosting.instance_count,
                    }
                ],
            )
            changes.append(
                f"endpoint {deployment.endpoint} has {deployment.hosting.instance_count} instances"
            )
    return changes + await update(deployment, change, now=now, secrets=secrets)


async def _require_same_kind(
    deployment: Deployment, running_config: str, aws: AwsClient
) -> JsonObject:
    """The running configuration; an endpoint of components cannot become one of models."""
    config = await describe(aws, "endpoint-config", running_config) or {}
    variants = config.get("ProductionVariants", [])
    has_components = bool(variants) and "ModelName" not in variants[0]
    if variants and has_components != (deployment.hosting.copies is not None):
        raise DeployError(
            f"endpoint '{deployment.endpoint}' is made "
            f"{'of inference components' if has_components else 'without inference components'}, "
            "which an update cannot change",
            hint="deploy under another --endpoint-name, move the traffic, and delete the old one",
        )
    return config


def _counts(deployment: Deployment, running: JsonObject) -> tuple[int, ...]:
    """Instances that run, and those that will where they are not kept."""
    variants = running.get("ProductionVariants", [])
    held = [
        int(each["DesiredInstanceCount"]) for each in variants if "DesiredInstanceCount" in each
    ]
    new = [] if deployment.hosting.scaling else [deployment.hosting.instance_count]
    return (*held, *new) or (deployment.hosting.instance_count,)


def _require_splittable(deployment: Deployment, counts: tuple[int, ...]) -> None:
    if deployment.hosting.copies is not None:
        raise InputError(
            "a canary is of instances, and this endpoint is made of inference components",
            hint="leave --canary out: copies are exchanged in batches",
        )
    if min(counts) < 2:
        raise InputError(
            "one instance cannot be split into a canary and the rest",
            hint="leave --canary out, or deploy with --instances 2 or more",
        )


def batch_of(counts: tuple[int, ...]) -> int | None:
    """The largest batch that is 5% to 50% of each count, `None` where there is none.

    Example:
        >>> [batch_of((count,)) for count in (1, 2, 3, 8)]
        [None, 1, 1, 4]
    """
    batch = min(counts) // 2
    fits = all(LEAST_BATCH * count <= batch <= MOST_BATCH * count for count in counts)
    return batch if batch and fits else None


def _timeout_s(change: Change) -> int:
    return int(min(MAX_ROLLOUT_S, max(2 * BAKE_S + 600.0, change.wait.timeout_s)))


def _rolling(kind: str, batch: int, change: Change) -> JsonObject:
    """The policy that exchanges so many instances or copies at a time."""
    return {
        "RollingUpdatePolicy": {
            "MaximumBatchSize": {"Type": kind, "Value": batch},
            "WaitIntervalInSeconds": BATCH_INTERVAL_S,
            "MaximumExecutionTimeoutInSeconds": _timeout_s(change),
        }
    }


def _rollout(
    deployment: Deployment, counts: tuple[int, ...], canary_percent: int | None, change: Change
) -> JsonObject:
    """How instances are exchanged: by canary, in batches, or all at once beside the old ones.

    SageMaker takes no batch of one instance, which is 100% of it. An endpoint of components gets
    no policy: its copies are exchanged in batches of their own.
    """
    if deployment.hosting.copies is not None:
        return {}
    batch = batch_of(counts)
    if batch is not None and canary_percent is None:
        return _rolling("INSTANCE_COUNT", batch, change)
    traffic: JsonObject = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": BAKE_S}
    if canary_percent is not None:
        size = {"Type": "CAPACITY_PERCENT", "Value": canary_percent}
        traffic = {**traffic, "Type": "CANARY", "CanarySize": size}
    change.on_progress(
        f"endpoint {deployment.endpoint}: {max(counts)} new instances run beside the old ones and "
        "cost money until the old ones go"
    )
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": traffic,
            "MaximumExecutionTimeoutInSeconds": _timeout_s(change),
        }
    }


async def _put_alarms(deployment: Deployment, change: Change) -> JsonObject:
    """Make the alarms that roll back; empty where the caller may not."""
    try:
        for step in deployment.rollback_alarms:
            await change.aws.call(step.service, step.operation, **step.request)
    except AwsError as error:
        if not is_denied(error):
            raise
        change.on_progress(f"no alarm rolls this update back: {error.message}")
        return {}
    names = [{"AlarmName": step.name} for step in deployment.rollback_alarms]
    return {"AutoRollbackConfiguration": {"Alarms": names}}


async def _roll_endpoint(
    deployment: Deployment, running_config: JsonObject, rollout: JsonObject, change: Change
) -> list[str]:
    name, config = deployment.endpoint, deployment.only("endpoint-config")
    request: JsonObject = {
        "EndpointName": name,
        "EndpointConfigName": config.name,
        # Else it would go back to the counts that the configuration begins with.
        "RetainAllVariantProperties": deployment.hosting.scaling is not None,
    }
    if deployment.hosting.copies is None:
        request["DeploymentConfig"] = rollout
    taken_off = None
    if _machines(running_config) != _machines(config.request):
        taken_off = await take_scaling_off(deployment, change)
    try:
        await call_once_visible(change.aws, "sagemaker", "UpdateEndpoint", request)
        status = await change.settled("endpoint", name)
        if status.status != "InService":
            raise failure(f"endpoint {name}", status)
        answer = await describe(change.aws, "endpoint", name) or {}
        if answer.get("EndpointConfigName") != config.name:
            raise DeployError(
                f"endpoint {name} was rolled back to {answer.get('EndpointConfigName')}: "
                f"{status.reason or 'AWS gives no reason'}",
                hint="the old settings serve on; read servetune deploy logs",
            )
    except DeployError:
        if taken_off:
            await put_scaling_back(taken_off, change)
        raise
    return [f"endpoint {name} runs {config.name}"]


def _machines(config: JsonObject) -> list[object]:
    """Instance types of a configuration's variants, which autoscaling keeps from changing."""
    return [
        [pool["InstanceType"] for pool in variant.get("InstancePools") or [variant]]
        for variant in config.get("ProductionVariants", [])
    ]


async def _roll_component(
    step: Step, deployment: Deployment, alarms: JsonObject, change: Change
) -> list[str]:
    existing = await describe(change.aws, "component", step.name)
    if existing is None:
        return []
    changes = []
    key = "Specifications" if "Specifications" in step.request else "Specification"
    held = (existing.get("RuntimeConfig") or {}).get("DesiredCopyCount")
    if difference(step.request[key], existing.get(key)):
        # One copy is 100% of itself, above the bound: SageMaker then exchanges it as it does
        # without a policy.
        batch = math.ceil(LEAST_BATCH * held) if held and held > 1 else None
        rolling = {} if batch is None else _rolling("COPY_COUNT", batch, change) | alarms
        await change.aws.call(
            "sagemaker",
            "UpdateInferenceComponent",
            InferenceComponentName=step.name,
            **({"DeploymentConfig": rolling} if rolling else {}),
            **{key: step.request[key]},
        )
        changes.append(f"component {step.name} runs {', '.join(_models(step.request))}")
        await _require_served(step, change)
    copies = step.request["RuntimeConfig"]["CopyCount"]
    # Autoscaling has chosen the copies, and moves them into its range where they are outside.
    if deployment.hosting.scaling is None and held != copies:
        await change.aws.call(
            "sagemaker",
            "UpdateInferenceComponentRuntimeConfig",
            InferenceComponentName=step.name,
            DesiredRuntimeConfig={"CopyCount": copies},
        )
        changes.append(f"component {step.name} has {copies} copies")
        await _require_served(step, change)
    return changes


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


async def _rolls(step: Step, aws: AwsClient) -> bool:
    existing = await describe(aws, "component", step.name)
    if existing is None:
        return False
    key = "Specifications" if "Specifications" in step.request else "Specification"
    return bool(difference(step.request[key], existing.get(key)))


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
