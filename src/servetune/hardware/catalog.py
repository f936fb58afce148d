"""Catalogue of devices and links: bundled ones and the user's own."""

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
from servetune.hardware.user_devices import FileStamp, file_stamp, read_hardware, user_devices_path
from servetune.units import GB, GIB, MIB, TFLOPS


def load_devices(extra_toml: Path | None = None) -> Mapping[str, Device]:
    """Devices by name: bundled, user's own, and those of `extra_toml`.

    A later device replaces an earlier one of the same name. The user's own are in the file
    named by `SERVETUNE_DEVICES`, or in `~/.config/servetune/devices.toml`; both files have the
    format of the bundled one:

        [[device]]
        name = "My Accelerator"
        vendor = "me"
        architecture = "unknown"
        memory_mib = 49140
        memory_gb_per_s = 960
        bf16_tflops = 181
        link = "pcie4-x8"

        [[link]]
        name = "pcie4-x8"
        gb_per_s = 15.75
        peer_to_peer = false

    Raises:
        InputError: A file is unreadable, lacks a key or has an impossible number.
    """
    return _devices(extra_toml).by_name


def device(name: str, *, extra_toml: Path | None = None) -> Device:
    """Device by name or alias; letter case, spaces, dashes and vendor do not count.

    Without an exact match, the order of words is ignored, and so are words that distinguish no
    two devices (`A100 80GB SXM`, `H100-SXM5`, `GB200 NVL72`) and a memory size or form factor
    that the device has (`L40S PCIe`, `l4-24gb`). An instance's name stands for its device, and of
    a name with a remark the part that is known (`DGX Spark (GB10)`, `H100 (Azure ND H100 v5)`).

    Raises:
        UnknownName: No such device; the nearest names are in the hint.
        InputError: The user's device file is wrong.

    Example:
        >>> device("nvidia l4").name
        'L4'
    """
    known = _devices(extra_toml)
    found = known.named(name)
    if found is None and (parts := _REMARKED.fullmatch(name.strip())) and not _TELLS.search(name):
        fitting = {each.name: each for part in parts.groups() if (each := known.named(part))}
        found = next(iter(fitting.values())) if len(fitting) == 1 else None
    if found is None and (of_instance := _instance_devices().get(name.strip().lower())):
        found = known.by_name.get(of_instance)
    if found is None:
        within = [each.name for words, each in known.by_words.items() if words < _words(name)]
        close = list(dict.fromkeys([*within, *nearest(name, known.by_name)]))[:4]
        hint = f"did you mean {', '.join(close)}" if close else ""
        raise UnknownName("GPU", name, known.by_name, hint=hint)
    return found


def device_names() -> tuple[str, ...]:
    """Names of all devices in catalogue order, the user's own last."""
    return tuple(_devices(None).by_name)


def link(name: str, *, extra_toml: Path | None = None) -> Link:
    """Link by name, such as `pcie4`, `pcie4-p2p`, `nvlink4` or one of the user's own.

    A later link replaces an earlier one of the same name, as devices do (`load_devices`).
    """
    known = _devices(extra_toml).links
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
    """Machine with `count` devices joined by their usual link.

    Args:
        gpu: Device, or its name as for `device`.
        count: Number of devices.
        link_name: Link to use instead of the device's own.
        extra_toml: File with further devices.
    """
    found = gpu if isinstance(gpu, Device) else device(gpu, extra_toml=extra_toml)
    return Node(
        name=f"{count}x {found.name}",
        device=found,
        device_count=count,
        link=link(link_name or found.link, extra_toml=extra_toml),
    )


class _Devices:
    """Device index by name and by every spelling of names and aliases; the last entry counts.

    Attributes:
        links: Links by name.
    """

    def __init__(self, rows: Iterable[DeviceRow], links: Mapping[str, Link]) -> None:
        self.links = MappingProxyType(links)
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

    def named(self, name: str) -> Device | None:
        """Device of a name, by its letters, else by its words."""
        if (spelt := self.by_spelling.get(_spelling(name))) is not None:
            return spelt
        words = _words(name)
        return self.by_words.get(words) or self.by_name_and_features(words)

    def by_name_and_features(self, words: frozenset[str]) -> Device | None:
        """Only device that matches the words, including memory size and form factor."""
        features = {word for word in words if word == "pcie" or _MEMORY.fullmatch(word)}
        left_out = [
            frozenset(some)
            for count in range(len(features))
            for some in combinations(features, count + 1)
        ]
        fitting = {
            found.name: found
            for some in left_out
            if (found := self.by_words.get(words - some))
            and all(_has(found, it) for it in features)
        }
        return next(iter(fitting.values())) if len(fitting) == 1 else None


