"""Looks at single things of SageMaker, each told in the same form."""

from __future__ import annotations

import json
from typing import Any

from servetune.deploy.aws.door import Aws
from servetune.deploy.aws.waiting import Seen
from servetune.deploy.names import STAGED

__all__ = ["GONE", "describe", "see_component", "see_endpoint", "staged_model"]

#: Endpoint and component states that end by themselves.
MOVING = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})
GONE = Seen(status="gone", moving=False)

_DESCRIBE = {
    "model": ("DescribeModel", "ModelName"),
    "endpoint-config": ("DescribeEndpointConfig", "EndpointConfigName"),
    "endpoint": ("DescribeEndpoint", "EndpointName"),
    "component": ("DescribeInferenceComponent", "InferenceComponentName"),
    "adapter": ("DescribeInferenceComponent", "InferenceComponentName"),
}


async def describe(aws: Aws, kind: str, name: str) -> dict[str, Any] | None:
    """What AWS says of a thing, `None` where it is not there."""
    operation, member = _DESCRIBE[kind]
    return await aws.ask_or_none("sagemaker", operation, **{member: name})


async def see_endpoint(aws: Aws, name: str) -> Seen:
    said = await describe(aws, "endpoint", name)
    if said is None:
        return GONE
    status = str(said["EndpointStatus"])
    instances = [
        f"{variant.get('CurrentInstanceCount', 0)} of {variant['DesiredInstanceCount']} instances"
        for variant in said.get("ProductionVariants", [])
        if variant.get("DesiredInstanceCount") != variant.get("CurrentInstanceCount")
    ]
    return Seen(
        status=status,
        moving=status in MOVING,
        reason=aws.scrubbed(str(said.get("FailureReason", ""))),
        detail=", ".join(instances),
    )


async def see_component(aws: Aws, name: str) -> Seen:
    said = await describe(aws, "component", name)
    if said is None:
        return GONE
    status = str(said.get("InferenceComponentStatus", "Creating"))
    copies = said.get("RuntimeConfig") or {}
    wanted, there = copies.get("DesiredCopyCount"), copies.get("CurrentCopyCount", 0)
    short = wanted is not None and status in MOVING and there != wanted
    return Seen(
        status=status,
        moving=status in MOVING,
        reason=aws.scrubbed(str(said.get("FailureReason", ""))),
        detail=f"{there} of {wanted} copies" if short else "",
    )


async def staged_model(uri: str, aws: Aws) -> tuple[str, str | None] | None:
    """Which model of which revision `servetune stage` left whole at a prefix, `None` for none.

    Args:
        uri: `s3://bucket/prefix/`.
        aws: The door.
    """
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    said = await aws.ask_or_none("s3", "GetObject", Bucket=bucket, Key=f"{prefix}{STAGED}")
    if said is None:
        return None
    try:
        held = json.loads(said["Body"].read())
        return str(held["model"]), held.get("revision")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
