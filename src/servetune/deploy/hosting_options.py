"""Options that say how a SageMaker endpoint is made up of instances, copies and adapters."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from servetune.deploy.hosting import Adapter, Hosting, Scaling, parse_routing
from servetune.deploy.saturation import HEADROOM, SaturationPoint
from servetune.errors import InputError
from servetune.hardware import Node, instance
from servetune.option import Count, Positive, option
from servetune.plan import Plan
from servetune.units import GIB, MIB

#: Share of an instance's memory that copies may reserve; SageMaker's agents take some.
RESERVABLE = 0.85

MemoryMib = Annotated[int, msgspec.Meta(ge=128)]
ProvisionSeconds = Annotated[int, msgspec.Meta(ge=300, le=3600)]
StartupSeconds = Annotated[int, msgspec.Meta(ge=60, le=3600)]


class HostingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Instances, copies, adapters and scaling of an endpoint."""

    group: ClassVar[str] = "Hosting"

    instances: Annotated[Count, option("Number of instances.", metavar="COUNT")] = 1
    fallback: Annotated[
        tuple[str, ...],
        option(
            "Instance type to take when the first cannot be had; repeatable, up to four, in order.",
            metavar="TYPE",
        ),
    ] = ()
    copies: Annotated[
        Count | None,
        option(
            "Number of inference components' copies, each of one replica.",
            metavar="COUNT",
            default="one model per instance, without components",
        ),
    ] = None
    memory_mib: Annotated[
        MemoryMib | None,
        option("Host memory that one copy reserves, in MiB.", default="an even share"),
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
        self, plan: Plan, nodes: tuple[Node, ...], saturation: SaturationPoint | None
    ) -> Hosting:
        """The Hosting of these options.

        Args:
            plan: Plan of one instance, or of one copy where there are components.
            nodes: Instance types, the preferred one first.
            saturation: Measured, per what scaling adds: a copy, or an instance without components.

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
            adapters=tuple(_adapter(text) for text in self.adapter),
            scaling=self._scaling(saturation),
            routing=parse_routing(self.routing),
            reservation_arn=self.reservation_arn,
            provision_timeout_s=self.provision_timeout_s,
        )

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
