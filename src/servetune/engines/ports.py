"""Which port a server may take, and whose server it is that answers there."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from servetune.errors import EngineError, PortBusy

__all__ = ["free_port", "listens_among", "reachable_host", "require_free_port"]

_LISTENING = "0A"  # state of a TCP socket in /proc/net/tcp


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listened a moment ago; another may still take it first."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def reachable_host(host: str) -> str:
    """Where a server that listens on `host` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def require_free_port(host: str, port: int) -> None:
    """Make sure that a server could listen there now.

    Raises:
        PortBusy: Somebody listens already.
        EngineError: The address is not this machine's, or the port needs more rights.
    """
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            # As servers do, so that connections in TIME_WAIT do not count as somebody.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            # Two bound sockets may share the port until one listens.
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortBusy(port) from error
        raise EngineError(
            f"a server cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose an address of this machine and a port above 1023",
        ) from error


def listens_among(pids: Iterable[int], port: int) -> bool | None:
    """Whether one of the processes holds a socket that listens on the port.

    `None` where it cannot be told: no /proc, no such socket in it, or a process whose
    files may not be read.
    """
    try:
        inodes = _listening_inodes(port)
        if not inodes:
            return None
        return any(inodes & _socket_inodes(pid) for pid in pids)
    except PermissionError:
        return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            rows = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            columns = row.split()
            local_port = int(columns[1].rpartition(":")[2], 16)
            if local_port == port and columns[3] == _LISTENING:
                inodes.add(columns[9])
    return inodes


def _socket_inodes(pid: int) -> set[str]:
    inodes: set[str] = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended, or closed a file, while we looked
    return inodes
