"""IAM: whether a policy allows a request, by its actions, the resources that it names, conditions.

An action on several resources needs each of them: CreateEndpoint and UpdateEndpoint are checked on
the endpoint and on its configuration (Service Authorization Reference, "Actions, resources, and
condition keys for Amazon SageMaker"; aws/aws-cdk issue 11594 and aws-controllers-k8s/community
issue 1889 have the refusals). Whoever names an execution role passes it, which is an action of IAM
on the role (IAM user guide, "Grant a user permissions to pass a role to an AWS service").
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from doubles.control import ACCOUNT, KINDS, Refusal

#: Service of botocore -> prefix of its actions, where they differ.
PREFIXES = {"service-quotas": "servicequotas"}
#: Operations whose action has another name.
ACTIONS = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket", "HeadBucket": "ListBucket"}
_ON_CONFIGURATION = ("CreateEndpoint", "UpdateEndpoint")


def may(policy: dict[str, Any], service: str, operation: str, request: Any) -> None:
    """Raise unless statements allow it; of a listing or an unknown resource the action counts."""
    action = f"{PREFIXES.get(service, service)}:{ACTIONS.get(operation, operation)}"
    for resource in list(_resources(service, operation, request)) or [None]:
        _require(policy, action, resource, {})
    if service == "sagemaker" and "ExecutionRoleArn" in request:
        passed = {"iam:PassedToService": "sagemaker.amazonaws.com"}
        _require(policy, "iam:PassRole", request["ExecutionRoleArn"], passed)


def _require(
    policy: dict[str, Any], action: str, resource: str | None, facts: dict[str, str]
) -> None:
    for statement in policy["Statement"]:
        wanted = statement.get("Condition", {}).get("StringEquals", {})
        fits = resource is None or any(
            fnmatchcase(resource, each) for each in statement["Resource"]
        )
        if action in statement["Action"] and fits and wanted.items() <= facts.items():
            return
    on = f" on resource: {resource}" if resource else ""
    raise Refusal("AccessDeniedException", f"User is not authorized to perform {action}{on}")


def _resources(service: str, operation: str, request: Any) -> Iterator[str]:
    """ARNs that a request names; SageMaker's are in lower case, whatever the name."""
    if service == "s3":
        bucket, _, key = request.partition("?")[0].strip("/").partition("/")
        yield f"arn:aws:s3:::{bucket}{f'/{key}' if key else ''}"
    elif service == "sagemaker":
        noun = operation
        for verb in ("Create", "Describe", "Delete", "Update"):
            noun = noun.removeprefix(verb)
        kinds = [noun, "EndpointConfig"] if operation in _ON_CONFIGURATION else [noun]
        for member, word in (KINDS[kind] for kind in kinds if kind in KINDS):
            if member in request:
                yield f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{word}/{request[member].lower()}"
    elif service == "secretsmanager":
        yield request["SecretId"]
    elif operation in ("PutMetricAlarm", "DeleteAlarms"):
        for name in request.get("AlarmNames") or [request["AlarmName"]]:
            yield f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{name}"
