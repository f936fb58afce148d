"""One client's connection: requests in, one after another, and answers out."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Protocol

import httptools
import msgspec

MOST_BODY_BYTES = 64 * 1024 * 1024

_MARK = b"x-servetune-simulated: 1\r\nserver: servetune-simulated\r\n"


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as HTTP has it; `path` is without its query."""

    method: str
    path: str
    body: bytes
    authorization: str


class RequestHandler(Protocol):
    """Handler of a port's requests."""

    def opened(self, connection: Connection) -> None:
        """A client has connected."""

    def closed(self, connection: Connection) -> None:
        """A client has gone; its requests have no receiver any more."""

    def handle(self, connection: Connection, http_request: HttpRequest) -> None:
        """ResponseStream, at once or later, by exactly one `reply` or stream."""


class Connection(asyncio.Protocol):
    """Implements `answers.ResponseWriter`; httptools calls its `on_*` methods while it is fed.

    A client that sends its next request before the last is answered waits its turn.
    """

    def __init__(self, site: RequestHandler) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()
        self._answering = False
        self._keep_alive = True

    # what comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._site.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._site.closed(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._keep_alive = False
            self.reply(400, b'{"detail":"this is not HTTP"}')

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MOST_BODY_BYTES:
            self._keep_alive = False
            self.reply(413, b'{"detail":"the body is larger than 64 MiB"}')

    def on_message_complete(self) -> None:
        http_request = HttpRequest(
            self._parser.get_method().decode(),
            self._url.decode("latin-1").partition("?")[0],
            bytes(self._body),
            self._headers.get(b"authorization", b"").decode("latin-1"),
        )
        self._waiting.append((http_request, self._parser.should_keep_alive()))
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._answering and self._transport is not None:
            http_request, self._keep_alive = self._waiting.popleft()
            self._answering = True
            self._site.handle(self, http_request)

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
        self._answering = False
        if not self._keep_alive:
            if self._transport is not None:
                self._transport.close()
            return
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
