"""A server that tells its secrets: `talker.py MOOD [--port N]`, with the texts of `planted.py`.

Moods: `dies` (writes its environment in several ways, and all texts, before it is ready),
`serves` (writes them, then answers), `refuses` (writes them, then answers every second request
with an error that holds one of the texts, its headers among them), `breaks` (ends a stream in an
error with one of them), `falls` (dies in the middle of the load), `names` (calls its model by a
credential).
"""

import json
import os
import pprint
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from planted import FORMATS, texts

MOOD = sys.argv[1]
PORT = int(sys.argv[sys.argv.index("--port") + 1])
TEXTS = texts()
SCRAPES, NUMBERS = count(), count()


def say(*lines: object) -> None:
    """Write lines to the log."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def tell() -> None:
    """Write arguments, environment and all texts to the log."""
    environment = dict(os.environ)
    say(f"args: {sys.argv}", " ".join(sys.argv))
    say(*(f"{name}={value}" for name, value in environment.items()))
    say(environment, os.environb, json.dumps(json.dumps(environment)))
    say(pprint.pformat(environment))
    say(*(f"{name:30s} {value}" for name, value in environment.items()))
    say(*TEXTS)


class Answer(BaseHTTPRequestHandler):
    """Answers of an OpenAI-compatible server, with what must not be told."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        say(self.requestline, dict(self.headers))

    def do_GET(self) -> None:
        if self.path.startswith("/metrics"):
            labels = json.dumps(TEXTS[next(SCRAPES) % len(TEXTS)])
            self._send(f"vllm:num_requests_running{{api_key={labels}}} 1\n".encode())
        elif "models" in self.path:
            name = FORMATS[0] if MOOD == "names" else "m"
            told = {"id": name, "object": "model", "api_key": TEXTS, "permission": TEXTS}
            self._send(json.dumps({"data": [told], "api_key": TEXTS}).encode())
        else:
            self._send(json.dumps({"api_key": TEXTS}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number = next(NUMBERS)
        text = TEXTS[number % len(TEXTS)]
        if MOOD == "refuses" and number % 2:
            told = text if number % 4 == 1 else f"{dict(self.headers)} {text}"
            self._send(json.dumps({"error": {"message": told}}).encode(), 500)
            return
        if MOOD == "falls" and number > 8:
            say(text)
            os._exit(1)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.send_header("X-Api-Key", "Tiger7woods9XqHeader")
        self.end_headers()
        for piece in ("a", "b", "c", "d"):
            self._event({"choices": [{"index": 0, "text": piece, "delta": {"content": piece}}]})
        if MOOD == "breaks" and number % 2:
            self._event({"error": {"message": text, "code": 500}})
            return
        usage = {"prompt_tokens": 16, "completion_tokens": 4, "total_tokens": 20}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status, "Tiger7woods9XqPhrase" if status != 200 else None)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    tell()
    if MOOD == "dies":
        raise RuntimeError(f"cannot start with {dict(os.environ)}, {' '.join(TEXTS)}")
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Answer)
    threading.Thread(target=server.serve_forever).start()
    say("listening")


main()
