"""The simulated engine on a port: routes, the clock that moves it, and its faults."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import Callable, Mapping

import msgspec

from servetune import __version__
from servetune.engines import engine
from servetune.errors import EngineError, PortBusy
from servetune.json_value import JsonObject
from servetune.simserver.connection import Connection, HttpRequest
from servetune.simserver.exposition import ClockStatus, exposition
from servetune.simserver.faults import FaultDraws, Faults
from servetune.simserver.limits import (
    SWEEP_S,
    Limits,
    Occupancy,
    allow_open_files,
    limits_of_context,
)
from servetune.simserver.live_engine import LiveRequest
from servetune.simserver.native import FORMS, document
from servetune.simserver.requests import (
    RequestRefused,
    ServedModel,
    tokenized,
)
from servetune.simserver.responses import ResponseStream
from servetune.simserver.service import Service

WORTH_LOGGING_S = 0.05
"""A server that is later than that says so; asyncio's timers alone cost up to 0.001."""

LOG_EVERY_S = 5.0

MEMORY_WORDS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "(simulated, as asked for)"
)
DEATH_WORDS = "RuntimeError: the simulated engine dies after {after_s:g} s, as asked for"

_FORMS: Mapping[str, str] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}

_ROUTES: Mapping[str, str] = {
    "/tokenize": "POST",
    "/v1/models": "GET",
    "/health": "GET",
    "/ping": "GET",
    "/version": "GET",
    "/load": "GET",
    "/metrics": "GET",
}


