"""Facts from a server's start-up log, differences from its plan, and external servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune.engines import Engine, fields_of
from servetune.errors import InputError
from servetune.plan import Plan
from servetune.servers import ExternalServer

#: An engine tells of itself before it takes requests; so much of its log is read.
_MOST_BYTES = 1024 * 1024

#: Parts of a start, in their order.
_TIMES = ("load_s", "compile_s", "capture_s", "engine_s")

#: Fields of a Plan that engines work out at their start where nobody set them.
_SETTLED = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "prefix_caching",
    "chunked_prefill",
)


def startup_of(engine: Engine, plan: Plan, log_path: Path | None) -> dict[str, Any]:
    """For the record: the cache's size, the times, what the server settled of what the plan left
    open, and where it took other settings.

    Empty where the log tells nothing.
    """
    if log_path is None:
        return {}
    try:
        with log_path.open("rb") as log:
            text = log.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return {}
    reading = engine.read_log(text)
    figures = {
        "kv_cache_tokens": reading.kv_cache_tokens,
        "kv_cache_blocks": reading.kv_cache_blocks,
        "max_concurrency": reading.max_concurrency,
        "load_s": reading.load_s,
        "compile_s": reading.compile_s,
        "capture_s": reading.capture_s,
        "engine_s": reading.engine_s,
        "weights_gib": reading.weights_gib,
        "version": reading.version,
    }
    entry: dict[str, Any] = {name: value for name, value in figures.items() if value is not None}
    fields = fields_of(engine.name, reading.taken)
    settled = {
        name: fields[name]
        for name in _SETTLED
        if getattr(plan, name) is None and fields.get(name) is not None
    }
    if settled:
        entry["settled"] = settled
    unlike = engine.differences(plan, reading.taken)
    if unlike:
        entry["taken_otherwise"] = {
            name: {"asked": asked, "taken": taken} for name, (asked, taken) in unlike.items()
        }
    return entry


def times_in(startup: Mapping[str, Any]) -> str:
    """The parts of a start that took time, for a reader; empty where the log tells none."""
    parts = [
        f"{name.removesuffix('_s')} {startup[name]:.1f} s" for name in _TIMES if name in startup
    ]
    return f" ({', '.join(parts)})" if parts else ""


def taken_otherwise_in(startup: Mapping[str, Any]) -> list[str]:
    """A line for each setting that the server, by its own log, took otherwise than asked."""
    return [
        f"{name}={entry['asked']} was asked, and the server took {entry['taken']}"
        for name, entry in startup.get("taken_otherwise", {}).items()
    ]


def external_server(engine: Engine, url: str | None, ready_path: str | None) -> ExternalServer:
    """The server at a URL, which is neither started nor stopped.

    Raises:
        InputError: There is no URL, or it is none.
    """
    if not url:
        raise InputError(
            "the engine 'external' needs the server's address",
            hint="give --url http://HOST:PORT",
        )
    return ExternalServer(url, ready_path=ready_path or engine.ready_path)
