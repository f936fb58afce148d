"""Transports of the server: standard input and output, or HTTP on the loopback address.

On standard output is the protocol and nothing else. Over HTTP only names of the loopback address
are answered, so that a page of another site cannot reach the server under a name of its own (DNS
rebinding), and every request has the token that the terminal showed.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import importlib.util
import os
import secrets
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from servetune.api import Mcp
from servetune.api.notes import progress
from servetune.api.request import request_of
from servetune.errors import InputError, PortBusy, StoreError

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

_LOOPBACK = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "[::1]": "::1", "::1": "::1"}
#: Path of the protocol.
PATH = "/mcp"
#: Bytes of standard input that are passed on at once.
_READ_BYTES = 1 << 16


def require_installed() -> None:
    """Refuse to serve without the protocol's package.

    Raises:
        InputError: It is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise InputError(
            "serving agents needs mcp, which is not installed", hint="pip install 'servetune[mcp]'"
        )


def serve_mcp(request: Mcp | None = None, /, **options: object) -> None:
    """Serve tools until the client ends, or SIGINT or SIGTERM comes; for the main thread.

    Over HTTP the address and its token are progress (`logging`, level INFO). Runs that were started
    go on when the server ends.

    Args:
        request: The request.
        options: Fields of `Mcp`.

    Raises:
        InputError: mcp is not installed, or an option cannot be read.
        StoreError: The folder cannot be made.
        PortBusy: Another process listens on the port.
    """
    request = request_of(Mcp, request or Mcp(), options)
    require_installed()
    import anyio

    from servetune.agents.access import Permissions
    from servetune.agents.server import AgentTools

    address = None if request.http is None else loopback_address(request.http)
    allowed = Permissions.of(request)
    try:
        allowed.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use {request.folder}: {error.strerror}") from None
    server = AgentTools(allowed, request.most_runs).server()
    if address is not None:
        _serve_http(server, *address)
        return
    try:
        with contextlib.suppress(KeyboardInterrupt):
            anyio.run(_serve_stdio, server)
    except* ConnectionError:
        pass  # the client went away during an answer


async def _serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    _end_input_with_output()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _end_input_with_output() -> None:
    """Have standard input end also when the client no longer reads standard output.

    The protocol's package waits for input in a thread that nothing else ends.
    """
    asked, answered = os.dup(0), os.dup(1)
    passed_on, sink = os.pipe()
    os.dup2(passed_on, 0)
    os.close(passed_on)
    threading.Thread(target=_pass_on, args=(asked, sink, answered), daemon=True).start()


def _pass_on(source: int, sink: int, answered: int) -> None:
    """Copy until the source ends or nobody reads what is answered."""
    watched = select.poll()
    watched.register(source, select.POLLIN)
    watched.register(answered, 0)  # errors and hang-ups are reported without being asked for
    with contextlib.suppress(OSError):
        while answered not in dict(watched.poll()):
            content = os.read(source, _READ_BYTES)
            if not content:
                break
            while content:
                content = content[os.write(sink, content) :]
    os.close(sink)


def loopback_address(text: str) -> tuple[str, int]:
    """Host and port of an address in the words of `--http`; port 0 for a free one.

    Raises:
        InputError: It is none, or not of this machine alone.
    """
    host, _, port = text.strip().rpartition(":")
    host = host or "127.0.0.1"
    if port == "auto":
        port = "0"
    if host not in _LOOPBACK:
        raise InputError(
            f"--http {text} would let other machines in",
            hint="give a port of 127.0.0.1, and reach it from elsewhere by ssh -L",
        )
    if not port.isdigit() or int(port) > 65535:
        raise InputError(f"--http {text} is no address", hint="give a port, HOST:PORT, or auto")
    return _LOOPBACK[host], int(port)


def _serve_http(server: Server[Any], host: str, port: int) -> None:
    import uvicorn

    token = secrets.token_hex(16)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
        raise PortBusy(port) from None
    with listening:
        shown = f"[{host}]" if ":" in host else host
        progress(f"serving http://{shown}:{listening.getsockname()[1]}{PATH}")
        progress(f"token, for the header 'Authorization: Bearer ...': {token}")
        progress("Ctrl-C ends the server alone; runs go on")
        config = uvicorn.Config(
            http_app(server, token),
            access_log=False,
            log_level="warning",
            lifespan="on",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def http_app(server: Server[Any], token: str) -> ASGIApp:
    """The application: the protocol behind the token, with checks of Host and Origin."""
    app = server.streamable_http_app(streamable_http_path=PATH)
    right = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, right):
                from starlette.responses import PlainTextResponse

                answer = PlainTextResponse("the token that the server printed is needed\n", 401)
                await answer(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded
