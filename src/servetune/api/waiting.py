"""Options of commands that wait for AWS, and the loop that they run in."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from servetune.api.notes import note
from servetune.clock import MonotonicClock
from servetune.deploy.aws.apply import wait_options_of
from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.waiting import WaitOptions
from servetune.deploy.deployment import Deployment
from servetune.deploy.names import require_role, require_secret
from servetune.errors import InputError
from servetune.option import NonNegative, option

Result = TypeVar("Result")


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Interval and time-out of waiting for a resource."""

    group: ClassVar[str] = "Waiting"

    poll_s: Annotated[
        NonNegative, option("Seconds between two looks at AWS.", "--poll-s", "--poll-every")
    ] = 15.0
    timeout_min: Annotated[
        NonNegative | None,
        option("Minutes until waiting ends.", default="from the deployment's own time-outs"),
    ] = None

    def wait(self, deployment: Deployment | None) -> WaitOptions:
        """Waiting for a deployment; 90 minutes where there is only a name."""
        timeout_s = wait_options_of(deployment).timeout_s if deployment else 5400.0
        chosen = self.timeout_min is not None
        if self.timeout_min is not None:
            timeout_s = self.timeout_min * 60
        return WaitOptions(poll_s=self.poll_s, timeout_s=timeout_s, chosen=chosen)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Source of the hub's token for a gated model; never the token itself."""

    group: ClassVar[str] = "Token of the hub"

    hf_token_secret: Annotated[
        str | None,
        option("ARN of the secret in Secrets Manager that holds the token.", metavar="ARN"),
    ] = None
    hf_token_from_env: Annotated[
        bool, option("Permission to send the token of HF_TOKEN to the endpoint.")
    ] = False

    @property
    def given(self) -> bool:
        """Whether the token has a source."""
        return self.hf_token_secret is not None or self.hf_token_from_env

    def require(self) -> None:
        """Raise unless a token that is needed can be had, before anything starts.

        Raises:
            InputError: It has two sources, the variable is not set, or what should be a
                secret's ARN is something else, a token above all.
        """
        if self.hf_token_secret is not None:
            require_secret(self.hf_token_secret)
            if self.hf_token_from_env:
                raise InputError("the token has two sources", hint="give one of the two options")
        if self.hf_token_from_env and not os.environ.get("HF_TOKEN"):
            raise InputError("HF_TOKEN is not set", hint="export it, or use --hf-token-secret ARN")


def aws_in(
    region: str, *, secrets_in_use: tuple[str, ...] = (), threads: bool = False
) -> AwsClient:
    """AWS in a region, on the machine's clock."""
    return AwsClient(region, clock=MonotonicClock(), secrets_in_use=secrets_in_use, threads=threads)


async def with_token(region: str, token: Token) -> tuple[AwsClient, dict[str, str]]:
    """AWS that never repeats the token, and the variables that carry it."""
    value = None
    if token.hf_token_from_env:
        value = os.environ["HF_TOKEN"]
    elif token.hf_token_secret:
        answer = await aws_in(region).call(
            "secretsmanager", "GetSecretValue", SecretId=token.hf_token_secret
        )
        value = str(answer["SecretString"])
    if value is None:
        return aws_in(region), {}
    note("the token goes into the model's environment: who may describe the model can read it")
    return aws_in(region, secrets_in_use=(value,)), {"HF_TOKEN": value}


def role_of(role_arn: str | None, rendered: str | None = None) -> str:
    """The execution role: the option, else SAGEMAKER_ROLE_ARN, else that of the bundle.

    Raises:
        InputError: There is none.
        CannotRender: It is not the ARN of a role.
    """
    role = role_arn or os.environ.get("SAGEMAKER_ROLE_ARN") or rendered
    if role is None or role.startswith("${"):  # a placeholder in bundles of earlier versions
        raise InputError("no execution role", hint="give --role-arn, or set SAGEMAKER_ROLE_ARN")
    return require_role(role)


def completed(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of asynchronous work, also where a loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def now() -> dt.datetime:
    """The present time with its zone, UTC."""
    return dt.datetime.now(dt.UTC)
