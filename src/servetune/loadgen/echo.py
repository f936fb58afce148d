"""Echo server whose cost is known: one token for each stream at each tick.

`servetune doctor --load-test` sends load to it, so that any shortfall is the client's. It answers
`/v1/completions` as engines stream, one event a write, from one process without any model; `python
-m servetune.loadgen.echo --port 8000 --tick-ms 20`.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import sys
import time
from contextlib import suppress

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"echo","object":"model"}]}'


def _piece(event: bytes) -> bytes:
    """Event as one chunk of HTTP."""
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


_TOKEN = _piece(
    b'{"id":"cmpl-0","object":"text_completion","created":0,"model":"echo",'
    b'"choices":[{"index":0,"text":" echo","finish_reason":null}]}'
)


class _Client:
    """Connection with what was read of its request and the tokens that it has yet to get."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.read = b""
        self.unsent = b""
        self.tokens = self.left = self.prompt = 0

    def send(self, data: bytes) -> None:
        self.unsent += data
        with suppress(BlockingIOError):
            self.unsent = self.unsent[self.connection.send(self.unsent) :]


def serve(port: int, tick_s: float) -> None:
    """Serve until the process is killed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    chooser = selectors.DefaultSelector()
    chooser.register(listener, selectors.EVENT_READ, None)
    streaming: set[_Client] = set()
    due_s = time.monotonic() + tick_s
    while True:
        wait_s = max(0.0, due_s - time.monotonic()) if streaming else None
        for key, _ in chooser.select(wait_s):
            if key.data is None:
                _accept(listener, chooser)
            elif not _hear(key.data, streaming):
                streaming.discard(key.data)
                chooser.unregister(key.data.connection)
                key.data.connection.close()
        now_s = time.monotonic()
        if now_s >= due_s:
            _tick(streaming)
            due_s = max(due_s + tick_s, now_s)  # missed ticks are not made up for


def _accept(listener: socket.socket, chooser: selectors.BaseSelector) -> None:
    with suppress(BlockingIOError, OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            chooser.register(connection, selectors.EVENT_READ, _Client(connection))


def _hear(client: _Client, streaming: set[_Client]) -> bool:
    """Read what a client sends; whether it is still connected."""
    try:
        data = client.connection.recv(1 << 16)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not data:
        return False
    client.read += data
    head, end, body = client.read.partition(b"\r\n\r\n")
    if not end or len(body) < _number(head.lower(), b"content-length:"):
        return True
    client.read = b""
    if head.startswith(b"POST"):
        client.tokens = client.left = max(1, _number(body, b'"max_tokens":'))
        client.prompt = body.count(b",")
        client.send(_HEAD)
        streaming.add(client)
    else:
        found = head.startswith((b"GET /health", b"GET /v1/models"))
        status = b"200 OK" if found else b"404 Not Found"
        client.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(_MODELS)) + _MODELS)
    return True


def _number(text: bytes, name: bytes) -> int:
    """Number behind a name, 0 where there is none."""
    word = text.partition(name)[2].lstrip()
    digits = word[: len(word) - len(word.lstrip(b"0123456789"))]
    return int(digits or 0)


def _tick(streaming: set[_Client]) -> None:
    """Send one token to each stream, as a step of an engine would."""
    for client in tuple(streaming):
        client.left -= 1
        try:
            client.send(_TOKEN if client.left else _TOKEN + _last(client))
        except OSError:
            client.left = 0
        if not client.left:
            streaming.discard(client)


def _last(client: _Client) -> bytes:
    usage = (
        b'{"id":"cmpl-0","object":"text_completion","created":0,"model":"echo","choices":[],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
        % (client.prompt, client.tokens, client.prompt + client.tokens)
    )
    return _piece(usage) + _piece(b"[DONE]") + b"0\r\n\r\n"


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m servetune.loadgen.echo")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tick-ms", type=float, default=20.0)
    options = parser.parse_args(words)
    serve(options.port, options.tick_ms / 1000)


if __name__ == "__main__":
    main(sys.argv[1:])
