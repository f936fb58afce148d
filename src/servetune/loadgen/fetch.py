"""One GET at a time, for what is not load: models, health, metrics."""

from __future__ import annotations

import asyncio
import http.client
import ssl

from servetune.errors import LoadError, ServerRefused
from servetune.loadgen.target import Target

__all__ = ["fetch", "fetch_blocking"]


def fetch_blocking(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """Body of one GET on a connection of its own, such as `/metrics` or `/v1/models`.

    Raises:
        LoadError: No whole answer came.
        ServerRefused: It came with an error status.
    """
    origin = target.origin
    if origin.scheme == "https":
        context = ssl.create_default_context(cafile=target.cafile)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            origin.host, origin.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{origin.prefix}{path}", headers=target.headers())
        response = connection.getresponse()
        content = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LoadError(f"GET {origin}{path} failed: {words}") from error
    finally:
        connection.close()
    if not 200 <= response.status < 300:
        raise ServerRefused(
            f"GET {origin}{path} was answered with status {response.status}",
            status=response.status,
            body=content[:300],
        )
    return content


async def fetch(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """`fetch_blocking` for callers with an event loop."""
    return await asyncio.to_thread(fetch_blocking, target, path, timeout_s=timeout_s)
