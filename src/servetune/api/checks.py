"""Checkup of this machine: checks, each of which gives findings with remedies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune import __version__
from servetune.api.frames import TableRow, Tabular
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.engines import ENGINES, engine
from servetune.errors import InputError, ServetuneError, UnknownName
from servetune.hardware.detect import device_for_card
from servetune.json_value import JsonObject
from servetune.option import option
from servetune.servers.gpus import Card, cards, visible_cards
from servetune.servers.launchers import LeftContainer, daemon_version, docker_answers, find_strays
from servetune.servers.leftovers import Leftover
from servetune.servers.machine import Machine, driver_version, machine_here, port_holders
from servetune.trials.ceiling import Ceiling, load_ceiling
from servetune.units import GIB, format_bytes

Level = Literal["ok", "note", "warning", "trouble"]

DEFAULT_PORT = 8000
#: Limits below which common failures occur.
FEW_OPEN_FILES = 4096
LITTLE_SHARED_MEMORY_BYTES = 1 * GIB
LITTLE_MEMORY_BYTES = 4 * GIB
LITTLE_DISK_BYTES = 10 * GIB
FEW_PORTS = 10_000
#: Load average above which other work disturbs a measurement, as a share of the cores.
BUSY_LOAD = 0.5


class Finding(msgspec.Struct, frozen=True, rename={"message": "says", "hint": "mend"}):
    """Result of one check; JSON has the message as `says` and the hint as `mend`.

    Attributes:
        level: Severity: `trouble` prevents servers from running, a `warning` makes runs fail or
            results wrong, a `note` is information.
        subject: Part of the machine that was checked.
        message: State of that part.
        hint: Remedy; empty where none is needed.
    """

    level: Level
    subject: str
    message: str
    hint: str = ""


def machine_findings() -> list[Finding]:
    """Findings of all checks, in the order of a reader's questions; a check that fails is one."""
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


def of_cards(here: Sequence[Card], visible: Sequence[Card], driver: str | None) -> list[Finding]:
    """Findings on GPUs: known, idle, visible."""
    if not here:
        return [
            Finding(
                "note",
                "gpus",
                "no NVIDIA GPU or driver was found",
                "estimate and simulate need no GPU, only --gpu NAME; engines run on the "
                "CPU, or install the driver",
            )
        ]
    findings = [Finding("ok", "driver", f"NVIDIA {driver or 'of unknown version'}")]
    findings += [_of_card(card) for card in here]
    if len(visible) < len(here):
        findings.append(
            Finding(
                "note",
                "gpus",
                f"CUDA_VISIBLE_DEVICES shows {len(visible)} of {len(here)} GPUs",
                "unset it to use all",
            )
        )
    return findings


