"""Cloud instances: SageMaker hosting (`ml.`) and EC2, with their prices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

from servetune.errors import UnknownName, nearest
from servetune.hardware.catalog import device, link
from servetune.hardware.device import Device, Node, Price
from servetune.hardware.rows import InstanceRow, bundled
from servetune.units import GB, GIB

#: AWS service; the same hardware has another name and another price in each.
Service: TypeAlias = Literal["sagemaker", "ec2"]


def instance(name: str, *, service: Service | None = None) -> Node:
    """Instance by exact name: SageMaker's with `ml.`, EC2's without it.

    Args:
        name: Instance name; letter case does not count.
        service: Required service, such as for a deployment; the `ml.` prefix is then
            optional.

    Raises:
        UnknownName: No such instance; the nearest names are in the hint.

    Example:
        >>> instance("g6.12xlarge").label, instance("g6.12xlarge").price.usd_per_hour
        ('4x L4 (g6.12xlarge)', 4.6016)
        >>> instance("g6.12xlarge", service="sagemaker").price.usd_per_hour
        5.752
    """
    bare = name.strip().lower().removeprefix("ml.")
    if service is None:
        service = "sagemaker" if name.strip().lower().startswith("ml.") else "ec2"
    prefix = "ml." if service == "sagemaker" else ""
    rows = _rows(service)
    if prefix + bare not in rows:
        # Compared without the common prefix, so that the nearest names are close.
        close = nearest(bare, [full.removeprefix(prefix) for full in rows])
        hint = f"did you mean {', '.join(prefix + short for short in close)}" if close else ""
        raise UnknownName("instance", name, rows, hint=hint)
    return _instance(rows[prefix + bare])


def instances(service: Service = "sagemaker") -> Mapping[str, Node]:
    """Bundled instances of a service by name, SageMaker's with `ml.`."""
    return MappingProxyType({name: _instance(row) for name, row in _rows(service).items()})


def cheapest_instance_with(
    gpu: Device | str, count: int = 1, *, service: Service = "sagemaker"
) -> Node | None:
    """Cheapest instance per hour with at least `count` devices of this kind.

    None where no instance has them, or none of those has a public price.
    """
    name = gpu.name if isinstance(gpu, Device) else device(gpu).name
    priced = [
        (candidate.price.usd_per_hour, candidate.device_count, candidate.name, candidate)
        for candidate in instances(service).values()
        if candidate.device.name == name
        and candidate.device_count >= count
        and candidate.price is not None
    ]
    return min(priced, key=lambda offer: offer[:3])[3] if priced else None


@lru_cache(maxsize=2)
def _rows(service: Service) -> Mapping[str, InstanceRow]:
    rows = bundled(f"{service}_instances.toml", "instance", InstanceRow)
    return MappingProxyType({row.name: row for row in rows})


def _instance(row: InstanceRow) -> Node:
    price = None
    if row.usd_per_hour is not None:
        price = Price(
            usd_per_hour=row.usd_per_hour,
            region=row.region,
            source=row.price_source,
            date=row.price_date,
        )
    network = row.network_gbit_per_s
    return Node(
        name=row.name,
        device=device(row.device),
        device_count=row.device_count,
        link=link(row.link),
        cpus=row.cpus,
        memory_bytes=row.memory_gib * GIB,
        price=price,
        network_bytes_per_s=None if network is None else network * GB / 8,
    )
