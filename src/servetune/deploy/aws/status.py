"""Status and logs of an endpoint, and orphans: what a crash or a forgotten endpoint left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.aws.resources import Resource, describe, resource_status, tagged_resources
from servetune.deploy.deployment import DELETE_AFTER_TAG, Deployment, alarm_name
from servetune.errors import DeployError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A resource and its state."""

    kind: str
    name: str
    status: str
    detail: str = ""

    @property
    def serves(self) -> bool:
        """Whether it is there and, where it has a state, in service."""
        return self.status in ("there", "InService")


class LogGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Log groups of an endpoint: its own, and one for each component."""

    endpoint: str
    components: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return (
            f"/aws/sagemaker/Endpoints/{self.endpoint}",
            *(f"/aws/sagemaker/InferenceComponents/{name}" for name in self.components),
        )


async def status(
    endpoint: str, aws: AwsClient, *, deployment: Deployment | None = None
) -> list[Row]:
    """Every resource of an endpoint, and those of its deployment that are not there."""
    tagged = {(resource.kind, resource.name) for resource in await tagged_resources(aws, endpoint)}
    planned = [
        ("component" if step.kind == "adapter" else step.kind, step.name)
        for step in (deployment.steps if deployment else ())
        if step.service == "sagemaker"
    ]
    rows = []
    for kind, name in dict.fromkeys([*planned, *sorted(tagged)]):
        found = await resource_status(aws, kind, name)
        detail = found.reason or found.detail
        rows.append(Row(kind=kind, name=name, status=found.status, detail=detail))
    return rows


async def logs(
    where: LogGroups, aws: AwsClient, *, limit: int = 200, containing: str | None = None
) -> list[str]:
    """The last lines of an endpoint's containers, without what looks like a credential.

    Raises:
        DeployError: No container has written anything yet.
    """
    lines: list[tuple[int, str]] = []
    any_group = False
    for group in where.groups:
        streams = await aws.call_or_none(
            "logs",
            "DescribeLogStreams",
            logGroupName=group,
            orderBy="LastEventTime",
            descending=True,
            limit=5,
        )
        if streams is None:
            continue
        any_group = True
        for stream in streams.get("logStreams", []):
            answer = await aws.call(
                "logs",
                "GetLogEvents",
                logGroupName=group,
                logStreamName=stream["logStreamName"],
                limit=min(limit, 10000),
                startFromHead=False,
            )
            lines += [
                (int(event["timestamp"]), aws.redacted_text(str(event["message"]).rstrip()))
                for event in answer.get("events", [])
            ]
    if not any_group:
        raise DeployError(
            f"no container of '{where.endpoint}' has written a log yet",
            hint="it has not started: see servetune deploy status",
        )
    chosen = [text for _, text in sorted(lines, key=lambda line: line[0])]
    return [text for text in chosen if containing is None or containing in text][-limit:]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of servetune that nothing uses.

    Attributes:
        resource: The resource; `thing` in JSON.
        reason: Reason for which it counts as unused.
        usd_per_hour: Cost, 0 for what is free, `None` where the price is not known.
    """

    resource: Resource = msgspec.field(name="thing")
    reason: str
    usd_per_hour: float | None = 0.0


async def orphans(
    aws: AwsClient, *, now: datetime, prices: Mapping[str, float | None]
) -> list[Orphan]:
    """Resources with servetune's tag that nothing uses, dearest first.

    An endpoint is one where its time is past, where it failed, or where it is made for
    components and has none; a component where its endpoint is gone or it failed; a
    configuration or model where no endpoint uses it; an alarm that would wake an endpoint
    that is gone.

    Args:
        aws: Client of the region.
        now: Present time, compared with the tag `servetune:delete-after`.
        prices: Price by instance type, in USD per hour.
    """
    resources = await tagged_resources(aws)
    endpoints = {resource.name: resource for resource in resources if resource.kind == "endpoint"}
    used: set[tuple[str, str]] = set()
    found = []
    for resource in endpoints.values():
        reason, per_hour = await _endpoint(aws, resource, resources, now, prices, used)
        if reason:
            found.append(Orphan(resource=resource, reason=reason, usd_per_hour=per_hour))
    for resource in resources:
        if resource.kind == "component":
            reason = "it failed" if resource.status == "Failed" else ""
            if resource.on not in endpoints and resource.status != "Deleting":
                reason = reason or f"its endpoint {resource.on} is not there"
            await _component_uses(aws, resource, used)
        elif resource.kind in ("endpoint-config", "model"):
            continue
        else:
            reason = ""
        if reason:
            found.append(Orphan(resource=resource, reason=reason))
    found += [
        Orphan(resource=resource, reason=f"nothing of endpoint {resource.endpoint} uses it")
        for resource in resources
        if resource.kind in ("endpoint-config", "model")
        and (resource.kind, resource.name) not in used
    ]
    found += await _alarms(aws, set(endpoints))
    return sorted(found, key=lambda orphan: -(orphan.usd_per_hour or 0.0))


