"""Quota: instances of a type that an account may run, and those that it runs already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.resources import describe

#: Endpoint states that hold instances, or will.
_HOLDING = ("Creating", "InService", "Updating", "SystemUpdating", "RollingBack")


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
