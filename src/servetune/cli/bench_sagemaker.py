"""`servetune bench --sagemaker`: from options to targets behind SageMaker's runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from servetune.errors import InputError

if TYPE_CHECKING:
    from servetune.loadgen import Target
    from servetune.loadgen.sagemaker import Session

__all__ = ["OPTIONS", "require_alone", "require_small_bodies", "sagemaker_targets", "session_of"]

TOKEN_VARIABLE = "SAGEMAKER_BEARER_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable of the OpenAI-compatible route, unless --api-key-env names another."""

OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option("--sagemaker", default=None, metavar="ENDPOINT", help="Instead of URLs."),
    click.option("--component", default=None, metavar="NAME", help="Inference component."),
    click.option("--adapter", default=None, metavar="NAME", help="Component of a LoRA adapter."),
    click.option("--region", default=None, help="Of AWS. [default: boto3's]"),
    click.option("--profile", default=None, help="Of AWS. [default: boto3's]"),
    click.option(
        "--endpoint-url", default=None, metavar="URL", help="Of SageMaker's runtime, or a double."
    ),
    click.option(
        "--route", default=None, metavar="PATH", help="Of the container, as a custom attribute."
    ),
    click.option(
        "--openai-route",
        is_flag=True,
        help=f"SageMaker's OpenAI-compatible route; the bearer token is in {TOKEN_VARIABLE}.",
    ),
)

_ONLY_HERE = ("component", "adapter", "region", "profile", "endpoint_url", "route", "openai_route")


def require_alone(said: Mapping[str, Any]) -> None:
    """Refuse options that contradict one another, before anything is asked.

    Raises:
        InputError: They do.
    """
    if said["sagemaker"] is None and not said.get("via_aws_job"):
        for name in _ONLY_HERE:
            if said[name]:
                raise InputError(
                    f"--{name.replace('_', '-')} is for SageMaker endpoints",
                    hint="say --sagemaker ENDPOINT as well",
                )
        if not said["urls"]:
            raise InputError("nothing is named that could be asked", hint="a URL, or --sagemaker")
    elif said["urls"]:
        raise InputError("URLs and --sagemaker both say what is asked", hint="leave one out")
    if said["component"] and said["adapter"]:
        raise InputError(
            "--component and --adapter both name what answers",
            hint="an adapter is a component of its own: name it alone",
        )


def session_of(said: Mapping[str, Any]) -> Session:
    """Credentials and region, found before the clock starts."""
    from servetune.loadgen.sagemaker import aws_session

    return aws_session(
        region=said["region"], profile=said["profile"], endpoint_url=said["endpoint_url"]
    )


def sagemaker_targets(
    said: Mapping[str, Any], *, model: str | None, shared: Mapping[str, Any]
) -> tuple[tuple[Target, ...], Session]:
    """The one target, and the session that it is asked in.

    Raises:
        InputError: A name cannot be one, there is no model's name, or nobody's credentials.
    """
    from servetune.loadgen.sagemaker import Endpoint, endpoint_target

    endpoint = Endpoint(
        name=said["sagemaker"],
        component=said["component"] or said["adapter"] or "",
        route=said["route"] or "",
        openai=said["openai_route"],
    )
    if not model:
        raise InputError(
            "SageMaker does not say by which name an endpoint's model is known",
            hint="say it with --model, as the bundle's environment has it (served model name)",
        )
    session = session_of(said)
    further = dict(shared)
    if endpoint.openai:
        further["api_key_env"] = further["api_key_env"] or _bearer(session)
    elif further["api_key_env"]:
        raise InputError(
            "requests to SageMaker are signed with AWS credentials, --api-key-env is for URLs",
            hint="leave it out, or say --openai-route",
        )
    target = endpoint_target(endpoint, session, model=model, **further)
    if target.signing is None:
        session = msgspec.structs.replace(session, credentials=None)
    return (target,), session


def require_small_bodies(largest_bytes: int) -> None:
    """Refuse a run whose requests the service would refuse.

    Raises:
        InputError: One is larger than an invocation may be.
    """
    from servetune.loadgen.sagemaker import LARGEST_BODY_BYTES

    if largest_bytes > LARGEST_BODY_BYTES:
        raise InputError(
            f"a request has {largest_bytes:,} bytes, an invocation takes {LARGEST_BODY_BYTES:,}",
            hint="ask for shorter prompts",
        )


def _bearer(session: Session) -> str:
    """The variable that holds the token: as it is set, or made by the SageMaker SDK."""
    if os.environ.get(TOKEN_VARIABLE):
        return TOKEN_VARIABLE
    try:
        from sagemaker.core.token_generator import generate_token
    except ImportError:
        raise InputError(
            "the OpenAI-compatible route needs a bearer token",
            hint=f"put one into {TOKEN_VARIABLE}, or pip install sagemaker-core, which makes them",
        ) from None
    os.environ[TOKEN_VARIABLE] = str(generate_token(region=session.region))
    return TOKEN_VARIABLE