async def _alarms(aws: AwsClient, endpoints: set[str]) -> list[Orphan]:
    """Alarms of endpoints that are not there, by their names; none where not permitted."""
    before, _, after = alarm_name("*").partition("*")
    found = []
    try:
        async for item in aws.pages(
            "cloudwatch", "DescribeAlarms", "MetricAlarms", AlarmNamePrefix=before
        ):
            name = str(item["AlarmName"])
            endpoint = name.removeprefix(before).removesuffix(after)
            if name == alarm_name(endpoint) and endpoint not in endpoints:
                resource = Resource(
                    kind="alarm", name=name, arn=str(item["AlarmArn"]), endpoint=endpoint
                )
                found.append(
                    Orphan(resource=resource, reason=f"its endpoint {endpoint} is not there")
                )
    except AwsError as error:
        if "AccessDenied" not in error.code:
            raise
    return found


async def _endpoint(
    aws: AwsClient,
    resource: Resource,
    resources: list[Resource],
    now: datetime,
    prices: Mapping[str, float | None],
    used: set[tuple[str, str]],
) -> tuple[str, float | None]:
    """Why an endpoint is an orphan, empty where it is none, and its cost; notes what it uses."""
    answer = await describe(aws, "endpoint", resource.name)
    if answer is None:
        return "", 0.0
    config_name = str(answer.get("EndpointConfigName", ""))
    used.add(("endpoint-config", config_name))
    config = await describe(aws, "endpoint-config", config_name) or {}
    variants = config.get("ProductionVariants", [])
    used.update(("model", str(variant.get("ModelName"))) for variant in variants)
    per_hour = _usd_per_hour(variants, answer.get("ProductionVariants", []), prices)
    after = resource.tags.get(DELETE_AFTER_TAG)
    status = str(answer["EndpointStatus"])
    if status == "Failed":
        return "it failed", 0.0
    if after and _time_of(after) is not None and now >= _time_of(after):  # type: ignore[operator]
        return f"it was meant to go at {after}", per_hour
    for_components = any("ModelName" not in variant for variant in variants)
    has_some = any(other.kind == "component" and other.on == resource.name for other in resources)
    if status == "InService" and for_components and not has_some:
        return "it is made for inference components and has none", per_hour
    return "", per_hour


async def _component_uses(aws: AwsClient, resource: Resource, used: set[tuple[str, str]]) -> None:
    answer = await describe(aws, "component", resource.name) or {}
    for each in answer.get("Specifications") or [answer.get("Specification") or {}]:
        if each.get("ModelName"):
            used.add(("model", str(each["ModelName"])))


def _usd_per_hour(
    variants: list[dict[str, object]],
    running: list[dict[str, object]],
    prices: Mapping[str, float | None],
) -> float | None:
    counts = {str(each.get("VariantName")): each.get("CurrentInstanceCount") for each in running}
    total = 0.0
    for variant in variants:
        pools = variant.get("InstancePools")
        first = pools[0] if isinstance(pools, list) and pools else variant
        price = prices.get(str(first.get("InstanceType")))
        if price is None:
            return None
        count = counts.get(str(variant.get("VariantName")), variant.get("InitialInstanceCount"))
        total += price * (count if isinstance(count, int) else 1)
    return total


def _time_of(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
