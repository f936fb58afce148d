"""Servers that an earlier servetune has left: found by a mark in their environment.

The watchdog ends a server when its servetune is gone. What kills both at once, such as the
kernel short of memory, may leave processes that hold a port and a device's memory; the next
run would find neither free. Every process of a server inherits the mark, so that also a worker
that has lost its parent is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from servetune.processes import begun
from servetune.secret import beginning
from servetune.servers import watchdog
from servetune.servers.ports import listening_ports

MARKS = watchdog.MARKS
OWNER_MARK, LOG_MARK = MARKS


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a server whose servetune has ended.

    Attributes:
        owner_pid: Process id of the servetune that started it.
        command: Command line, as far as it can be read.
        log_path: Path of the server's log.
        ports: Ports that it listens on.
        resident_bytes: Memory that it holds.
    """

    pid: int
    owner_pid: int
    command: str
    log_path: str
    ports: tuple[int, ...]
    resident_bytes: int

    @property
    def label(self) -> str:
        where = f" on port {', '.join(map(str, self.ports))}" if self.ports else ""
        return f"process {self.pid}{where} ({beginning(self.command, 120)})"


def marks_of(log_path: Path) -> dict[str, str]:
    """Marks in a server's environment: the process that started it, and when."""
    pid = os.getpid()
    return {OWNER_MARK: f"{pid}:{begun(pid)}", LOG_MARK: str(log_path.absolute())}


def owner_lives(mark: str) -> bool | None:
    """Whether the servetune of an owner's mark runs; `None` where the mark names none."""
    pid, _, ticks = mark.partition(":")
    return begun(int(pid)) == ticks if pid.isdigit() else None


def marked_processes(log_path: Path) -> set[int]:
    """Live processes of the server that this process started with that log.

    Also those that left its session and lost their parent.
    """
    return watchdog.marked(marks_of(log_path))


def find_leftovers() -> list[Leftover]:
    """Processes that bear the mark of a servetune that is gone; nothing where there is no /proc.

    Other users' processes cannot be read and are not told of.
    """
    found = []
    for entry in _process_folders():
        environment = _environment(entry)
        owner = environment.get(OWNER_MARK, "")
        if owner_lives(owner) is not False:
            continue  # not ours, or its servetune lives
        pid = int(entry.name)
        found.append(
            Leftover(
                pid=pid,
                owner_pid=int(owner.partition(":")[0]),
                command=_command(entry),
                log_path=environment.get(LOG_MARK, ""),
                ports=tuple(sorted(listening_ports(pid))),
                resident_bytes=_resident_bytes(entry),
            )
        )
    return sorted(found, key=lambda one: one.pid)


def _process_folders() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _environment(entry: Path) -> Mapping[str, str]:
    try:
        raw = (entry / "environ").read_bytes()
    except OSError:
        return {}
    words = (word.partition(b"=") for word in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in words}


def _command(entry: Path) -> str:
    try:
        return os.fsdecode((entry / "cmdline").read_bytes().replace(b"\0", b" ")).strip()
    except OSError:
        return ""


def _resident_bytes(entry: Path) -> int:
    try:
        return int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
