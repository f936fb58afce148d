"""One HTTP request on a connection of its own, for all that is not load: health, models, metrics.

Every room that asks a server a question uses this; load is sent by `traffic`, and the sampler
beside a load keeps its connections open (`loadgen/sampling.py`).
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ConnectError", "Reply", "Server", "ask"]

PIECE_BYTES = 1 << 16


class ConnectError(OSError):
    """Server that no connection could be made to; the message says why."""


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
        OSError: The connection was lost, or what came is not HTTP.
    """
    deadline_s = time.monotonic() + timeout_s
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
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        content = bytearray()
        while piece := answer.read1(PIECE_BYTES):
            content += piece
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no whole answer within {timeout_s:g} s")
        return Reply(answer.status, bytes(content))
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
