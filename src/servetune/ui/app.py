"""HTTP application of the pages: an index, the page of each run, its events and its control.

Only names of the loopback address are answered, so that a page of another site cannot reach it
under a name of its own (DNS rebinding). Files are never addressed: a run has a key, and a key leads
to a run of the library or nowhere. Every POST needs the token that the terminal showed.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import time
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servetune.errors import ServetuneError, StoreError
from servetune.store.live import Action
from servetune.ui.index_page import index_html
from servetune.ui.library import Library
from servetune.ui.messages import StatusMessage, status_message
from servetune.ui.run import Run

#: Seconds between two looks at a run, and at the index.
RUN_LOOK_S, INDEX_LOOK_S = 0.5, 2.0
#: Seconds after which a silent stream says that it is still there.
SIGN_OF_LIFE_S = 15.0
#: Seconds after which a stream notices that the server is to end.
_ENDING_LOOK_S = 0.1
#: Bytes of an order.
MOST_ORDER_BYTES = 4096

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def pages_app(library: Library, *, token: str) -> Starlette:
    """The application.

    Args:
        library: Runs to serve.
        token: Secret that every POST must have.
    """
    app = Starlette(
        routes=[
            Route("/", _index),
            Route("/events", _index_events),
            Route("/runs/{key}", _page),
            Route("/runs/{key}/events", _run_events),
            Route("/runs/{key}/control", _control, methods=["POST"]),
        ],
        middleware=[Middleware(_Loopback)],
    )
    app.state.library, app.state.token = library, token
    app.state.ending = lambda: False
    return app


class _Loopback:
    """Refusal of requests under other names than the loopback's, and headers of every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if not _is_loopback(f"//{request.headers.get('host', '')}") or not all(
            _is_loopback(origin) for origin in request.headers.getlist("origin")
        ):
            answer = _text("this page is served to this machine alone", 421)
            await answer(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = ((name.lower().encode(), text.encode()) for name, text in _HEADERS.items())
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, with_headers)


def _is_loopback(address: str) -> bool:
    try:
        return urlsplit(address).hostname in _LOOPBACK
    except ValueError:
        return False


async def _index(request: Request) -> Response:
    library: Library = request.app.state.library
    only = await run_in_threadpool(lambda: library.only_run)
    return RedirectResponse(f"/runs/{only.key}") if only else HTMLResponse(index_html())


async def _index_events(request: Request) -> Response:
    library: Library = request.app.state.library

    async def events() -> AsyncIterator[bytes]:
        sent, pulse = b"", _Pulse()
        while not request.app.state.ending():
            rows = msgspec.json.encode(await run_in_threadpool(library.index))
            if rows != sent:
                sent = rows
                yield pulse.beat(_event("runs", rows.decode()))
            elif sign := pulse.sign():
                yield sign
            unread = b'"read":false' in rows
            await _rest(RUN_LOOK_S if unread else INDEX_LOOK_S, request.app.state.ending)

    return _stream(events())


async def _page(request: Request) -> Response:
    run = await _run_of(request)
    if run is None:
        return _no_run()
    try:
        return HTMLResponse(await run_in_threadpool(run.html))
    except ServetuneError as error:
        words = "".join(f"<p>{html.escape(text)}</p>" for text in (error.message, error.hint))
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>servetune</title>'
        return HTMLResponse(f'{head}{words}<p><a href="/">All runs</a></p>', 422)


async def _run_events(request: Request) -> Response:
    run = await _run_of(request)
    if run is None:
        return _no_run()
    begun = request.query_params.get("have", "")
    have = request.headers.get("last-event-id") or begun
    return _stream(_news_of(run, have, begun, request.app.state.ending))


async def _news_of(
    run: Run, have: str, begun: str, ending: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Events of a run for one reader: its page where it has changed, and what it does.

    A page that takes long to draw keeps no status waiting, and a reader that is slow gets the last
    page and none between.
    """
    told, pulse = "", _Pulse()
    drawing: asyncio.Task[tuple[str, str] | None] | None = None
    try:
        while not ending():
            status = await run_in_threadpool(_status_text, run)
            if status != told:
                told = status
                yield pulse.beat(_event("status", status))
            if drawing is None:
                drawing = asyncio.create_task(run_in_threadpool(run.news, have, begun))
            await asyncio.wait([drawing], timeout=RUN_LOOK_S)
            if drawing.done():
                news, drawing = _result_of(drawing), None
                if news is not None:
                    have, data = news
                    yield pulse.beat(_event("page", data, id=have))
                await _rest(RUN_LOOK_S, ending)
            if sign := pulse.sign():
                yield sign
    finally:
        if drawing is not None:
            drawing.cancel()


def _result_of(drawing: asyncio.Task[tuple[str, str] | None]) -> tuple[str, str] | None:
    """What was drawn; nothing while the source cannot be read, as in the middle of a change."""
    try:
        return drawing.result()
    except ServetuneError:
        return None


def _status_text(run: Run) -> str:
    try:
        message = status_message(run.status())
    except StoreError as error:
        message = StatusMessage(state="lost", note=error.message)
    return msgspec.json.encode(message).decode()


async def _control(request: Request) -> Response:
    """Take an order of whoever has the token."""
    body = await _body(request)
    try:
        order = msgspec.json.decode(body, type=_Posted) if body is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        order = None
    if order is None:
        return _refused("the body is no order: JSON with action (stop or put_off) and token", 400)
    if not hmac.compare_digest(order.token.encode(), request.app.state.token.encode()):
        return _refused("the token is not the one that the terminal shows", 403)
    run = await _run_of(request)
    if run is None:
        return _no_run()
    try:
        refusal = await run_in_threadpool(run.order, order.action, order.trial)
    except StoreError as error:
        return _refused(error.message, 507)
    return _refused(refusal, 409) if refusal else JSONResponse({"accepted": order.action}, 202)


class _Posted(msgspec.Struct, frozen=True):
    action: Action
    token: str
    trial: str = ""


async def _body(request: Request) -> bytes | None:
    """Body of a request; `None` where it is longer than any order, or was broken off."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_ORDER_BYTES:
                return None
    except ClientDisconnect:
        return None
    return body


async def _run_of(request: Request) -> Run | None:
    library: Library = request.app.state.library
    return await run_in_threadpool(library.run, request.path_params["key"])


async def _rest(seconds: float, ending: Callable[[], bool]) -> None:
    """Wait, but not beyond the end of the server."""
    for _ in range(round(seconds / _ENDING_LOOK_S)):
        if ending():
            return
        await asyncio.sleep(_ENDING_LOOK_S)


class _Pulse:
    """Signs of life of a stream that has nothing to say."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def beat(self, event: bytes) -> bytes:
        """An event, which is a sign of life itself."""
        self._last_s = time.monotonic()
        return event

    def sign(self) -> bytes:
        """A comment where the last event is long past; empty otherwise."""
        return self.beat(b":\n\n") if time.monotonic() - self._last_s > SIGN_OF_LIFE_S else b""


def _event(name: str, data: str, id: str = "") -> bytes:  # noqa: A002 - the field's name
    """Server-sent event; its data are JSON, which has no line ends."""
    head = f"event: {name}\n" + (f"id: {id}\n" if id else "")
    return f"{head}data: {data}\n\n".encode()


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _text(text: str, status: int) -> Response:
    return Response(text + "\n", status, media_type="text/plain")


def _refused(reason: str, status: int) -> Response:
    return JSONResponse({"error": reason}, status)


def _no_run() -> Response:
    return _text("there is no such run", 404)
