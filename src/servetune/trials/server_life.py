"""Life of a server from its start to its end, for those who trace a study."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from servetune.json_value import JsonObject
from servetune.store import Failure


class ServerLife(msgspec.Struct, frozen=True, kw_only=True):
    """Life of one server.

    Attributes:
        model: Model as it was named.
        engine: Name of the engine.
        server_args: Settings of the server.
        command: Command line that started it, or the address of a server that ran already.
        began_unix_s: Time at which it was started, in seconds since 1970.
        ready_s: Time from there until it was ready; `None` where it never was.
        ended_unix_s: Time of its end likewise; 0 while it lives.
        failure: Reason why it ended before its trials did; `None` otherwise.
        trace_id: Trace of what happens on it, 32 hex digits.
        span_id: Span of the server, 16 hex digits.
    """

    model: str
    engine: str
    server_args: JsonObject
    command: str = ""
    began_unix_s: float = msgspec.field(default_factory=time.time)
    ready_s: float | None = None
    ended_unix_s: float = 0.0
    failure: Failure | None = None
    trace_id: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))
    span_id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


class ServerEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that are told of servers.

    Attributes:
        begins: Takes the key of each trial that waits for a server, or begins on it.
        ended: Takes each server that ended.
    """

    begins: Callable[[str, ServerLife], None] = lambda _key, _server: None
    ended: Callable[[ServerLife], None] = lambda _: None
