"""Ports for servers, and the check whose server answers on one."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from servetune.errors import EngineError, PortBusy

_LISTENING = "0A"  # state of a TCP socket in /proc/net/tcp


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listened a moment ago; another may still take it first."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


_claimed: set[int] = set()
_claiming = threading.Lock()


@contextmanager
def claimed_port(host: str = "127.0.0.1", given: int | None = None) -> Iterator[int]:
    """A port that no other server of this process is given meanwhile.

    Args:
        host: Address to listen on.
        given: The user's choice; `None` for a free one.

    Raises:
        PortBusy: The given one is another server's of ours.
    """
    with _claiming:
        if given is not None and given in _claimed:
            raise PortBusy(given)
        port = given
        while port is None or (given is None and port in _claimed):
            port = free_port(host)
        _claimed.add(port)
    try:
        yield port
    finally:
        with _claiming:
            _claimed.discard(port)


def reachable_host(host: str) -> str:
    """Address at which a server that listens on `host` is reached from this machine."""
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


def listening_ports(pid: int) -> set[int]:
    """Ports on which a process listens; none where it cannot be told."""
    try:
        inodes = _socket_inodes(pid)
    except PermissionError:
        return set()
    return {port for port, inode in _listening_sockets() if inode in inodes}


def listening_pids(port: int) -> list[int]:
    """Processes that listen on a port, of those that may be looked at."""
    inodes = _listening_inodes(port)
    found = []
    for entry in Path("/proc").iterdir() if inodes else ():
        if entry.name.isdigit():
            try:
                if inodes & _socket_inodes(int(entry.name)):
                    found.append(int(entry.name))
            except PermissionError:
                continue
    return sorted(found)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listening_inodes(port: int) -> set[str]:
    return {inode for its_port, inode in _listening_sockets() if its_port == port}


def _listening_sockets() -> Iterator[tuple[int, str]]:
    """Port and inode of every TCP socket of this machine that listens."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            rows = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTENING:
                yield int(columns[1].rpartition(":")[2], 16), columns[9]


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
