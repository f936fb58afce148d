"""Orphans: what a crash, a lost terminal or a forgotten evening left in the account."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from servetune.deploy.aws.door import Aws, Refused
from servetune.deploy.aws.looking import describe
from servetune.deploy.aws.owned import Thing, owned
from servetune.deploy.deployment import DELETE_AFTER_TAG, alarm_name

__all__ = ["Orphan", "orphans"]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A thing of ours that nobody seems to want.

    Attributes:
        thing: It.
        reason: Why it is taken for one.
        usd_per_hour: What it costs, 0 for what is free, `None` where the price is not known.
    """

    thing: Thing
    reason: str
    usd_per_hour: float | None = 0.0


async def orphans(aws: Aws, *, now: datetime, prices: Mapping[str, float | None]) -> list[Orphan]:
    """What bears our tag and serves no purpose, dearest first.

    An endpoint is one where its time is past, where it failed, or where it is made for
    components and has none; a component where its endpoint is gone or it failed; a
    configuration or model where no endpoint uses it; an alarm that would wake an endpoint
    that is gone.

    Args:
        aws: The door.
        now: Against which the tag `servetune:delete-after` is held.
        prices: USD per hour of an instance type.
    """
    things = await owned(aws)
    endpoints = {thing.name: thing for thing in things if thing.kind == "endpoint"}
    used: set[tuple[str, str]] = set()
    found = []
    for thing in endpoints.values():
        reason, per_hour = await _endpoint(aws, thing, things, now, prices, used)
        if reason:
            found.append(Orphan(thing=thing, reason=reason, usd_per_hour=per_hour))
    for thing in things:
        if thing.kind == "component":
            reason = "it failed" if thing.status == "Failed" else ""
            if thing.on not in endpoints and thing.status != "Deleting":
                reason = reason or f"its endpoint {thing.on} is not there"
            await _component_uses(aws, thing, used)
        elif thing.kind in ("endpoint-config", "model"):
            continue
        else:
            reason = ""
        if reason:
            found.append(Orphan(thing=thing, reason=reason))
    found += [
        Orphan(thing=thing, reason=f"nothing of endpoint {thing.endpoint} uses it")
        for thing in things
        if thing.kind in ("endpoint-config", "model") and (thing.kind, thing.name) not in used
    ]
    found += await _alarms(aws, set(endpoints))
    return sorted(found, key=lambda orphan: -(orphan.usd_per_hour or 0.0))


async def _alarms(aws: Aws, endpoints: set[str]) -> list[Orphan]:
    """Alarms named as ours of endpoints that are not there; none where one may not ask."""
    before, _, after = alarm_name("*").partition("*")
    found = []
    try:
        async for item in aws.pages(
            "cloudwatch", "DescribeAlarms", "MetricAlarms", AlarmNamePrefix=before
        ):
            name = str(item["AlarmName"])
            endpoint = name.removeprefix(before).removesuffix(after)
            if name == alarm_name(endpoint) and endpoint not in endpoints:
                thing = Thing(kind="alarm", name=name, arn=str(item["AlarmArn"]), endpoint=endpoint)
                found.append(Orphan(thing=thing, reason=f"its endpoint {endpoint} is not there"))
    except Refused as error:
        if "AccessDenied" not in error.code:
            raise
    return found


async def _endpoint(
    aws: Aws,
    thing: Thing,
    things: list[Thing],
    now: datetime,
    prices: Mapping[str, float | None],
    used: set[tuple[str, str]],
) -> tuple[str, float | None]:
    """Why an endpoint is an orphan, empty where it is none, and its cost; notes what it uses."""
    said = await describe(aws, "endpoint", thing.name)
    if said is None:
        return "", 0.0
    config_name = str(said.get("EndpointConfigName", ""))
    used.add(("endpoint-config", config_name))
    config = await describe(aws, "endpoint-config", config_name) or {}
    variants = config.get("ProductionVariants", [])
    used.update(("model", str(variant.get("ModelName"))) for variant in variants)
    per_hour = _usd_per_hour(variants, said.get("ProductionVariants", []), prices)
    after = thing.tags.get(DELETE_AFTER_TAG)
    status = str(said["EndpointStatus"])
    if status == "Failed":
        return "it failed", 0.0
    if after and _moment(after) is not None and now >= _moment(after):  # type: ignore[operator]
        return f"it was meant to go at {after}", per_hour
    for_components = any("ModelName" not in variant for variant in variants)
    has_some = any(other.kind == "component" and other.on == thing.name for other in things)
    if status == "InService" and for_components and not has_some:
        return "it is made for inference components and has none", per_hour
    return "", per_hour


async def _component_uses(aws: Aws, thing: Thing, used: set[tuple[str, str]]) -> None:
    said = await describe(aws, "component", thing.name) or {}
    for each in said.get("Specifications") or [said.get("Specification") or {}]:
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


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
