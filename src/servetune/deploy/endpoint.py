"""SageMaker endpoint of one Plan: image, environment and warnings, before any request.

`endpoint_of` is pure: it touches neither the network nor the disk.
"""

from __future__ import annotations

import math
import re

import msgspec

from servetune.deploy.accelerators import require_family
from servetune.deploy.alarms import LatencyLimit
from servetune.deploy.containers import container_named, environment
from servetune.deploy.evidence import Evidence
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.hosting import Hosting
from servetune.deploy.images import choose_image, image_uri, named_image
from servetune.deploy.names import require_name, require_role, resource_name
from servetune.deploy.startup import startup_timeout_s
from servetune.engines import engine
from servetune.engines.container import Container, Image
from servetune.errors import CannotRender, UnknownName
from servetune.hardware.device import Node
from servetune.plan.plan import Plan

_INSTANCE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/\S+")

#: End of a SageMaker invocation that does not stream (runtime API, 2026-11).
INVOCATION_LIMIT_S = 60.0


class EndpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Choices that turn a Plan into an endpoint.

    Attributes:
        nodes: Instance types (`ml.` of the hardware catalogue), the preferred one first.
        hosting: Instances, copies, adapters and scaling; one instance where `None`.
        region: AWS region; decides the image's account.
        container: Key of `containers.CONTAINERS`.
        model_source: Hub id or `s3://` prefix; the Plan's model where `None`.
        endpoint_name: Endpoint's name; made from the model's where `None`.
        role_arn: Execution role; given with `apply` where `None`.
        image_tag: Tag of the container image; `None` for the nearest to the measured engine.
        weights_bytes: Size of the published weights, for time-outs.
        startup_timeout_s: Time until the container must answer health checks; from
            `weights_bytes` where `None`.
        latency_limit: Latency above which an update is rolled back; `None` for none.
        features: Network, keys, records, queue, metrics and tags.
        accept_eula: Whether the user accepts the licence of a JumpStart model.
    """

    nodes: tuple[Node, ...]
    hosting: Hosting | None = None
    region: str = "us-east-1"
    container: str = "lmi"
    model_source: str | None = None
    endpoint_name: str | None = None
    role_arn: str | None = None
    image_tag: str | None = None
    weights_bytes: float | None = None
    startup_timeout_s: int | None = None
    latency_limit: LatencyLimit | None = None
    features: EndpointFeatures = EndpointFeatures()
    accept_eula: bool = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A Plan with everything decided that its requests and its README need.

    Attributes:
        name: Name of the endpoint.
        options: Choices that it was made from.
        hosting: Instances, copies, adapters and scaling.
        plan: The Plan with nothing open that a container or version would decide itself.
        given: The Plan as it came.
        container: Family of images that runs it.
        image: Image of that family.
        image_uri: Address of the image in the region.
        environment: Variables of the container.
        source: Hub id or `s3://` prefix that the model is loaded from.
        served_model: Name that clients call the model by.
        startup_timeout_s: Time until the container must answer health checks.
        evidence: Trial that the Plan rests on, without credentials.
        warnings: Sentences that the user must see before spending money.
    """

    name: str
    options: EndpointOptions
    hosting: Hosting
    plan: Plan
    given: Plan
    container: Container
    image: Image
    image_uri: str
    environment: dict[str, str]
    source: str
    served_model: str
    startup_timeout_s: int
    evidence: Evidence | None
    warnings: tuple[str, ...]

    @property
    def node(self) -> Node:
        """The preferred instance type."""
        return self.options.nodes[0]


def endpoint_of(plan: Plan, options: EndpointOptions, evidence: Evidence | None = None) -> Endpoint:
    """A Plan as a SageMaker endpoint.

    Args:
        plan: Resolved (`engines.defaults.resolved`). A field that is still open and whose
            default differs between engine, container and version is filled here, with a warning.
        options: Choices beside the Plan.
        evidence: The trial that the Plan rests on.

    Raises:
        UnknownName: Region, instance type or container is not known.
        CannotRender: The Plan does not fit the instance, or the container cannot express it.
    """
    evidence = evidence.public() if evidence else None
    container = container_named(options.container)
    source = _checked_source(options.model_source or plan.model)
    _check_target(plan, options)
    image, image_warning = image_for(plan, options.container, evidence, options.image_tag)
    node = options.nodes[0]
    concurrency = evidence.concurrency if evidence else None
    filled, fill_warnings = container.fill(
        plan, node.device, concurrency or 0, image.engine_version or ""
    )
    timeout_s = _timeout_s(options, filled.replicas)
    variables = environment(
        container,
        filled,
        image=image,
        model_source=source,
        concurrency=concurrency,
        load_timeout_s=timeout_s,
    )
    shipping = engine(plan.engine).shipping
    if shipping and options.hosting and options.hosting.adapters:
        variables |= shipping.adapter_variables
    served = variables[container.key("served_model_name")]
    copies = options.hosting.copies if options.hosting else None
    options.features.check(source, copies=copies)
    hosting = options.hosting or Hosting(instance_types=tuple(each.name for each in options.nodes))
    warnings = (
        *_evidence_warnings(evidence, node),
        image_warning,
        *fill_warnings,
        *_fit_warnings(filled, node, container, hosting, concurrency),
    )
    return Endpoint(
        name=require_name(options.endpoint_name or resource_name(f"servetune-{served}")),
        options=options,
        hosting=hosting,
        plan=filled,
        given=plan,
        container=container,
        image=image,
        image_uri=image_uri(container.repository, image.tag, options.region),
        environment=variables,
        source=source,
        served_model=served,
        startup_timeout_s=timeout_s,
        evidence=evidence,
        warnings=tuple(text for text in warnings if text),
    )


