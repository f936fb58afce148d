"""Container of an endpoint as AWS describes it: its image and its variables.

Some containers log little of their settings when they start: LMI logs none of its engine's
arguments (djl-serving, read in November 2026). The description of the model has them, and a setting
that it lacks is the container's default.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.resources import describe
from servetune.deploy.containers import CONTAINERS, parse_environment
from servetune.json_value import JsonMembers
from servetune.plan.plan import Plan


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A container of an endpoint.

    Attributes:
        image: Address of its image.
        environment: Variables of the container.
        since_s: Time of the endpoint's or component's creation, in seconds since 1970; earlier
            lines of the log are of an earlier one of that name.
    """

    image: str
    environment: Mapping[str, str]
    since_s: float | None = None


async def hosted(aws: AwsClient, endpoint: str, component: str = "") -> Hosted | None:
    """The container behind an endpoint, or a component on it; `None` where it cannot be found.

    That of an adapter is that of the component below it.
    """
    if component:
        answer = await describe(aws, "component", component)
        if answer is None:
            return None
        given = _specification(answer)
        base = given.get("BaseInferenceComponentName")
        if base:
            return await hosted(aws, endpoint, base)
        own = given.get("Container") or {}
        if "Environment" in own and "ModelName" not in given:
            image = own.get("Image") or own.get("DeployedImage", {}).get("SpecifiedImage", "")
            return _container({"Image": image, **own}, answer)
        return await _of_model(aws, given.get("ModelName"), answer)
    answer = await describe(aws, "endpoint", endpoint)
    config = answer and await describe(aws, "endpoint-config", answer["EndpointConfigName"])
    if not answer or not config:
        return None
    return await _of_model(aws, config["ProductionVariants"][0].get("ModelName"), answer)


def hosted_plan(found: Hosted) -> Plan | None:
    """The Plan of a container's variables; `None` for a container in no table of ours.

    A setting that LMI fills by itself, other than the engine would, is filled here too.

    Raises:
        DeployError: The variables cannot be read.
    """
    for container in CONTAINERS.values():
        # "djl-inference:0.36.." or "..amazonaws.com/NAME:0.27.."
        if found.image.rpartition("/")[2].partition(":")[0] == container.repository:
            plan = parse_environment(container.name, found.environment)
            if plan.max_num_seqs is None:
                plan = msgspec.structs.replace(plan, max_num_seqs=container.usual_max_num_seqs)
            return plan
    return None


async def _of_model(aws: AwsClient, name: str | None, about: JsonMembers) -> Hosted | None:
    answer = await describe(aws, "model", name) if name else None
    if answer is None:
        return None
    containers = answer.get("Containers") or [answer.get("PrimaryContainer") or {}]
    return _container(containers[0], about)


def _container(answer: JsonMembers, about: JsonMembers) -> Hosted:
    created = about.get("CreationTime")
    return Hosted(
        image=str(answer.get("Image", "")),
        environment=dict(answer.get("Environment") or {}),
        since_s=created.timestamp() if created is not None else None,
    )


def _specification(answer: JsonMembers) -> JsonMembers:
    several = answer.get("Specifications")
    first: JsonMembers = several[0] if several else answer.get("Specification") or {}
    return first
