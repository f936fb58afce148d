"""Servers on real sockets for `servetune bench`."""

import asyncio
import http.server
import json
import threading
from contextlib import ExitStack, contextmanager

import pytest

from servetune.testing import Behaviour, FakeServer


class _Mortal(FakeServer):
    """A server that ends abruptly once it has answered so many requests; None never does."""

    def __init__(self, behaviour, die_after_answers):
        super().__init__(behaviour)
        self._die_after_answers = die_after_answers

    async def answer(self, *request):
        await super().answer(*request)
        if sum(truth.whole for truth in self.truths) == self._die_after_answers:
            asyncio.get_running_loop().call_soon(self.die)


@contextmanager
def _fake(die_after_answers=None, **behaviour):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = _Mortal(Behaviour(**behaviour), die_after_answers)

    def wait(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    wait(server.start())
    try:
        yield server
    finally:
        wait(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def fake():
    """Fake servers by their behaviour, with their truths and the bodies that they were sent."""
    with ExitStack() as stack:
        yield lambda **behaviour: stack.enter_context(_fake(**behaviour))


class _ChatAlone(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._reply(200, json.dumps({"data": [{"id": "talker"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        if self.server.repeats_key:
            said = {"error": {"message": f"\x1b[31mnot {self.headers['Authorization']}\nmore"}}
            self._reply(401, json.dumps(said).encode())
            return
        if self.path != "/v1/chat/completions":
            self._reply(404, b'{"detail":"Not Found"}')
            return
        delta = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
        last = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
        parts = [json.dumps(delta), json.dumps(last), "[DONE]"]
        text = "".join(f"data: {part}\n\n" for part in parts).encode()
        self._reply(200, text, "text/event-stream")

    def _reply(self, status, content, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def chat_alone():
    """A server that has no route but chat; `seen` has what it was asked. With `repeats_key`
    it refuses in words that have the key in them.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ChatAlone)
    server.seen, server.repeats_key = [], False
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
