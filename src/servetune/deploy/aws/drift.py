"""Drift: what stands otherwise than its bundle says, because somebody changed it since.

A member of the bundle's request that AWS describes must have the same value there. What AWS adds
or does not describe is no drift, nor a count that autoscaling chose within its range.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError, is_denied
from servetune.deploy.aws.resources import describe, listed
from servetune.deploy.aws.scaling import own_policies
from servetune.deploy.deployment import Deployment, Step, from_zero_policy
from servetune.json_value import JsonObject

#: State of a scalable target that nothing suspends.
RESUMED = dict.fromkeys(
    ("DynamicScalingInSuspended", "DynamicScalingOutSuspended", "ScheduledScalingSuspended"), False
)

#: Members of requests that no description has, or that have a rule of their own.
_NOT_DESCRIBED = frozenset({"Tags", "RuntimeConfig", "AlarmActions"})


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between a bundle and what stands.

    Attributes:
        kind: Kind of the resource.
        name: Name of the resource.
        message: Difference in one line.
        gone: Whether the resource is not there, so that making it is all that mends it.
        hidden: Whether it may not be looked at, so that nothing is known.
        others: Whether somebody else made it, so that it is left as it is.
        suspended: Whether it is autoscaling that was suspended.
    """

    kind: str
    name: str
    message: str
    gone: bool = False
    hidden: bool = False
    others: bool = False
    suspended: bool = False


async def drift(deployment: Deployment, aws: AwsClient) -> list[Drift]:
    """Differences between a deployment and what stands; none where its endpoint is not there.

    Resources of SageMaker that are gone are left out: their status says so.
    """
    endpoint = await describe(aws, "endpoint", deployment.endpoint)
    if endpoint is None:
        return []
    found = _of_endpoint(deployment, endpoint)
    for step in deployment.of_kind("model", "endpoint-config", "component", "adapter"):
        existing = await describe(aws, step.kind, step.name)
        if existing is not None:
            found += _of_resource(step, existing, deployment)
    if deployment.hosting.copies is not None:
        found += await _strange_components(deployment, aws)
    for look in (_scaling, _alarms):
        try:
            found += await look(deployment, aws)
        except AwsError as error:
            if not is_denied(error):
                raise
            kind = "alarm" if look is _alarms else "scaling"
            name = deployment.endpoint
            found.append(Drift(kind=kind, name=name, message=error.message, hidden=True))
    return found


def difference(request: object, answer: object, place: str = "") -> str:
    """The first member of a request that a description has otherwise; empty for none.

    Example:
        >>> difference({"Min": 1, "Max": 4}, {"Min": 1, "Max": 8, "Arn": "x"})
        'Max is 8 instead of 4'
    """
    return next(differences(request, answer, place), "")


def differences(request: object, answer: object, place: str = "") -> Iterator[str]:
    """All members of a request that a description has otherwise, a line each."""
    if isinstance(request, dict) and isinstance(answer, dict):
        for name, value in request.items():
            if name not in _NOT_DESCRIBED:
                yield from differences(value, answer.get(name), f"{place}.{name}")
    elif isinstance(request, list | tuple) and isinstance(answer, list | tuple):
        if len(request) != len(answer):
            yield f"{place.lstrip('.')} has {len(answer)} members instead of {len(request)}"
            return
        for own, there in zip(request, answer, strict=True):
            yield from differences(own, there, place)
    elif answer is not None and request != answer:
        yield f"{place.lstrip('.')} is {answer} instead of {request}"


def _of_endpoint(deployment: Deployment, endpoint: JsonObject) -> list[Drift]:
    name, config = deployment.endpoint, deployment.only("endpoint-config").name
    running = endpoint.get("EndpointConfigName")
    texts = []
    if running != config:
        texts.append(f"runs configuration {running} instead of {config}")
    hosting = deployment.hosting
    for variant in endpoint.get("ProductionVariants", []):
        count = variant.get("DesiredInstanceCount")
        if count is None or hosting.copies is not None:
            continue  # SageMaker adds and takes instances of components, in the bundle's range
        if hosting.scaling is None and count != hosting.instance_count:
            texts.append(f"has {count} instances instead of {hosting.instance_count}")
        elif hosting.scaling and not hosting.scaling.minimum <= count <= hosting.scaling.maximum:
            range_ = f"{hosting.scaling.minimum} to {hosting.scaling.maximum}"
            texts.append(f"has {count} instances instead of {range_}")
    return [Drift(kind="endpoint", name=name, message=text) for text in texts]


