"""One HTTP request on a connection of its own, for all that is not load: health, models, metrics.

Every room that asks a server a question uses this; load is sent by `traffic`, and the sampler
beside a load keeps its connections open (`loadgen/sampling.py`).
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["BoundedSocket", "ConnectError", "Reply", "Server", "TooLarge", "ask", "whole_body"]

PIECE_BYTES = 1 << 16

LARGEST_ANSWER_BYTES = 16 << 20
"""Most bytes of an answer, its head included."""

MOST_WORDS = 300
"""Most characters of an error that quotes what a server sent."""


class ConnectError(OSError):
    """Server that no connection could be made to; the message says why."""


class TooLarge(OSError):
    """Answer of more bytes than are read; the message says how many are."""


class Reply(NamedTuple):
    """Answer of a server: HTTP status and whole body."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Server(NamedTuple):
    """Address of a server.

    Attributes:
        host: Host name or IP address.
        port: Port; `None` for the scheme's own.
        tls: TLS context for https; `None` for plain http.
    """

    host: str
    port: int | None
    tls: ssl.SSLContext | None = None


class BoundedSocket:
    """Socket of an `http.client` connection whose answers have limits of time and size as a whole.

    `http.client` has limits of its own, for a wait between two bytes and for one line of a head;
    a server that sends a byte a second, or heads without end, stays within them.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeout_s = 0.0
        self._deadline_s = 0.0
        self._left_bytes = 0

    def begin(self, began_s: float, timeout_s: float) -> None:
        """Begin an exchange: from `began_s` on, all of it has this much time."""
        self._timeout_s = timeout_s
        self._deadline_s = began_s + timeout_s
        self._left_bytes = LARGEST_ANSWER_BYTES

    def sendall(self, data: bytes) -> None:
        self._wait_no_longer()
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Reader of the answer, as `http.client` asks for it."""
        return io.BufferedReader(_BoundedReader(self, self._sock.makefile("rb", buffering=0)))

    def close(self) -> None:
        self._sock.close()

    def read_into(self, raw: io.RawIOBase, buffer: WriteableBuffer) -> int | None:
        self._wait_no_longer()
        count = raw.readinto(buffer)
        self._left_bytes -= count or 0
        if self._left_bytes < 0:
            raise TooLarge(f"an answer of more than {LARGEST_ANSWER_BYTES >> 20} MiB")
        return count

    def _wait_no_longer(self) -> None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s")
        self._sock.settimeout(left_s)


class _BoundedReader(io.RawIOBase):
    def __init__(self, bounds: BoundedSocket, raw: Any) -> None:
        self._bounds, self._raw = bounds, raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        return self._bounds.read_into(self._raw, buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def ask(
    server: Server,
    path: str,
    *,
    timeout_s: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Reply:
    """Answer to one request; the time limit holds for the connection, the answer and its body.

    Raises:
        ConnectError: No connection could be made.
        TimeoutError: The answer was not whole in time.
        TooLarge: The answer has more than 16 MiB.
        OSError: The connection was lost, or what came is not HTTP.
    """
    began_s = time.monotonic()
    connection: http.client.HTTPConnection
    if server.tls is None:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(
            server.host, server.port, timeout=timeout_s, context=server.tls
        )
    try:
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # a name that cannot be a host is the latter
            raise ConnectError(getattr(error, "strerror", None) or str(error)) from error
        connection.sock = bounded = BoundedSocket(connection.sock)
        bounded.begin(began_s, timeout_s)
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, whole_body(answer))
    except http.client.HTTPException as error:
        raise OSError(str(error)[:MOST_WORDS] or type(error).__name__) from error
    finally:
        connection.close()


def whole_body(answer: http.client.HTTPResponse) -> bytes:
    """Body of an answer, in pieces: `read` takes memory for the length that the head claims.

    Raises:
        OSError: The connection ended before the body did.
    """
    content = bytearray()
    while piece := answer.read1(PIECE_BYTES):
        content += piece
    answer.close()  # or the connection would still be busy with it
    if answer.length:
        raise OSError(f"the body ended {answer.length} bytes early")
    return bytes(content)
