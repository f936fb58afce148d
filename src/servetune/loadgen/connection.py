"""HTTP/1.1 on asyncio transports: one request at a time per connection, stamped as bytes come.

A response is stamped in the first line that runs when the loop hands over its bytes;
framing is httptools' business, content is the reader's. Connections are kept and used
again. One retry is hidden, and counted: a server may close an idle connection just as the
next request leaves on it, and nobody's fault that is (RFC 9112, 9.3.1).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import httptools
import msgspec

from servetune.errors import InputError
from servetune.metrics.record import Outcome

__all__ = ["Exchange", "Origin", "Pool", "Reader"]


class Origin(msgspec.Struct, frozen=True):
    """Where requests go: scheme, host, port, and the path before the API's own routes.

    Example:
        >>> Origin.parse("https://models.example/tenant/v1")
        Origin(scheme='https', host='models.example', port=443, prefix='/tenant')
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, base_url: str) -> Origin:
        """Read a base URL, with or without the `/v1` that OpenAI's clients want at its end."""
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        hint = "write it as http://host:port"
        try:
            port = parts.port
        except ValueError as error:
            raise InputError(f"'{base_url}' has no usable port", hint=hint) from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(f"'{base_url}' is not an http or https address", hint=hint)
        if parts.username or parts.password:
            raise InputError(
                "a base URL must not carry credentials",
                hint="put the key in an environment variable and name it",
            )
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port or (443 if parts.scheme == "https" else 80),
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
        )

    @property
    def host_header(self) -> str:
        """Value of the Host header; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual_port = 443 if self.scheme == "https" else 80
        return host if self.port == usual_port else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.prefix}"


class Reader(Protocol):
    """Takes a response as it arrives; neither method may raise over what a server sent."""

    def head(self, status: int, content_type: str) -> None:
        """The status line and headers are complete."""

    def body(self, data: bytes, at_s: float) -> None:
        """Some of the body came at `at_s` on the pool's clock."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How one request and its response went on the wire, whatever the response said.

    Attributes:
        outcome: "ok" when a whole HTTP message came, with any status.
        sent_s: When the request's first byte left; when connecting began if none did.
        end_s: When the message was complete, or the failure was noticed.
        status: As far as one was read.
        reused: Whether it went on a connection that had served before.
        retried: Whether it had to go twice because such a connection was just closed.
    """

    outcome: Outcome
    sent_s: float
    end_s: float
    status: int | None = None
    detail: str = ""
    reused: bool = False
    retried: bool = False


class _Call:
    """One request on its way; the single mutable thing that pool, connection and timer share."""

    __slots__ = (
        "connection", "detail", "done", "end_s", "heard", "outcome", "payload", "reader",
        "retried", "reused", "sent_s", "status",
    )  # fmt: skip

    def __init__(self, payload: bytes, reader: Reader, done: asyncio.Future[None]) -> None:
        self.payload = payload
        self.reader = reader
        self.done = done
        self.connection: _Connection | None = None
        self.sent_s: float | None = None
        self.end_s = 0.0
        self.status: int | None = None
        self.outcome: Outcome = "ok"
        self.detail = ""
        self.heard = False
        self.reused = False
        self.retried = False

    def end(self, outcome: Outcome, at_s: float, detail: str = "") -> None:
        """Settle the call; only the first ending counts."""
        if self.done.done():
            return
        self.outcome, self.end_s, self.detail = outcome, at_s, detail
        self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """One keep-alive connection; httptools calls its `on_*` methods while it is fed."""

    def __init__(self, now_s: Callable[[], float], idle: list[_Connection]) -> None:
        self._now_s = now_s
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._call: _Call | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._at_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._content_type = ""
        self._framed = False  # the end of the body is announced, not just the end of the stream
        self._headed = False
        self._body: Callable[[bytes, float], None] | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def start(self, call: _Call) -> None:
        """Send the call's request; its response will settle it."""
        assert self._transport is not None
        assert self._call is None
        self._reset()
        self._call = call
        self._parser = httptools.HttpResponseParser(self)
        call.connection = self
        now_s = self._now_s()
        if call.sent_s is None:  # a retry keeps the first departure: its cost is not hidden
            call.sent_s = now_s
        self._transport.write(call.payload)

    def abort(self) -> None:
        """Close at once; whatever call it carried is settled by somebody else."""
        self._call = None
        self._parser = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._at_s = self._now_s()
        call, parser = self._call, self._parser
        if call is None or parser is None:  # nobody asked for this
            self.abort()
            return
        call.heard = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.abort()
            if not call.done.done():  # a mistake of ours, which must not look like the server's
                call.done.set_exception(error.__context__ or error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort()
            call.end("malformed", self._at_s, f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        call, self._call, self._parser = self._call, None, None
        if call is None:
            return
        call.connection = None
        if exc is None and self._headed and not self._framed:
            call.end("ok", self._now_s())  # HTTP/1.0 manners: the close is the end
            return
        where = "before any answer" if not call.heard else "while answering"
        reason = f": {exc}" if exc is not None and str(exc) else ""
        call.end("disconnected", self._now_s(), f"connection lost {where}{reason}")

    # httptools' side

    def on_message_begin(self) -> None:
        if self._call is None and self._transport is not None:
            self._transport.abort()  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value.decode("latin-1").partition(";")[0].strip().lower()
        elif lower in {b"content-length", b"transfer-encoding"}:
            self._framed = True

    def on_headers_complete(self) -> None:
        if self._call is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer; the real one follows
            return
        self._headed = True
        self._framed = self._framed or status in {204, 304}
        self._call.status = status
        self._call.reader.head(status, self._content_type)
        self._body = self._call.reader.body

    def on_body(self, data: bytes) -> None:
        if self._body is not None:
            self._body(data, self._at_s)

    def on_message_complete(self) -> None:
        if self._call is None or self._parser is None or not self._headed:
            return
        keep = self._parser.should_keep_alive()
        call, self._call, self._body = self._call, None, None
        call.connection = None
        if self._transport is not None and not self._transport.is_closing():
            if keep:
                self._idle.append(self)
            else:
                self._transport.close()
        call.end("ok", self._at_s)


class Pool:
    """Connections to one origin: as many as there are requests in flight, never more.

    Attributes:
        opened_count: Connections that were made.
        reused_count: Requests that left on a connection which had served before.
        retried_count: Requests that went twice (see the module's text).
    """

    def __init__(
        self, origin: Origin, now_s: Callable[[], float], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.origin = origin
        self.opened_count = 0
        self.reused_count = 0
        self.retried_count = 0
        self._now_s = now_s
        self._tls = tls or (ssl.create_default_context() if origin.scheme == "https" else None)
        self._idle: list[_Connection] = []
        self._calls: set[_Call] = set()
        self._peer: str | None = None

    async def exchange(self, payload: bytes, reader: Reader, *, timeout_s: float) -> Exchange:
        """Send one request and have its response read; failures are in the result.

        Args:
            payload: The request, headers and body, ready to be written.
            reader: Is handed the response as it comes.
            timeout_s: Limit for connecting, sending and the whole response together.
        """
        loop = asyncio.get_running_loop()
        call = _Call(payload, reader, loop.create_future())
        asked_s = self._now_s()
        timer = loop.call_later(timeout_s, self._time_out, call, timeout_s)
        self._calls.add(call)
        try:
            await self._carry(call)
        finally:
            timer.cancel()
            self._calls.discard(call)
            if call.connection is not None:
                call.connection.abort()
        return Exchange(
            outcome=call.outcome,
            sent_s=asked_s if call.sent_s is None else call.sent_s,
            end_s=call.end_s,
            status=call.status,
            detail=call.detail,
            reused=call.reused,
            retried=call.retried,
        )

    def abandon(self, outcome: Outcome, detail: str) -> None:
        """End every request in flight with this outcome."""
        for call in tuple(self._calls):
            call.end(outcome, self._now_s(), detail)

    def close(self) -> None:
        """Give up all requests and connections."""
        self.abandon("cancelled", "the pool was closed")
        for connection in tuple(self._idle):
            connection.abort()
        self._idle.clear()

    def _time_out(self, call: _Call, timeout_s: float) -> None:
        call.end("timeout", self._now_s(), f"no whole answer within {timeout_s:g} s")

    async def _carry(self, call: _Call) -> None:
        connection = self._take_idle()
        if connection is not None:
            self.reused_count += 1
            call.reused = True
            connection.start(call)
            await call.done
            if call.heard or call.outcome != "disconnected":
                return
            self.retried_count += 1
            call.retried = True
            call.outcome, call.detail = "ok", ""
            call.done = asyncio.get_running_loop().create_future()
        fresh = await self._connect(call)
        if fresh is not None:
            fresh.start(call)
            await call.done

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, call: _Call) -> _Connection | None:
        """A new connection, or `None` when the call is already settled without one."""
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait((opening, call.done), return_when=asyncio.FIRST_COMPLETED)
            if not call.done.done():
                return opening.result()
        except (OSError, UnicodeError) as error:
            words = f"cannot connect to {self.origin}: {_words(error)}"
            if call.retried:  # it had left once: the server died on it rather than refused it
                call.end("disconnected", self._now_s(), f"connection lost, then {words}")
            else:
                call.end("refused", self._now_s(), words)
        finally:
            if not opening.done():
                opening.cancel()
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            opening.result().abort()  # settled and connected in the same turn of the loop
        return None

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            lambda: _Connection(self._now_s, self._idle),
            self._peer or self.origin.host,
            self.origin.port,
            ssl=self._tls,
            server_hostname=self.origin.host if self._tls is not None else None,
        )
        # Names are looked up once: later connections go where the first one went.
        self._peer = transport.get_extra_info("peername")[0]
        self.opened_count += 1
        return connection


def _words(error: OSError | UnicodeError) -> str:
    """What went wrong, without asyncio's "Connect call failed" and a tuple."""
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