def of_machine(machine: Machine, *, gpus: int = 0) -> list[Finding]:
    """Findings on memory, cores, limits and disks."""
    return [
        Finding("ok", "system", f"{machine.kernel}, Python {machine.python}"),
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
    """Findings on Docker, for `--launcher docker`; none without Docker.

    Args:
        here: Whether the docker command is installed.
        version: Version of the daemon; `None` if it does not answer.
        gpus: Number of GPUs.
        runtimes: Container runtimes of the daemon; queried by default.
    """
    if not here:
        return []
    if version is None:
        return [
            Finding(
                "note",
                "docker",
                "docker is installed but its daemon does not answer: --launcher docker is refused",
                "run `docker version`: start the daemon, or join the group docker",
            )
        ]
    if runtimes is None:
        runtimes = docker_answers("info", "--format", "{{json .Runtimes}}") if gpus else ""
    if gpus and "nvidia" not in runtimes:
        return [
            Finding(
                "note",
                "docker",
                f"{version} without NVIDIA's runtime: containers may get no GPU",
                "install nvidia-container-toolkit and restart Docker",
            )
        ]
    return [Finding("ok", "docker", version)]


def of_strays(boxes: Sequence[LeftContainer], processes: Sequence[Leftover]) -> list[Finding]:
    """Findings on servers left by an earlier servetune."""
    left_over = "was left by a servetune process that has ended"
    left = [(f"{box.label} {left_over}", f"docker rm --force {box.name}") for box in boxes]
    for one in processes:
        holds = f"holds {format_bytes(one.resident_bytes)}"
        left.append((f"{one.label} {left_over} and {holds}", f"kill -9 {one.pid}"))
    return [Finding("warning", "leftover", message, mend) for message, mend in left]


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except (ServetuneError, OSError) as error:
        reason = error.message if isinstance(error, ServetuneError) else str(error)
        return [Finding("warning", "doctor", f"a check failed: {reason}")]


def _of_card(card: Card) -> Finding:
    subject = f"gpu {card.number}"
    if not card.idle:
        return Finding(
            "warning",
            subject,
            f"{card.label}; a server would lack memory and share the GPU",
            "end that process, or choose other GPUs with CUDA_VISIBLE_DEVICES",
        )
    try:
        device_for_card(card.name, float(card.total_bytes))
    except (UnknownName, InputError) as error:
        return Finding("note", subject, f"{card.name}: {error.message}", error.hint)
    return Finding("ok", subject, f"{card.name}, {format_bytes(card.total_bytes)}, idle")


def _of_engines() -> list[Finding]:
    findings = []
    for name in ENGINES:
        checked = engine(name)
        try:
            executable = checked.find_executable()
        except ServetuneError as error:
            findings.append(Finding("note", name, error.message, error.hint))
            continue
        if not executable:  # a running server, or the user's own command
            continue
        version = checked.version(executable) or "unknown version"
        findings.append(Finding("ok", name, f"{version} at {' '.join(executable)}"))
    return findings


def _of_memory(machine: Machine) -> Finding:
    total, available = machine.memory_bytes, machine.memory_available_bytes
    if total is None or available is None:
        return Finding("note", "memory", "unknown on this system")
    message = f"{format_bytes(available)} of {format_bytes(total)} available"
    limit = machine.memory_limit_bytes
    if limit is not None and limit < total:
        message += f", {format_bytes(limit)} allowed in this container"
    if min(available, limit or available) < LITTLE_MEMORY_BYTES:
        return Finding(
            "warning",
            "memory",
            f"{message}: an engine's processes alone take 3 GiB and are killed without it",
            "end other processes, or raise the container's limit",
        )
    return Finding("ok", "memory", message)


def _of_cores(machine: Machine) -> Finding:
    message = f"{machine.cpus} cores"
    if machine.cpus < machine.cpus_of_machine:
        message += f" of {machine.cpus_of_machine}"
    load = machine.load_1min
    if load is not None and load > BUSY_LOAD * machine.cpus_of_machine:
        return Finding(
            "warning",
            "cores",
            f"{message}, {load:.1f} used by other processes: latencies will be higher",
            "measure on an idle machine, or reserve cores with --server-cpus",
        )
    if machine.cpus < 2:
        return Finding(
            "warning",
            "cores",
            f"{message}: server and load client share a core",
            "use at least two cores",
        )
    return Finding("ok", "cores", message)


def _of_shared_memory(machine: Machine, gpus: int) -> list[Finding]:
    size = machine.shared_memory_bytes
    if size is None:
        return []
    if size < LITTLE_SHARED_MEMORY_BYTES:
        return [
            Finding(
                "warning" if gpus > 1 else "note",
                "shared memory",
                f"{format_bytes(size)} in /dev/shm: servers on more than one GPU fail",
                "docker run --shm-size 16g, or --ipc host",
            )
        ]
    return [Finding("ok", "shared memory", format_bytes(size))]


def _of_open_files(machine: Machine) -> list[Finding]:
    most = machine.open_files
    if most is not None and most < FEW_OPEN_FILES:
        return [
            Finding(
                "warning",
                "open files",
                f"at most {most}, which limits connections of client and servers",
                "ulimit -Hn 65536, or LimitNOFILE= of the service",
            )
        ]
    return [Finding("ok", "open files", f"{most or 'without limit'}")]


def _of_ports(machine: Machine) -> list[Finding]:
    if machine.ports is None or machine.ports >= FEW_PORTS:
        return []
    return [
        Finding(
            "note",
            "ports",
            f"{machine.ports} for outgoing connections: more concurrent requests fail",
            'sysctl -w net.ipv4.ip_local_port_range="10240 65535"',
        )
    ]


def _of_governor(machine: Machine) -> list[Finding]:
    if machine.governor in (None, "performance"):
        return []
    return [
        Finding(
            "note",
            "cores",
            f"frequency governor {machine.governor}: repeated runs differ more",
            "cpupower frequency-set -g performance",
        )
    ]


def _of_disks(machine: Machine) -> list[Finding]:
    return [
        Finding(
            "warning" if free < LITTLE_DISK_BYTES else "ok",
            "disk",
            f"{format_bytes(free)} free in {folder}",
            "free disk space for models, caches and logs" if free < LITTLE_DISK_BYTES else "",
        )
        for folder, free in machine.disk_free_bytes.items()
    ]


def _of_port() -> list[Finding]:
    holders = port_holders(DEFAULT_PORT)
    if not holders:
        return [Finding("ok", "port", f"{DEFAULT_PORT} is free")]
    return [
        Finding(
            "note",
            "port",
            f"{DEFAULT_PORT} is used by process {', '.join(holders)}",
            "servetune chooses a free port unless --port is set",
        )
    ]


_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "trouble": "TROUBLE"}


