"""Update: an endpoint that serves is rolled over to other settings, a batch at a time.

The new model and configuration are made beside the old; then instances (or copies) are
exchanged in batches, and only when all serve are the old ones deleted. Where the new ones
fail, SageMaker rolls back and the old ones stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.deploy.aws.apply import apply, failure, make
from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.orphans import usd_per_hour
from servetune.deploy.aws.resources import Change, describe, specifications, tagged_resources
from servetune.deploy.aws.teardown import delete_settled, remove_unused
from servetune.deploy.deployment import Deployment, Step
from servetune.errors import DeployError
from servetune.json_value import JsonObject

#: Seconds between two batches, and SageMaker's bound on all of them.
BATCH_INTERVAL_S = 60
MAX_ROLLOUT_S = 28800


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
    deployment: Deployment, change: Change, *, now: str = "", secrets: dict[str, str] | None = None
) -> list[str]:
    """Roll an endpoint over to a deployment, and delete what it no longer needs.

    Returns:
        Changes, a line each; empty where the endpoint was so already.

    Raises:
        DeployError: There is no such endpoint, it changed its kind, or SageMaker rolled back.
    """
    name, aws, state = deployment.endpoint, change.aws, change.state
    running = await describe(aws, "endpoint", name)
    if running is None:
        raise DeployError(f"there is no endpoint '{name}' to update", hint="make it with --apply")
    await change.settled("endpoint", name)
    running_config = str(running["EndpointConfigName"])
    await _require_same_kind(deployment, running_config, aws)
    state.begin(name, deployment.region, now)
    for step in deployment.of_kind("model", "endpoint-config"):
        if await describe(aws, step.kind, step.name) is None:
            await make(step, change, secrets)
            state.created(step.kind, step.name)
    changes = await _roll_endpoint(deployment, running_config, change)
    for step in deployment.of_kind("component"):
        changes += await _roll_component(step, change)
    for step in deployment.of_kind("adapter"):
        changes += await _roll_adapter(step, change)
    changes += await remove_unused(deployment, change)
    # Adapters and scaling that were not there yet.
    await apply(deployment, change, now=now, secrets=secrets)
    changes += await _delete_old(deployment, change)
    return changes


async def _require_same_kind(deployment: Deployment, running_config: str, aws: AwsClient) -> None:
    """An endpoint of components cannot become one of models, nor the reverse."""
    config = await describe(aws, "endpoint-config", running_config)
    variants = (config or {}).get("ProductionVariants", [])
    has_components = bool(variants) and "ModelName" not in variants[0]
    if variants and has_components != (deployment.hosting.copies is not None):
        raise DeployError(
            f"endpoint '{deployment.endpoint}' is made "
            f"{'of inference components' if has_components else 'without inference components'}, "
            "which an update cannot change",
            hint="deploy under another --endpoint-name, move the traffic, and delete the old one",
        )


def _rolling(kind: str, batch: int, change: Change) -> JsonObject:
    """The policy that exchanges so many instances or copies at a time."""
    return {
        "RollingUpdatePolicy": {
            "MaximumBatchSize": {"Type": kind, "Value": batch},
            "WaitIntervalInSeconds": BATCH_INTERVAL_S,
            "MaximumExecutionTimeoutInSeconds": int(
                min(MAX_ROLLOUT_S, max(600.0, change.wait.timeout_s))
            ),
        }
    }


async def _roll_endpoint(deployment: Deployment, running_config: str, change: Change) -> list[str]:
    name, config = deployment.endpoint, deployment.only("endpoint-config").name
    if running_config == config:
        return []
    request: JsonObject = {"EndpointName": name, "EndpointConfigName": config}
    if deployment.hosting.copies is None:
        batch = max(1, deployment.hosting.instance_count // 2)
        request["DeploymentConfig"] = _rolling("INSTANCE_COUNT", batch, change)
    await change.aws.call("sagemaker", "UpdateEndpoint", **request)
    status = await change.settled("endpoint", name)
    if status.status != "InService":
        raise failure(f"endpoint {name}", status)
    answer = await describe(change.aws, "endpoint", name) or {}
    if answer.get("EndpointConfigName") != config:
        raise DeployError(
            f"endpoint {name} was rolled back to {answer.get('EndpointConfigName')}: "
            f"{status.reason or 'AWS gives no reason'}",
            hint="the old settings serve on; read servetune deploy logs",
        )
    return [f"endpoint {name} runs {config}"]


async def _roll_component(step: Step, change: Change) -> list[str]:
    existing = await describe(change.aws, "component", step.name)
    if existing is None:
        return []
    changes = []
    key = "Specifications" if "Specifications" in step.request else "Specification"
    models = _models(step.request)
    if _models(existing) != models:
        await change.aws.call(
            "sagemaker",
            "UpdateInferenceComponent",
            InferenceComponentName=step.name,
            DeploymentConfig=_rolling("COPY_COUNT", 1, change),
            **{key: step.request[key]},
        )
        changes.append(f"component {step.name} runs {', '.join(models)}")
        await _require_served(step, change)
    copies = step.request["RuntimeConfig"]["CopyCount"]
    if (existing.get("RuntimeConfig") or {}).get("DesiredCopyCount") != copies:
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
