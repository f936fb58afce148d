"""The door to AWS: the only module here that sends anything.

Every request is held against the service's model first. Throttles, server errors and lost
connections are tried again on the clock that was passed in (boto3's own retries would wait
on the machine's); everything else becomes one line without credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from servetune.clock import Clock
from servetune.deploy.aws.shapes import problems
from servetune.deploy.secret import redacted
from servetune.errors import DeployError

__all__ = ["Aws", "Refused", "is_missing"]

#: The service says "later".
_LATER = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "SlowDown",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "InternalFailure",
        "InternalServerError",
        "InternalError",
        "ConcurrentUpdateException",
        "RequestTimeout",
    }
)
ATTEMPTS = 8
MOST_WAIT_S = 60.0


#: How services other than SageMaker's oldest say that a thing is not there.
_ABSENT = frozenset(
    {
        "ResourceNotFound",
        "ResourceNotFoundException",
        "ObjectNotFoundException",
        "404",
        "NoSuchKey",
        "NoSuchBucket",
    }
)


class Refused(DeployError):
    """AWS refused a request.

    Attributes:
        code: Such as `ValidationException`.
        service_message: In its own words, without credentials.
    """

    def __init__(self, code: str, message: str, *, operation: str, hint: str = "") -> None:
        self.code = code
        self.service_message = message
        super().__init__(f"{operation} was refused: {message or code}", hint=hint)


def is_missing(error: Refused) -> bool:
    """Whether AWS says that a thing is not there.

    SageMaker's older resources say so by a ValidationException of that wording.
    """
    if error.code in _ABSENT:
        return True
    return error.code == "ValidationException" and (
        "Could not find" in error.service_message or "does not exist" in error.service_message
    )


class Aws:
    """AWS in one region.

    Args:
        region: Whose endpoints are asked.
        clock: On which waiting happens.
        clients: Makes a client of a service's name; boto3's where left out.
        hidden: Texts that must not appear in any message, such as a token in use.
        threads: Whether requests leave in threads, so that several are under way at once.
        profile: Of the AWS configuration, for boto3's own clients.
    """

    def __init__(
        self,
        region: str,
        *,
        clock: Clock,
        clients: Callable[[str], Any] | None = None,
        hidden: tuple[str, ...] = (),
        threads: bool = False,
        profile: str | None = None,
    ) -> None:
        self.region = region
        self.clock = clock
        self._make = clients or _boto3_clients(region, profile)
        self._clients: dict[str, Any] = {}
        self.hidden = hidden
        self.threads = threads

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._make(service)
        return self._clients[service]

    async def ask(self, service: str, operation: str, /, **request: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            Refused: AWS said no, or nothing until the last attempt.
            DeployError: The request is wrong, or there are no credentials.
        """
        wrong = problems(service, operation, request)
        if wrong:
            raise DeployError(
                self.scrubbed(f"{operation} would be refused: {'; '.join(wrong)}"),
                hint="nothing was sent; see servetune deploy sagemaker --plan",
            )
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._send(service, operation, request)
            except Exception as error:
                refusal = self._refusal(error, operation)
                if refusal.code not in _LATER or attempt == ATTEMPTS - 1:
                    raise refusal from None
                await self.clock.sleep(min(MOST_WAIT_S, 2.0**attempt))
            else:
                return answer
        raise AssertionError("a loop that ends by return or raise")

    async def _send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        method = getattr(self.client(service), _method(operation))
        if self.threads:
            threaded: dict[str, Any] = await asyncio.to_thread(method, **request)
            return threaded
        answer: dict[str, Any] = method(**request)
        return answer

    async def ask_or_none(
        self, service: str, operation: str, /, **request: Any
    ) -> dict[str, Any] | None:
        """The answer, or `None` where the thing asked about is not there."""
        try:
            return await self.ask(service, operation, **request)
        except Refused as error:
            if is_missing(error):
                return None
            raise

    async def pages(
        self, service: str, operation: str, key: str, /, **request: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Items of a listing, over all its pages."""
        more = dict(request)
        while True:
            answer = await self.ask(service, operation, **more)
            for item in answer.get(key, []):
                yield item
            name = "nextToken" if "nextToken" in answer else "NextToken"
            token = answer.get(name)
            if not token:
                return
            more[name] = token

    def scrubbed(self, text: str) -> str:
        """A text without the tokens in use, and without what looks like one."""
        for secret in self.hidden:
            if secret:
                text = text.replace(secret, "[redacted]")
        return str(redacted(text))

    def _refusal(self, error: Exception, operation: str) -> Refused:
        """AWS's answer as ours; anything that is not botocore's is a defect and goes on."""
        if type(error).__module__.split(".")[0] not in ("botocore", "boto3", "s3transfer"):
            raise error
        said = getattr(error, "response", None)
        if isinstance(said, dict) and "Error" in said:
            detail = said["Error"]
            code, message = str(detail.get("Code", "")), str(detail.get("Message", ""))
            status = said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if isinstance(status, int) and status >= 500:
                code = "ServiceUnavailable"
        else:
            code, message = type(error).__name__, str(error)
            if code in _LOST:
                code = "ServiceUnavailable"
        return Refused(
            code, self.scrubbed(" ".join(message.split())), operation=operation, hint=_hint(code)
        )


#: botocore's names for a connection that broke.
_LOST = frozenset(
    {
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "HTTPClientError",
        "ResponseStreamingError",
    }
)


def _hint(code: str) -> str:
    if code in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return "log in first: aws sso login, or set AWS_PROFILE"
    if code in ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException"):
        return "your AWS credentials are not valid any more: log in again"
    if "AccessDenied" in code or "UnauthorizedOperation" in code:
        return "your credentials lack this permission: see docs/guides/sagemaker.md"
    if code in ("ResourceLimitExceeded", "LimitExceededException"):
        return "ask for a higher quota in AWS Service Quotas, or choose another instance type"
    if code in _LATER or code == "EndpointConnectionError":
        return "AWS did not answer in time; run the same command again, it goes on from there"
    return ""


def _method(operation: str) -> str:
    from botocore import xform_name

    return str(xform_name(operation))


def _boto3_clients(region: str, profile: str | None = None) -> Callable[[str], Any]:
    def make(service: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise DeployError(
                "boto3 is not installed", hint="pip install 'servetune[aws]'"
            ) from None
        # Only one region answers about prices.
        where = "us-east-1" if service == "pricing" else region
        config = Config(
            retries={"total_max_attempts": 1},
            max_pool_connections=16,
            connect_timeout=10,
            read_timeout=70,
        )
        session = boto3.session.Session(profile_name=profile) if profile else boto3
        return session.client(service, region_name=where, config=config)

    return make
