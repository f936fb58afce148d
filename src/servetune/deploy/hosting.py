"""Hosting: how an endpoint is made of instances, copies, adapters and their scaling.

A Plan describes how one copy serves; Hosting has the number of copies, their machines, and
the rule that picks one for a request. It is checked when it is made.
`HostingOptions` are the options of a user that become a Hosting.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import msgspec

from servetune.deploy.evidence import HEADROOM, SaturationPoint
from servetune.errors import InputError, UnknownName
from servetune.hardware import Node, instance
from servetune.option import FleetCount, Positive, option
from servetune.plan import Plan
from servetune.units import GIB, MIB

#: Option's word: RoutingStrategy (botocore 1.44.5).
STRATEGIES = {
    "least-outstanding": "LEAST_OUTSTANDING_REQUESTS",
    "random": "RANDOM",
    "prefix-aware": "PREFIX_AWARE",
    "kv-aware": "KV_AWARE",
}

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_ARTIFACT = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/\S+\.tar\.gz")
_RESERVATION = re.compile(r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:[a-z0-9\-]{1,14}/.*")
MOST_POOLS = 5


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Rule that picks the instance or copy for a request.

    Attributes:
        strategy: Key of `STRATEGIES`.
        prefix_characters: Characters of a prompt's beginning that decide, for `prefix-aware`.
        concurrency_limit: Requests in flight above which an instance is passed over although
            it knows the prefix.
    """

    strategy: str = "least-outstanding"
    prefix_characters: int | None = None
    concurrency_limit: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UnknownName("routing", self.strategy, STRATEGIES)
        for value, low, high in (
            (self.prefix_characters, 1024, 65536),
            (self.concurrency_limit, 1, 1024),
        ):
            if value is not None and self.strategy != "prefix-aware":
                raise InputError(
                    f"routing '{self.strategy}' takes no numbers",
                    hint="they are for prefix-aware:LENGTH:CONCURRENCY",
                )
            if value is not None and not low <= value <= high:
                raise InputError(
                    f"prefix-aware routing takes {low} to {high}, got {value}",
                    hint="write it like prefix-aware:4096:64",
                )

    def request(self) -> dict[str, object]:
        config: dict[str, object] = {"RoutingStrategy": STRATEGIES[self.strategy]}
        detail = {
            name: value
            for name, value in (
                ("PrefixLength", self.prefix_characters),
                ("ConcurrencyThreshold", self.concurrency_limit),
            )
            if value is not None
        }
        return config | ({"PrefixAwareRoutingConfig": detail} if detail else {})


def parse_routing(text: str) -> Routing:
    """`least-outstanding`, `random`, `kv-aware` or `prefix-aware[:LENGTH[:CONCURRENCY]]`.

    Example:
        >>> parse_routing("prefix-aware:4096:64").concurrency_limit
        64

    Raises:
        UnknownName: No such strategy.
        InputError: Its numbers are none, or out of bounds.
    """
    strategy, *numbers = text.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise InputError(
            f"'{text}' is no routing", hint="write it like prefix-aware:4096:64, without spaces"
        )
    length, limit = ([int(number) for number in numbers] + [None, None])[:2]
    return Routing(strategy=strategy, prefix_characters=length, concurrency_limit=limit)


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Range of copies (or instances) of an endpoint, and the load at which it changes them.

    Attributes:
        minimum: Least copies where there are components, least instances where there are none;
            zero only for components.
        maximum: Most copies or instances.
        requests_per_copy: Requests in flight per copy at which another copy is added.
        scale_in_cooldown_s: Time between two removals; loading a model again is dear.
        scale_out_cooldown_s: Time between two additions.
    """

    minimum: int
    maximum: int
    requests_per_copy: float
    scale_in_cooldown_s: int = 600
    scale_out_cooldown_s: int = 180

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise InputError(
                f"scaling from {self.minimum} to {self.maximum} is no range",
                hint="write it like --scale 1:4, or --scale 0:4 --copies 1 for components",
            )
        if self.requests_per_copy <= 0:
            raise InputError("scaling needs requests per copy above zero")


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter, served by the base component under its own name."""

    name: str
    artifact_url: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"'{self.name}' is not a name that SageMaker takes",
                hint="letters, digits and dashes: --adapter support=s3://bucket/support.tar.gz",
            )
        if not _ARTIFACT.fullmatch(self.artifact_url):
            raise InputError(
                f"adapter '{self.name}' is not an archive in S3: '{self.artifact_url}'",
                hint="pack its files into one .tar.gz and give s3://bucket/key.tar.gz",
            )


