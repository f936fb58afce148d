"""Device memory around a server's life: free before it starts, free again when it is gone.

A server that has ended may hold its memory for a while, and the next one that measures how
much is left would size its cache by the rest. NVML tells; where it does not, nothing is said.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from servetune.clock import Clock, MonotonicClock
from servetune.servers.launchers import visible_devices
from servetune.units import format_bytes

#: Drivers and displays hold this much of an idle card.
IDLE_FRACTION = 0.03
PATIENCE_S = 30.0
_POLL_S = 0.1


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One device as NVML sees it now.

    Attributes:
        processes: Ids of the processes that compute on it.
        uuid: UUID, by which the device may be chosen too.
    """

    number: int
    name: str
    total_bytes: int
    used_bytes: int
    processes: tuple[int, ...] = ()
    uuid: str = ""

    def is_named(self, word: str) -> bool:
        """Whether a word of `CUDA_VISIBLE_DEVICES` means it: its number, or how its UUID begins."""
        by_uuid = word.startswith("GPU-") and self.uuid.startswith(word)
        return word == str(self.number) or by_uuid

    @property
    def idle(self) -> bool:
        return self.used_bytes <= IDLE_FRACTION * self.total_bytes

    @property
    def label(self) -> str:
        by = ", ".join(map(str, self.processes))
        return (
            f"GPU {self.number} ({self.name}): {format_bytes(self.used_bytes)} of "
            f"{format_bytes(self.total_bytes)} are taken" + (f" by process {by}" if by else "")
        )


def cards(nvml: ModuleType | None = None) -> list[Card]:
    """Every device; none where there is no driver, no library or no permission.

    Args:
        nvml: The `pynvml` module, or something with its functions.
    """
    nvml = nvml or installed_nvml()
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_card(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def visible_cards(
    nvml: ModuleType | None = None, environ: Mapping[str, str] | None = None
) -> list[Card]:
    """The devices that this process may use, numbered as it sees them."""
    here = cards(nvml)
    visible = visible_devices("NVIDIA", environ)
    if visible is None:
        return here
    chosen = [card for word in visible for card in here if card.is_named(word)]
    return [msgspec.structs.replace(card, number=place) for place, card in enumerate(chosen)]


def card_numbers(words: Sequence[str], nvml: ModuleType | None = None) -> tuple[int, ...] | None:
    """NVML's numbers of the devices that words of `CUDA_VISIBLE_DEVICES` mean.

    `None` where a word means none of them, as for a share of a device.
    """
    here = cards(nvml)
    found = [card.number for word in words for card in here if card.is_named(word)]
    return tuple(found) if found and len(found) == len(words) else None


class DeviceMemory:
    """Sees that a server finds the memory that it would have found at first.

    Args:
        look: The devices now.
        clock: A monotonic one.
        pause: Waits a number of seconds.
    """

    def __init__(
        self,
        look: Callable[[], list[Card]] = cards,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look, self._clock, self._pause = look, clock or MonotonicClock(), pause
        self._before = {card.number: card.used_bytes for card in look()}

    def await_free(
        self, devices: Sequence[int] | None = None, *, patience_s: float = PATIENCE_S
    ) -> list[Card]:
        """Wait until the devices are as free as they were; those that are not in time.

        Args:
            devices: Numbers; `None` for all.
            patience_s: Longest wait.
        """
        if not self._before:
            return []
        deadline_s = self._clock.now_s() + patience_s
        while True:
            taken = [
                card
                for card in self._look()
                if (devices is None or card.number in devices) and not self._as_before(card)
            ]
            if not taken or self._clock.now_s() >= deadline_s:
                return taken
            self._pause(_POLL_S)

    def _as_before(self, card: Card) -> bool:
        before = self._before.get(card.number, 0)
        return card.used_bytes <= before + IDLE_FRACTION * card.total_bytes


def _card(nvml: ModuleType, number: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        running = []
    return Card(
        number=number,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        processes=tuple(int(process.pid) for process in running),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
    )


def _text(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def none_can_be(environ: Mapping[str, str] | None = None, *, devices: Path = Path("/dev")) -> bool:
    """Whether this process surely sees no NVIDIA GPU: no driver's files, or all are hidden.

    Files of the driver without a library that tells of it, as in WSL, leave it open.
    """
    hidden = visible_devices("NVIDIA", environ) == []
    return hidden or not (any(devices.glob("nvidia*")) or (devices / "dxg").exists())


def installed_nvml() -> ModuleType | None:
    """The `pynvml` module; `None` where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None