def _of_resource(step: Step, existing: JsonObject, deployment: Deployment) -> list[Drift]:
    texts = [*differences(step.request, existing)]
    if step.kind == "component" and deployment.hosting.scaling is None:
        wanted = step.request["RuntimeConfig"]["CopyCount"]
        held = (existing.get("RuntimeConfig") or {}).get("DesiredCopyCount", wanted)
        texts.append("" if held == wanted else f"has {held} copies instead of {wanted}")
    kind = "component" if step.kind == "adapter" else step.kind
    return [Drift(kind=kind, name=step.name, message=text) for text in texts if text]


async def _strange_components(deployment: Deployment, aws: AwsClient) -> list[Drift]:
    own = {step.name for step in deployment.of_kind("component", "adapter")}
    on_it = {"EndpointNameEquals": deployment.endpoint}
    names = [
        str(item["InferenceComponentName"])
        for item in await listed(aws, "component", on_it, on_denied=lambda _: None)
    ]
    return [
        Drift(
            kind="component",
            name=name,
            message="is on the endpoint and not in the bundle",
            others=True,
        )
        for name in names
        if name not in own
    ]


async def _scaling(deployment: Deployment, aws: AwsClient) -> list[Drift]:
    """Targets and policies that are gone, otherwise, suspended, or not in the bundle."""
    service, of = "application-autoscaling", {"ServiceNamespace": "sagemaker"}
    resource = deployment.scaled["ResourceId"]
    answer = await aws.call(service, "DescribeScalableTargets", ResourceIds=[resource], **of)
    targets = {str(each["ResourceId"]): each for each in answer.get("ScalableTargets", [])}
    answer = await aws.call(service, "DescribeScalingPolicies", ResourceId=resource, **of)
    policies = {str(each["PolicyName"]): each for each in answer.get("ScalingPolicies", [])}
    steps = deployment.of_kind("scalable-target", "scaling-policy")
    found = []
    for step in steps:
        existing = (targets if step.kind == "scalable-target" else policies).get(step.name)
        texts = ["is not there"] if existing is None else differences(step.request, existing)
        gone = existing is None
        found += [Drift(kind=step.kind, name=step.name, message=text, gone=gone) for text in texts]
        off = [name for name, value in (existing or {}).get("SuspendedState", {}).items() if value]
        found += [
            Drift(kind=step.kind, name=step.name, message=f"{name} is true", suspended=True)
            for name in off
        ]
    known = {step.name for step in steps}
    ours = own_policies(deployment.endpoint)
    target_is_ours = any(name in ours for name in policies)
    for kind, names in (("scalable-target", targets), ("scaling-policy", policies)):
        for name in names:
            own = name in ours if kind == "scaling-policy" else target_is_ours
            by = "" if own else ", made by somebody else"
            text = f"is there and not in the bundle{by}"
            if name not in known:
                found.append(Drift(kind=kind, name=name, message=text, others=not own))
    return found


async def _alarms(deployment: Deployment, aws: AwsClient) -> list[Drift]:
    """Alarms that are gone, otherwise or disabled, or that do not call the policy that there is."""
    steps = deployment.of_kind("alarm")
    if not steps:
        return []
    answer = await aws.call("cloudwatch", "DescribeAlarms", AlarmNames=[s.name for s in steps])
    there = {str(alarm["AlarmName"]): alarm for alarm in answer.get("MetricAlarms", [])}
    found = []
    for step in steps:
        existing = there.get(step.name)
        texts = ["is not there"]
        if existing is not None:
            texts = [*differences(step.request, existing)]
            policy = from_zero_policy(deployment.endpoint)
            if not any(policy in str(action) for action in existing.get("AlarmActions", [])):
                texts.append(f"does not call {policy}")
            if not existing.get("ActionsEnabled", True):
                texts.append("has its actions disabled, so that it wakes nobody")
        gone = existing is None
        found += [Drift(kind="alarm", name=step.name, message=text, gone=gone) for text in texts]
    return found
