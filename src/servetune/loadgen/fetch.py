"""Single requests to a load's target, for what is not load: models, health, metrics."""

from __future__ import annotations

import asyncio
import ssl
from typing import Literal

from servetune.errors import InputError, LoadError, ServerRefused
from servetune.loadgen.target import Target
from servetune.probe import ConnectError, Server, ask

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
    """Body of the answer to one request on a connection of its own, such as `/v1/models`.

    Args:
        target: Server and its key.
        path: Path of the request, behind the target's prefix.
        timeout_s: Time limit for the whole answer.
        method: `POST` for servers that take commands by an empty POST, such as
            `/reset_prefix_cache`.
        body: JSON to post; `None` for none.

    Raises:
        LoadError: No whole answer came.
        ServerRefused: It came with an error status.
    """
    method = method if body is None else "POST"
    origin, where = target.origin, f"{target.origin}{path}"
    headers = target.headers() if body is None else {**target.headers(), **_JSON}
    tls = tls_context(target) if origin.scheme == "https" else None
    try:
        reply = ask(
            Server(origin.host, origin.port, tls),
            f"{origin.prefix}{path}",
            timeout_s=timeout_s,
            method=method,
            headers=headers,
            body=body,
        )
    except ConnectError as error:
        raise LoadError(f"GET {origin} failed: cannot connect to {origin}: {error}") from error
    except TimeoutError:
        raise LoadError(
            f"{method} {where} failed: no whole answer within {timeout_s:g} s"
        ) from None
    except OSError as error:
        words = str(error) or type(error).__name__
        raise LoadError(f"{method} {where} failed: connection lost: {words}") from error
    if not 200 <= reply.status < 300:
        raise ServerRefused(
            f"{method} {where} was answered with status {reply.status}",
            status=reply.status,
            body=reply.text[:300],
        )
    return reply.text


def tls_context(target: Target) -> ssl.SSLContext:
    """TLS context that checks a server's certificate.

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