def described_devices(path: Path) -> tuple[str, ...]:
    """Names of the devices in a device file; none where it does not exist."""
    stamp = file_stamp(path) if path.is_file() else None
    found = read_hardware(stamp, tuple(bundled_links())) if stamp else None
    return tuple(row.name for row in found.devices) if found else ()


def _devices(extra_toml: Path | None) -> _Devices:
    return _read(file_stamp(user_devices_path()), file_stamp(extra_toml))


@lru_cache(maxsize=8)
def _read(own: FileStamp | None, extra: FileStamp | None) -> _Devices:
    rows = list(bundled("devices.toml", "device", DeviceRow))
    links = dict(bundled_links())
    for stamp in filter(None, (own, extra)):
        found = read_hardware(stamp, tuple(links))
        rows += found.devices
        links |= {row.name: _link(row) for row in found.links}
    return _Devices(rows, links)


@lru_cache(maxsize=1)
def bundled_links() -> Mapping[str, Link]:
    """Bundled links by name, which no user's file changes."""
    rows = bundled("links.toml", "link", LinkRow)
    return MappingProxyType({row.name: _link(row) for row in rows})


def _link(row: LinkRow) -> Link:
    return Link(
        name=row.name,
        bytes_per_s=row.gb_per_s * GB,
        peer_to_peer=row.peer_to_peer,
        source=row.source,
        most_devices=row.most_devices,
        beyond_bytes_per_s=row.beyond_gb_per_s and row.beyond_gb_per_s * GB,
        adapters=row.adapters,
    )


#: Optional words of device names that distinguish no two devices.
_OPTIONAL = re.compile(
    r"nvidia|amd|intel|aws|google|tesla|geforce|instinct|hgx|dgx|oam|sxm\d?|hbm\d?e?|gpu|tensor|"
    r"core|accelerator|edition|generation|blackwell|mega|nvl\d+"
)
_MEMORY = re.compile(r"(\d+)(gb|gib|g)")
_REMARKED = re.compile(r"(.+?)\s*\(([^()]+)\)")
#: Words of a remark that tell of another device, of a part of one, or of several.
_TELLS = re.compile(
    r"\(.*(\b\d+ ?(gb|gib|g)\b|pcie|sxm|oam|nvl|mig|max-?q|laptop|\b\d+ ?x|x ?\d+\b).*\)", re.I
)
_GLUED = re.compile(r"(sxm\d?|pcie|oam)")

#: Range of the memory size in a device's name over the size that the driver reports, in GiB: with
#: error correction a driver reports a sixteenth less, and some names count in 10^9 bytes.
_LEAST_NAMED, _MOST_NAMED = 0.97, 1.09


def _has(found: Device, word: str) -> bool:
    """Whether a device has this memory size or form factor."""
    if word == "pcie":
        return found.link.startswith("pcie")
    memory = _MEMORY.fullmatch(word)
    assert memory is not None
    return _LEAST_NAMED <= int(memory[1]) * GIB / found.memory_bytes <= _MOST_NAMED


@lru_cache(maxsize=1)
def _instance_devices() -> Mapping[str, str]:
    """Device name of every bundled instance, SageMaker's and EC2's."""
    return MappingProxyType(
        {
            row.name: row.device
            for service in ("sagemaker", "ec2")
            for row in bundled(f"{service}_instances.toml", "instance", InstanceRow)
        }
    )


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[\s_,()/-]+", _GLUED.sub(r" \1 ", name.strip().lower()))
    return frozenset(word for word in words if word and not _OPTIONAL.fullmatch(word))


@lru_cache(maxsize=1024)
def _spelling(name: str) -> str:
    """Normalised name: letters and digits, without a leading vendor; cached for rows of a table."""
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
        memory_bytes_per_s=row.memory_gb_per_s * row.memory_share * GB,
        bf16_flops=row.bf16_tflops * TFLOPS,
        fp8_flops=flops(row.fp8_tflops),
        int8_flops=flops(row.int8_tflops),
        fp4_flops=flops(row.fp4_tflops),
        half_dtype=row.half_dtype,
        tdp_watts=row.tdp_watts,
        matrix_share=row.matrix_share,
        dies=row.dies,
        link=row.link,
        source=row.source,
    )
