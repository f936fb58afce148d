"""What goes between the process that plans a run and those that send: values and frames.

A frame is its length in four bytes and a msgpack value.
"""

from __future__ import annotations

import struct

import msgspec

from servetune.traffic.connection import Address
from servetune.traffic.request_file import RequestColumns
from servetune.traffic.sigv4 import Credentials, Signing

__all__ = [
    "Command",
    "Finished",
    "FrameReader",
    "Heartbeat",
    "MoveUsers",
    "RequestTrace",
    "Resume",
    "Setup",
    "Start",
    "Stop",
    "frame",
]

_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """All that a process needs before the clock starts.

    Attributes:
        addresses: The servers.
        heads: Of a request to each: request line and headers, but for its length.
        asks_fd: The bodies' file, inherited; `columns` say what is where.
        queue_fd: Pipe of four-byte indices: what is to be sent, in order. Processes share it;
            whoever reads an index sends the request. Its end is the end of the run.
        api: Dialect of the answers (`answer.ANSWERS`).
        closed: Whether the next request waits for an answer rather than for a time.
        users: Requests in flight at most, in this process; `None` for no limit. A process that
            is to take over users of another starts with none.
        ahead: Connections that are opened before the clock starts.
        timeout_s: Limit of each request.
        routing: `round_robin` or `least_outstanding`, over several addresses.
        run_id: Name of the run for `traceparent` headers; empty for none.
        keep_text_below: Answers to requests of a smaller index come with their words.
        rests: Whether the loop may let tokens gather, see `sleep_planner`.
        signing: Of requests through SageMaker, one for each address; empty for none.
        credentials: To sign with; new ones may come as an order of their own.
        invoked: Whether answers come in SageMaker's frames.
        failures_limit: After so many failures in a row the process sends nothing until it is
            told to go on; `None` for no limit.
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
    keep_text_below: int = 0
    may_sleep: bool = True
    signing: list[Signing] = []
    credentials: Credentials | None = None
    sagemaker: bool = False
    failures_limit: int | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Begin. Times are on the machine's monotonic clock."""

    start_s: float


class MoveUsers(msgspec.Struct, frozen=True, kw_only=True, tag="users"):
    """Take on users from another process, each due when its last answer ended; or let some go."""

    due_s: list[float] = []
    release_users: int = 0


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="go_on"):
    """Send again: failures in a row were looked at, and the run goes on."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Send nothing more; end what is in flight after `grace_s`."""

    outcome: str = "cancelled"
    detail: str = "the run was stopped"
    grace_s: float = 0.0


Command = Setup | Start | MoveUsers | Resume | Stop | Credentials


class RequestTrace(msgspec.Struct, frozen=True, array_like=True):
    """What one request did, on the monotonic clock; `metrics.Record` before it is one.

    Attributes:
        times_s: Doubles: when each piece of content came.
        counts: Ints: tokens of each; empty for one each.
        text: The answer's words, where they were asked for.
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
    text: str | None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Ten times a second: what ended since, and how the process is doing.

    Attributes:
        idle: Whether nothing is in flight, thought about or waiting.
        skipped: Requests that will never be due, because the answer they follow failed.
        lost: Whether a connection was refused or lost since the last beat.
        held_back: Whether nothing is sent after failures in a row, until `Resume`.
        late_s: Doubles: how late each departure since the last beat was.
        lag_s: Doubles: how long turns of the loop took.
        let_go_s: When users were let go, as asked.
        cpu_s: Of this process so far.
        begun_count: Requests begun so far.
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
    """The process has nothing left to do.

    Attributes:
        peak_memory_bytes: Its largest resident set.
    """

    opened_count: int
    reused_count: int
    retried_count: int
    peak_memory_bytes: int


def frame(value: msgspec.Struct) -> bytes:
    """A value as it goes through a pipe."""
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
        """The packed values that these bytes complete."""
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
