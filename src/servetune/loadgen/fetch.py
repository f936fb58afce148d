"""One request at a time, for what is not load: models, health, metrics."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from typing import Literal

from servetune.errors import InputError, LoadError, ServerRefused
from servetune.loadgen.target import Target

__all__ = ["fetch", "fetch_blocking", "tls_context"]

Method = Literal["GET", "POST"]

_JSON = {"Content-Type": "application/json"}


async def fetch(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """`fetch_blocking` for callers with an event loop, which goes on meanwhile."""
    return await asyncio.to_thread(fetch_blocking, target, path, timeout_s=timeout_s)


def fetch_blocking(
    target: Target,
    path: str,
    *,
    timeout_s: float = 10.0,
    method: Method = "GET",
    body: bytes | None = None,
) -> str:
    """Body of one GET on a connection of its own, such as `/metrics` or `/v1/models`.

    Some servers take orders by an empty POST, such as `/reset_prefix_cache`. A `body` of JSON
    is posted.

    Raises:
        LoadError: No whole answer came.
        ServerRefused: It came with an error status.
    """
    method = method if body is None else "POST"
    where, deadline_s = f"{target.origin}{path}", time.monotonic() + timeout_s
    headers = target.headers() if body is None else {**target.headers(), **_JSON}
    connection = _connect(target, timeout_s)
    try:
        connection.request(method, f"{target.origin.prefix}{path}", body, headers)
        answer = connection.getresponse()
        content = bytearray()
        while piece := answer.read1(1 << 16):
            content += piece
            if time.monotonic() > deadline_s:
                raise TimeoutError
    except TimeoutError:
        raise LoadError(
            f"{method} {where} failed: no whole answer within {timeout_s:g} s"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        raise LoadError(f"{method} {where} failed: connection lost: {words}") from error
    finally:
        connection.close()
    text = content.decode("utf-8", "replace")
    if not 200 <= answer.status < 300:
        raise ServerRefused(
            f"{method} {where} was answered with status {answer.status}",
            status=answer.status,
            body=text[:300],
        )
    return text


def tls_context(target: Target) -> ssl.SSLContext:
    """How a server's certificate is judged.

    Raises:
        InputError: The file of certificates cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=target.cafile)
    except OSError as error:
        raise InputError(
            f"no certificates can be read from {target.cafile}: {error.strerror or error}",
            hint="cafile names a file of PEM certificates",
        ) from error


def _connect(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    origin = target.origin
    connection = http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
    if origin.scheme == "https":
        connection = http.client.HTTPSConnection(
            origin.host,
            origin.port,
            timeout=timeout_s,
            context=tls_context(target),
        )
    try:
        connection.connect()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise LoadError(f"GET {origin} failed: cannot connect to {origin}: {words}") from error
    return connection
