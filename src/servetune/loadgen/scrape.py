"""What a server says about itself: its models, and its Prometheus metrics before and after."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import time

import msgspec

from servetune.errors import LoadError, ServerRefused
from servetune.loadgen.server_side import Series, ServerMetrics, account
from servetune.loadgen.target import Target
from servetune.loadgen.vocabulary import COUNTERS, GAUGES, Samples, read_engine

__all__ = [
    "Samples",
    "ServerMetrics",
    "fetch",
    "fetch_blocking",
    "models_are_simulated",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "server_metrics",
]

_LINE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
        (?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?
        \s+(?P<value>\S+)""",
    re.VERBOSE,
)


def parse_metrics(text: str) -> dict[str, float]:
    r"""Samples of Prometheus' text format; comments and lines of other formats are passed over.

    Example:
        >>> parse_metrics('# TYPE a gauge\na{engine="0"} 2\nb 1e3 1700000000\n')
        {'a{engine="0"}': 2.0, 'b': 1000.0}
    """
    samples = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        samples[match["name"] + (match["labels"] or "")] = value
    return samples


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_models(text: str) -> tuple[str, ...]:
    """Names in an answer of `/v1/models`."""
    try:
        return tuple(model.id for model in msgspec.json.decode(text, type=_Models).data)
    except msgspec.MsgspecError as error:
        raise LoadError(f"the server's list of models cannot be read: {error}") from error


def models_are_simulated(text: str) -> bool:
    """Whether an answer of `/v1/models` says that servetune's simulated engine gave it."""
    with contextlib.suppress(msgspec.MsgspecError):
        models = msgspec.json.decode(text, type=_Models).data
        return any(model.owned_by == "servetune-simulated" for model in models)
    return False


class _Version(msgspec.Struct):
    speed: float = 1.0


def parse_speed(text: str) -> float:
    """How many of the engine's seconds pass in one, of an answer of `/version`."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=_Version).speed
    return 1.0


def server_metrics(before: Samples, after: Samples, *between: Samples) -> ServerMetrics:
    """What happened between two scrapes, of any engine that `vocabulary` knows.

    Args:
        before: Scraped before the load.
        after: Scraped when it was over.
        between: Scraped meanwhile; gauges are only as true as these are frequent.
    """
    readings = [read_engine(samples) for samples in (before, *between, after)]
    series = Series(
        source="",
        kind="engine",
        label=next((each.engine for each in readings if each.engine), ""),
        times_s=tuple(float(i) for i in range(len(readings))),
        values={name: tuple(getattr(r, name) for r in readings) for name in (*GAUGES, *COUNTERS)},
    )
    return account((series,), timed=False)


async def fetch(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """`fetch_blocking` for callers with an event loop, which goes on meanwhile."""
    return await asyncio.to_thread(fetch_blocking, target, path, timeout_s=timeout_s)


def fetch_blocking(target: Target, path: str, *, timeout_s: float = 10.0) -> str:
    """Body of one GET on a connection of its own, such as `/metrics` or `/v1/models`.

    Raises:
        LoadError: No whole answer came.
        ServerRefused: It came with an error status.
    """
    where, deadline_s = f"{target.origin}{path}", time.monotonic() + timeout_s
    connection = _connect(target, timeout_s)
    try:
        lines = target.head("GET", path).decode("latin-1").split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        connection.request("GET", f"{target.origin.prefix}{path}", headers=headers)
        answer = connection.getresponse()
        content = bytearray()
        while piece := answer.read1(1 << 16):
            content += piece
            if time.monotonic() > deadline_s:
                raise TimeoutError
    except TimeoutError:
        raise LoadError(f"GET {where} failed: no whole answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        raise LoadError(f"GET {where} failed: connection lost: {words}") from error
    finally:
        connection.close()
    text = content.decode("utf-8", "replace")
    if not 200 <= answer.status < 300:
        raise ServerRefused(
            f"GET {where} was answered with status {answer.status}",
            status=answer.status,
            body=text[:300],
        )
    return text


def _connect(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    origin = target.origin
    secure = origin.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(origin.host, origin.port, timeout=timeout_s)
    try:
        connection.connect()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise LoadError(f"GET {origin} failed: cannot connect to {origin}: {words}") from error
    return connection
