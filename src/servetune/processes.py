"""Identity of a process, so that a number that is used again is not taken for an earlier one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["ProcessMark", "begun"]


def begun(pid: int) -> str:
    """Start of a process in the kernel's ticks since boot.

    Empty where it is not there or only waits to be reaped.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a process on any machine.

    Attributes:
        pid: Number of the process.
        begun: Start in the kernel's ticks since boot.
        place: Boot of the machine and namespace of its process numbers; a process of another place
            cannot be looked up.
    """

    pid: int
    begun: str
    place: str

    @classmethod
    def own(cls) -> ProcessMark:
        """This process."""
        return cls(pid=os.getpid(), begun=begun(os.getpid()), place=_place())

    def lives(self) -> bool | None:
        """Whether it still runs; `None` where its place is another one."""
        if self.place != _place():
            return None
        return begun(self.pid) == self.begun != ""


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
