"""What an endpoint runs, as AWS holds it: the image and the variables its container was given.

Some containers say little of their settings when they start: LMI logs none of vLLM's arguments
(djl-serving's `vllm_async_service`, read in November 2026). What they were told stands in the
model, though, and what they were not told is the container's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from servetune.deploy.aws.door import Aws
from servetune.deploy.aws.looking import describe
from servetune.deploy.containers import CONTAINERS, LMI_MAX_NUM_SEQS, parse_environment
from servetune.plan.plan import Plan

__all__ = ["Hosted", "hosted", "hosted_plan"]


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A container of an endpoint.

    Attributes:
        since_s: When the endpoint or component was created, in seconds since 1970; what was
            logged before is of an earlier one of that name.
    """

    image: str
    environment: Mapping[str, str]
    since_s: float | None = None


async def hosted(aws: Aws, endpoint: str, component: str = "") -> Hosted | None:
    """The container behind an endpoint, or a component on it; `None` where it cannot be found.

    An adapter's is that of the component below it.
    """
    if component:
        said = await describe(aws, "component", component)
        if said is None:
            return None
        given = _specification(said)
        base = given.get("BaseInferenceComponentName")
        if base:
            return await hosted(aws, endpoint, base)
        own = given.get("Container") or {}
        if "Environment" in own and "ModelName" not in given:
            image = own.get("Image") or own.get("DeployedImage", {}).get("SpecifiedImage", "")
            return _container({"Image": image, **own}, said)
        return await _of_model(aws, given.get("ModelName"), said)
    said = await describe(aws, "endpoint", endpoint)
    config = said and await describe(aws, "endpoint-config", said["EndpointConfigName"])
    if not said or not config:
        return None
    return await _of_model(aws, config["ProductionVariants"][0].get("ModelName"), said)


def hosted_plan(found: Hosted) -> Plan | None:
    """The Plan that a container's variables say; `None` for a container that we do not know.

    A setting that LMI fills by itself, other than vLLM would, is filled here too.

    Raises:
        DeployError: The variables cannot be read.
    """
    for container in CONTAINERS.values():
        # "djl-inference:0.36.." or "..amazonaws.com/vllm:0.27.."
        if found.image.rpartition("/")[2].partition(":")[0] == container.repository:
            plan = parse_environment(container.name, found.environment)
            if container.name == "lmi" and plan.max_num_seqs is None:
                plan = msgspec.structs.replace(plan, max_num_seqs=LMI_MAX_NUM_SEQS)
            return plan
    return None


async def _of_model(aws: Aws, name: str | None, about: Mapping[str, Any]) -> Hosted | None:
    said = await describe(aws, "model", name) if name else None
    if said is None:
        return None
    containers = said.get("Containers") or [said.get("PrimaryContainer") or {}]
    return _container(containers[0], about)


def _container(said: Mapping[str, Any], about: Mapping[str, Any]) -> Hosted:
    created = about.get("CreationTime")
    return Hosted(
        image=str(said.get("Image", "")),
        environment=dict(said.get("Environment") or {}),
        since_s=created.timestamp() if created is not None else None,
    )


def _specification(said: Mapping[str, Any]) -> Mapping[str, Any]:
    several = said.get("Specifications")
    first: Mapping[str, Any] = several[0] if several else said.get("Specification") or {}
    return first
