"""What `doctor` looks at: each finding says what is here, what would go wrong, how to mend it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from servetune.engines import ENGINES, engine
from servetune.errors import InputError, ServetuneError, UnknownName
from servetune.hardware.detect import device_for_card
from servetune.servers.gpus import Card, cards, visible_cards
from servetune.servers.launchers import (
    LeftContainer,
    daemon_version,
    docker_answers,
    find_strays,
)
from servetune.servers.leftovers import Leftover
from servetune.servers.machine import Machine, driver_version, machine_here, port_holders
from servetune.units import GIB, format_bytes

__all__ = [
    "Finding",
    "checkup",
    "of_cards",
    "of_docker",
    "of_machine",
    "of_strays",
]

Level = Literal["ok", "note", "warning", "trouble"]

DEFAULT_PORT = 8000
#: Below these something common goes wrong.
FEW_OPEN_FILES = 4096
LITTLE_SHARED_MEMORY_BYTES = 1 * GIB
LITTLE_MEMORY_BYTES = 4 * GIB
LITTLE_DISK_BYTES = 10 * GIB
FEW_PORTS = 10_000
BUSY_LOAD = 0.5  # of the cores


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        level: `trouble` keeps servers from running, a `warning` makes runs fail or figures
            wrong, a `note` is good to know.
        mend: What to do, empty where nothing is to be done.
    """

    level: Level
    subject: str
    says: str
    mend: str = ""


def checkup() -> list[Finding]:
    """Everything, in the order of a reader's questions; no check keeps another from its turn."""
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache/huggingface"))
    folders = (Path.cwd(), hub if hub.is_dir() else Path.home())
    machine = machine_here(folders)
    here = cards()
    findings: list[Finding] = []
    for check in (
        lambda: of_cards(here, visible_cards(), driver_version()),
        _of_engines,
        lambda: of_machine(machine, gpus=len(here)),
        lambda: of_docker(shutil.which("docker") is not None, daemon_version(), gpus=len(here)),
        _of_port,
        lambda: of_strays(*find_strays()),
    ):
        findings += _guarded(check)
    return findings


def of_cards(here: Sequence[Card], seen: Sequence[Card], driver: str | None) -> list[Finding]:
    """GPUs: known, idle, visible."""
    if not here:
        return [
            Finding(
                level="note",
                subject="gpus",
                says="no NVIDIA GPU or driver was found",
                mend="estimate and simulate need none: name one with --gpu; engines run on the "
                "processor, or install the driver",
            )
        ]
    findings = [Finding(level="ok", subject="driver", says=f"NVIDIA {driver or 'of a version'}")]
    findings += [_of_card(card) for card in here]
    if len(seen) < len(here):
        findings.append(
            Finding(
                level="note",
                subject="gpus",
                says=f"CUDA_VISIBLE_DEVICES lets {len(seen)} of {len(here)} GPUs be seen",
                mend="unset it to use all",
            )
        )
    return findings


def of_machine(machine: Machine, *, gpus: int = 0) -> list[Finding]:
    """Memory, cores, limits."""
    return [
        Finding(level="ok", subject="system", says=f"{machine.kernel}, Python {machine.python}"),
        _of_memory(machine),
        _of_cores(machine),
        *_of_shared_memory(machine, gpus),
        *_of_open_files(machine),
        *_of_ports(machine),
        *_of_governor(machine),
        *_of_disks(machine),
    ]


def of_docker(
    here: bool, version: str | None, *, gpus: int = 0, runtimes: str | None = None
) -> list[Finding]:
    """What `--launcher docker` needs; nothing to say where there is no Docker.

    Args:
        here: Whether its command line is.
        version: Of its daemon; `None` where that does not answer.
        gpus: Of this machine.
        runtimes: Names that the daemon knows; asked where not given.
    """
    if not here:
        return []
    if version is None:
        return [
            Finding(
                level="note",
                subject="docker",
                says="its command line is here, and its daemon does not answer: --launcher docker "
                "is refused",
                mend="see what `docker version` says: start it, or join the group docker",
            )
        ]
    if runtimes is None:
        runtimes = docker_answers("info", "--format", "{{json .Runtimes}}") if gpus else ""
    if gpus and "nvidia" not in runtimes:
        return [
            Finding(
                level="note",
                subject="docker",
                says=f"{version}, which knows no runtime of NVIDIA's: containers may get no GPU",
                mend="install nvidia-container-toolkit and restart Docker",
            )
        ]
    return [Finding(level="ok", subject="docker", says=version)]


def of_strays(boxes: Sequence[LeftContainer], processes: Sequence[Leftover]) -> list[Finding]:
    """Servers of an earlier servetune."""
    gone = "was left by a servetune that has ended"
    left = [(f"{box.label} {gone}", f"docker rm --force {box.name}") for box in boxes]
    for one in processes:
        holds = f"holds {format_bytes(one.resident_bytes)}"
        left.append((f"{one.label} {gone} and {holds}", f"kill -9 {one.pid}"))
    return [
        Finding(level="warning", subject="leftover", says=says, mend=mend) for says, mend in left
    ]


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except (ServetuneError, OSError) as error:
        said = error.message if isinstance(error, ServetuneError) else str(error)
        return [Finding(level="warning", subject="doctor", says=f"a check failed: {said}")]


