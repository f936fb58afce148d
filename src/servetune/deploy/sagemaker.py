"""SageMaker: one Plan on one instance type, as requests, a script and a README.

`render_sagemaker` is pure: it touches neither the network nor the disk. Bounds and
patterns are those of botocore 1.44.5's service model, which boto3 itself does not check;
`tests/deploy` holds every rendered request against that model.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from servetune.deploy.bundle import MARKER, PLAN_FILE, Bundle
from servetune.deploy.container import Container
from servetune.deploy.containers import container_named, environment
from servetune.deploy.images import (
    Image,
    ami_version,
    choose_image,
    image_uri,
    named_image,
    regions,
)
from servetune.deploy.readme import Evidence, render_readme, usd_per_million_tokens
from servetune.deploy.secret import redacted
from servetune.errors import CannotRender, UnknownName
from servetune.hardware.device import Node
from servetune.plan.plan import Plan

__all__ = [
    "ROLE_PLACEHOLDER",
    "STAGED",
    "image_for",
    "render_sagemaker",
    "require_name",
    "require_names",
    "require_role",
    "resource_name",
    "startup_timeout_s",
]

#: Stands for the execution role until deploy.py puts the user's in.
ROLE_PLACEHOLDER = "${SAGEMAKER_ROLE_ARN}"

#: Beside a model in S3: what it was called, and that all of it is there (`servetune stage`).
STAGED = "servetune-stage.json"

#: EndpointName and its like in botocore's model.
NAME_LIMIT = 63
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_ROLE = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_INSTANCE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/\S+")

#: A SageMaker invocation that does not stream ends here (runtime API, 2026-11).
INVOCATION_LIMIT_S = 60.0


def render_sagemaker(
    plan: Plan,
    *,
    instance: Node,
    region: str,
    container: str = "lmi",
    model_source: str | None = None,
    endpoint_name: str | None = None,
    evidence: Evidence | None = None,
    role_arn: str = ROLE_PLACEHOLDER,
    model_bytes: float | None = None,
    startup_timeout_s: int | None = None,
    image_tag: str | None = None,
    copies: int | None = None,
    copies_per_instance: int = 1,
) -> Bundle:
    """Everything that is needed to run a Plan as a SageMaker endpoint.

    Args:
        plan: Resolved (`engines.defaults.resolved`). A field that is still open and whose
            default differs between engine, container and version is filled here, and said.
        instance: An `ml.` type of the hardware catalogue.
        region: Decides the image's account.
        container: A key of `containers.CONTAINERS`.
        model_source: Hub id or `s3://` prefix; the Plan's model where `None`.
        endpoint_name: Made from the model's name where `None`.
        evidence: The trial that the Plan rests on.
        role_arn: Execution role; deploy.py asks for it where it is the placeholder.
        model_bytes: Size of the published weights, for time-outs.
        startup_timeout_s: Until the container must answer health checks; from
            `model_bytes` where `None`.
        image_tag: A certain image instead of the nearest.
        copies: Where the Plan is one copy of several inference components: how many share
            the concurrency of the evidence.
        copies_per_instance: Likewise: how many stand on one instance.

    Raises:
        UnknownName: Region, instance type or container is not known.
        CannotRender: The Plan does not fit the instance, or the container cannot say it.
    """
    spelt_by = container_named(container)
    source = _checked_source(plan, model_source)
    _check_target(plan, instance, role_arn)
    image, image_note = image_for(plan, container, evidence, image_tag)
    uri = image_uri(spelt_by.repository, image.tag, region)
    concurrency = evidence.concurrency if evidence else None
    filled, notes = spelt_by.fill(
        plan, instance.device, concurrency or 0, image.engine_version or ""
    )
    timeout_s = _timeout_s(startup_timeout_s, model_bytes, filled.replicas)
    variables = environment(
        spelt_by,
        filled,
        image=image,
        model_source=source,
        concurrency=concurrency,
        load_timeout_s=timeout_s,
    )
    served = variables[spelt_by.key("served_model_name")]
    endpoint = _endpoint_name(endpoint_name, served)
    requests = _requests(
        endpoint=endpoint,
        role_arn=role_arn,
        uri=uri,
        variables=variables,
        source=source,
        instance=instance,
        image=image,
        timeout_s=timeout_s,
    )
    warnings = tuple(
        text
        for text in (
            *_evidence_notes(evidence, instance),
            image_note,
            *notes,
            *_fit_notes(
                filled,
                instance,
                spelt_by,
                concurrency,
                shared_by=copies or filled.replicas * filled.data_parallel,
                devices=filled.device_count * copies_per_instance,
            ),
        )
        if text
    )
    told = _public(evidence) if evidence else None
    readme = render_readme(
        plan=filled,
        served_model=served,
        container=spelt_by,
        image_uri=uri,
        instance=instance,
        region=region,
        endpoint_name=endpoint,
        environment=variables,
        evidence=told,
        warnings=warnings,
    )
    script = resources.files("servetune.deploy") / "templates" / "sagemaker_deploy.py"
    texts = {
        "README.md": readme,
        "deploy.py": script.read_text("utf-8"),
        "environment.json": _json(variables),
        "model.json": _json(requests["model"]),
        "endpoint_config.json": _json(requests["endpoint_config"]),
        "endpoint.json": _json(requests["endpoint"]),
    }
    texts[PLAN_FILE] = _json(
        {
            MARKER: 1,
            "target": "sagemaker",
            "files": [*texts, PLAN_FILE],
            "endpoint_name": endpoint,
            "region": region,
            "container": container,
            "image": uri,
            "engine_version": image.engine_version,
            "served_model": served,
            "model_source": source,
            "instance": {
                "type": instance.name,
                "device": instance.device.name,
                "device_count": instance.device_count,
            },
            "price": msgspec.to_builtins(instance.price),
            "usd_per_million_output_tokens": usd_per_million_tokens(instance, evidence.results)
            if evidence
            else None,
            "simulated": evidence.simulated if evidence else None,
            "plan": msgspec.to_builtins(filled),
            "plan_as_given": msgspec.to_builtins(plan),
            "evidence": msgspec.to_builtins(told),
            "warnings": list(warnings),
        }
    )
    return Bundle(
        files=tuple(texts.items()), executable=frozenset({"deploy.py"}), warnings=warnings
    )


def resource_name(text: str) -> str:
    """A name that SageMaker takes, made from any text; equal texts give equal names.

    Names hold letters, digits and single dashes, at most 63 of them. What is longer is
    cut, and told apart by six hex digits of what it was.
    """
    name = re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-") or "endpoint"
    if len(name) <= NAME_LIMIT:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{name[: NAME_LIMIT - 7].rstrip('-')}-{digest}"


def startup_timeout_s(model_bytes: float | None, copies: int = 1) -> int:
    """Seconds until a container must answer: engine start, download and copies.

    Ten minutes for image, engine and graph capture, the weights at 100 MB/s (a slow hub
    download), and two more minutes and another read for each further copy, because
    copies start one after another. A 10 GB model on ml.g6.xlarge took about ten minutes
    in all (2026-09). SageMaker allows 60 to 3,600; 1,800 where the size is not known.
    """
    if model_bytes is None:
        return 1800
    needed_s = 600 + copies * model_bytes / 100e6 + 120 * (copies - 1)
    return min(3600, 60 * math.ceil(needed_s / 60))


def _timeout_s(wanted_s: int | None, model_bytes: float | None, copies: int) -> int:
    if wanted_s is None:
        return startup_timeout_s(model_bytes, copies)
    if not 60 <= wanted_s <= 3600:
        raise CannotRender(
            f"the start-up time-out must be 60 to 3600 s, got {wanted_s}",
            hint="leave it out to have it computed from the model's size",
        )
    return wanted_s


def _checked_source(plan: Plan, model_source: str | None) -> str:
    source = model_source or plan.model
    if source.startswith("s3://"):
        if not _S3.fullmatch(source):
            raise CannotRender(
                f"'{source}' names no S3 prefix", hint="it looks like s3://bucket/key/"
            )
        return source if source.endswith("/") else f"{source}/"
    if not _HUB_ID.fullmatch(source) or ".." in source:
        raise CannotRender(
            f"SageMaker cannot reach the model at '{source}'",
            hint="copy it to S3 and give --model-source s3://bucket/prefix/, or give a hub id",
        )
    return source


def _check_target(plan: Plan, instance: Node, role_arn: str) -> None:
    if not _INSTANCE.fullmatch(instance.name):
        raise UnknownName(
            "SageMaker instance type", instance.name, (), hint="types look like ml.g6.12xlarge"
        )
    if plan.device_count > instance.device_count:
        raise CannotRender(
            f"the plan takes {plan.device_count} devices, {instance.name} has "
            f"{instance.device_count}",
            hint="choose a larger instance type, or fewer replicas behind one endpoint",
        )
    if role_arn != ROLE_PLACEHOLDER:
        require_role(role_arn)


def require_names(*, region: str, role_arn: str | None, endpoint_name: str | None) -> None:
    """Raise for what cannot be right, before anything is looked up.

    Raises:
        UnknownName: No account of images is known for the region.
        CannotRender: The role is none, or the name is not one that SageMaker takes.
    """
    if region not in regions():
        raise UnknownName("AWS region", region, regions())
    if role_arn is not None:
        require_role(role_arn)
    if endpoint_name is not None:
        require_name(endpoint_name)


def require_name(name: str) -> None:
    """Raise `CannotRender` for what SageMaker takes as no name of an endpoint."""
    if not _NAME.fullmatch(name):
        raise CannotRender(
            f"'{name}' ({len(name)} characters) is not a name that SageMaker takes",
            hint=f"at most {NAME_LIMIT} letters, digits and dashes: {resource_name(name)}",
        )


def require_role(role_arn: str) -> None:
    """Raise `CannotRender` for what is not the ARN of a role."""
    if not _ROLE.fullmatch(role_arn):
        raise CannotRender(
            f"'{role_arn}' is not the ARN of a role",
            hint="it looks like arn:aws:iam::123456789012:role/SageMakerExecution",
        )


def image_for(
    plan: Plan, container: str, evidence: Evidence | None = None, tag: str | None = None
) -> tuple[Image, str]:
    """The image to run, and what to say about it; one that can say all of the Plan.

    Raises:
        UnknownName: There is no such container.
        CannotRender: No image of it can say the Plan, or the tag does not tell enough.
    """
    if tag is not None:
        return named_image(container, tag)
    own = container_named(container)
    version = evidence.engine_version if evidence else None
    nearest, note = choose_image(container, version)
    if own.able(plan, nearest):
        return nearest, note
    return choose_image(container, version, able=lambda image: own.able(plan, image))


def _evidence_notes(evidence: Evidence | None, instance: Node) -> list[str]:
    if evidence is None:
        return ["nothing was measured with this plan"]
    notes = []
    if evidence.simulated:
        notes.append(
            "the expected performance is SIMULATED; no real server has run this plan: measure it"
        )
    p99_ms = evidence.results.get("p99_e2e_latency_ms")
    if isinstance(p99_ms, int | float) and p99_ms > INVOCATION_LIMIT_S * 1000:
        notes.append(
            f"p99 end to end is {p99_ms / 1000:.0f} s; a SageMaker invocation that does not stream "
            f"ends after {INVOCATION_LIMIT_S:.0f} s"
        )
    if instance.price is None:
        notes.append(f"no public price of {instance.name} is known; no cost is given")
    return notes


def _fit_notes(
    plan: Plan,
    instance: Node,
    container: Container,
    concurrency: int | None,
    *,
    shared_by: int,
    devices: int,
) -> list[str]:
    notes = []
    each = math.ceil((concurrency or 0) / shared_by)
    if plan.max_num_seqs is not None and plan.max_num_seqs < each:
        notes.append(
            f"max_num_seqs={plan.max_num_seqs} is below the {each} requests that each copy had in "
            f"flight at concurrency {concurrency}: the rest wait, here as they did when measured"
        )
    if plan.max_model_len is None:
        notes.append("max_model_len is open: the engine reserves for the model's longest context")
    idle = instance.device_count - devices
    if idle:
        notes.append(
            f"{idle} of {instance.device_count} devices of {instance.name} stay idle and are paid "
            f"for: choose a smaller type, or {instance.device_count // plan.devices_per_replica} "
            "replicas"
        )
    if container.shares_out and plan.replicas > 1:
        notes.append(
            f"{plan.replicas} replicas run as data parallel ranks of one server, which shares "
            "requests out itself; separate servers may balance otherwise"
        )
    return notes


def _endpoint_name(wanted: str | None, model: str) -> str:
    if wanted is None:
        return resource_name(f"servetune-{model}")
    require_name(wanted)
    return wanted


def _requests(
    *,
    endpoint: str,
    role_arn: str,
    uri: str,
    variables: Mapping[str, str],
    source: str,
    instance: Node,
    image: Image,
    timeout_s: int,
) -> dict[str, dict[str, Any]]:
    """The three requests; model and configuration are named by what they hold.

    So a bundle with other settings makes other resources, and the same bundle finds its own.
    """
    held = _json([uri, instance.name, source, variables, timeout_s])
    digest = hashlib.sha256(held.encode()).hexdigest()
    name = f"{endpoint[: NAME_LIMIT - 9].rstrip('-')}-{digest[:8]}"
    tags = [
        {"Key": "servetune:endpoint", "Value": endpoint},
        {"Key": "servetune:plan", "Value": digest[:16]},
    ]
    container: dict[str, Any] = {"Image": uri, "Environment": dict(variables)}
    variant: dict[str, Any] = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InstanceType": instance.name,
        "InitialInstanceCount": 1,
        "InitialVariantWeight": 1.0,
        "ContainerStartupHealthCheckTimeoutInSeconds": timeout_s,
        "InferenceAmiVersion": ami_version(image),
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    if source.startswith("s3://"):
        container["ModelDataSource"] = {
            "S3DataSource": {
                "S3Uri": source,
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        }
        variant["ModelDataDownloadTimeoutInSeconds"] = timeout_s
    return {
        "model": {
            "ModelName": name,
            "ExecutionRoleArn": role_arn,
            "PrimaryContainer": container,
            "Tags": tags,
        },
        "endpoint_config": {
            "EndpointConfigName": name,
            "ProductionVariants": [variant],
            "Tags": tags,
        },
        "endpoint": {"EndpointName": endpoint, "EndpointConfigName": name, "Tags": tags},
    }


def _public(evidence: Evidence) -> Evidence:
    """The evidence as JSON can hold it, without credentials that a command line may have had."""
    plain = json.loads(msgspec.json.encode(evidence))  # non-finite numbers become null
    return msgspec.convert(redacted(plain), Evidence)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
