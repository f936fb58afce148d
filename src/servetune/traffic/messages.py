"""Messages between the process that runs a load and its sender processes.

A frame is its length in four bytes and a msgpack value. Each request of a run is a W3C trace of
its own.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from servetune.traffic.connection import Address
from servetune.traffic.request_file import RequestColumns
from servetune.traffic.sigv4 import Credentials, Signing

_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """Configuration of a sender process, its first command.

    Attributes:
        addresses: Servers.
        heads: Request line and headers of a request to each server, but for the length.
        columns: Positions of the requests in the shared file.
        requests_fd: Inherited file of all bodies.
        queue_fd: Pipe of four-byte indices of the requests to send, in order. Processes share it;
            the one that reads an index sends the request. Its end is the end of the run.
        api: Form of the answers (`answer.ANSWERS`).
        streamed: Whether answers come token by token.
        closed: Whether the next request waits for an answer rather than for a time.
        users: Largest number of requests in flight in this process; `None` for no limit. A process
            that takes over users of another starts with 0.
        ahead: Connections to open before the clock starts.
        timeout_s: Time limit of each request.
        routing: `round_robin` or `least_outstanding`, over several addresses.
        run_id: Name of the run for `traceparent` headers; empty for none.
        trace_id: Trace of all requests, 32 hex digits; empty for one of each.
        keep_text_below: Index below which answers come with their text.
        may_sleep: Whether the loop may let tokens gather; see `sleep_planner`.
        signing: Signing of requests through SageMaker, one for each address; empty for none.
        credentials: Credentials to sign with; refreshed ones come as a command of their own.
        sagemaker: Whether answers come in SageMaker's frames.
        failures_limit: Failures in a row after which the process pauses until `Resume`; `None` for
            no limit.
    """

    addresses: list[Address]
    heads: list[bytes]
    columns: RequestColumns
    requests_fd: int
    queue_fd: int
    api: str
    streamed: bool = True
    closed: bool = True
    users: int | None = None
    ahead: int = 0
    timeout_s: float = 600.0
    routing: str = "round_robin"
    run_id: str = ""
    trace_id: str = ""
    keep_text_below: int = 0
    may_sleep: bool = True
    signing: list[Signing] = []
    credentials: Credentials | None = None
    sagemaker: bool = False
    failures_limit: int | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start of the run, on the machine's monotonic clock."""

    start_s: float


class MoveUsers(msgspec.Struct, frozen=True, kw_only=True, tag="users"):
    """Transfer of users: take some over, each due when its last answer ended, or release some."""

    due_s: list[float] = []
    release_users: int = 0


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="go_on"):
    """Permission to send again after a pause for failures in a row."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Order to send nothing more, and to end what is in flight after `grace_s`."""

    outcome: str = "cancelled"
    detail: str = "the run was stopped"
    grace_s: float = 0.0


Command = Setup | Start | MoveUsers | Resume | Stop | Credentials


class RequestTrace(msgspec.Struct, frozen=True, array_like=True):
    """Trace of one request: its times on the monotonic clock, its tokens and its outcome.

    Attributes:
        times_s: Arrival times of the pieces of content, as doubles.
        counts: Tokens of each piece, as ints; empty where each has one.
        characters: Characters of text that came.
        text: Text of the answer, where it is kept.
    """

    index: int
    due_s: float
    sent_s: float
    end_s: float
    times_s: bytes
    counts: bytes
    prompt_tokens: int | None
    output_tokens: int
    outcome: str
    status: int | None
    detail: str
    connect_s: float | None
    target: int
    characters: int
    text: str | None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Report of a sender process, ten times a second.

    Attributes:
        traces: Requests that ended since the last heartbeat.
        begun_count: Requests begun so far.
        in_flight_count: Requests sent and not yet answered.
        idle: Whether nothing is in flight, in think time or waiting.
        lost: Whether a connection was refused or lost since the last heartbeat.
        held_count: Requests so far that were due while all users were busy.
        cpu_s: CPU time of this process so far.
        at_s: Time of the heartbeat.
        skipped: Requests that will never be due, because the answer they follow failed.
        lateness_s: Lateness of each departure since the last heartbeat, as doubles.
        lags_s: Durations of turns of the loop, as doubles.
        released_s: Times at which users were released.
        paused: Whether nothing is sent after failures in a row, until `Resume`.
    """

    traces: list[RequestTrace]
    begun_count: int
    in_flight_count: int
    idle: bool
    lost: bool
    held_count: int
    cpu_s: float
    at_s: float
    skipped: list[int] = []
    lateness_s: bytes = b""
    lags_s: bytes = b""
    released_s: list[float] = []
    paused: bool = False


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    """Last message of a process that has nothing left to do.

    Attributes:
        opened_count: Connections made.
        reused_count: Requests that left on a connection made before.
        retried_count: Requests that had to be sent twice.
        peak_memory_bytes: Largest resident set.
    """

    opened_count: int
    reused_count: int
    retried_count: int
    peak_memory_bytes: int


def frame(value: msgspec.Struct) -> bytes:
    """Frame of a message, as it goes through a pipe."""
    packed = msgspec.msgpack.encode(value)
    return _LENGTH.pack(len(packed)) + packed


class FrameReader:
    r"""Cuts bytes into frames.

    Example:
        >>> frames = FrameReader()
        >>> frames.feed(frame(Start(start_s=1.0)))
        [b'\x82\xa4type\xa5start\xa7start_s\xcb?\xf0\x00\x00\x00\x00\x00\x00']
    """

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Packed messages that these bytes complete."""
        self._left += data
        packed: list[bytes] = []
        at = 0
        while len(self._left) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._left, at)
            if len(self._left) - at - 4 < length:
                break
            packed.append(bytes(self._left[at + 4 : at + 4 + length]))
            at += 4 + length
        del self._left[:at]
        return packed


def traceparent(run_id: str, index: int, trace_id: str = "") -> str:
    """Value of the W3C `traceparent` header of a run's request.

    Each request is a trace of its own, unless all are of the given one; marked as sampled.

    Example:
        >>> traceparent("run", 7)
        '00-3405e616bfc82a31ae8974fdaccaa023-92c8ae4311b119d8-01'
    """
    trace, span = trace_ids(run_id, index, trace_id)
    return f"00-{trace:032x}-{span:016x}-01"


def trace_ids(run_id: str, index: int, trace_id: str = "") -> tuple[int, int]:
    """The trace's 128 bits and the span's 64, neither of them 0."""
    digest = hashlib.blake2b(f"{run_id}/{index}".encode(), digest_size=24).digest()
    own, span = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    return int(trace_id or "0", 16) or own or 1, span or 1
