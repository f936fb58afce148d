"""Update: an endpoint that serves goes over to other settings, a piece at a time.

The new model and configuration are made beside the old; then instances (or copies) are
exchanged in batches, and only when all serve do the old ones go. Where the new ones fail,
SageMaker rolls back and the old ones stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servetune.deploy.aws.apply import apply, failure, patience_of
from servetune.deploy.aws.door import Aws, Refused, is_missing
from servetune.deploy.aws.looking import describe, see_component, see_endpoint
from servetune.deploy.aws.owned import owned
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.teardown import trimmed
from servetune.deploy.aws.waiting import Patience, until_rest
from servetune.deploy.deployment import Deployment, Step
from servetune.errors import DeployError

__all__ = ["update"]

Tell = Callable[[str], None]

#: SageMaker's own bound on one batch, and on all of them.
WAIT_BETWEEN_S = 60
MOST_S = 28800


async def update(
    deployment: Deployment,
    aws: Aws,
    *,
    state: StateFile,
    tell: Tell,
    now: str = "",
    patience: Patience | None = None,
    secrets: dict[str, str] | None = None,
) -> list[str]:
    """Roll an endpoint over to a deployment, and take away what it no longer needs.

    Returns:
        What was changed, a line each; empty where all was so already.

    Raises:
        DeployError: There is no such endpoint, it changed its kind, or SageMaker rolled back.
    """
    patience = patience or patience_of(deployment)
    name = deployment.endpoint
    said = await describe(aws, "endpoint", name)
    if said is None:
        raise DeployError(f"there is no endpoint '{name}' to update", hint="make it with --apply")
    look = lambda: see_endpoint(aws, name)  # noqa: E731
    await until_rest(f"endpoint {name}", look, aws.clock, patience, tell)
    await _check_kind(deployment, said, aws)
    state.begin(name, deployment.region, now)
    await _make_beside(deployment.of_kind("model", "endpoint-config"), aws, state, tell, secrets)
    done = []
    if await _roll_endpoint(deployment, str(said["EndpointConfigName"]), aws, tell, patience):
        done.append(f"endpoint {name} runs {deployment.only('endpoint-config').name}")
    for step in deployment.of_kind("component"):
        done += await _roll_component(step, aws, tell, patience)
    for step in deployment.of_kind("adapter"):
        done += await _roll_adapter(step, aws, tell, patience)
    done += await trimmed(deployment, aws, state=state, tell=tell, patience=patience)
    # Adapters and scaling that were not there yet.
    await apply(
        deployment, aws, state=state, tell=tell, now=now, patience=patience, secrets=secrets
    )
    done += await _sweep(deployment, aws, state)
    return done


async def _check_kind(deployment: Deployment, said: dict[str, Any], aws: Aws) -> None:
    """An endpoint of components cannot become one of models, nor the reverse."""
    config = await describe(aws, "endpoint-config", str(said["EndpointConfigName"]))
    variants = (config or {}).get("ProductionVariants", [])
    has_components = bool(variants) and "ModelName" not in variants[0]
    if variants and has_components != (deployment.hosting.copies is not None):
        raise DeployError(
            f"endpoint '{deployment.endpoint}' is made "
            f"{'of inference components' if has_components else 'without inference components'}, "
            "which an update cannot change",
            hint="deploy under another --endpoint-name, move the traffic, and delete the old one",
        )


async def _make_beside(
    steps: tuple[Step, ...],
    aws: Aws,
    state: StateFile,
    tell: Tell,
    secrets: dict[str, str] | None,
) -> None:
    for step in steps:
        if await describe(aws, step.kind, step.name) is not None:
            continue
        request = step.request
        if step.kind == "model" and secrets:
            container = request["PrimaryContainer"]
            environment = {**container["Environment"], **secrets}
            request = {**request, "PrimaryContainer": {**container, "Environment": environment}}
        state.asked(step.kind, step.name)
        await aws.ask(step.service, step.operation, **request)
        state.there(step.kind, step.name)
        tell(f"made {step.kind} {step.name}")


async def _roll_endpoint(
    deployment: Deployment, running: str, aws: Aws, tell: Tell, patience: Patience
) -> bool:
    wanted = deployment.only("endpoint-config").name
    if running == wanted:
        return False
    name = deployment.endpoint
    request: dict[str, Any] = {"EndpointName": name, "EndpointConfigName": wanted}
    if deployment.hosting.copies is None:
        request["DeploymentConfig"] = {
            "RollingUpdatePolicy": {
                "MaximumBatchSize": {
                    "Type": "INSTANCE_COUNT",
                    "Value": max(1, deployment.hosting.instance_count // 2),
                },
                "WaitIntervalInSeconds": WAIT_BETWEEN_S,
                "MaximumExecutionTimeoutInSeconds": _most_s(patience),
            }
        }
    await aws.ask("sagemaker", "UpdateEndpoint", **request)
    seen = await until_rest(
        f"endpoint {name}", lambda: see_endpoint(aws, name), aws.clock, patience, tell
    )
    said = await describe(aws, "endpoint", name) or {}
    if seen.status != "InService":
        raise failure(f"endpoint {name}", seen)
    if said.get("EndpointConfigName") != wanted:
        raise DeployError(
            f"endpoint {name} was rolled back to {said.get('EndpointConfigName')}: "
            f"{seen.reason or 'AWS gives no reason'}",
            hint="the old settings serve on; read servetune deploy logs",
        )
    return True


async def _roll_component(step: Step, aws: Aws, tell: Tell, patience: Patience) -> list[str]:
    said = await describe(aws, "component", step.name)
    if said is None:
        return []
    done = []
    key = "Specifications" if "Specifications" in step.request else "Specification"
    if _models(said) != _models(step.request):
        await aws.ask(
            "sagemaker",
            "UpdateInferenceComponent",
            InferenceComponentName=step.name,
            DeploymentConfig={
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": WAIT_BETWEEN_S,
                    "MaximumExecutionTimeoutInSeconds": _most_s(patience),
                }
            },
            **{key: step.request[key]},
        )
        done.append(f"component {step.name} runs {', '.join(_models(step.request))}")
        await _serving(step, aws, tell, patience)
    copies = step.request["RuntimeConfig"]["CopyCount"]
    if (said.get("RuntimeConfig") or {}).get("DesiredCopyCount") != copies:
        await aws.ask(
            "sagemaker",
            "UpdateInferenceComponentRuntimeConfig",
            InferenceComponentName=step.name,
            DesiredRuntimeConfig={"CopyCount": copies},
        )
        done.append(f"component {step.name} has {copies} copies")
        await _serving(step, aws, tell, patience)
    return done


async def _roll_adapter(step: Step, aws: Aws, tell: Tell, patience: Patience) -> list[str]:
    """An adapter of the same name whose files are others now."""
    said = await describe(aws, "adapter", step.name)
    wanted = step.request["Specification"]
    if said is None or _artifact(said.get("Specification")) in ("", _artifact(wanted)):
        return []
    await aws.ask(
        "sagemaker",
        "UpdateInferenceComponent",
        InferenceComponentName=step.name,
        Specification=wanted,
    )
    await _serving(step, aws, tell, patience)
    return [f"adapter {step.name} is {_artifact(wanted)}"]


def _artifact(specification: dict[str, Any] | None) -> str:
    return str(((specification or {}).get("Container") or {}).get("ArtifactUrl", ""))


async def _serving(step: Step, aws: Aws, tell: Tell, patience: Patience) -> None:
    seen = await until_rest(
        f"component {step.name}",
        lambda: see_component(aws, step.name),
        aws.clock,
        patience,
        tell,
    )
    if seen.status != "InService" or seen.reason:
        raise failure(f"component {step.name}", seen)


def _models(component: dict[str, Any]) -> list[str]:
    many = component.get("Specifications") or [component.get("Specification") or {}]
    return [str(each.get("ModelName", "")) for each in many]


async def _sweep(deployment: Deployment, aws: Aws, state: StateFile) -> list[str]:
    """Old configurations and models of this endpoint go, now that nothing runs them."""
    kept = {step.name for step in deployment.steps}
    done = []
    for thing in await owned(aws, deployment.endpoint):
        if thing.kind not in ("endpoint-config", "model") or thing.name in kept:
            continue
        operation, member = {
            "endpoint-config": ("DeleteEndpointConfig", "EndpointConfigName"),
            "model": ("DeleteModel", "ModelName"),
        }[thing.kind]
        try:
            await aws.ask("sagemaker", operation, **{member: thing.name})
        except Refused as error:
            if not is_missing(error):
                raise
        state.gone(thing.kind, thing.name)
        done.append(f"deleted {thing.kind} {thing.name}")
    return done


def _most_s(patience: Patience) -> int:
    return int(min(MOST_S, max(600.0, patience.timeout_s)))