class SimulatedServer:
    """One plan served over HTTP. Implements `connection.RequestHandler`.

    Args:
        service: Service to answer for.
        speed: Seconds of the engine per real second.
        faults: Faults on demand.
        fault_seed: Seed of the draws of faults, one for each request in order of arrival.
        api_key: Key that clients must send under /v1; `None` for none.
        limits: Limits of what clients may send and hold; those of its context where `None`.
        say: Takes lines for the log.
        die: Ends the process with a status, at once.
    """

    def __init__(
        self,
        service: Service,
        *,
        speed: float = 1.0,
        faults: Faults | None = None,
        fault_seed: int = 0,
        api_key: str | None = None,
        limits: Limits | None = None,
        say: Callable[[str], None],
        die: Callable[[int], None],
    ) -> None:
        self._service = service
        self._speed = speed
        self._faults = faults or Faults()
        self._draws = FaultDraws(self._faults, fault_seed)
        self._api_key = api_key
        self._say, self._die = say, die
        self._engine = service.engine()
        native = engine(service.plan.engine).native_routes
        forms = {**_FORMS, **native.forms}
        self._forms = {route: FORMS[name] for route, name in forms.items()}
        self._documents = native.documents
        self._methods = {
            **_ROUTES,
            **dict.fromkeys(self._forms, "POST"),
            **dict.fromkeys(self._documents, "GET"),
        }
        self._requests: dict[Connection, tuple[LiveRequest, ResponseStream]] = {}
        self._limits = limits or limits_of_context(service.serving.max_model_len)
        self._connections: set[Connection] = set()
        self._touched: list[ResponseStream] = []
        self._numbers = itertools.count()
        self._behind_s = self._most_behind_s = 0.0
        self._logged_s = -LOG_EVERY_S
        self._started_unix_s = int(time.time())
        self._origin_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._death: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, after the slow start that was asked for; port 0 takes a free one.

        Raises:
            PortBusy: Somebody listens there.
            EngineError: The address is not this machine's, or the port needs more rights.
        """
        faults = self._faults
        await asyncio.sleep(faults.slow_start_s)
        if faults.oom_at_start:
            self._say(MEMORY_WORDS)
            self._die(1)
        loop = asyncio.get_running_loop()
        self._limits, backlog = allow_open_files(self._limits)
        occupancy = Occupancy(self._limits)
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self, occupancy), host, port, backlog=backlog
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortBusy(port) from error
            raise EngineError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="choose an address of this machine and a port above 1023",
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._origin_s = loop.time()
        self._sweep()
        if faults.die_after_s is not None:
            self._death = loop.call_later(faults.die_after_s, self._die_by_fault)

    async def close(self) -> None:
        """Listen no more, and drop every connection."""
        for timer in (self._timer, self._death, self._sweeper):
            if timer is not None:
                timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drop()
        await asyncio.sleep(0)  # lost connections tell their sites in the next round

    # time

    def _now_s(self) -> float:
        return (asyncio.get_running_loop().time() - self._origin_s) * self._speed

    def _turn(self) -> None:
        """Let the engine do what is due, write what came of it, and come again in time."""
        now_s, due_s = self._now_s(), self._engine.due_s
        if due_s is not None:
            self._note_behind(max(0.0, now_s - due_s) / self._speed)
        self._engine.advance(now_s)
        touched, self._touched = self._touched, []
        for answer in touched:
            answer.flush()
        self._die_for_memory()
        self._wind()

    def _sweep(self) -> None:
        """End what clients have let wait too long, and come again."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in tuple(self._connections):
            connection.expire(now_s)
        self._sweeper = loop.call_later(min(SWEEP_S, self._limits.keep_alive_s / 2), self._sweep)

    def _touch(self, answer: ResponseStream) -> None:
        self._touched.append(answer)

    def _wind(self) -> None:
        """Set the timer to when the engine is due next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._engine.due_s
        if due_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._origin_s + due_s / self._speed, self._turn)

    def _note_behind(self, behind_s: float) -> None:
        self._behind_s = behind_s
        self._most_behind_s = max(behind_s, self._most_behind_s)
        clock_s = time.monotonic()
        if behind_s > WORTH_LOGGING_S and clock_s - self._logged_s > LOG_EVERY_S:
            self._logged_s = clock_s
            self._say(
                f"behind its own clock by {behind_s:.3f} s: tokens come later than simulated; "
                "lower --speed, or give this process a core of its own"
            )

    # faults

    def _die_by_fault(self) -> None:
        assert self._faults.die_after_s is not None
        self._say(DEATH_WORDS.format(after_s=self._faults.die_after_s))
        self._die(1)

    def _die_for_memory(self) -> None:
        limit = self._faults.oom_at_concurrency
        if limit is not None and self._engine.running >= limit:
            self._say(MEMORY_WORDS)
            self._die(1)

    # connection.RequestHandler

    def opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self._limits.connections:
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        request, answer = self._requests.pop(connection, (None, None))
        if request is not None and answer is not None and not answer.received_all:
            self._turn()
            if not answer.received_all:
                self._engine.abort(request, self._now_s())
                self._wind()

    def handle(self, connection: Connection, http_request: HttpRequest) -> None:
        """Answer a request, or let the engine answer it as its tokens come."""
        method = self._methods.get(http_request.path)
        if method is None:
            connection.reply(404, b'{"detail":"Not Found"}')
        elif http_request.method != method:
            connection.reply(405, b'{"detail":"Method Not Allowed"}')
        elif not self._may(http_request):
            connection.reply(401, b'{"error":"Unauthorized"}')
        elif http_request.path in self._forms:
            self._generate(connection, http_request)
        else:
            self._describe(connection, http_request)

    def _may(self, http_request: HttpRequest) -> bool:
        if self._api_key is None or not http_request.path.startswith("/v1"):
            return True
        return http_request.authorization == f"Bearer {self._api_key}"

    def _generate(self, connection: Connection, http_request: HttpRequest) -> None:
        fault = self._draws.next()
        form = self._forms[http_request.path]
        try:
            handle = form.parse(http_request.body, self._service.serving)
            if fault == "error":
                raise RequestRefused(
                    500, "the simulated engine failed, as asked for", kind="InternalServerError"
                )
        except RequestRefused as refused:
            connection.reply(refused.status, form.error_body(refused))
            return
        after = self._faults.after_tokens
        answer = form.answer(
            handle,
            next(self._numbers),
            connection,
            fault=fault,
            breaks_after=handle.output_tokens // 2 if after is None else after,
            touched=self._touch,
            error_body=form.error_body,
        )
        self._turn()  # what was due before it came does not know of it
        request = LiveRequest(
            self._engine.next_number(),
            handle.prompt_tokens,
            handle.output_tokens,
            listener=answer,
            finish_reason=handle.finish_reason,
            prefix=handle.content,
            pieces=handle.content,
            priority=handle.priority,
            max_tokens=handle.max_tokens,
        )
        self._requests[connection] = (request, answer)
        self._engine.submit(request, self._now_s())
        self._wind()

    def _describe(self, connection: Connection, http_request: HttpRequest) -> None:
        path = http_request.path
        if path in {"/health", "/ping"}:
            connection.reply(200, b"", "text/plain")
        elif path == "/metrics":
            self._turn()
            text = exposition(self._service, self._engine.rank_metrics, self._clockwork())
            connection.reply(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/tokenize":
            try:
                connection.reply(
                    200, msgspec.json.encode(tokenized(http_request.body, self._service.serving))
                )
            except RequestRefused as refused:
                connection.reply(refused.status, refused.body())
        else:
            connection.reply(200, msgspec.json.encode(self._facts(path)))

    def _facts(self, path: str) -> JsonObject:
        if path in self._documents:
            version = f"servetune-simulated-{__version__}"
            return document(self._service, self._documents[path], version)
        if path == "/load":
            return {"server_load": sum(a.running + a.waiting for a in self._engine.rank_metrics)}
        if path == "/version":
            return {
                "version": f"servetune-simulated-{__version__}",
                "simulated": True,
                "engine": self._service.plan.engine,
                "machine": self._service.machine,
                "speed": self._speed,
            }
        return _models(self._service.serving, self._started_unix_s)

    def _clockwork(self) -> ClockStatus:
        return ClockStatus(
            speed=self._speed,
            behind_s=self._behind_s,
            most_behind_s=self._most_behind_s,
            started_unix_s=float(self._started_unix_s),
        )


def _models(serving: ServedModel, created: int) -> JsonObject:
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "servetune-simulated",
                "root": serving.root,
                "parent": None,
                "max_model_len": serving.max_model_len,
            }
            for name in serving.names
        ],
    }
