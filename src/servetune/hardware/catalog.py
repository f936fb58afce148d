"""The bundled machines: accelerators, links and instances, and those that a user adds.

The tables are TOML in units that people read in datasheets (MiB, GB/s, TFLOPS); here, at
the door, they become bytes, bytes per second and FLOP/s.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from servetune.errors import InputError, UnknownName, nearest
from servetune.hardware.device import Device, Link, Node, Price
from servetune.units import GB, GIB, MIB, TFLOPS

__all__ = [
    "cheapest_instance_with",
    "device",
    "device_names",
    "instance",
    "instances",
    "link",
    "load_devices",
    "node",
]


_Row = TypeVar("_Row", bound=msgspec.Struct)


class _DeviceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device as a datasheet states it."""

    name: str
    vendor: str
    architecture: str
    memory_mib: float
    memory_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    int8_tflops: float | None = None
    fp4_tflops: float | None = None
    link: str = "pcie4"
    source: str = ""
    aliases: tuple[str, ...] = ()


class _LinkRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    gb_per_s: float
    peer_to_peer: bool
    source: str = ""


class _InstanceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    device: str
    device_count: int
    link: str
    cpus: int
    memory_gib: float
    usd_per_hour: float | None = None
    region: str = ""
    price_source: str = ""
    price_date: str = ""


def load_devices(extra_toml: Path | None = None) -> Mapping[str, Device]:
    """All devices by name; those of `extra_toml` are added, or take a bundled one's place.

    The file has the form of the bundled one:

        [[device]]
        name = "My Accelerator"
        vendor = "me"
        architecture = "unknown"
        memory_mib = 49140
        memory_gb_per_s = 960
        bf16_tflops = 181
        link = "pcie4"

    Raises:
        InputError: The file cannot be read, lacks a key or has an impossible number.
    """
    return MappingProxyType({row.name: _device(row) for row in _rows(extra_toml)})


def device(name: str, *, extra_toml: Path | None = None) -> Device:
    """The device of that name or alias; letter case, spaces, dashes and maker do not count.

    Raises:
        UnknownName: No such device; the nearest are in the hint.

    Example:
        >>> device("nvidia l4").name
        'L4'
    """
    rows = _rows(extra_toml)
    by_key = {_key(spelling): row for row in rows for spelling in (row.name, *row.aliases)}
    row = by_key.get(_key(name))
    if row is None:
        raise UnknownName("GPU", name, [known.name for known in rows])
    return _device(row)


def device_names() -> tuple[str, ...]:
    """Names of the bundled devices, as the catalogue orders them."""
    return tuple(row.name for row in _bundled_devices())


def link(name: str) -> Link:
    """The link of that name, such as `pcie4`, `pcie4-p2p` or `nvlink4`."""
    known = _links()
    if name not in known:
        raise UnknownName("link", name, known)
    return known[name]


def node(
    *,
    gpu: str | Device,
    count: int = 1,
    link_name: str | None = None,
    extra_toml: Path | None = None,
) -> Node:
    """A machine with `count` devices behind the link that is usual for them.

    Args:
        gpu: A name that `device` knows, or a device.
        count: How many.
        link_name: Another link than the device's own.
        extra_toml: A user's own devices.
    """
    found = gpu if isinstance(gpu, Device) else device(gpu, extra_toml=extra_toml)
    return Node(
        name=f"{count}x {found.name}",
        device=found,
        device_count=count,
        link=link(link_name or found.link),
    )


def instance(name: str) -> Node:
    """The SageMaker instance of that name, with or without the leading `ml.`.

    Raises:
        UnknownName: No such instance; the nearest are in the hint.

    Example:
        >>> instance("g6.12xlarge").label
        '4x L4 (ml.g6.12xlarge)'
    """
    known = instances()
    wanted = name.strip().lower()
    wanted = wanted if wanted.startswith("ml.") else f"ml.{wanted}"
    if wanted not in known:
        # Compared without the prefix that all share, so that the nearest names are near.
        close = nearest(wanted[3:], [full[3:] for full in known])
        hint = f"did you mean {', '.join(f'ml.{short}' for short in close)}" if close else ""
        raise UnknownName("instance", name, known, hint=hint)
    return known[wanted]


