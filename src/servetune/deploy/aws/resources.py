"""Resources of SageMaker: their descriptions, their states, and those that servetune tagged.

Names of models and configurations end with eight hex digits of what they hold, which
spares most of an account's other resources the question for their tags.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError, is_denied, is_missing
from servetune.deploy.aws.state import StateFile
from servetune.deploy.aws.waiting import OnProgress, ResourceStatus, WaitOptions, wait_until_stable
from servetune.deploy.deployment import TAG
from servetune.deploy.names import STAGED, name_stem
from servetune.json_value import JsonObject

#: Called with the refusal of a request that the caller may not send.
OnDenied = Callable[[AwsError], None]

#: Endpoint and component states that end by themselves.
CHANGING_STATES = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})

#: Kind of resource: (operation that describes it, member with its name).
_DESCRIPTIONS = {
    "model": ("DescribeModel", "ModelName"),
    "endpoint-config": ("DescribeEndpointConfig", "EndpointConfigName"),
    "endpoint": ("DescribeEndpoint", "EndpointName"),
    "component": ("DescribeInferenceComponent", "InferenceComponentName"),
    "adapter": ("DescribeInferenceComponent", "InferenceComponentName"),
}

#: Kind of resource: (operation that deletes it, member with its name).
DELETIONS = {
    kind: (operation.replace("Describe", "Delete"), member)
    for kind, (operation, member) in _DESCRIPTIONS.items()
}

_WITH_DIGEST = re.compile(r".+-[0-9a-f]{8}")

#: Kind of resource: (operation that lists it, list in the answer).
_LISTS = {
    "endpoint": ("ListEndpoints", "Endpoints"),
    "component": ("ListInferenceComponents", "InferenceComponents"),
    "endpoint-config": ("ListEndpointConfigs", "EndpointConfigs"),
    "model": ("ListModels", "Models"),
}


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource that servetune made.

    Attributes:
        kind: `endpoint`, `component` (adapters too), `endpoint-config`, `model`, or `alarm`, which
            is found by its name.
        name: Name in AWS.
        arn: ARN in AWS.
        endpoint: Endpoint that it belongs to, by its tag.
        status: State, where the kind has one.
        tags: All tags.
        on: Endpoint that a component is really on.
        created: Time at which it was made, where a listing told it.
    """

    kind: str
    name: str
    arn: str
    endpoint: str
    status: str = ""
    tags: dict[str, str] = {}
    on: str = ""
    created: dt.datetime | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Clients, state and progress of one command that changes an endpoint.

    Attributes:
        aws: Client of the endpoint's region.
        state: File that notes what was begun.
        on_progress: Called with each line of progress.
        wait: Interval and limit of waiting for busy resources.
    """

    aws: AwsClient
    state: StateFile
    on_progress: OnProgress
    wait: WaitOptions = WaitOptions(timeout_s=5400.0)

    def waiting(self, timeout_s: float) -> Change:
        """The same that waits at least so long, unless the user chose how long."""
        if self.wait.chosen or self.wait.timeout_s >= timeout_s:
            return self
        wait = msgspec.structs.replace(self.wait, timeout_s=timeout_s)
        return msgspec.structs.replace(self, wait=wait)

    def excuse(self, error: AwsError, what: str) -> None:
        """Tell what a missing permission keeps from being done; raise any other error again."""
        if not is_denied(error):
            raise error
        self.on_progress(f"{what}: {error.message}")

    async def visible(self, kind: str, name: str) -> ResourceStatus:
        """The settled status of an endpoint or component that was made a moment ago.

        Raises:
            DeployError: It still changes when waiting ends.
        """
        begin_s = self.aws.clock.now_s()
        while True:
            status = await self.settled(kind, name)
            if status.status != "gone" or self.aws.clock.now_s() - begin_s >= LAG_S:
                return status
            await self.aws.clock.sleep(2.0)

    async def settled(self, kind: str, name: str) -> ResourceStatus:
        """The status of an endpoint or component once it does not change by itself any more.

        Raises:
            DeployError: It still changes when waiting ends.
        """
        return await wait_until_stable(
            f"{kind} {name}",
            lambda: resource_status(self.aws, kind, name),
            self.aws.clock,
            self.wait,
            self.on_progress,
        )


#: Seconds in which a resource may not be seen yet that was made before: SageMaker reads its tables
#: with eventual consistency, and recommends to ask again (CreateEndpoint, API reference).
LAG_S = 60.0


async def call_once_visible(
    aws: AwsClient, service: str, operation: str, request: JsonObject
) -> JsonObject:
    """The answer of a request that rests on resources which were made a moment ago.

    Raises:
        AwsError: AWS refused, or does not find what it rests on after `LAG_S`.
    """
    begin_s = aws.clock.now_s()
    while True:
        try:
            return await aws.call(service, operation, **request)
        except AwsError as error:
            if not is_missing(error) or aws.clock.now_s() - begin_s >= LAG_S:
                raise
        await aws.clock.sleep(2.0)


async def describe(aws: AwsClient, kind: str, name: str) -> JsonObject | None:
    """The description of a resource, `None` where it is not there."""
    operation, member = _DESCRIPTIONS[kind]
    return await aws.call_or_none("sagemaker", operation, **{member: name})


def specifications(component: JsonObject) -> list[JsonObject]:
    """The specifications of a component, one for each instance type or one for all."""
    return component.get("Specifications") or [component.get("Specification") or {}]


async def resource_status(aws: AwsClient, kind: str, name: str) -> ResourceStatus:
    """The state of a resource; `there` for kinds without states, `gone` where it is not."""
    answer = await describe(aws, kind, name)
    if answer is None:
        return ResourceStatus(status="gone", changing=False)
    if kind not in ("endpoint", "component", "adapter"):
        return ResourceStatus(status="there", changing=False)
    if kind == "endpoint":
        status, detail = str(answer["EndpointStatus"]), _instances(answer)
    else:
        status = str(answer.get("InferenceComponentStatus", "Creating"))
        detail = _copies(answer) if status in CHANGING_STATES else ""
    return ResourceStatus(
        status=status,
        changing=status in CHANGING_STATES,
        reason=aws.redacted_text(str(answer.get("FailureReason", ""))),
        detail=detail,
    )


def _instances(endpoint: JsonObject) -> str:
    """Running and desired instances, where they differ."""
    return ", ".join(
        f"{variant.get('CurrentInstanceCount', 0)} of {variant['DesiredInstanceCount']} instances"
        for variant in endpoint.get("ProductionVariants", [])
        if variant.get("DesiredInstanceCount") != variant.get("CurrentInstanceCount")
    )


def _copies(component: JsonObject) -> str:
    """Running and desired copies, where they differ."""
    copies = component.get("RuntimeConfig") or {}
    desired, running = copies.get("DesiredCopyCount"), copies.get("CurrentCopyCount", 0)
    return f"{running} of {desired} copies" if desired not in (None, running) else ""


async def staged_model(uri: str, aws: AwsClient) -> tuple[str, str | None] | None:
    """Model and revision that `servetune stage` left whole at a prefix, `None` for none.

    Args:
        uri: `s3://bucket/prefix/`.
        aws: Client of the bucket's region.
    """
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    answer = await aws.call_or_none("s3", "GetObject", Bucket=bucket, Key=f"{prefix}{STAGED}")
    if answer is None:
        return None
    try:
        manifest = json.loads(answer["Body"].read())
        return str(manifest["model"]), manifest.get("revision")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def tagged_resources(
    aws: AwsClient, endpoint: str | None = None, *, on_denied: OnDenied | None = None
) -> list[Resource]:
    """Everything that bears servetune's tag, of one endpoint or of all; endpoints first.

    Args:
        aws: Client of the region.
        endpoint: Name of the endpoint; `None` for all.
        on_denied: Called with each request that the caller may not send, whose answer is left
            out; without it that is an error.
    """
    resources = []
    for kind in _LISTS:
        narrowed = {"NameContains": name_stem(endpoint)} if endpoint else {}
        for item in await listed(aws, kind, narrowed, on_denied=on_denied):
            stem = _DESCRIPTIONS[kind][1].removesuffix("Name")
            name, arn = str(item[f"{stem}Name"]), str(item[f"{stem}Arn"])
            if kind in ("model", "endpoint-config") and not with_digest(name):
                continue
            tags = await _tags(aws, arn, on_denied)
            owner = tags.get(TAG)
            if owner is None or (endpoint is not None and owner != endpoint):
                continue
            resources.append(
                Resource(
                    kind=kind,
                    name=name,
                    arn=arn,
                    endpoint=owner,
                    status=str(item.get(f"{stem}Status", "")),
                    tags=tags,
                    on=str(item.get("EndpointName", "")) if kind == "component" else "",
                    created=item.get("CreationTime"),
                )
            )
    return resources


async def listed(
    aws: AwsClient, kind: str, narrowed: dict[str, str], *, on_denied: OnDenied | None = None
) -> list[JsonObject]:
    """Items of a kind's listing, over all pages; none where that is denied."""
    operation, key = _LISTS[kind]
    try:
        return [item async for item in aws.pages("sagemaker", operation, key, **narrowed)]
    except AwsError as error:
        if on_denied is None or not is_denied(error):
            raise
        on_denied(error)
        return []


def with_digest(name: str) -> bool:
    """Whether a name is formed as those of our models and configurations are."""
    return _WITH_DIGEST.fullmatch(name) is not None


async def _tags(aws: AwsClient, arn: str, on_denied: OnDenied | None) -> dict[str, str]:
    """A resource's tags; none for one that went meanwhile, or where they may not be read."""
    try:
        answer = await aws.call_or_none("sagemaker", "ListTags", ResourceArn=arn)
    except AwsError as error:
        if on_denied is None or not is_denied(error):
            raise
        on_denied(error)
        return {}
    return {tag["Key"]: tag["Value"] for tag in (answer or {}).get("Tags", [])}
