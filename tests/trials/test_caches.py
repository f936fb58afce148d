"""What is done so that no trial finds another's prompts, against a server that notes requests."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from servetune.loadgen import Target
from servetune.trials.startup import forget_prefixes


@pytest.fixture
def server():
    """Starts a server that knows some routes; what it was asked for stands in `asked`."""
    running = []

    def start(*routes):
        asked = []

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self):
                asked.append(self.path)
                self.send_response(200 if self.path in routes else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        one = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=one.serve_forever, daemon=True).start()
        running.append(one)
        return Target(base_url=f"http://127.0.0.1:{one.server_port}", model=""), asked

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def test_random_prompts_are_new_to_every_server(server):
    target, asked = server()
    said = forget_prefixes(target, same_words=False, first=False)
    assert said == "unique prompts"
    assert asked == []


def test_a_fresh_server_has_nothing_to_forget(server):
    target, asked = server("/reset_prefix_cache")
    assert forget_prefixes(target, same_words=True, first=True) == "fresh server"
    assert asked == []


@pytest.mark.parametrize("route", ["/reset_prefix_cache", "/flush_cache"])
def test_a_server_that_can_forget_is_told_to(server, route):
    target, asked = server(route)
    assert forget_prefixes(target, same_words=True, first=False) == f"emptied by POST {route}"
    assert asked[-1] == route


def test_what_cannot_be_forgotten_is_reported(server):
    target, asked = server()
    assert forget_prefixes(target, same_words=True, first=False).startswith("KEPT: ")
    assert len(asked) == 2
