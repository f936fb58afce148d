"""IAM: whether a policy allows a request, by its actions and by the resources that it names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from doubles.control import ACCOUNT, KINDS, Refusal

#: Service of botocore -> prefix of its actions, where they differ.
PREFIXES = {"service-quotas": "servicequotas"}
#: Operations whose action has another name.
ACTIONS = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket", "HeadBucket": "ListBucket"}


def may(policy: dict[str, Any], service: str, operation: str, request: Any) -> None:
    """Raise unless a statement allows it; of a listing or an unknown resource the action counts."""
    action = f"{PREFIXES.get(service, service)}:{ACTIONS.get(operation, operation)}"
    resource = _resource(service, operation, request)
    for statement in policy["Statement"]:
        fits = resource is None or any(
            fnmatchcase(resource, each) for each in statement["Resource"]
        )
        if action in statement["Action"] and fits:
            return
    raise Refusal("AccessDeniedException", f"User is not authorized to perform {action}")


def _resource(service: str, operation: str, request: Any) -> str | None:
    if service == "s3":
        bucket, _, key = request.partition("?")[0].strip("/").partition("/")
        return f"arn:aws:s3:::{bucket}{f'/{key}' if key else ''}"
    if service == "sagemaker":
        for kind, (member, word) in KINDS.items():
            noun = operation.removeprefix("Create").removeprefix("Describe").removeprefix("Delete")
            if noun == kind and member in request:
                return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{word}/{request[member].lower()}"
    if operation in ("PutMetricAlarm", "DeleteAlarms"):
        names = request.get("AlarmNames") or [request["AlarmName"]]
        return f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{names[0]}"
    return None