class Doctor(Request, frozen=True, kw_only=True):
    """Request for a checkup of this machine."""

    verb: ClassVar[str] = "doctor"

    load: Annotated[
        bool,
        option("Load test of the client on this machine, half a minute", "--load-test"),
    ] = False


class Checkup(Tabular, frozen=True, kw_only=True):
    """Findings about this machine.

    Attributes:
        findings: Results of the checks, in the order GPUs, engines, memory, limits.
        ceiling: Load that this machine can time; `None` where it was not measured.
    """

    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None

    @property
    def healthy(self) -> bool:
        """Whether no finding is a warning or worse."""
        return not any(each.level in ("warning", "trouble") for each in self.findings)

    def as_rows(self) -> Iterable[TableRow]:
        """One row per finding."""
        return self.findings

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return {
            "servetune": __version__,
            "findings": msgspec.to_builtins(self.findings),
            "load": None if self.ceiling is None else msgspec.to_builtins(self.ceiling),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"servetune {__version__}"
        width = max(len(each.subject) for each in self.findings) + 2
        for each in self.findings:
            yield f"{_MARKS[each.level]:8}{each.subject:{width}}{each.message}"
            if each.hint and each.level != "ok":
                yield f"{'':{8 + width}}-> {each.hint}"


def doctor(request: Doctor | None = None, /, **options: object) -> Checkup:
    """Check this machine: GPUs, engines, memory, limits; nothing is changed.

    Args:
        request: Request; without it the options alone.
        options: Fields of `Doctor`.

    Example:
        >>> import servetune as st
        >>> {"system", "memory"} <= {each.subject for each in st.doctor().findings}
        True
    """
    request = request_of(Doctor, request, options)
    findings = machine_findings()
    if not request.load:
        return Checkup(findings=tuple(findings))
    progress("measuring the load generator against an echo server")
    ceiling = load_ceiling(progress)
    limited = ceiling.rungs[-1].limit
    load = Finding(
        "ok" if ceiling.trusted else "warning",
        "load",
        ceiling.words,
        "reserve cores for the client, or send load from another machine" if limited else "",
    )
    return Checkup(findings=(*findings, load), ceiling=ceiling)
