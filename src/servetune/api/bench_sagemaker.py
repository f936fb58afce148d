"""Targets behind SageMaker's runtime, from the options of bench."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.api.bench_request import Bench, values_of
from servetune.errors import InputError

if TYPE_CHECKING:
    from servetune.loadgen import Target
    from servetune.loadgen.sagemaker import Session

TOKEN_VARIABLE = "SAGEMAKER_BEARER_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable of the OpenAI-compatible route, unless --api-key-env names another."""

_ONLY_HERE = ("component", "adapter", "region", "profile", "endpoint_url", "route", "openai_route")


def require_alone(request: Bench) -> None:
    """Refuse options that contradict one another, before anything is asked.

    Raises:
        InputError: They do.
    """
    if request.endpoint.sagemaker is None and not request.endpoint.via_aws_job:
        for name in _ONLY_HERE:
            if values_of(request).get(name):
                raise InputError(
                    f"--{name.replace('_', '-')} is for SageMaker endpoints",
                    hint="give --sagemaker ENDPOINT as well",
                )
        if not request.server.urls:
            raise InputError("no server is named", hint="a URL, or --sagemaker")
    elif request.server.urls:
        raise InputError("URLs and --sagemaker both name the server", hint="leave one out")
    if request.endpoint.component and request.endpoint.adapter:
        raise InputError(
            "--component and --adapter both name a component",
            hint="an adapter is a component of its own: name it alone",
        )


def session_of(request: Bench) -> Session:
    """Credentials and region, found before the clock starts."""
    from servetune.loadgen.sagemaker import aws_session

    return aws_session(
        region=request.endpoint.region,
        profile=request.endpoint.profile,
        endpoint_url=request.endpoint.endpoint_url,
    )


def sagemaker_targets(
    request: Bench, *, model: str | None, shared: Mapping[str, Any]
) -> tuple[tuple[Target, ...], Session]:
    """The one target, and the session that it is asked in.

    Raises:
        InputError: A name cannot be one, there is no model's name, or nobody's credentials.
    """
    from servetune.loadgen.sagemaker import Endpoint, endpoint_target

    endpoint = Endpoint(
        name=str(request.endpoint.sagemaker),
        component=request.endpoint.component or request.endpoint.adapter or "",
        route=request.endpoint.route or "",
        openai=request.endpoint.openai_route,
    )
    if not model:
        raise InputError(
            "SageMaker does not say by which name an endpoint's model is known",
            hint="give it with --model, as the bundle's environment has it (served model name)",
        )
    session = session_of(request)
    further = dict(shared)
    if endpoint.openai:
        further["api_key_env"] = further["api_key_env"] or _bearer(session)
    elif further["api_key_env"]:
        raise InputError(
            "requests to SageMaker are signed with AWS credentials, --api-key-env is for URLs",
            hint="leave it out, or give --openai-route",
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
