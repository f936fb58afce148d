"""Names and ARNs that AWS accepts, checked before anything is looked up or sent.

Patterns are those of botocore 1.44.5's service model, which boto3 itself does not check.
"""

from __future__ import annotations

import hashlib
import re

from servetune.deploy.images import regions
from servetune.errors import CannotRender, InputError, UnknownName

#: Manifest beside a model in S3, written last: the model's original id, and that all of it is
#: there (`servetune stage`).
STAGED = "servetune-stage.json"

#: Characters of EndpointName and its like.
NAME_LIMIT = 63
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_ROLE = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_SECRET = re.compile(r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9\-]+:\d{12}:secret:\S+")


def resource_name(text: str) -> str:
    """A name that SageMaker accepts, made from any text; equal texts give equal names.

    Names hold letters, digits and single dashes, at most 63 of them. What is longer is
    cut, and told apart by six hex digits of what it was.
    """
    name = re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-") or "endpoint"
    if len(name) <= NAME_LIMIT:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{name[: NAME_LIMIT - 7].rstrip('-')}-{digest}"


def digest_name(endpoint: str, digest: str) -> str:
    """Name of an endpoint's model or configuration: the endpoint's, and eight hex digits."""
    return f"{name_stem(endpoint)}-{digest[:8]}"


def name_stem(endpoint: str) -> str:
    """Part of an endpoint's name that the names of its models and configurations begin with."""
    return endpoint[: NAME_LIMIT - 9].rstrip("-")


def require_region(region: str) -> str:
    """The region, where the registry of AWS's containers has an account for it.

    Raises:
        UnknownName: It has none.
    """
    if region not in regions():
        raise UnknownName("AWS region", region, regions())
    return region


def require_name(name: str) -> str:
    """The name, where SageMaker accepts it for an endpoint.

    Raises:
        CannotRender: It does not.
    """
    if not _NAME.fullmatch(name):
        raise CannotRender(
            f"'{name}' ({len(name)} characters) is not a name that SageMaker takes",
            hint=f"at most {NAME_LIMIT} letters, digits and dashes: {resource_name(name)}",
        )
    return name


def require_role(role_arn: str) -> str:
    """The ARN, where it is that of a role.

    Raises:
        CannotRender: It is not.
    """
    if not _ROLE.fullmatch(role_arn):
        raise CannotRender(
            f"'{role_arn}' is not the ARN of a role",
            hint="it looks like arn:aws:iam::123456789012:role/SageMakerExecution",
        )
    return role_arn


def account_of(arn: str) -> str:
    """Number of the account in an ARN; empty where it has none."""
    account = (arn.split(":", 5) + [""] * 5)[4]
    return account if account.isdigit() else ""


def require_secret(secret_arn: str, *, option: str = "--hf-token-secret") -> str:
    """The ARN, where it is that of a secret in Secrets Manager; a token is not repeated.

    Raises:
        InputError: It is something else, a token above all.
    """
    if not _SECRET.fullmatch(secret_arn):
        raise InputError(
            f"{option} takes the ARN of a secret, not a token",
            hint="it looks like arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf",
        )
    return secret_arn
