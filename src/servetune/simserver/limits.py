"""Limits of what clients may send and hold, and what they hold now."""

from __future__ import annotations

import contextlib
import resource

import msgspec

from servetune.units import GIB, MIB

SWEEP_S = 1.0
"""Interval at which connections are looked over for time-outs."""

LINGER_S = 1.0
"""Time for which the bytes of a client that was refused are still read and thrown away."""

LINGER_BYTES = 1 * MIB
"""Bytes of a client that was refused that are read and thrown away; after more it is cut off."""

SPARE_FILES = 64
"""Open files that are no client's: logs, the event loop, a tokenizer."""

LARGEST_BACKLOG = 4096


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a server's clients; where uvicorn, vLLM's server, has one, the same.

    Attributes:
        head_bytes: Request line and headers of one request.
        body_bytes: Body of one request.
        framing_bytes: Lengths of a body's chunks, their extensions, and trailers.
        request_s: Time for a whole request to arrive, from its first byte; for a client that
            has sent none, from its connection.
        keep_alive_s: Time that a connection is kept after an answer (uvicorn's 5 s).
        connections: Connections at a time; further ones are answered with status 503.
        held_bytes: Bytes of all requests that have arrived and are not answered or refused.
        pipelined: Requests of one client that wait behind the one that is answered; no more is
            read of it until there are fewer.
        unread_bytes: Bytes of answers that one client has not read; more costs its connection.
    """

    head_bytes: int = 64 << 10
    body_bytes: int = 16 * MIB
    framing_bytes: int = 1 * MIB
    request_s: float = 60.0
    keep_alive_s: float = 5.0
    connections: int = 16_384
    held_bytes: int = 1 * GIB
    pipelined: int = 32
    unread_bytes: int = 16 * MIB


def limits_of_context(max_model_len: int) -> Limits:
    """Usual limits, with bodies that have room for the longest prompt.

    A token takes 8 bytes of JSON as a number, and fewer as text; each byte may take 30 of memory.
    """
    usual = Limits()
    return msgspec.structs.replace(usual, body_bytes=max(usual.body_bytes, 16 * max_model_len))


class Occupancy:
    """What all clients of a server hold together.

    Attributes:
        held_bytes: Bytes of requests, as `Limits.held_bytes` counts them.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held_bytes = 0


def allow_open_files(limits: Limits) -> tuple[Limits, int]:
    """Raise this process's limit of open files as far as it may; limits and backlog within it.

    A server without free files cannot accept a connection even to refuse it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits, LARGEST_BACKLOG
    backlog = min(LARGEST_BACKLOG, files // 4)
    connections = max(1, min(limits.connections, files - backlog - SPARE_FILES))
    return msgspec.structs.replace(limits, connections=connections), backlog
