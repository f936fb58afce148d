"""Server process of the pages: loopback alone, until it is told to stop."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import secrets
import socket
from collections.abc import Callable

from servetune.errors import InputError, PortBusy
from servetune.ui.library import Library

HOST = "127.0.0.1"


def require_installed() -> None:
    """Refuse to serve without the packages that do it.

    Raises:
        InputError: One is not installed.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"serving pages needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} "
            "not installed",
            hint="pip install 'servetune[ui]'; servetune report writes the page to a file without",
        )


def serve(library: Library, *, port: int | None, started: Callable[[str, str], None]) -> None:
    """Serve until SIGINT or SIGTERM; for the main thread.

    Args:
        library: Runs to serve.
        port: Port; `None` for a free one.
        started: Called with the address and the token of those who may stop a run.

    Raises:
        PortBusy: Another process listens there.
    """
    import uvicorn

    from servetune.ui.app import pages_app

    token = secrets.token_hex(16)  # nothing that could be taken for a credential and left out
    try:
        listening = socket.create_server((HOST, port or 0))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or port is None:
            raise
        raise PortBusy(port) from None
    with listening:
        app = pages_app(library, token=token)
        config = uvicorn.Config(
            app,
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        app.state.ending = lambda: server.should_exit
        started(f"http://{HOST}:{listening.getsockname()[1]}/", token)
        # It raises the signal again once all is closed.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
