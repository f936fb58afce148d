"""Placement of a server on its machine: devices, cores, memory and environment variables."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence

import msgspec

from servetune.errors import InputError
from servetune.secret import is_secret
from servetune.servers.leftovers import MARKS

#: Variables that tell a vendor's runtime which devices a process may see.
_VARIABLES = {
    "NVIDIA": "CUDA_VISIBLE_DEVICES",
    "AMD": "HIP_VISIBLE_DEVICES",
    "AWS": "NEURON_RT_VISIBLE_CORES",
    "Intel": "ZE_AFFINITY_MASK",
}


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Devices, cores and memory that a server may use; by default all.

    Attributes:
        devices: Device numbers among those that are visible to servetune; empty for all.
        vendor: Vendor of the devices.
        cpus: Cores that its threads run on; empty for all.
        numa_node: NUMA node whose cores and memory it uses, by `numactl`; in place of `cpus`.
    """

    devices: tuple[int, ...] = ()
    vendor: str = "NVIDIA"
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables for the server's environment.

        Where servetune may see a part of the devices only, the numbers are of that part.

        Raises:
            InputError: A device is not visible to this process.
        """
        name = _VARIABLES.get(self.vendor)
        if not self.devices or name is None:
            return {}
        return {name: ",".join(self.device_names(environ))}

    def device_names(self, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Device names as their runtime spells them; empty for all of the machine.

        Raises:
            InputError: A device is not visible to this process.
        """
        visible = visible_devices(self.vendor, environ)
        if not self.devices:
            return tuple(visible or ())
        if visible is None:
            return tuple(map(str, self.devices))
        if max(self.devices) >= len(visible):
            name = _VARIABLES[self.vendor]
            raise InputError(
                f"device {max(self.devices)} is hidden: {name} shows {len(visible)}",
                hint=f"add devices to {name}, or give their number with --num-gpus",
            )
        return tuple(visible[number] for number in self.devices)

    def words_before(self) -> tuple[str, ...]:
        """The words in front of a command that pin it.

        Raises:
            InputError: The program that pins is not installed.
        """
        if self.numa_node is not None:
            node = str(self.numa_node)
            return (_program("numactl"), f"--cpunodebind={node}", f"--membind={node}", "--")
        if self.cpus:
            return (_program("taskset"), "--cpu-list", _ranges(self.cpus))
        return ()


def visible_devices(
    vendor: str = "NVIDIA", environ: Mapping[str, str] | None = None
) -> list[str] | None:
    """The devices that this process may see, as its environment names them; `None` for all."""
    visible = (os.environ if environ is None else environ).get(_VARIABLES.get(vendor, ""))
    if visible is None:
        return None
    return [word.strip() for word in visible.split(",") if word.strip()]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise InputError(f"{name} is not installed, and pinning needs it", hint=f"install {name}")
    return found


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,8`, as taskset reads it."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


#: Variables that servetune sets for each server, or marks it with.
_RESERVED = ("CUDA_VISIBLE_DEVICES", *MARKS)


def environment_of(given: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables by value, and names of those to copy from this process.

    Args:
        given: `NAME=VALUE`, or `NAME` alone for a variable that is copied.

    Raises:
        InputError: A name cannot be one, is not set here, is reserved, or is a secret's with its
            value, which would stand in the journal.
    """
    chosen: dict[str, str] = {}
    copied: dict[str, None] = {}
    for each in given:
        name, has_value, value = each.partition("=")
        _require_variable(name, value if has_value else None)
        if has_value:
            chosen[name] = value
        else:
            copied[name] = None
    return chosen, tuple(copied)


def _require_variable(name: str, value: str | None) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InputError(
            f"--server-env {name}: that is no name of a variable", hint="give NAME or NAME=VALUE"
        )
    if name in _RESERVED:
        raise InputError(
            f"{name} is decided by servetune and cannot be given by --server-env",
            hint="set CUDA_VISIBLE_DEVICES for servetune itself",
        )
    if value is None and name not in os.environ:
        raise InputError(f"--server-env {name}: it is not set here", hint="give NAME=VALUE")
    if value is not None and is_secret(name, value):
        raise InputError(
            f"the value of --server-env {name} is a secret, which the journal would show",
            hint=f"export it, and pass it by name: --server-env {name}",
        )
