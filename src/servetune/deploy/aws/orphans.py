"""Orphans: what was asked to end and still stands, and what a crash left that nothing uses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from servetune.deploy.alarms import ALARM_KINDS, ALARM_PREFIX, alarm_name
from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.aws.resources import Resource, describe, specifications, tagged_resources
from servetune.deploy.deployment import DELETE_AFTER_TAG, OWNER_TAG
from servetune.json_value import JsonObject

#: Age from which a model or configuration without an endpoint counts: a younger one may be of an
#: endpoint that is being made now.
LEAST_AGE = timedelta(minutes=15)

#: Endpoint states in which requests are not answered, so that deleting it interrupts nobody.
_NOT_SERVING = frozenset({"Failed", "OutOfService", "Deleting"})


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of servetune that was asked to end, or that nothing uses.

    Attributes:
        resource: The resource; `thing` in JSON.
        reason: Reason for which it counts as an orphan.
        usd_per_hour: Cost, 0 for what is free, `None` where the price is not known.
        in_service: Whether it may answer requests; it is then deleted only by its name.
        own: Whether the identity that asks made it.
        deleted: Whether it was deleted.
    """

    resource: Resource = msgspec.field(name="thing")
    reason: str
    usd_per_hour: float | None = 0.0
    in_service: bool = False
    own: bool = False
    deleted: bool = False

    @property
    def owner(self) -> str:
        """Identity that made it; empty where its tags do not tell."""
        return self.resource.tags.get(OWNER_TAG, "")


class _Uses(msgspec.Struct, kw_only=True):
    """What the endpoints and components of a region use, whoever made them.

    Attributes:
        used: Kind and name of configurations and models that something uses.
        with_components: Endpoints that have a component.
        endpoints: Names of all endpoints.
    """

    used: set[tuple[str, str]] = msgspec.field(default_factory=set)
    with_components: set[str] = msgspec.field(default_factory=set)
    endpoints: set[str] = msgspec.field(default_factory=set)


async def orphans(
    aws: AwsClient, *, now: datetime, prices: Mapping[str, float | None], owner: str = ""
) -> list[Orphan]:
    """Resources with servetune's tag that were asked to end or that nothing uses.

    An endpoint is one where the time is past that its user gave (`--hours`), where it failed, or
    where it is made for components and has none; a component where its endpoint is gone or it
    failed; a configuration or model older than `LEAST_AGE` where no endpoint uses it, also none
    that servetune did not make; an alarm of an endpoint that is gone.

    Args:
        aws: Client of the region.
        now: Present time, compared with the tag `servetune:delete-after`.
        prices: Price by instance type, in USD per hour.
        owner: Identity that asks; what it made comes first.

    Returns:
        Its own, then all others, each with the dearest first.
    """
    resources = await tagged_resources(aws)
    uses = await _uses(aws)
    found = []
    for resource in resources:
        if resource.kind == "endpoint":
            found += await _endpoint(aws, resource, uses, now, prices)
        elif resource.kind == "component":
            reason = "it failed" if resource.status == "Failed" else ""
            if resource.on not in uses.endpoints and resource.status != "Deleting":
                reason = reason or f"its endpoint {resource.on} is not there"
            found += [Orphan(resource=resource, reason=reason)] if reason else []
        elif (resource.kind, resource.name) not in uses.used and _is_old(resource, now):
            reason = f"nothing of endpoint {resource.endpoint} uses it"
            found.append(Orphan(resource=resource, reason=reason))
    found += await _alarms(aws, uses.endpoints)
    own = [
        msgspec.structs.replace(orphan, own=bool(owner) and orphan.owner == owner)
        for orphan in found
    ]
    return sorted(own, key=lambda orphan: (not orphan.own, -(orphan.usd_per_hour or 0.0)))


def _is_old(resource: Resource, now: datetime) -> bool:
    return resource.created is None or now - resource.created >= LEAST_AGE