class Hosting(msgspec.Struct, frozen=True, kw_only=True):
    """Instances, copies, adapters and scaling of one endpoint.

    Attributes:
        instance_types: The preferred type first, then those to take when it cannot be had.
        instance_count: Instances to begin with.
        copies: Inference components' copies in all; `None` for one model per instance
            without components.
        devices_per_copy: Accelerators that one copy takes.
        copies_per_instance: Copies that fit on one instance.
        memory_mib_per_copy: Host memory that one copy reserves, by instance type.
        cpu_cores_per_copy: CPU cores that one copy reserves; unset for no reservation.
        adapters: LoRA adapters on the component.
        scaling: Autoscaling; `None` for none.
        routing: Rule that picks the instance or copy for a request.
        reservation_arn: ARN of a Flexible Training Plan for endpoints, or another ML reservation.
        provision_timeout_s: Time to wait for capacity, 300 to 3,600.
        queued: Whether requests wait in a queue (an asynchronous endpoint), so that no instance
            need run.
    """

    instance_types: tuple[str, ...]
    instance_count: int = 1
    copies: int | None = None
    devices_per_copy: int = 1
    copies_per_instance: int = 1
    memory_mib_per_copy: dict[str, int] = {}
    cpu_cores_per_copy: float | msgspec.UnsetType = msgspec.UNSET
    adapters: tuple[Adapter, ...] = ()
    scaling: Scaling | None = None
    routing: Routing = Routing()
    reservation_arn: str | None = None
    provision_timeout_s: int | None = None
    queued: bool = False

    def __post_init__(self) -> None:
        self._check_instances()
        if self.copies is None:
            if self.adapters:
                raise InputError(
                    "adapters need an inference component",
                    hint="give --copies 1 or more",
                )
            if self.scaling and self.scaling.minimum == 0 and not self.queued:
                raise InputError(
                    "only inference components and asynchronous endpoints scale to zero",
                    hint="give --copies 1 or more, or --async-output s3://..",
                )
        elif self.copies < 1:
            raise InputError(f"--copies must be 1 or more, got {self.copies}")
        names = [adapter.name for adapter in self.adapters]
        if len(set(names)) < len(names):
            raise InputError("two adapters have the same name")
        if self.provision_timeout_s is not None and not 300 <= self.provision_timeout_s <= 3600:
            raise InputError(
                f"the time-out for capacity must be 300 to 3600 s, got {self.provision_timeout_s}"
            )
        if self.reservation_arn and not _RESERVATION.fullmatch(self.reservation_arn):
            raise InputError(
                f"'{self.reservation_arn}' is not the ARN of a training plan",
                hint="it looks like arn:aws:sagemaker:us-east-1:123456789012:training-plan/name",
            )

    def _check_instances(self) -> None:
        if not 1 <= len(self.instance_types) <= MOST_POOLS:
            raise InputError(
                f"an endpoint takes 1 to {MOST_POOLS} instance types, "
                f"got {len(self.instance_types)}"
            )
        if len(set(self.instance_types)) < len(self.instance_types):
            raise InputError("an instance type is twice among the fallbacks")
        if self.instance_count < 1:
            raise InputError(f"an endpoint needs an instance, got {self.instance_count}")
        if self.reservation_arn and len(self.instance_types) > 1:
            raise InputError(
                "a reservation holds one instance type, so there is nothing to fall back to",
                hint="leave --fallback out, or deploy without the reservation",
            )

    @property
    def most_instances(self) -> int:
        """Instances that scaling may reach, for quota and cost."""
        if self.scaling is None:
            return self.instance_count
        if self.copies is None:
            return max(self.instance_count, self.scaling.maximum)
        return max(self.instance_count, -(-self.scaling.maximum // self.copies_per_instance))


#: Share of an instance's memory that copies may reserve; SageMaker's agents take some.
RESERVABLE = 0.85

#: CreateInferenceComponent's least (botocore 1.44.5, NumberOfCpuCores).
CpuCores = Annotated[float, msgspec.Meta(ge=0.25)]
MemoryMib = Annotated[int, msgspec.Meta(ge=128)]
ProvisionSeconds = Annotated[int, msgspec.Meta(ge=300, le=3600)]
StartupSeconds = Annotated[int, msgspec.Meta(ge=60, le=3600)]


class HostingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Instances, copies, adapters and scaling of an endpoint."""

    group: ClassVar[str] = "Hosting"

    instances: Annotated[FleetCount, option("Number of instances.", metavar="COUNT")] = 1
    fallback: Annotated[
        tuple[str, ...],
        option(
            "Instance type to take when the first cannot be had; repeatable, up to four, in order.",
            metavar="TYPE",
        ),
    ] = ()
    copies: Annotated[
        FleetCount | None,
        option(
            "Number of copies, as inference components of one replica each.",
            metavar="COUNT",
            default="as many as fill the instances, where the trial's plan leaves devices idle",
        ),
    ] = None
    memory_mib: Annotated[
        MemoryMib | None,
        option("Host memory that one copy reserves, in MiB.", default="an even share"),
    ] = None
    cpu_cores: Annotated[
        CpuCores | None,
        option("CPU cores that one copy reserves.", metavar="CORES", default="no reservation"),
    ] = None
    adapter: Annotated[
        tuple[str, ...],
        option("LoRA adapter on the component; repeatable.", metavar="NAME=s3://..tar.gz"),
    ] = ()
    scale: Annotated[
        str | None,
        option(
            "Range of autoscaled copies (of instances, without --copies); 0 scales to zero.",
            metavar="MIN:MAX",
        ),
    ] = None
    requests_per_copy: Annotated[
        Positive | None,
        option(
            "Requests in flight per copy at which autoscaling adds one.",
            default="the measured saturation point less 20%",
        ),
    ] = None
    routing: Annotated[
        str,
        option(
            "Rule that picks the copy for a request: least-outstanding, random, kv-aware, or "
            "prefix-aware[:LENGTH[:CONCURRENCY]].",
            metavar="RULE",
        ),
    ] = "least-outstanding"
    reservation_arn: Annotated[
        str | None,
        option("ARN of a Flexible Training Plan to take capacity from.", metavar="ARN"),
    ] = None
    provision_timeout_s: Annotated[
        ProvisionSeconds | None,
        option("Seconds to wait for capacity, of each type.", default="SageMaker's"),
    ] = None
    startup_timeout_s: Annotated[
        StartupSeconds | None,
        option("Seconds until the container must answer.", default="from the model's size"),
    ] = None

    def nodes(self, first: Node) -> tuple[Node, ...]:
        """The preferred instance type, then the fallbacks.

        Raises:
            UnknownName: A fallback is in no catalogue.
        """
        return (first, *(instance(name, service="sagemaker") for name in self.fallback))

    def resolved(
        self,
        plan: Plan,
        nodes: tuple[Node, ...],
        saturation: SaturationPoint | None,
        *,
        queued: bool = False,
    ) -> Hosting:
        """The Hosting of these options.

        Args:
            plan: Plan of one instance, or of one copy where there are components.
            nodes: Instance types, the preferred one first.
            saturation: Measured, per what scaling adds: a copy, or an instance without components.
            queued: Whether the endpoint is asynchronous.

        Raises:
            InputError: Options contradict, or the target of scaling is not known.
        """
        per_instance = min(node.device_count // plan.device_count for node in nodes) or 1
        count = self.instances
        if self.copies is not None:
            count = max(count, -(-self.copies // per_instance))
        return Hosting(
            instance_types=tuple(node.name for node in nodes),
            instance_count=count,
            copies=self.copies,
            devices_per_copy=plan.devices_per_replica,
            copies_per_instance=per_instance if self.copies is not None else 1,
            memory_mib_per_copy={}
            if self.copies is None
            else {node.name: self._memory_mib(node, per_instance) for node in nodes},
            cpu_cores_per_copy=self._cpu_cores(nodes, per_instance),
            adapters=tuple(_adapter(text) for text in self.adapter),
            scaling=self._scaling(saturation),
            routing=parse_routing(self.routing),
            reservation_arn=self.reservation_arn,
            provision_timeout_s=self.provision_timeout_s,
            queued=queued,
        )

    def _cpu_cores(self, nodes: tuple[Node, ...], per_instance: int) -> float | msgspec.UnsetType:
        if self.cpu_cores is None:
            return msgspec.UNSET
        if self.copies is None:
            raise InputError("--cpu-cores is for copies", hint="give --copies 1 or more")
        for node in nodes:
            if node.cpus is not None and self.cpu_cores * per_instance > node.cpus:
                raise InputError(
                    f"{per_instance} copies of {self.cpu_cores:g} cores need more than the "
                    f"{node.cpus} of {node.name}",
                    hint=f"give --cpu-cores {node.cpus / per_instance:g} or less",
                )
        return self.cpu_cores

    def _memory_mib(self, node: Node, per_instance: int) -> int:
        held_bytes = node.memory_bytes or 16 * GIB
        return self.memory_mib or int(RESERVABLE * held_bytes / MIB / per_instance)

    def _scaling(self, saturation: SaturationPoint | None) -> Scaling | None:
        if self.scale is None:
            if self.requests_per_copy is not None:
                raise InputError(
                    "--requests-per-copy is for autoscaling", hint="give --scale MIN:MAX beside it"
                )
            return None
        least, _, most = self.scale.partition(":")
        if not (least.isdecimal() and most.isdecimal()):
            raise InputError(
                f"--scale '{self.scale}' is no range", hint="write it like --scale 1:4"
            )
        target = self.requests_per_copy
        if target is None:
            if saturation is None:
                raise InputError(
                    "the trial has no concurrency, so there is no saturation point to scale by",
                    hint="give --requests-per-copy",
                )
            target = max(1.0, round((1 - HEADROOM) * saturation.per_copy, 1))
        return Scaling(minimum=int(least), maximum=int(most), requests_per_copy=target)


def _adapter(text: str) -> Adapter:
    """`support=s3://bucket/support.tar.gz` as an adapter."""
    name, sign, url = text.partition("=")
    if not sign:
        raise InputError(
            f"--adapter '{text}' names no archive",
            hint="write it like --adapter support=s3://bucket/support.tar.gz",
        )
    return Adapter(name=name, artifact_url=url)