def image_for(
    plan: Plan, container: str, evidence: Evidence | None = None, tag: str | None = None
) -> tuple[Image, str]:
    """The image to run, one that can express all of the Plan, and a warning or "".

    Raises:
        UnknownName: There is no such container.
        CannotRender: No image of it can express the Plan, or the tag does not tell enough.
    """
    if tag is not None:
        return named_image(container, tag)
    own = container_named(container)
    version = evidence.engine_version if evidence else None
    nearest, warning = choose_image(container, version)
    if version is None and evidence and not evidence.simulated:
        newest = nearest.engine_version or nearest.tag
        warning = (
            f"the trial does not say which version of {plan.engine} it measured, so the newest "
            f"{container} image is taken ({newest}): expect other figures, or give --image-tag"
        )
    if own.able(plan, nearest):
        return nearest, warning
    able, reason = choose_image(container, version, able=lambda image: own.able(plan, image))
    return able, reason or warning


def _timeout_s(options: EndpointOptions, copies: int) -> int:
    timeout_s = options.startup_timeout_s
    if timeout_s is None:
        return startup_timeout_s(options.weights_bytes, copies)
    if not 60 <= timeout_s <= 3600:
        raise CannotRender(
            f"the start-up time-out must be 60 to 3600 s, got {timeout_s}",
            hint="leave it out to have it computed from the model's size",
        )
    return timeout_s


def _checked_source(source: str) -> str:
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


def _check_target(plan: Plan, options: EndpointOptions) -> None:
    node = options.nodes[0]
    if not _INSTANCE.fullmatch(node.name):
        raise UnknownName(
            "SageMaker instance type", node.name, (), hint="types look like ml.g6.12xlarge"
        )
    if plan.device_count > node.device_count:
        raise CannotRender(
            f"the plan takes {plan.device_count} devices, {node.name} has {node.device_count}",
            hint="choose a larger instance type, or fewer replicas behind one endpoint",
        )
    for each in options.nodes:
        require_family(f"container '{options.container}' on {each.name}", each.device)
    if options.role_arn is not None:
        require_role(options.role_arn)


def _evidence_warnings(evidence: Evidence | None, node: Node) -> list[str]:
    if evidence is None:
        return ["nothing was measured with this plan"]
    warnings = []
    if evidence.simulated:
        warnings.append(
            "the expected performance is SIMULATED; no real server has run this plan: measure it"
        )
    p99_ms = evidence.results.get("p99_e2e_latency_ms")
    if isinstance(p99_ms, int | float) and p99_ms > INVOCATION_LIMIT_S * 1000:
        warnings.append(
            f"p99 end to end is {p99_ms / 1000:.0f} s; a SageMaker invocation that does not stream "
            f"ends after {INVOCATION_LIMIT_S:.0f} s"
        )
    if node.price is None:
        warnings.append(f"no public price of {node.name} is known; no cost is given")
    return warnings


def _fit_warnings(
    plan: Plan, node: Node, container: Container, hosting: Hosting, concurrency: int | None
) -> list[str]:
    warnings = []
    copies = hosting.copies or plan.replicas * plan.data_parallel
    each = math.ceil((concurrency or 0) / copies)
    if plan.max_num_seqs is not None and plan.max_num_seqs < each:
        warnings.append(
            f"max_num_seqs={plan.max_num_seqs} is below the {each} requests that each copy had in "
            f"flight at concurrency {concurrency}: the rest wait, here as they did when measured"
        )
    if plan.max_model_len is None:
        warnings.append(
            "max_model_len is open: the engine reserves for the model's longest context"
        )
    idle = node.device_count - plan.device_count * hosting.copies_per_instance
    if idle:
        filling = node.device_count // plan.devices_per_replica * hosting.instance_count
        warnings.append(
            f"{idle} of {node.device_count} devices of {node.name} stay idle and are paid "
            f"for: choose a smaller type, or --copies {filling}"
        )
    if container.shares_out and plan.replicas > 1:
        warnings.append(
            f"{plan.replicas} replicas run as data parallel ranks of one server, which shares "
            "requests out itself; separate servers may balance otherwise"
        )
    return warnings
