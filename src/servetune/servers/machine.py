"""Limits and states of the operating system that matter to servers and to measuring."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from servetune.secret import beginning
from servetune.servers.gpus import installed_nvml
from servetune.servers.ports import listening_pids

_UNLIMITED_BYTES = 1 << 60  # what control groups say when they mean no limit


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """State of this machine. `None` where the system does not report a value.

    Attributes:
        kernel: Name and version.
        cpus: Cores that this process may use; the machine has `cpus_of_machine`.
        load_1min: Mean number of processes that are ready to run, over one minute.
        memory_available_bytes: Memory that is available without swapping.
        memory_limit_bytes: Memory limit of the control group; `None` without a limit.
        shared_memory_bytes: Size of /dev/shm, through which workers talk.
        open_files: Highest limit of open files that a process may set.
        ports: Number of ports for outgoing connections.
        governor: Frequency governor of the first core.
        disk_free_bytes: Free disk space by folder.
    """

    kernel: str
    python: str
    cpus: int
    cpus_of_machine: int
    load_1min: float | None
    memory_bytes: int | None
    memory_available_bytes: int | None
    memory_limit_bytes: int | None
    shared_memory_bytes: int | None
    open_files: int | None
    ports: int | None
    governor: str | None
    disk_free_bytes: dict[str, int]


def machine_here(folders: tuple[Path, ...] = (), *, root: Path = Path("/")) -> Machine:
    """Look at everything once.

    Args:
        folders: Folders whose disks are reported; missing ones are left out.
        root: Root of the file system, for tests.
    """
    memory = _memory(root)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        cpus_of_machine=os.cpu_count() or 1,
        load_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=_memory_limit(root),
        shared_memory_bytes=_size(root / "dev/shm"),
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        ports=_ports(root),
        governor=_word(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        disk_free_bytes={
            str(folder): shutil.disk_usage(folder).free for folder in folders if folder.is_dir()
        },
    )


def port_holders(port: int) -> list[str]:
    """Processes that listen on a port, with number and command, as far as they may be read."""
    return [f"{pid} ({_command(pid)})" for pid in listening_pids(port)]


def driver_version(nvml: ModuleType | None = None) -> str | None:
    """Version of NVIDIA's driver; `None` where there is none."""
    nvml = nvml or installed_nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        text = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return text.decode() if isinstance(text, bytes) else str(text)


def _memory(root: Path) -> Mapping[str, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {word[0].rstrip(":"): int(word[1]) * 1024 for word in words if len(word) > 2}


def _memory_limit(root: Path) -> int | None:
    """Memory limit of this control group: version 2 first, then 1."""
    for place in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        word = _word(root / place)
        if word is not None and word.isdigit() and int(word) < _UNLIMITED_BYTES:
            return int(word)
    return None


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _ports(root: Path) -> int | None:
    text = _word(root / "proc/sys/net/ipv4/ip_local_port_range")
    low, _, high = (text or "").partition("\t")
    return int(high) - int(low) + 1 if high.strip().isdigit() else None


def _word(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    return beginning(raw.replace(b"\0", b" ").decode(errors="replace").strip(), 80)