async def _uses(aws: AwsClient) -> _Uses:
    """Configurations and models in use; all endpoints count, since anyone may serve our model."""
    uses = _Uses()
    async for item in aws.pages("sagemaker", "ListEndpoints", "Endpoints"):
        name = str(item["EndpointName"])
        uses.endpoints.add(name)
        answer = await describe(aws, "endpoint", name) or {}
        config = str(answer.get("EndpointConfigName", ""))
        uses.used.add(("endpoint-config", config))
        about = (config and await describe(aws, "endpoint-config", config)) or {}
        for variant in about.get("ProductionVariants", []):
            uses.used.add(("model", str(variant.get("ModelName"))))
    async for item in aws.pages("sagemaker", "ListInferenceComponents", "InferenceComponents"):
        uses.with_components.add(str(item["EndpointName"]))
        about = await describe(aws, "component", str(item["InferenceComponentName"])) or {}
        for each in specifications(about):
            uses.used.add(("model", str(each.get("ModelName"))))
    return uses


async def _alarms(aws: AwsClient, endpoints: set[str]) -> list[Orphan]:
    """Alarms of endpoints that are not there, by their names; none where not permitted."""
    found = []
    try:
        async for item in aws.pages(
            "cloudwatch", "DescribeAlarms", "MetricAlarms", AlarmNamePrefix=ALARM_PREFIX
        ):
            name = str(item["AlarmName"])
            for kind in ALARM_KINDS:
                endpoint = name.removeprefix(ALARM_PREFIX).removesuffix(f"-{kind}")
                if name == alarm_name(endpoint, kind) and endpoint not in endpoints:
                    found.append(await _alarm(aws, name, str(item["AlarmArn"]), endpoint))
    except AwsError as error:
        if "AccessDenied" not in error.code:
            raise
    return found


async def _alarm(aws: AwsClient, name: str, arn: str, endpoint: str) -> Orphan:
    answer = await aws.call_or_none("cloudwatch", "ListTagsForResource", ResourceARN=arn) or {}
    tags = {tag["Key"]: tag["Value"] for tag in answer.get("Tags", [])}
    resource = Resource(kind="alarm", name=name, arn=arn, endpoint=endpoint, tags=tags)
    return Orphan(resource=resource, reason=f"its endpoint {endpoint} is not there")


async def _endpoint(
    aws: AwsClient,
    resource: Resource,
    uses: _Uses,
    now: datetime,
    prices: Mapping[str, float | None],
) -> list[Orphan]:
    """The endpoint as an orphan; empty where it is none."""
    answer = await describe(aws, "endpoint", resource.name)
    if answer is None:
        return []
    config = await describe(aws, "endpoint-config", str(answer.get("EndpointConfigName", ""))) or {}
    variants = config.get("ProductionVariants", [])
    status = str(answer["EndpointStatus"])
    after = resource.tags.get(DELETE_AFTER_TAG)
    ends = _time_of(after) if after else None
    reason = ""
    if status == "Failed":
        reason = "it failed"
    elif ends is not None and now >= ends:
        reason = f"it was asked to end at {after}"
    elif (
        status == "InService"
        and any("ModelName" not in variant for variant in variants)
        and resource.name not in uses.with_components
    ):
        reason = "it is made for inference components and has none"
    if not reason:
        return []
    per_hour = usd_per_hour(variants, answer.get("ProductionVariants", []), prices)
    return [
        Orphan(
            resource=resource,
            reason=reason,
            usd_per_hour=0.0 if status == "Failed" else per_hour,
            in_service=status not in _NOT_SERVING,
        )
    ]


def usd_per_hour(
    variants: list[JsonObject], running: list[JsonObject], prices: Mapping[str, float | None]
) -> float | None:
    """Price of an endpoint's instances on demand, `None` where a type has none.

    Args:
        variants: Variants of its configuration.
        running: The same as its description has them, with the instances that run.
        prices: Price by instance type, in USD per hour.
    """
    counts = {str(each.get("VariantName")): each.get("CurrentInstanceCount") for each in running}
    total = 0.0
    for variant in variants:
        if variant.get("CapacityReservationConfig"):
            continue  # the reservation pays
        first = (variant.get("InstancePools") or [variant])[0]
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
