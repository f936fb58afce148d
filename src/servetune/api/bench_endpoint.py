"""Component and model of a SageMaker endpoint that a load test does not name, as AWS tells them."""

from __future__ import annotations

from typing import Any

from servetune.api.aws_region import region_of
from servetune.api.bench_request import Bench
from servetune.api.notes import progress
from servetune.api.request import request_of
from servetune.api.waiting import completed
from servetune.clock import MonotonicClock
from servetune.deploy.aws import AwsClient
from servetune.deploy.aws.hosted_container import hosted, hosted_plan
from servetune.errors import InputError, ServetuneError


def with_endpoint(request: Bench) -> Bench:
    """The request with its endpoint's only component, and the name of the model that it serves.

    AWS is only read, once for all levels. Where it cannot be asked the request stays as it is: a
    missing component is then the service's error, and a missing model that of the request.

    Raises:
        InputError: The endpoint has several components and none is named.
    """
    endpoint = request.endpoint
    named = bool(endpoint.component or endpoint.adapter)
    if not endpoint.sagemaker or endpoint.endpoint_url or (named and request.server.model):
        return request
    region = region_of(endpoint.region, endpoint.profile)
    aws = AwsClient(region, clock=MonotonicClock(), profile=endpoint.profile)
    components = _components(aws, endpoint.sagemaker)
    if components is None:
        return request
    found: dict[str, Any] = {}
    if components and not named and not endpoint.openai_route:
        found["component"] = _only(components, endpoint.sagemaker)
    if not request.server.model:
        chosen = found.get("component") or endpoint.component or endpoint.adapter or ""
        model = _served_model(aws, endpoint.sagemaker, chosen)
        if model:
            found["model"] = model
    if found:
        progress(f"from AWS: {', '.join(f'{name}={value}' for name, value in found.items())}")
    return request_of(Bench, request, found)


def callers_account(request: Bench) -> str:
    """Number of the account of the caller, whose endpoint it is; empty where AWS does not tell it,
    or where requests go to an address of their own.
    """
    endpoint = request.endpoint
    if endpoint.endpoint_url:
        return ""
    import botocore.exceptions

    region = region_of(endpoint.region, endpoint.profile)
    aws = AwsClient(region, clock=MonotonicClock(), profile=endpoint.profile)
    try:
        return str(aws.client("sts").get_caller_identity()["Account"])
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        return ""


def _components(aws: AwsClient, endpoint: str) -> list[str] | None:
    """Names of an endpoint's components; `None` where AWS cannot be asked, which is tried once."""
    import botocore.exceptions

    try:
        answer = aws.client("sagemaker").list_inference_components(
            EndpointNameEquals=endpoint, MaxResults=100
        )
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        return None
    return sorted(each["InferenceComponentName"] for each in answer["InferenceComponents"])


def _only(components: list[str], endpoint: str) -> str:
    """The one component.

    Raises:
        InputError: There are several, which are listed.
    """
    if len(components) > 1:
        raise InputError(
            f"endpoint {endpoint} has {len(components)} components: {', '.join(components)}",
            hint=f"name the one to load with --component, such as --component {components[0]}",
        )
    return components[0]


def _served_model(aws: AwsClient, endpoint: str, component: str) -> str:
    """Name by which the container was told to serve its model; empty where that is not known."""
    try:
        found = completed(hosted(aws, endpoint, component))
        plan = hosted_plan(found) if found else None
    except ServetuneError:
        return ""
    return str(dict(plan.extra).get("served_model_name") or plan.model) if plan else ""
