"""Local hardware, by NVML and the operating system; no process is started."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import NamedTuple, TypeVar

import msgspec

from servetune.errors import InputError, UnknownName
from servetune.hardware.catalog import device, device_names, link
from servetune.hardware.device import Device, Node
from servetune.units import GB, GIB, MIB

T = TypeVar("T")


def detect(nvml: ModuleType | None = None) -> Node | None:
    """NVIDIA devices of this machine as one node, or None without any.

    Where cards differ, the most numerous kind is used (the first listed, among equals), and
    the node's name lists the others. The link is NVLink where a card reports an active one,
    else PCI Express of the card's generation, with peer-to-peer where the driver allows it, or that
    of a virtual machine. The power limit is the one that the driver enforces.

    Args:
        nvml: Module `pynvml`, or an object with its functions; by default the installed
            module, and the result is None without it.

    Raises:
        UnknownName: A card is not in the catalogue.
        InputError: Every card is split into MIG instances, each with a share of its speed.
    """
    nvml = nvml or _installed_nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None  # no driver or no permission
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        cards = [_card(nvml, handle) for handle in handles]
        whole = [card for card in cards if not card.split]
        if not cards:
            return None
        if not whole:
            raise InputError(
                f"{_count_of(cards)} split into MIG instances, which have a share of its speed",
                hint=f"switch MIG off, or {_DESCRIBE}",
            )
        kind = max(whole, key=whole.count)
        alike = [handle for handle, card in zip(handles, cards, strict=True) if card == kind]
        others = [card for card in cards if card != kind]
        found = device_for_card(kind.name, kind.memory_bytes)
        return Node(
            name=f"this machine, without {_count_of(others)}"
            if others
            else f"{len(alike)}x {found.name}",
            device=_with_power_limit(nvml, alike[0], found),
            device_count=len(alike),
            link=link(_link_name(nvml, alike, found)),
            cpus=_cpu_count(),
            memory_bytes=_memory_bytes(),
        )
    finally:
        nvml.nvmlShutdown()


def detect_cpu() -> Node:
    """Processor of this machine as one device, with guessed speeds.

    The guess is cores times 2.5 GHz times 32 operations per cycle (two 256-bit fused
    multiply-adds of 32-bit numbers), and 10 GB/s per core up to two memory channels of
    20 GB/s for each eight cores, 40 GB/s at least. `calibrate` replaces it by a measurement.
    """
    cores, memory_bytes = _cpu_count(), _memory_bytes()
    channels_gb_per_s = max(40.0, 5.0 * cores)
    found = Device(
        name="CPU",
        vendor="generic",
        architecture="cpu",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=min(10.0 * cores, channels_gb_per_s) * GB,
        bf16_flops=cores * 2.5e9 * 32,
        link="host-memory",
        source=f"guess from {cores} cores; memory as the operating system reports it",
    )
    return Node(
        name="this machine's CPU",
        device=found,
        device_count=1,
        link=link(found.link),
        cpus=cores,
        memory_bytes=memory_bytes,
    )


def device_for_card(card_name: str, memory_bytes: float) -> Device:
    """Catalogue device for a card's driver name, with the memory that the driver reports.

    Names shared by several cards (`Tesla V100-SXM2`, `NVIDIA GH200`) are distinguished by
    memory size, never by part of the name: an L40S is not an L40, an H100 PCIe not an H100
    SXM.

    Raises:
        UnknownName: The catalogue has no such card.
        InputError: The card is a MIG instance.
    """
    if re.search(r"\bMIG\b", card_name):
        raise InputError(
            f"'{card_name}' is a MIG instance, which has a share of its card's speed",
            hint=f"switch MIG off, or {_DESCRIBE}",
        )
    plain = re.sub(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+", "", card_name.strip())
    plain = re.sub(r"^(Tesla|GeForce)\s+", "", plain)
    candidates = _CARDS.get(plain.lower(), (plain,))
    known = [found for name in candidates if (found := _known(name)) is not None]
    if not known:
        raise UnknownName(
            "GPU",
            card_name,
            device_names(),
            hint=_DESCRIBE,
        )
    closest = min(known, key=lambda found: abs(found.memory_bytes - memory_bytes))
    if abs(closest.memory_bytes - memory_bytes) >= 0.25 * closest.memory_bytes:
        raise UnknownName(
            "GPU",
            f"{card_name} with {memory_bytes / MIB:.0f} MiB",
            device_names(),
            hint=_DESCRIBE,
        )
    return _with_memory(closest, memory_bytes)


_DESCRIBE = (
    "describe it in a TOML file of your own devices (docs/guides/your-own-hardware.md), "
    "or name another device with --gpu"
)

#: Devices by NVML name, for names shared by several cards or truncated by older drivers; other
#: names are aliases in the catalogue.
_CARDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "a100-sxm": ("A100-40GB", "A100-80GB"),
        "a100-sxm4": ("A100-40GB", "A100-80GB"),
        "a100-pcie": ("A100-PCIe-40GB", "A100-PCIe-80GB"),
        "v100-sxm2": ("V100-16GB", "V100-32GB"),
        "v100-sxm3-32gb": ("V100-32GB",),
        "v100-pcie": ("V100-PCIe-16GB", "V100-PCIe-32GB"),
        "a800-sxm4": ("A800-80GB",),
        "h100": ("H100", "H100-64GB", "H100-96GB"),
        "p100-sxm2": ("P100-16GB",),
        "p100-pcie": ("P100-PCIe-16GB",),
        "rtx 2080 ti": ("RTX 2080 Ti", "RTX 2080 Ti 22GB"),
        "rtx 3080": ("RTX 3080 10GB", "RTX 3080 12GB"),
        "rtx 4090": ("RTX 4090", "RTX 4090 48GB"),
        "rtx 4090 d": ("RTX 4090 D", "RTX 4090 D 48GB"),
        "rtx 6000": ("Quadro RTX 6000",),
        "rtx 8000": ("Quadro RTX 8000",),
    }
)

#: NVLink bridges of cards that usually have none, for those that report one.
_BRIDGES: Mapping[str, str] = MappingProxyType(
    {
        "RTX 2080": "nvlink2-bridge-half",
        "RTX 2080 SUPER": "nvlink2-bridge-half",
        "RTX 2080 Ti": "nvlink2-bridge",
        "RTX 2080 Ti 22GB": "nvlink2-bridge",
        "TITAN RTX": "nvlink2-bridge",
        "Quadro RTX 6000": "nvlink2-bridge",
        "Quadro RTX 8000": "nvlink2-bridge",
        "Quadro GV100": "nvlink2-bridges",
        "A800-PCIe-40GB": "nvlink3-400",
        "A30": "nvlink3-bridge",
        "A40": "nvlink3-bridge",
        "RTX A6000": "nvlink3-bridge",
        "RTX A4500": "nvlink3-bridge",
        "RTX A5000": "nvlink3-bridge",
        "RTX A5500": "nvlink3-bridge",
        "RTX 3090": "nvlink3-bridge",
        "RTX 3090 Ti": "nvlink3-bridge",
        "A100-PCIe-40GB": "nvlink3",
        "A100-PCIe-80GB": "nvlink3",
        "A800-PCIe-80GB": "nvlink3-400",
        "H100-PCIe": "nvlink4-bridge",
    }
)


class _Card(NamedTuple):
    """Card as described by the driver."""

    name: str
    memory_bytes: float
    split: bool


def _count_of(cards: Sequence[_Card]) -> str:
    """Counts of cards by name: `1x Tesla T4, 2x NVIDIA L4`."""
    counts = Counter(f"{card.name}{' (MIG)' if card.split else ''}" for card in cards)
    return ", ".join(f"{count}x {name}" for name, count in counts.items())


def _known(name: str) -> Device | None:
    try:
        return device(name)
    except UnknownName:
        return None


def _with_memory(found: Device, memory_bytes: float) -> Device:
    return msgspec.structs.replace(found, memory_bytes=float(memory_bytes))


def _installed_nvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    module: ModuleType = pynvml
    return module


def _card(nvml: ModuleType, handle: object) -> _Card:
    name = nvml.nvmlDeviceGetName(handle)
    mode = _query(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return _Card(
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory_bytes=float(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        split=mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE,
    )


def _with_power_limit(nvml: ModuleType, handle: object, found: Device) -> Device:
    limit_mw = _query(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return msgspec.structs.replace(found, tdp_watts=limit_mw / 1000) if limit_mw else found


def _link_name(nvml: ModuleType, handles: Iterable[object], found: Device) -> str:
    first, *others = handles
    if not others:
        return found.link
    if _query(nvml, lambda: nvml.nvmlDeviceGetNvLinkState(first, 0)):
        return _BRIDGES.get(found.name, found.link if "nvlink" in found.link else "nvlink3-bridge")
    generation = _query(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(first))
    if generation is None:
        return found.link
    direct = all(_reaches(nvml, first, other) for other in others)
    how = "-p2p" if direct else "-vm" if _is_virtual() else ""
    return f"pcie{min(5, max(3, int(generation)))}{how}"


def _is_virtual(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is a virtual machine, whose processor says so on x86."""
    try:
        return re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo.read_text(), re.M) is not None
    except OSError:
        return False


def _reaches(nvml: ModuleType, first: object, other: object) -> bool:
    """Whether the driver allows one card to read another's memory."""
    status = _query(
        nvml, lambda: nvml.nvmlDeviceGetP2PStatus(first, other, nvml.NVML_P2P_CAPS_INDEX_READ)
    )
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _query(nvml: ModuleType, call: Callable[[], T]) -> T | None:
    """Result of an NVML call, or None where the card or driver does not support it."""
    try:
        return call()
    except nvml.NVMLError:
        return None


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 8.0 * GIB  # unknown: a conservative guess
