"""Status and logs: what stands for an endpoint, and what its containers say."""

from __future__ import annotations

import msgspec

from servetune.deploy.aws.door import Aws
from servetune.deploy.aws.looking import describe, see_component, see_endpoint
from servetune.deploy.aws.owned import owned
from servetune.deploy.aws.waiting import Seen
from servetune.deploy.deployment import Deployment
from servetune.errors import DeployError

__all__ = ["Logs", "Row", "logs", "status"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing and how it is."""

    kind: str
    name: str
    status: str
    detail: str = ""

    @property
    def serves(self) -> bool:
        """Whether it is there and, where it has a state, in service."""
        return self.status in ("there", "InService")


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """Where containers write: one group per endpoint, one per component."""

    endpoint: str
    components: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return (
            f"/aws/sagemaker/Endpoints/{self.endpoint}",
            *(f"/aws/sagemaker/InferenceComponents/{name}" for name in self.components),
        )


async def status(endpoint: str, aws: Aws, *, deployment: Deployment | None = None) -> list[Row]:
    """Every thing of an endpoint; what a deployment means to be there and is not, too."""
    found = {(thing.kind, thing.name) for thing in await owned(aws, endpoint)}
    meant = [
        ("component" if step.kind == "adapter" else step.kind, step.name)
        for step in (deployment.steps if deployment else ())
        if step.service == "sagemaker"
    ]
    rows = []
    for kind, name in dict.fromkeys([*meant, *sorted(found)]):
        seen = await _seen(aws, kind, name)
        detail = seen.reason or seen.detail
        rows.append(Row(kind=kind, name=name, status=seen.status, detail=detail))
    return rows


async def _seen(aws: Aws, kind: str, name: str) -> Seen:
    if kind == "endpoint":
        return await see_endpoint(aws, name)
    if kind == "component":
        return await see_component(aws, name)
    there = await describe(aws, kind, name) is not None
    return Seen(status="there" if there else "gone", moving=False)


async def logs(
    where: Logs, aws: Aws, *, limit: int = 200, containing: str | None = None
) -> list[str]:
    """The last lines of an endpoint's containers, without what looks like a credential.

    Raises:
        DeployError: No container has written anything yet.
    """
    lines: list[tuple[int, str]] = []
    any_group = False
    for group in where.groups:
        streams = await aws.ask_or_none(
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
            answer = await aws.ask(
                "logs",
                "GetLogEvents",
                logGroupName=group,
                logStreamName=stream["logStreamName"],
                limit=min(limit, 10000),
                startFromHead=False,
            )
            lines += [
                (int(event["timestamp"]), aws.scrubbed(str(event["message"]).rstrip()))
                for event in answer.get("events", [])
            ]
    if not any_group:
        raise DeployError(
            f"no container of '{where.endpoint}' has written a log yet",
            hint="it has not started: see servetune deploy status",
        )
    chosen = [text for _, text in sorted(lines, key=lambda line: line[0])]
    return [text for text in chosen if containing is None or containing in text][-limit:]
