"""An endpoint that somebody else made, as AWS describes it, for the registry."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.hosted_container import Hosted, hosted, hosted_plan
from servetune.deploy.aws.orphans import usd_per_hour
from servetune.deploy.aws.resources import describe
from servetune.deploy.names import account_of
from servetune.errors import ServetuneError
from servetune.json_value import JsonObject
from servetune.plan.plan import Plan
from servetune.store.register import AdapterLink, DeployedConfig


class DescribedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint by its descriptions.

    Attributes:
        account: Number of its account.
        config: Configuration, as far as AWS tells it.
        container: Container of its base model; `None` where AWS tells none.
        instance_types: Instance types that it runs on, the preferred first.
    """

    account: str
    config: DeployedConfig
    container: Hosted | None
    instance_types: tuple[str, ...]


async def described(
    aws: AwsClient, endpoint: str, prices: Mapping[str, float | None]
) -> DescribedEndpoint | None:
    """An endpoint's container, instances, price and adapters; `None` where it is not there.

    Args:
        aws: AWS in the endpoint's region.
        endpoint: Name of the endpoint.
        prices: Prices of instances in dollars per hour, by type.

    Raises:
        AwsError: AWS refused.
        DeployError: There are no credentials.
    """
    answer = await describe(aws, "endpoint", endpoint)
    if answer is None:
        return None
    settings = await describe(aws, "endpoint-config", answer["EndpointConfigName"]) or {}
    variants: list[JsonObject] = settings.get("ProductionVariants", [])
    variant = next(iter(variants), {})
    pools = [pool["InstanceType"] for pool in variant.get("InstancePools", [])]
    types = tuple(pools or filter(None, [variant.get("InstanceType")]))
    bases, adapters = await _components(aws, endpoint)
    container = await hosted(aws, endpoint, bases[0] if bases else "")
    plan = _plan(container)
    running = answer.get("ProductionVariants", [])
    per_hour = usd_per_hour(variants, running, prices) if variants else None
    model = plan.model if plan else ""
    count = variant.get("InitialInstanceCount")
    return DescribedEndpoint(
        account=account_of(str(answer.get("EndpointArn", ""))),
        config=DeployedConfig(
            model=model,
            engine=plan.engine if plan else "",
            plan=plan.label if plan else "",
            machine=f"{count or ''}x {' or '.join(types)}" if types else "",
            images=(container.image,) if container else (),
            usd_per_hour=per_hour,
            price_source="catalogue" if per_hour is not None else "",
            adapters=tuple(msgspec.structs.replace(each, base=model) for each in adapters),
        ),
        container=container,
        instance_types=types,
    )


async def _components(aws: AwsClient, endpoint: str) -> tuple[list[str], list[AdapterLink]]:
    """Components with a model of their own, and those that are adapters of one."""
    bases, adapters = [], []
    async for item in aws.pages(
        "sagemaker",
        "ListInferenceComponents",
        "InferenceComponents",
        EndpointNameEquals=endpoint,
    ):
        name = str(item["InferenceComponentName"])
        answer = await describe(aws, "component", name) or {}
        several = answer.get("Specifications")
        given = several[0] if several else answer.get("Specification") or {}
        if given.get("BaseInferenceComponentName"):
            source = str((given.get("Container") or {}).get("ArtifactUrl") or "")
            adapters.append(AdapterLink(name=name, source=source, component=name))
        else:
            bases.append(name)
    return bases, adapters


def _plan(container: Hosted | None) -> Plan | None:
    """The Plan of a container; `None` where it is in no table of ours or cannot be read."""
    try:
        return hosted_plan(container) if container else None
    except ServetuneError:
        return None
