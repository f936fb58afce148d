"""Client of AWS: the only module here that sends requests.

Every request is checked by the service's model first. Throttles, server errors and lost
connections are tried again on the clock that was passed in (boto3's own retries would wait
on the machine's); everything else becomes one line without credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from servetune.clock import Clock
from servetune.deploy.aws.service_model import problems
from servetune.errors import DeployError
from servetune.json_value import JsonObject
from servetune.secret import redacted


class Boto3Client(Protocol):
    """Client of one service; its operations are its methods."""

    def __getattr__(self, operation: str) -> Callable[..., JsonObject]: ...


#: Error codes after which a request is repeated.
_RETRIED = frozenset(
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
        "EndpointUnreached",
    }
)
ATTEMPTS = 8
MOST_WAIT_S = 60.0
#: Attempts where no connection could be made at all: 15 seconds, since waiting helps seldom then.
UNREACHED_ATTEMPTS = 5
_UNREACHED = "EndpointUnreached"


#: Error codes of a missing resource, but for SageMaker's oldest operations.
_MISSING = frozenset(
    {
        "ResourceNotFound",
        "ResourceNotFoundException",
        "ObjectNotFoundException",
        "EntityNotFoundException",
        "404",
        "NoSuchKey",
        "NoSuchBucket",
    }
)


class AwsError(DeployError):
    """AWS refused a request.

    Attributes:
        code: Error code, such as `ValidationException`.
        service_message: Message of AWS, without credentials.
    """

    def __init__(self, code: str, message: str, *, operation: str, hint: str = "") -> None:
        self.code = code
        self.service_message = message
        super().__init__(f"{operation} was refused: {message or code}", hint=hint)


def is_missing(error: AwsError) -> bool:
    """Whether an error means that the resource is not there.

    SageMaker's older operations answer with a ValidationException of that wording.
    """
    if error.code in _MISSING:
        return True
    return error.code == "ValidationException" and (
        "Could not find" in error.service_message or "does not exist" in error.service_message
    )


def is_denied(error: AwsError) -> bool:
    """Whether an error means that the caller may not send such a request."""
    if error.code == "403":  # all that an answer without a body says
        return True
    return "AccessDenied" in error.code or "Unauthorized" in error.code


class AwsClient:
    """AWS in one region.

    Args:
        region: AWS region.
        clock: Clock on which waiting happens.
        clients: Function from a service's name to its client; boto3's where left out.
        secrets_in_use: Texts that must not appear in any message, such as a token.
        threads: Whether requests leave in threads, so that several are under way at once.
        profile: Profile of the AWS configuration, for boto3's own clients.
    """

    def __init__(
        self,
        region: str,
        *,
        clock: Clock,
        clients: Callable[[str], Boto3Client] | None = None,
        secrets_in_use: tuple[str, ...] = (),
        threads: bool = False,
        profile: str | None = None,
    ) -> None:
        self.region = region
        self.clock = clock
        self._make = clients or _boto3_clients(region, profile)
        self._clients: dict[str, Boto3Client] = {}
        self.secrets_in_use = secrets_in_use
        self.threads = threads

    def client(self, service: str) -> Boto3Client:
        if service not in self._clients:
            self._clients[service] = self._make(service)
        return self._clients[service]

    async def call(self, service: str, operation: str, /, **request: object) -> JsonObject:
        """Send one request and return its answer.

        Raises:
            AwsError: AWS refused, or did not answer until the last attempt.
            DeployError: The request is wrong, or there are no credentials.
        """
        wrong = problems(service, operation, request)
        if wrong:
            raise DeployError(
                self.redacted_text(f"{operation} would be refused: {'; '.join(wrong)}"),
                hint="nothing was sent; see servetune deploy sagemaker --plan",
            )
        for attempt in range(ATTEMPTS):
            try:
                answer = await self._send(service, operation, request)
            except Exception as error:
                refusal = self._refusal(error, operation)
                most = UNREACHED_ATTEMPTS if refusal.code == _UNREACHED else ATTEMPTS
                if refusal.code not in _RETRIED or attempt == most - 1:
                    raise refusal from None
                await self.clock.sleep(min(MOST_WAIT_S, 2.0**attempt))
            else:
                return answer
        raise AssertionError("a loop that ends by return or raise")

    async def _send(self, service: str, operation: str, request: JsonObject) -> JsonObject:
        method = getattr(self.client(service), _method(operation))
        if self.threads:
            threaded: JsonObject = await asyncio.to_thread(method, **request)
            return threaded
        answer: JsonObject = method(**request)
        return answer

    async def call_or_none(
        self, service: str, operation: str, /, **request: object
    ) -> JsonObject | None:
        """The answer, or `None` where the resource is not there."""
        try:
            return await self.call(service, operation, **request)
        except AwsError as error:
            if is_missing(error):
                return None
            raise

    async def pages(
        self, service: str, operation: str, key: str, /, **request: object
    ) -> AsyncIterator[JsonObject]:
        """Items of a listing, over all its pages."""
        more = dict(request)
        while True:
            answer = await self.call(service, operation, **more)
            for item in answer.get(key, []):
                yield item
            name = "nextToken" if "nextToken" in answer else "NextToken"
            token = answer.get(name)
            if not token:
                return
            more[name] = token

    async def content_or_none(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """Content of an object in S3 and its ETag, or `None` where the object is not there.

        Raises:
            AwsError: As `call`; or the connection broke at each attempt.
        """
        attempt = 0
        while True:
            answer = await self.call_or_none("s3", "GetObject", Bucket=bucket, Key=key)
            if answer is None:
                return None
            read = answer["Body"].read
            try:
                content = await asyncio.to_thread(read) if self.threads else read()
                return content, str(answer["ETag"])
            except Exception as error:
                attempt += 1
                refusal = self._refusal(error, "GetObject")
                if attempt == UNREACHED_ATTEMPTS:
                    raise refusal from None
                await self.clock.sleep(2.0**attempt)

    def redacted_text(self, text: str) -> str:
        """A text without the tokens in use and whatever else looks like a credential."""
        for secret in self.secrets_in_use:
            if secret:
                text = text.replace(secret, "[redacted]")
        return str(redacted(text))

    def _refusal(self, error: Exception, operation: str) -> AwsError:
        """AWS's error as ours; an exception that is not botocore's is raised again."""
        if type(error).__module__.split(".")[0] not in ("botocore", "boto3", "s3transfer"):
            raise error
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            detail = answer["Error"]
            code, message = str(detail.get("Code", "")), str(detail.get("Message", ""))
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if isinstance(status, int) and status >= 500:
                code = "ServiceUnavailable"
        else:
            code, message = type(error).__name__, str(error)
            if code in _NO_CONNECTION:
                code = _UNREACHED
            elif code in _BROKEN_CONNECTION:
                code = "ServiceUnavailable"
        return AwsError(
            code,
            self.redacted_text(" ".join(message.split())),
            operation=operation,
            hint=_hint(code),
        )


#: Names of botocore's exceptions where no connection could be made.
_NO_CONNECTION = frozenset({"EndpointConnectionError", "ProxyConnectionError"})
#: Names of botocore's exceptions for a broken connection.
_BROKEN_CONNECTION = frozenset(
    {
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "HTTPClientError",
        "ResponseStreamingError",
    }
)


#: Error codes, and how to go on.
_HINTS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}),
        "log in first: aws sso login, or set AWS_PROFILE",
    ),
    (
        frozenset({"ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException"}),
        "your AWS credentials are not valid any more: log in again",
    ),
    (
        frozenset({"ResourceLimitExceeded", "LimitExceededException"}),
        "ask for a higher quota in AWS Service Quotas, or choose another instance type",
    ),
    (
        frozenset({_UNREACHED}),
        "AWS cannot be reached from here: look at the network, the proxy and the region",
    ),
    (_RETRIED, "AWS did not answer in time; run the same command again, it goes on from there"),
)


def _hint(code: str) -> str:
    if "AccessDenied" in code or "UnauthorizedOperation" in code:
        return "your credentials lack this permission: see docs/guides/sagemaker.md"
    return next((hint for codes, hint in _HINTS if code in codes), "")


def _method(operation: str) -> str:
    from botocore import xform_name

    return str(xform_name(operation))


def _boto3_clients(region: str, profile: str | None = None) -> Callable[[str], Boto3Client]:
    def make(service: str) -> Boto3Client:
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
        # boto3's own default session would keep the credentials that it met first.
        session = boto3.session.Session(profile_name=profile)
        client: Boto3Client = session.client(service, region_name=where, config=config)
        return client

    return make
