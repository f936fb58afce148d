"""What is plugged into this machine, by NVML and the operating system; nothing is started."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from servetune.errors import InputError, UnknownName
from servetune.hardware.catalog import device, device_names, link
from servetune.hardware.device import Device, Node
from servetune.units import GB, GIB, MIB

__all__ = ["detect", "detect_cpu", "device_for_card"]


def detect(nvml: Any = None) -> Node | None:
    """The NVIDIA devices of this machine as one node, or None where there are none.

    Where cards differ, the most numerous kind counts (the first listed, among equals), and the
    node's name says what is left out. The link is NVLink where a card reports an active one,
    else PCI Express of the card's generation, with peer-to-peer where the driver allows it. The
    power limit is the one that the driver enforces.

    Args:
        nvml: The `pynvml` module, or something with its functions; the installed one by
            default, and None is returned where it is not installed.

    Raises:
        UnknownName: A card is there, but the catalogue does not know it.
        InputError: Every card is split into MIG instances, which have a share of a card's speed.
    """
    nvml = nvml or _installed_nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None  # no driver, or no permission: the same to a caller
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
    """This machine's processor as one device; its speeds are guesses and say so.

    The law is cores times 2.5 GHz times 32 operations per cycle (two 256-bit fused
    multiply-adds of 32-bit numbers), and 10 GB/s per core up to two memory channels of
    20 GB/s for each eight cores, 40 GB/s at least. A measurement replaces it.
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
    """The catalogue's device for a card as the driver names it, with the driver's memory.

    Names that cover several cards are told apart by memory (`NVIDIA A100-SXM4-80GB` says
    it, `Tesla V100-SXM2` and `NVIDIA GH200` may not), never by a part of the name: an L40S
    is no L40, an H100 PCIe no H100 SXM.

    Raises:
        UnknownName: The catalogue has no such card.
        InputError: It is a MIG instance, a share of a card.
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
    if abs(closest.memory_bytes - memory_bytes) > 0.25 * closest.memory_bytes:
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

#: Names of NVML that several cards share, or that older drivers cut off; the catalogue's
#: aliases have the others.
_CARDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "a100-sxm": ("A100-40GB", "A100-80GB"),
        "a100-sxm4": ("A100-40GB", "A100-80GB"),
        "a100-pcie": ("A100-PCIe-40GB", "A100-PCIe-80GB"),
        "v100-sxm2": ("V100-16GB", "V100-32GB"),
        "v100-sxm3-32gb": ("V100-32GB",),
        "v100-pcie": ("V100-PCIe-16GB", "V100-PCIe-32GB"),
        "a800-sxm4": ("A800-80GB",),
    }
)

#: What joins cards that usually have no NVLink, where one reports it.
_BRIDGES: Mapping[str, str] = MappingProxyType(
    {
        "A30": "nvlink3-bridge",
        "A40": "nvlink3-bridge",
        "RTX A6000": "nvlink3-bridge",
        "RTX 3090": "nvlink3-bridge",
        "A100-PCIe-40GB": "nvlink3",
        "A100-PCIe-80GB": "nvlink3",
        "A800-PCIe-80GB": "nvlink3-400",
        "H100-PCIe": "nvlink4-bridge",
    }
)


class _Card(NamedTuple):
    """A card as the driver describes it."""

    name: str
    memory_bytes: float
    split: bool


def _count_of(cards: Sequence[_Card]) -> str:
    """For a reader: `1x Tesla T4, 2x NVIDIA L4`."""
    counts = Counter(f"{card.name}{' (MIG)' if card.split else ''}" for card in cards)
    return ", ".join(f"{count}x {name}" for name, count in counts.items())


def _known(name: str) -> Device | None:
    try:
        return device(name)
    except UnknownName:
        return None


def _with_memory(found: Device, memory_bytes: float) -> Device:
    return msgspec.structs.replace(found, memory_bytes=float(memory_bytes))


def _installed_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _card(nvml: Any, handle: Any) -> _Card:
    name = nvml.nvmlDeviceGetName(handle)
    mode = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return _Card(
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory_bytes=float(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        split=mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE,
    )


def _with_power_limit(nvml: Any, handle: Any, found: Device) -> Device:
    limit_mw = _ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return msgspec.structs.replace(found, tdp_watts=limit_mw / 1000) if limit_mw else found


def _link_name(nvml: Any, handles: Iterable[Any], found: Device) -> str:
    first, *others = handles
    if not others:
        return found.link
    if _ask(nvml, lambda: nvml.nvmlDeviceGetNvLinkState(first, 0)):
        return _BRIDGES.get(found.name, found.link if "nvlink" in found.link else "nvlink3-bridge")
    generation = _ask(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(first))
    if generation is None:
        return found.link
    direct = all(_reaches(nvml, first, other) for other in others)
    return f"pcie{min(5, max(3, int(generation)))}{'-p2p' if direct else ''}"


def _reaches(nvml: Any, first: Any, other: Any) -> bool:
    """Whether the driver lets one card read another's memory."""
    status = _ask(
        nvml, lambda: nvml.nvmlDeviceGetP2PStatus(first, other, nvml.NVML_P2P_CAPS_INDEX_READ)
    )
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _ask(nvml: Any, question: Callable[[], Any]) -> Any:
    """An answer of NVML, or None where this card or driver has none."""
    try:
        return question()
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
        return 8.0 * GIB  # a system that does not say; small, so that nothing is promised
