"""Accelerators and links: the bundled ones, and those that a user adds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from types import MappingProxyType

from servetune.errors import UnknownName, nearest
from servetune.hardware.device import Device, Link, Node
from servetune.hardware.rows import DeviceRow, InstanceRow, LinkRow, bundled
from servetune.hardware.user_devices import FileStamp, file_stamp, read_devices, user_devices_path
from servetune.units import GB, GIB, MIB, TFLOPS

__all__ = ["device", "device_names", "link", "load_devices", "node"]


def load_devices(extra_toml: Path | None = None) -> Mapping[str, Device]:
    """All devices by name: the bundled ones, the user's own, and those of `extra_toml`.

    A device takes the place of an earlier one of the same name. The user's own are in the
    file that `SERVETUNE_DEVICES` names, or in `~/.config/servetune/devices.toml`; both files
    have the form of the bundled one:

        [[device]]
        name = "My Accelerator"
        vendor = "me"
        architecture = "unknown"
        memory_mib = 49140
        memory_gb_per_s = 960
        bf16_tflops = 181
        link = "pcie4"

    Raises:
        InputError: A file cannot be read, lacks a key or has an impossible number.
    """
    return _devices(extra_toml).by_name


def device(name: str, *, extra_toml: Path | None = None) -> Device:
    """The device of that name or alias; letter case, spaces, dashes and maker do not count.

    Where no spelling fits, neither does the order of the words, nor those that tell no two
    devices apart (`A100 80GB SXM`, `H100-SXM5`, `GB200 NVL72`), nor a memory or form that the
    device really has (`L40S PCIe`, `l4-24gb`). An instance's name means its device.

    Raises:
        UnknownName: No such device; the nearest are in the hint.
        InputError: A user's file of devices is wrong.

    Example:
        >>> device("nvidia l4").name
        'L4'
    """
    known = _devices(extra_toml)
    found = (
        known.by_spelling.get(_spelling(name))
        or known.by_words.get(_words(name))
        or known.by_what_it_has(_words(name))
    )
    if found is None and (rented := _rented().get(name.strip().lower())):
        found = known.by_name.get(rented)
    if found is None:
        within = [each.name for words, each in known.by_words.items() if words < _words(name)]
        close = list(dict.fromkeys([*within, *nearest(name, known.by_name)]))[:4]
        hint = f"did you mean {', '.join(close)}" if close else ""
        raise UnknownName("GPU", name, known.by_name, hint=hint)
    return found


def device_names() -> tuple[str, ...]:
    """Names of all devices, as the catalogue orders them, those that a user added last."""
    return tuple(_devices(None).by_name)


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
        extra_toml: More devices than the bundled and the user's own.
    """
    found = gpu if isinstance(gpu, Device) else device(gpu, extra_toml=extra_toml)
    return Node(
        name=f"{count}x {found.name}",
        device=found,
        device_count=count,
        link=link(link_name or found.link),
    )


class _Devices:
    """Devices by name, and by every spelling of their names and aliases; the last one counts."""

    def __init__(self, rows: Iterable[DeviceRow]) -> None:
        named: dict[str, DeviceRow] = {}
        owner: dict[str, str] = {}
        for row in rows:
            key = _spelling(row.name)
            named[key] = row
            owner.update({_spelling(written): key for written in (row.name, *row.aliases)})
        devices = {key: _device(row) for key, row in named.items()}
        self.by_name = MappingProxyType({found.name: found for found in devices.values()})
        self.by_spelling = {written: devices[key] for written, key in owner.items()}
        owners: dict[frozenset[str], set[str]] = {}
        for key, row in named.items():
            for written in (row.name, *row.aliases):
                owners.setdefault(_words(written), set()).add(key)
        self.by_words = {
            words: devices[key] for words, keys in owners.items() if len(keys) == 1 for key in keys
        }

    def by_what_it_has(self, words: frozenset[str]) -> Device | None:
        """The only device that the words name, with the memory and the form that they say."""
        said = {word for word in words if word == "pcie" or _MEMORY.fullmatch(word)}
        left_out = [
            frozenset(some) for count in range(len(said)) for some in combinations(said, count + 1)
        ]
        fitting = {
            found.name: found
            for some in left_out
            if (found := self.by_words.get(words - some)) and all(_has(found, it) for it in said)
        }
        return next(iter(fitting.values())) if len(fitting) == 1 else None


def _devices(extra_toml: Path | None) -> _Devices:
    return _read(file_stamp(user_devices_path()), file_stamp(extra_toml))


@lru_cache(maxsize=8)
def _read(own: FileStamp | None, extra: FileStamp | None) -> _Devices:
    rows = list(bundled("devices.toml", "device", DeviceRow))
    for stamp in (own, extra):
        rows += read_devices(stamp, tuple(_links())) if stamp else ()
    return _Devices(rows)


@lru_cache(maxsize=1)
def _links() -> Mapping[str, Link]:
    return MappingProxyType(
        {
            row.name: Link(
                name=row.name,
                bytes_per_s=row.gb_per_s * GB,
                peer_to_peer=row.peer_to_peer,
                source=row.source,
            )
            for row in bundled("links.toml", "link", LinkRow)
        }
    )


#: Written with a name as often as without, and never what tells two devices apart.
_FILLING = re.compile(
    r"nvidia|amd|intel|aws|google|tesla|geforce|instinct|hgx|dgx|oam|sxm\d?|hbm\d?e?|gpu|tensor|"
    r"core|accelerator|edition|generation|blackwell|mega|nvl\d+"
)
_MEMORY = re.compile(r"(\d+)(gb|gib|g)")
_GLUED = re.compile(r"(sxm\d?|pcie|oam)")

#: A device's memory as its name says it, over what the driver reports in GiB: cards that correct
#: errors report a sixteenth less, and some names count in 10^9 bytes.
_LEAST_SAID, _MOST_SAID = 0.97, 1.09


def _has(found: Device, word: str) -> bool:
    """Whether a device has this memory, or is a card where it says so."""
    if word == "pcie":
        return found.link.startswith("pcie")
    said = _MEMORY.fullmatch(word)
    assert said is not None
    return _LEAST_SAID <= int(said[1]) * GIB / found.memory_bytes <= _MOST_SAID


@lru_cache(maxsize=1)
def _rented() -> Mapping[str, str]:
    """The device's name of every bundled instance, SageMaker's and EC2's."""
    return MappingProxyType(
        {
            row.name: row.device
            for service in ("sagemaker", "ec2")
            for row in bundled(f"{service}_instances.toml", "instance", InstanceRow)
        }
    )


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[\s_,()/-]+", _GLUED.sub(r" \1 ", name.strip().lower()))
    return frozenset(word for word in words if word and not _FILLING.fullmatch(word))


def _spelling(name: str) -> str:
    """What counts of a name: letters and digits, without the maker in front."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amd|aws|intel|google)(?=.)", "", letters)


def _device(row: DeviceRow) -> Device:
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
        half_dtype=row.half_dtype,
        tdp_watts=row.tdp_watts,
        link=row.link,
        source=row.source,
    )