@lru_cache(maxsize=1)
def instances() -> Mapping[str, Node]:
    """All bundled SageMaker instances by name, `ml.` included."""
    rows = _convert(_bundled("instances.toml")["instance"], _InstanceRow, "instances.toml")
    return MappingProxyType({row.name: _instance(row) for row in rows})


def cheapest_instance_with(wanted: Device | str, count: int = 1) -> Node | None:
    """The priced instance at least cost per hour that has at least `count` such devices.

    None where no instance has them, or none of those has a public price.
    """
    name = wanted.name if isinstance(wanted, Device) else device(wanted).name
    priced = [
        (candidate.price.usd_per_hour, candidate.device_count, candidate.name, candidate)
        for candidate in instances().values()
        if candidate.device.name == name
        and candidate.device_count >= count
        and candidate.price is not None
    ]
    return min(priced, key=lambda offer: offer[:3])[3] if priced else None


def _key(spelling: str) -> str:
    """What counts of a name: letters and digits, without the maker in front."""
    letters = re.sub(r"[^a-z0-9]", "", spelling.lower())
    return re.sub(r"^(nvidia|amd|aws)(?=.)", "", letters)


def _rows(extra_toml: Path | None) -> tuple[_DeviceRow, ...]:
    bundled = _bundled_devices()
    if extra_toml is None:
        return bundled
    own = _user_devices(extra_toml)
    replaced = {row.name for row in own}
    return (*(row for row in bundled if row.name not in replaced), *own)


@lru_cache(maxsize=1)
def _bundled_devices() -> tuple[_DeviceRow, ...]:
    return _convert(_bundled("devices.toml")["device"], _DeviceRow, "devices.toml")


@lru_cache(maxsize=1)
def _links() -> Mapping[str, Link]:
    rows = _convert(_bundled("links.toml")["link"], _LinkRow, "links.toml")
    return MappingProxyType(
        {
            row.name: Link(
                name=row.name,
                bytes_per_s=row.gb_per_s * GB,
                peer_to_peer=row.peer_to_peer,
                source=row.source,
            )
            for row in rows
        }
    )


def _user_devices(path: Path) -> tuple[_DeviceRow, ...]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the devices in '{path}' cannot be read: {error}",
            hint="the file must be TOML with [[device]] tables",
        ) from error
    rows = table.get("device")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"'{path}' has no [[device]] table", hint="see load_devices for its form")
    converted = _convert(rows, _DeviceRow, str(path))
    for row in converted:
        link(row.link)
    return converted


def _bundled(file: str) -> dict[str, Any]:
    return tomllib.loads(
        resources.files("servetune.hardware").joinpath(f"data/{file}").read_text("utf-8")
    )


def _convert(rows: Any, kind: type[_Row], where: str) -> tuple[_Row, ...]:
    """Rows of one kind, every number of them above zero."""
    try:
        converted = msgspec.convert(rows, tuple[kind, ...])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise InputError(
            f"'{where}' does not describe devices: {error}",
            hint="compare with the keys of the bundled devices.toml",
        ) from error
    for row in converted:
        for field in msgspec.structs.fields(kind):
            value = getattr(row, field.name)
            if isinstance(value, float | int) and not isinstance(value, bool) and not value > 0:
                raise InputError(f"'{where}': {field.name} must be above zero, got {value}")
    return converted


def _device(row: _DeviceRow) -> Device:
    def flops(tflops: float | None) -> float | None:
        return None if tflops is None else tflops * TFLOPS

    return Device(
        name=row.name,
        vendor=row.vendor,
        architecture=row.architecture,
        memory_bytes=row.memory_mib * MIB,
        memory_bytes_per_s=row.memory_gb_per_s * GB,
        bf16_flops=row.bf16_tflops * TFLOPS,
        fp8_flops=flops(row.fp8_tflops),
        int8_flops=flops(row.int8_tflops),
        fp4_flops=flops(row.fp4_tflops),
        link=row.link,
        source=row.source,
    )


def _instance(row: _InstanceRow) -> Node:
    price = None
    if row.usd_per_hour is not None:
        price = Price(
            usd_per_hour=row.usd_per_hour,
            region=row.region,
            source=row.price_source,
            date=row.price_date,
        )
    return Node(
        name=row.name,
        device=device(row.device),
        device_count=row.device_count,
        link=link(row.link),
        cpus=row.cpus,
        memory_bytes=row.memory_gib * GIB,
        price=price,
    )
