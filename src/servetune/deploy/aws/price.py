"""Prices of AWS's Price List today."""

from __future__ import annotations

import json
from typing import Any

from servetune.deploy.aws.client import AwsClient
from servetune.hardware.device import Price


async def price_today(aws: AwsClient, instance_type: str, *, today: str) -> Price | None:
    """Price of an instance type per hour of hosting in the client's region.

    `None` where the Price List has no such row: types that are sold by reservation alone.
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
        usd = price_of_product(item)
        if usd is not None:
            return Price(
                usd_per_hour=usd, region=aws.region, source="AWS Price List, asked", date=today
            )
    return None


def price_of_product(item: str | dict[str, Any]) -> float | None:
    """USD per hour of one product row, `None` where it is no instance of real-time hosting.

    The same service lists training, processing and asynchronous hosting under the same
    instance name; only usage types with `Host:` are what an endpoint pays.
    """
    product = json.loads(item) if isinstance(item, str) else item
    usage = str(product.get("product", {}).get("attributes", {}).get("usagetype", ""))
    if "Host:" not in usage or "Async" in usage:
        return None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if usd > 0:
                return usd
    return None
