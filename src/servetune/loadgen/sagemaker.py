"""SageMaker endpoints as targets: signed load through InvokeEndpointWithResponseStream.

boto3's session gives the address of the service and the credentials; no request goes through it. A
client of its own pools ten connections and retries by itself by default, which hides failures
inside latencies; here there are as many connections as requests in flight and no retries.

Sources: botocore 1.44.5's model of `sagemaker-runtime` (routes, headers, bounds); the
OpenAI-compatible route and its bearer token as AWS announced them in May 2026.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonObject
from servetune.loadgen.run import CredentialSource
from servetune.loadgen.target import Target
from servetune.metrics.record import Record
from servetune.traffic.sagemaker_answer import TIME_LIMIT
from servetune.traffic.sigv4 import Credentials, Signer, Signing

#: Largest `Body` of InvokeEndpoint and InvokeEndpointWithResponseStream.
LARGEST_BODY_BYTES = 6_291_456

SERVICE = "sagemaker"
_ENDPOINT = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_COMPONENT = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
_ROUTE = re.compile(r"/[\w./-]*")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")

#: Signatures made to measure what one costs.
SIGNED_TO_MEASURE = 200


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoint, and the part of it that requests go to.

    Attributes:
        name: Name of the endpoint.
        component: Inference component, a model's or an adapter's; empty where there are none.
        route: Route of the container, where it offers several behind SageMaker's one.
        openai: Whether the OpenAI-compatible route is used, with a bearer token.
    """

    name: str
    component: str = ""
    route: str = ""
    openai: bool = False

    def __post_init__(self) -> None:
        for what, name, pattern in (
            ("an endpoint", self.name, _ENDPOINT),
            ("an inference component", self.component or "x", _COMPONENT),
        ):
            if not pattern.fullmatch(name):
                raise InputError(
                    f"'{name}' ({len(name)} characters) is not the name of {what}",
                    hint="letters, digits and dashes inside, at most 63",
                )
        if self.route and not _ROUTE.fullmatch(self.route):
            raise InputError(
                f"'{self.route}' is no route of a container", hint="such as /v1/chat/completions"
            )
        if self.route and self.openai:
            raise InputError(
                "the OpenAI-compatible route has its own path, --route cannot change it"
            )


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Session with AWS: address of the service, and credentials.

    Attributes:
        region: AWS region.
        endpoint_url: URL of the runtime service in this region.
        credentials: Source of the current credentials.
    """

    region: str
    endpoint_url: str
    credentials: CredentialSource | None = None


def aws_session(
    *, region: str | None, profile: str | None = None, endpoint_url: str | None = None
) -> Session:
    """Session by boto3's own chain: environment, files, SSO, container, instance.

    Raises:
        InputError: boto3 is not installed, or there is no region, or there are no credentials.
    """
    session, region = _botocore(region, profile)
    import botocore.exceptions

    try:
        found = session.get_credentials()
        if found is None:
            raise InputError(
                "no AWS credentials were found", hint="see `aws configure`, or set AWS_PROFILE"
            )
        found.get_frozen_credentials()
        client = session.create_client(
            "sagemaker-runtime", region_name=region, endpoint_url=endpoint_url
        )
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise InputError(f"AWS cannot be asked: {error}", hint="see `aws configure`") from None

    def current() -> Credentials:
        frozen = found.get_frozen_credentials()  # refreshes credentials that are about to end
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")

    return Session(region=region, endpoint_url=str(client.meta.endpoint_url), credentials=current)


def _botocore(region: str | None, profile: str | None) -> tuple[Any, str]:
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise InputError(
            "SageMaker endpoints need boto3", hint="pip install 'servetune[aws]'"
        ) from None
    session = botocore.session.Session(profile=profile)
    try:
        region = region or session.get_config_variable("region")
        known = {
            one
            for partition in session.get_available_partitions()
            for one in session.get_available_regions("sagemaker", partition)
        }
    except botocore.exceptions.BotoCoreError as error:
        raise InputError(f"AWS cannot be asked: {error}", hint="see `aws configure`") from None
    if not region:
        raise InputError("no AWS region is set", hint="give --region, such as us-east-1")
    if region not in known and not _REGION.fullmatch(region):
        raise InputError(f"'{region}' is not an AWS region", hint="such as us-east-1")
    if region not in known:
        raise InputError(
            f"no SageMaker is known in region '{region}'",
            hint=f"known are {', '.join(sorted(known)[:8])} and others; is boto3 up to date?",
        )
    return session, region


def endpoint_target(
    endpoint: Endpoint,
    session: Session,
    *,
    model: str,
    api: str | None,
    stream: bool = True,
    **further: Any,
) -> Target:
    """Target of load for an endpoint."""
    headers: list[tuple[str, str]] = []
    if endpoint.component:
        headers.append(("X-Amzn-SageMaker-Inference-Component", endpoint.component))
    if endpoint.openai:
        return Target(
            base_url=f"{session.endpoint_url}/endpoints/{quote(endpoint.name)}/openai",
            model=model,
            api=api,
            stream=stream,
            further_headers=tuple(headers),
            **further,
        )
    if endpoint.route:
        headers.append(("X-Amzn-SageMaker-Custom-Attributes", f"route={endpoint.route}"))
    verb = "invocations-response-stream" if stream else "invocations"
    path = f"/endpoints/{quote(endpoint.name)}/{verb}"
    plain = Target(
        base_url=session.endpoint_url,
        model=model,
        api=api,
        stream=stream,
        path=path,
        further_headers=tuple(headers),
        **further,
    )
    signed = [("content-type", "application/json")]
    signed += [(name.lower(), value) for name, value in headers]
    signing = Signing(
        region=session.region,
        service=SERVICE,
        host=plain.origin.host_header,
        path=f"{plain.origin.prefix}{path}",
        signed=tuple(signed),
    )
    return msgspec.structs.replace(plain, signing=signing)


Kind = Literal["throttled", "time_limit", "model_error", "other"]

#: Names of failures by which the account's or the endpoint's rate is used up.
_THROTTLES = frozenset(
    {"ThrottlingException", "Throttling", "TooManyRequestsException", "ModelNotReadyException"}
)


def invocation_account(target: Target, records: Sequence[Record]) -> JsonObject:
    """Account of a run through SageMaker, for its record.

    It has the service's failures by name, and the share of the client's own time that signing took.
    """
    names: dict[str, int] = {}
    for record in records:
        if record.outcome in {"http_status", "timeout"} and record.detail:
            name = record.detail.partition(":")[0].partition(" ")[0]
            name = name if name[:1].isupper() else "client time-out"
            names[name] = names.get(name, 0) + 1
    kinds: dict[Kind, int] = {"throttled": 0, "time_limit": 0, "model_error": 0, "other": 0}
    for name, count in names.items():
        kinds[_kind_of(name)] += count
    return {
        "target": target.label,
        "region": target.signing.region if target.signing else None,
        "failures_by_name": names,
        "throttled": kinds["throttled"],
        "time_limit": kinds["time_limit"],
        "model_error": kinds["model_error"],
        "other": kinds["other"],
        "signing_s": _signing_s(target),
    }


def _kind_of(name: str) -> Kind:
    if name in _THROTTLES:
        return "throttled"
    if name == TIME_LIMIT:
        return "time_limit"
    return "model_error" if name.startswith("Model") else "other"


def _signing_s(target: Target) -> float | None:
    """Time to sign one request of 4 KiB on this machine, with made-up keys."""
    if target.signing is None:
        return None
    signer = Signer(target.signing, Credentials("AKIDEXAMPLE", "nobody's"))
    body, now_s = bytes(4096), time.time()
    begun_s = time.perf_counter()
    for _ in range(SIGNED_TO_MEASURE):
        signer.headers(body, now_s)
    return (time.perf_counter() - begun_s) / SIGNED_TO_MEASURE
