"""Start of a server, up to its first trial: what it said of itself, its first answer, its caches.

A server may report health and load or compile at the first request. So the last check of readiness
is a real completion, however long it takes; it is sent beside the wait, so that a death or an
interrupt meanwhile is noticed as fast as ever.

A trial finds nothing of earlier trials in a prefix cache, or its record says so. Random prompts are
drawn anew for each trial, so the server knows none of them. A data set's prompts come again in
every trial; there the server is asked to empty its cache.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from servetune.engines import ENGINES, Engine, FirstCompletion, engine, fields_of
from servetune.engines.server_side import CacheReset
from servetune.errors import InputError, LoadError, ServerRefused, ServetuneError
from servetune.json_value import JsonMembers, JsonObject
from servetune.loadgen import Target, fetch_blocking
from servetune.plan import Plan
from servetune.servers import ExternalServer
from servetune.trials.launch import Launch

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


def startup_of(engine: Engine, plan: Plan, log_path: Path | None) -> JsonObject:
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
    entry: JsonObject = {name: value for name, value in figures.items() if value is not None}
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


def times_in(startup: JsonMembers) -> str:
    """The parts of a start that took time, for a reader; empty where the log tells none."""
    parts = [
        f"{name.removesuffix('_s')} {startup[name]:.1f} s" for name in _TIMES if name in startup
    ]
    return f" ({', '.join(parts)})" if parts else ""


def taken_otherwise_in(startup: JsonMembers) -> list[str]:
    """A line for each setting that the server, by its own log, took otherwise than asked."""
    return [
        f"{name}={entry['asked']} was asked, and the server took {entry['taken']}"
        for name, entry in startup.get("taken_otherwise", {}).items()
    ]


def external_server(engine: Engine, launch: Launch) -> ExternalServer:
    """The server at a URL, which is neither started nor stopped.

    Raises:
        InputError: There is no URL, or it is none.
    """
    if not launch.url:
        raise InputError(
            "the engine 'external' needs the server's address",
            hint="give --url http://HOST:PORT",
        )
    return ExternalServer(
        launch.url, ready_path=launch.ready_path or engine.ready_path, cafile=launch.cafile
    )


def reset_environment() -> dict[str, str]:
    """Environment in which every engine has the route that empties its prefix cache."""
    return {name: value for one in _resets() for name, value in one.environment.items()}


def _resets() -> tuple[CacheReset, ...]:
    """Ways to empty a prefix cache, each once; a server may be of any engine."""
    found = (engine(name).cache_reset for name in ENGINES)
    return tuple({one.route: one for one in found if one is not None}.values())


def forget_prefixes(target: Target, *, same_words: bool, first: bool) -> str:
    """See to it that the trial finds no earlier trial's prompts; what was done, for the record.

    Args:
        target: The server.
        same_words: Whether the prompts are a data set's, the same in every trial.
        first: Whether it is the first on this server.
    """
    if not same_words:
        return "unique prompts"
    if first:
        return "fresh server"
    for one in _resets():
        try:
            fetch_blocking(target, one.route, method="POST")
        except LoadError:
            continue
        return f"emptied by POST {one.route}"
    return (
        "KEPT: the data set's prompts were sent before and the server has no way to forget them; "
        "its prefix cache may make this trial look better than it is"
    )


_LOOK_S = 0.1


class FirstAnswer:
    """Check that asks a server once; called again and again for what is missing.

    Any answer counts but 503, by which a server says itself that it is not ready. A refusal counts
    too: whether it spoils a trial, the trial's own requests tell.

    Args:
        asked: Function that makes the request once the server is healthy, as the model's name may
            have to be asked for.
        target: Server.
        timeout_s: Time limit of the answer.

    Attributes:
        took_s: Seconds of the answer that counted; `None` while there is none.
        refusal: Status in words, where it is not one of success.
    """

    def __init__(
        self, request_of: Callable[[], FirstCompletion], target: Target, *, timeout_s: float
    ) -> None:
        self._request_of, self._target, self._timeout_s = request_of, target, timeout_s
        self._thread: threading.Thread | None = None
        self._problem = ""
        self.took_s: float | None = None
        self.refusal: str | None = None

    def __call__(self) -> str | None:
        """Description of what is missing, `None` when the answer is there; waits a moment for
        it.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="first completion", daemon=True)
            self._thread.start()
        self._thread.join(_LOOK_S)
        if self._thread.is_alive():
            return "its first completion has not come"
        if self.took_s is not None:
            return None
        self._thread = None
        return f"its first completion failed: {self._problem}"

    def _send(self) -> None:
        begin_s = time.monotonic()
        try:
            request_of = self._request_of()
            body = json.dumps(request_of.body).encode()
            fetch_blocking(self._target, request_of.path, timeout_s=self._timeout_s, body=body)
        except ServerRefused as error:
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                self._problem = error.message
                return
            self.refusal = error.message
        except ServetuneError as error:
            self._problem = error.message
            return
        self.took_s = time.monotonic() - begin_s
