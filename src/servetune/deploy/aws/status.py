"""Status and logs of an endpoint."""

from __future__ import annotations

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.drift import Drift, drift
from servetune.deploy.aws.resources import resource_status, tagged_resources
from servetune.deploy.aws.state import State
from servetune.deploy.deployment import Deployment
from servetune.errors import DeployError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A resource and its state.

    Attributes:
        kind: Kind of the resource.
        name: Name of the resource.
        status: State in AWS's words; `there` for kinds without states, `gone` or `hidden`.
        detail: Progress, or the reason of a failure.
        drift: Differences from its bundle, a line each.
    """

    kind: str
    name: str
    status: str
    detail: str = ""
    drift: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """Whether it is as its bundle says and, where it has a state, in service."""
        return self.status in ("there", "InService", "hidden") and not self.drift


class LogGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Log groups of an endpoint: its own, and one for each component."""

    endpoint: str
    components: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return (
            f"/aws/sagemaker/Endpoints/{self.endpoint}",
            *(f"/aws/sagemaker/InferenceComponents/{name}" for name in self.components),
        )


async def status(
    endpoint: str,
    aws: AwsClient,
    *,
    deployment: Deployment | None = None,
    state: State | None = None,
) -> list[Row]:
    """Every resource of an endpoint, and what is not there or otherwise than its deployment.

    Args:
        endpoint: Name of the endpoint.
        aws: Client of its region.
        deployment: Resources that should stand; `None` where there is only a name.
        state: State of its bundle, which tells of autoscaling that an update took off.
    """
    tagged = {(resource.kind, resource.name) for resource in await tagged_resources(aws, endpoint)}
    planned = [
        ("component" if step.kind == "adapter" else step.kind, step.name)
        for step in (deployment.steps if deployment else ())
        if step.service == "sagemaker"
    ]
    drifted: dict[tuple[str, str], list[Drift]] = {}
    for each in await drift(deployment, aws) if deployment else ():
        drifted.setdefault((each.kind, each.name), []).append(each)
    for scaled in state.taken_off if state else ():
        message = "was taken off by an update that did not end"
        drifted.setdefault(("scalable-target", scaled.resource), []).append(
            Drift(kind="scalable-target", name=scaled.resource, message=message, gone=True)
        )
    rows = []
    for kind, name in dict.fromkeys([*planned, *sorted(tagged)]):
        found = await resource_status(aws, kind, name)
        differences = tuple(each.message for each in drifted.pop((kind, name), ()))
        detail = found.reason or found.detail
        rows.append(
            Row(kind=kind, name=name, status=found.status, detail=detail, drift=differences)
        )
    if deployment and any(row.kind == "endpoint" and row.status != "gone" for row in rows):
        unseen = {each.kind for several in drifted.values() for each in several if each.hidden}
        rows += [
            Row(kind=step.kind, name=step.name, status="there")
            for step in deployment.steps
            if step.service != "sagemaker"
            and (step.kind, step.name) not in drifted
            and ("alarm" if step.kind == "alarm" else "scaling") not in unseen
        ]
    for (kind, name), several in drifted.items():
        hidden, gone = several[0].hidden, several[0].gone
        texts = tuple(each.message for each in several)
        rows.append(
            Row(
                kind=kind,
                name=name,
                status="hidden" if hidden else "gone" if gone else "there",
                detail=texts[0] if hidden else "",
                drift=() if hidden else texts,
            )
        )
    return rows


async def logs(
    where: LogGroups, aws: AwsClient, *, limit: int = 200, containing: str | None = None
) -> list[str]:
    """The last lines of an endpoint's containers, without what looks like a credential.

    Raises:
        DeployError: No container has written anything yet.
    """
    lines: list[tuple[int, str]] = []
    any_group = False
    for group in where.groups:
        streams = await aws.call_or_none(
            "logs",
            "DescribeLogStreams",
            logGroupName=group,
            orderBy="LastEventTime",
            descending=True,
            limit=5,
        )
        if streams is None:
            continue
        any_group = True
        for stream in streams.get("logStreams", []):
            answer = await aws.call(
                "logs",
                "GetLogEvents",
                logGroupName=group,
                logStreamName=stream["logStreamName"],
                limit=min(limit, 10000),
                startFromHead=False,
            )
            lines += [
                (int(event["timestamp"]), aws.redacted_text(str(event["message"]).rstrip()))
                for event in answer.get("events", [])
            ]
    if not any_group:
        raise DeployError(
            f"no container of '{where.endpoint}' has written a log yet",
            hint="it has not started: see servetune deploy status",
        )
    chosen = [text for _, text in sorted(lines, key=lambda line: line[0])]
    return [text for text in chosen if containing is None or containing in text][-limit:]
