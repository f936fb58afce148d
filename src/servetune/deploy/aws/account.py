"""Facts of an account: quota, instances in use, and prices of today."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable

from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.aws.resources import describe
from servetune.hardware.device import Price
from servetune.json_value import JsonObject

#: Endpoint states that hold instances, or will.
_HOLDING = ("Creating", "InService", "Updating", "SystemUpdating", "RollingBack")


#: Session names that tools make up, which differ from run to run of one person.
_MADE_UP_SESSION = re.compile(r"/(botocore-session-\d+|AWSCLI-Session|aws-go-sdk-\d+)$")


async def caller(aws: AwsClient) -> str:
    """Identity of whoever sends these requests, for the tag of an owner; empty where not known.

    The ARN of a user, or of a role with its session, whose name is the person's where a company
    logs in by single sign-on. AWS answers it without any permission.
    """
    try:
        answer = await aws.call("sts", "GetCallerIdentity")
    except AwsError:
        return ""
    return _MADE_UP_SESSION.sub("", str(answer.get("Arn", "")))


async def quotas(aws: AwsClient, instance_types: Iterable[str]) -> dict[str, int]:
    """Instances that may run for endpoints; a type is left out where AWS lists none."""
    names = {f"{name} for endpoint usage": name for name in instance_types}
    found: dict[str, int] = {}
    async for item in aws.pages(
        "service-quotas", "ListServiceQuotas", "Quotas", ServiceCode="sagemaker", MaxResults=100
    ):
        name = names.get(str(item.get("QuotaName")))
        if name is not None:
            found[name] = int(item["Value"])
    return found


async def in_use(aws: AwsClient, *, but: str = "") -> Counter[str]:
    """Instances by type that endpoints hold now, leaving one endpoint out.

    The list of endpoints has neither types nor counts, so each is described.
    """
    held: Counter[str] = Counter()
    async for item in aws.pages("sagemaker", "ListEndpoints", "Endpoints"):
        name = str(item["EndpointName"])
        if item["EndpointStatus"] not in _HOLDING or name == but:
            continue
        endpoint = await describe(aws, "endpoint", name)
        config = endpoint and await describe(
            aws, "endpoint-config", str(endpoint.get("EndpointConfigName"))
        )
        counts = {
            variant["VariantName"]: variant.get("DesiredInstanceCount")
            for variant in (endpoint or {}).get("ProductionVariants", [])
        }
        for variant in (config or {}).get("ProductionVariants", []):
            count = counts.get(variant["VariantName"]) or variant.get("InitialInstanceCount", 1)
            pools = variant.get("InstancePools") or [variant]
            # A pool holds quota of every type in its list.
            for pool in pools:
                held[str(pool.get("InstanceType"))] += int(count)
    return held


async def price_today(
    aws: AwsClient, instance_type: str, *, today: str, queued: bool = False
) -> Price | None:
    """Price of an instance type per hour of hosting in the client's region.

    `None` where the Price List has no such row: types that are sold by reservation alone.
    `queued` is for asynchronous endpoints, which have rows of their own.
    """
    filters = {"instanceName": instance_type, "regionCode": aws.region, "component": "Hosting"}
    async for item in aws.pages(
        "pricing",
        "GetProducts",
        "PriceList",
        ServiceCode="AmazonSageMaker",
        Filters=[
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in filters.items()
        ],
    ):
        usd = price_of_product(item, queued=queued)
        if usd is not None:
            return Price(
                usd_per_hour=usd, region=aws.region, source="AWS Price List, asked", date=today
            )
    return None


async def listed_prices(
    aws: AwsClient, instance_types: Iterable[str], *, today: str, queued: bool = False
) -> dict[str, Price]:
    """Prices of today by instance type, of those that the Price List has."""
    found = {}
    for name in instance_types:
        price = await price_today(aws, name, today=today, queued=queued)
        if price is not None:
            found[name] = price
    return found


def price_of_product(item: str | JsonObject, *, queued: bool = False) -> float | None:
    """USD per hour of one product row, `None` where it is no instance of such hosting.

    The same service lists training, processing and asynchronous hosting under the same
    instance name; only usage types with `Host:` are what a real-time endpoint pays, and those
    with `AsyncInf:` what an asynchronous one does.
    """
    product = json.loads(item) if isinstance(item, str) else item
    usage = str(product.get("product", {}).get("attributes", {}).get("usagetype", ""))
    wanted = "AsyncInf:" if queued else "Host:"
    if wanted not in usage or (not queued and "Async" in usage):
        return None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if usd > 0:
                return usd
    return None
