"""What of ours exists: found by tags and names, without any file of ours.

Names of models and configurations end with eight hex digits of what they hold, which
spares most of an account's other resources the question for their tags.
"""

from __future__ import annotations

import re

import msgspec

from servetune.deploy.aws.door import Aws
from servetune.deploy.deployment import TAG
from servetune.deploy.names import name_stem

__all__ = ["Thing", "owned"]

_HELD = re.compile(r".+-[0-9a-f]{8}")

#: kind -> (operation, list in the answer, name, ARN, status)
_LISTS = {
    "endpoint": ("ListEndpoints", "Endpoints", "EndpointName", "EndpointArn", "EndpointStatus"),
    "component": (
        "ListInferenceComponents",
        "InferenceComponents",
        "InferenceComponentName",
        "InferenceComponentArn",
        "InferenceComponentStatus",
    ),
    "endpoint-config": (
        "ListEndpointConfigs",
        "EndpointConfigs",
        "EndpointConfigName",
        "EndpointConfigArn",
        "",
    ),
    "model": ("ListModels", "Models", "ModelName", "ModelArn", ""),
}


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of ours.

    Attributes:
        kind: `endpoint`, `component` (adapters too), `endpoint-config`, `model`, or `alarm`, which
            is found by its name.
        name: As AWS knows it.
        arn: Likewise.
        endpoint: Whose it is, by its tag.
        status: Where the kind has one.
        tags: All of them.
        on: The endpoint that a component is really on.
    """

    kind: str
    name: str
    arn: str
    endpoint: str
    status: str = ""
    tags: dict[str, str] = {}
    on: str = ""


async def owned(aws: Aws, endpoint: str | None = None) -> list[Thing]:
    """Everything that bears our tag, of one endpoint or of all; endpoints first."""
    things = []
    for kind, (operation, key, name_key, arn_key, status_key) in _LISTS.items():
        narrowed = {"NameContains": name_stem(endpoint)} if endpoint else {}
        async for item in aws.pages("sagemaker", operation, key, **narrowed):
            name = str(item[name_key])
            if kind in ("model", "endpoint-config") and not _HELD.fullmatch(name):
                continue
            tags = await tags_of(aws, str(item[arn_key]))
            whose = tags.get(TAG)
            if whose is None or (endpoint is not None and whose != endpoint):
                continue
            things.append(
                Thing(
                    kind=kind,
                    name=name,
                    arn=str(item[arn_key]),
                    endpoint=whose,
                    status=str(item.get(status_key, "")),
                    tags=tags,
                    on=str(item.get("EndpointName", "")) if kind == "component" else "",
                )
            )
    return things


async def tags_of(aws: Aws, arn: str) -> dict[str, str]:
    """A resource's tags; none for one that went meanwhile."""
    answer = await aws.ask_or_none("sagemaker", "ListTags", ResourceArn=arn)
    return {tag["Key"]: tag["Value"] for tag in (answer or {}).get("Tags", [])}
