"""One client's connection: requests in, one after another, and answers out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from http import HTTPStatus
from typing import NamedTuple, Protocol

import httptools
import msgspec

from servetune.simserver.limits import LINGER_BYTES, LINGER_S, Limits, Occupancy

_MARK = b"x-servetune-simulated: 1\r\nserver: servetune-simulated\r\n"


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as HTTP has it; `path` is without its query."""

    method: str
    path: str
    body: bytes
    authorization: str


class _Refused(Exception):
    """Request that is not served, whatever it asks for; httptools passes it on."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class _Turn(NamedTuple):
    """Request that waits for its answer, or why it has none."""

    subject: HttpRequest | _Refused
    keep_alive: bool


class RequestHandler(Protocol):
    """Handler of a port's requests."""

    def opened(self, connection: Connection) -> bool:
        """A client has connected; whether there is room for it."""

    def closed(self, connection: Connection) -> None:
        """A client has gone; its requests have no receiver any more."""

    def handle(self, connection: Connection, http_request: HttpRequest) -> None:
        """ResponseStream, at once or later, by exactly one `reply` or stream."""


class Connection(asyncio.Protocol):
    """Implements `answers.ResponseWriter`; httptools calls its `on_*` methods while it is fed.

    A client that sends its next request before the last is answered waits its turn, and so does
    the refusal of what it sends beyond a limit. After a refusal what comes is thrown away, up to
    `LINGER_S` and `LINGER_BYTES`: a connection that is closed with unread bytes is reset, and the
    refusal lost.
    """

    def __init__(self, site: RequestHandler, occupancy: Occupancy) -> None:
        self._site = site
        self._occupancy = occupancy
        self._limits: Limits = occupancy.limits
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._since_s = 0.0  # when the current wait for the client began
        self._is_new = True
        self._in_head = self._in_message = False
        self._ended_one = False  # a request, in the bytes that came last
        self._refused = self._full = self._is_told = False
        self._head_bytes = self._arriving_bytes = self._held_bytes = self._thrown_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._again = b""  # head of a request that asked for an upgrade, without that
        self._waiting: deque[_Turn] = deque()
        self._answering = False
        self._keep_alive = True
        self._lingers = False  # whether the client is left to end the connection

    # what comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._wait_from_now()
        if not self._site.opened(self):
            # It is closed at once: there is no room to wait for its client.
            self._refuse(
                _Refused(503, "the server has as many connections as it takes"), lingers=False
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._release(self._held_bytes)
        self._site.closed(self)

    def data_received(self, data: bytes) -> None:
        self._ended_one = False
        byte_count = len(data)
        if self._is_told:
            self._thrown_bytes += byte_count
            if self._thrown_bytes > LINGER_BYTES and self._transport is not None:
                self._transport.close()
            return
        try:
            while data and not self._refused:
                data = self._feed(data)
            if self._in_message and not self._ended_one:
                self._count_message(byte_count)
        except _Refused as refused:
            self._refuse(refused)
        if len(self._waiting) >= self._limits.pipelined and self._transport is not None:
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> bytes:
        """Read some requests; what is to be read again, behind an upgrade that is not spoken here.

        Such a request is answered as if it had not asked (RFC 9110, 7.8). httptools takes its body
        for the other protocol, so it is read once more without the header.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            again, self._again = self._again, b""
            return again + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _Refused):
                raise error.__context__ from None
            if self._parser.get_method() == b"PRI":
                raise _Refused(505, "HTTP/2 is not served, HTTP/1.1 is") from None
            raise _Refused(400, "this is not HTTP") from None
        return b""

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = bytearray()
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._wait_from_now()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._asks_for_upgrade():
            return
        self._in_head = False
        length = self._headers.get(b"content-length", b"")
        if len(length) > 18 or int(length or b"0") > self._limits.body_bytes:
            raise self._too_large()
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and not self._is_busy:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > self._limits.body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        self._in_message = self._in_head = False
        self._ended_one = True
        if self._asks_for_upgrade():
            self._again = self._plain_head()
            return
        self._release_arriving()
        self._hold(len(self._body))
        http_request = HttpRequest(
            self._parser.get_method().decode(),
            self._url.decode("latin-1").partition("?")[0],
            bytes(self._body),
            self._headers.get(b"authorization", b"").decode("latin-1"),
        )
        self._body = bytearray()
        self._waiting.append(_Turn(http_request, self._parser.should_keep_alive()))
        self._next()

    def _asks_for_upgrade(self) -> bool:
        parser = self._parser
        return bool(parser.should_upgrade()) and parser.get_method() != b"CONNECT"

    def _plain_head(self) -> bytes:
        parser = self._parser
        line = b"%b %b HTTP/%b" % (
            parser.get_method(),
            self._url,
            parser.get_http_version().encode(),
        )
        headers = [b"%b: %b" % one for one in self._headers.items() if one[0] != b"upgrade"]
        return b"\r\n".join((line, *headers, b"", b""))

    def _next(self) -> None:
        while self._waiting and not self._is_held_up:
            subject, self._keep_alive = self._waiting.popleft()
            self._answering = True
            if isinstance(subject, HttpRequest):
                self._site.handle(self, subject)
                self._release(len(subject.body))
            else:
                detail = msgspec.json.encode({"detail": subject.detail})
                self.reply(subject.status, detail)
        if len(self._waiting) < self._limits.pipelined and self._transport is not None:
            self._transport.resume_reading()

    @property
    def _is_busy(self) -> bool:
        return self._answering or bool(self._waiting)

    @property
    def _is_held_up(self) -> bool:
        return self._answering or self._full or self._transport is None

    # limits

    def expire(self, now_s: float) -> None:
        """End a wait for the client that has lasted too long."""
        transport, limits = self._transport, self._limits
        waited_s = now_s - self._since_s
        if transport is None:
            return
        if transport.is_closing():
            if waited_s > limits.request_s:  # its last answer is not read
                transport.abort()
        elif self._is_told:
            if waited_s > LINGER_S:
                transport.close()
        elif self._is_busy:
            if self._full and not self._answering and waited_s > limits.request_s:
                transport.abort()
        elif self._in_message:
            if waited_s > limits.request_s:
                words = f"the request was not whole within {limits.request_s:g} s"
                self._refuse(_Refused(408, words))
        elif waited_s > (limits.request_s if self._is_new else limits.keep_alive_s):
            transport.close()

    def _wait_from_now(self) -> None:
        self._since_s = asyncio.get_running_loop().time()

    def _refuse(self, refused: _Refused, *, lingers: bool = True) -> None:
        self._refused, self._lingers = True, lingers
        self._in_head = self._in_message = False
        self._body = bytearray()
        self._release_arriving()
        self._waiting.append(_Turn(refused, keep_alive=False))
        self._next()

    def _too_large(self) -> _Refused:
        return _Refused(413, f"the body is larger than {self._limits.body_bytes >> 20} MiB")

    def _count_head(self, byte_count: int) -> None:
        self._head_bytes += byte_count
        self._limit_head(self._head_bytes)

    def _limit_head(self, byte_count: int) -> None:
        if byte_count > self._limits.head_bytes:
            raise _Refused(431, f"the head is larger than {self._limits.head_bytes >> 10} KiB")

    def _count_message(self, byte_count: int) -> None:
        """Count bytes of a request that is not whole: its head, or framing and trailers."""
        self._arriving_bytes += byte_count
        self._hold(byte_count)
        if self._in_head:
            self._limit_head(self._arriving_bytes)
            return
        framing_bytes = self._arriving_bytes - self._head_bytes - len(self._body)
        if framing_bytes > self._limits.framing_bytes:
            most = self._limits.framing_bytes >> 10
            raise _Refused(413, f"the body's framing and trailers are larger than {most} KiB")

    def _release_arriving(self) -> None:
        self._release(self._arriving_bytes)
        self._arriving_bytes = 0

    def _hold(self, byte_count: int) -> None:
        self._held_bytes += byte_count
        self._occupancy.held_bytes += byte_count
        if self._occupancy.held_bytes > self._limits.held_bytes:
            raise _Refused(503, "the server holds as many requests as it takes")

    def _release(self, byte_count: int) -> None:
        self._held_bytes -= byte_count
        self._occupancy.held_bytes -= byte_count

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._next()

    # what goes

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        kept = b"" if self._keep_alive else b"connection: close\r\n"
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + _MARK + kept
        headers = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        self._write(head + headers + body)
        self._answered()

    def begin_stream(self) -> None:
        """The head of a stream."""
        kept = b"" if self._keep_alive else b"connection: close\r\n"
        self._write(
            b"HTTP/1.1 200 OK\r\n" + _MARK + kept + b"content-type: text/event-stream; "
            b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def send_part(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._answered()

    def drop(self) -> None:
        """Lose the connection without another word."""
        if self._transport is not None:
            self._transport.abort()

    def _answered(self) -> None:
        self._answering = self._is_new = False
        self._wait_from_now()
        if not self._keep_alive:
            if self._transport is not None:
                if self._lingers and self._transport.can_write_eof():
                    self._is_told = True
                    with contextlib.suppress(OSError):  # the client has gone
                        self._transport.write_eof()
                else:
                    self._transport.close()
            return
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
            if self._full and transport.get_write_buffer_size() > self._limits.unread_bytes:
                transport.abort()
