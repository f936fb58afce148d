"""The first real completion, against servers that are healthy and not yet able to answer."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from servetune.engines import FirstCompletion
from servetune.errors import EngineNotReady
from servetune.loadgen import Target
from servetune.servers import ExternalServer
from servetune.trials.startup import FirstAnswer


class Slow(BaseHTTPRequestHandler):
    """Healthy at once; answers completions as its server's `answers` say, in turn."""

    def do_GET(self):
        self._answer(200)

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == "waits":
            self.server.go_on.wait(30)
            status = 200
        self._answer(status)

    def _answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words):
        pass


@pytest.fixture
def serve():
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.answers, server.bodies, server.go_on = [], [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def serve(*answers):
            server.answers = list(answers)
            return server

        yield serve
        server.go_on.set()
        server.shutdown()


def waiting(server, timeout_s=30):
    url = f"http://127.0.0.1:{server.server_port}"
    first = FirstAnswer(
        lambda: FirstCompletion(body={"model": "m", "prompt": "Hello"}),
        Target(base_url=url, model=""),
        timeout_s=timeout_s,
    )
    return ExternalServer(url), first


def test_a_server_is_ready_when_its_first_completion_has_come(serve):
    server = serve("waits")
    external, first = waiting(server)
    assert "has not come" in first()
    server.go_on.set()
    assert external.wait_ready(30, then=first) >= 0
    assert server.bodies == [{"model": "m", "prompt": "Hello"}]  # asked once, however long it took
    assert first.took_s > 0
    assert first.refusal is None


def test_one_that_says_it_is_not_ready_is_asked_again(serve):
    server = serve(503, 503)
    external, first = waiting(server)
    external.wait_ready(30, then=first)
    assert len(server.bodies) == 3
    assert first.refusal is None


@pytest.mark.parametrize("status", [400, 404, 500])
def test_one_that_refuses_has_answered_and_it_is_reported(serve, status):
    external, first = waiting(serve(status))
    external.wait_ready(30, then=first)
    assert f"status {status}" in first.refusal


def test_one_that_never_answers_is_not_ready_and_the_rung_is_named(serve):
    external, first = waiting(serve("waits"))
    with pytest.raises(EngineNotReady, match="its first completion has not come"):
        external.wait_ready(0.5, then=first)


def test_the_wait_for_an_answer_can_be_given_up(serve):
    external, first = waiting(serve("waits"))
    asked = time.monotonic()
    with pytest.raises(EngineNotReady):
        external.wait_ready(3600, then=first, give_up=lambda: time.monotonic() > asked + 0.3)