def _of_card(card: Card) -> Finding:
    subject = f"gpu {card.number}"
    if not card.idle:
        return Finding(
            level="warning",
            subject=subject,
            says=f"{card.label}; a server would find too little memory and measure another's load",
            mend="end what uses it, or choose others with CUDA_VISIBLE_DEVICES",
        )
    try:
        device_for_card(card.name, float(card.total_bytes))
    except (UnknownName, InputError) as error:
        return Finding(
            level="note", subject=subject, says=f"{card.name}: {error.message}", mend=error.hint
        )
    return Finding(
        level="ok", subject=subject, says=f"{card.name}, {format_bytes(card.total_bytes)}, idle"
    )


def _of_engines() -> list[Finding]:
    findings = []
    for name in ENGINES:
        spoken = engine(name)
        try:
            executable = spoken.find_executable()
        except ServetuneError as error:
            findings.append(
                Finding(level="note", subject=name, says=error.message, mend=error.hint)
            )
            continue
        if not executable:  # a server that is there already, or a command of the user's own
            continue
        version = spoken.version(executable) or "of a version that it does not tell"
        findings.append(
            Finding(level="ok", subject=name, says=f"{version} at {' '.join(executable)}")
        )
    return findings


def _of_memory(machine: Machine) -> Finding:
    total, available = machine.memory_bytes, machine.memory_available_bytes
    if total is None or available is None:
        return Finding(level="note", subject="memory", says="the system does not say")
    says = f"{format_bytes(available)} of {format_bytes(total)} available"
    limit = machine.memory_limit_bytes
    if limit is not None and limit < total:
        says += f", {format_bytes(limit)} allowed in this container"
    if min(available, limit or available) < LITTLE_MEMORY_BYTES:
        return Finding(
            level="warning",
            subject="memory",
            says=f"{says}: an engine's processes alone take 3 GiB and are killed without it",
            mend="end what uses it, or raise the container's limit",
        )
    return Finding(level="ok", subject="memory", says=says)


def _of_cores(machine: Machine) -> Finding:
    says = f"{machine.cpus} cores"
    if machine.cpus < machine.cpus_of_machine:
        says += f" of {machine.cpus_of_machine}"
    load = machine.load_1min
    if load is not None and load > BUSY_LOAD * machine.cpus_of_machine:
        return Finding(
            level="warning",
            subject="cores",
            says=f"{says}, {load:.1f} busy with something else: latencies will tell of that too",
            mend="measure on a quiet machine, or keep cores apart with --server-cpus",
        )
    if machine.cpus < 2:
        return Finding(
            level="warning",
            subject="cores",
            says=f"{says}: server and load client take turns on it",
            mend="give it two at least",
        )
    return Finding(level="ok", subject="cores", says=says)


def _of_shared_memory(machine: Machine, gpus: int) -> list[Finding]:
    size = machine.shared_memory_bytes
    if size is None:
        return []
    if size < LITTLE_SHARED_MEMORY_BYTES:
        return [
            Finding(
                level="warning" if gpus > 1 else "note",
                subject="shared memory",
                says=f"{format_bytes(size)} in /dev/shm: workers of more than one GPU fail on it",
                mend="docker run --shm-size 16g, or --ipc host",
            )
        ]
    return [Finding(level="ok", subject="shared memory", says=format_bytes(size))]


def _of_open_files(machine: Machine) -> list[Finding]:
    most = machine.open_files
    if most is not None and most < FEW_OPEN_FILES:
        return [
            Finding(
                level="warning",
                subject="open files",
                says=f"at most {most}: that many connections at once, and servers fail as well",
                mend="ulimit -Hn 65536, or LimitNOFILE= of the service",
            )
        ]
    return [Finding(level="ok", subject="open files", says=f"{most or 'without limit'}")]


def _of_ports(machine: Machine) -> list[Finding]:
    if machine.ports is None or machine.ports >= FEW_PORTS:
        return []
    return [
        Finding(
            level="note",
            subject="ports",
            says=f"{machine.ports} for outgoing connections: more requests at once fail",
            mend='sysctl -w net.ipv4.ip_local_port_range="10240 65535"',
        )
    ]


def _of_governor(machine: Machine) -> list[Finding]:
    if machine.governor in (None, "performance"):
        return []
    return [
        Finding(
            level="note",
            subject="cores",
            says=f"their frequency follows the load ({machine.governor}): repeats differ more",
            mend="cpupower frequency-set -g performance",
        )
    ]


def _of_disks(machine: Machine) -> list[Finding]:
    return [
        Finding(
            level="warning" if free < LITTLE_DISK_BYTES else "ok",
            subject="disk",
            says=f"{format_bytes(free)} free in {folder}",
            mend="make room for models, caches and logs" if free < LITTLE_DISK_BYTES else "",
        )
        for folder, free in machine.disk_free_bytes.items()
    ]


def _of_port() -> list[Finding]:
    holders = port_holders(DEFAULT_PORT)
    if not holders:
        return [Finding(level="ok", subject="port", says=f"{DEFAULT_PORT} is free")]
    return [
        Finding(
            level="note",
            subject="port",
            says=f"{DEFAULT_PORT} is taken by process {', '.join(holders)}",
            mend="servetune takes a free port unless --port says otherwise",
        )
    ]
