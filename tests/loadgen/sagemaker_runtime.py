"""A double of SageMaker's runtime: checks signatures, forwards to a real server, frames answers.

It answers on plain HTTP. What the container behind it streams is cut at places that have
nothing to do with lines, put into frames, and the frames are cut again into HTTP chunks, as the
service does. Endpoints of certain names fail in the service's own ways.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from doubles.signed import wrong_signature

from servetune.traffic.sagemaker_answer import frame_of

ACCESS_KEY, SECRET_KEY, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/EXAMPLE", "session-token/=="

PART = {
    "event_type": "PayloadPart",
    "content_type": "application/octet-stream",
    "message_type": "event",
}


class SageMakerRuntime:
    """The service, on a port of its own.

    Attributes:
        asked: Headers of each request that came, lower-case names.
        refused: Why requests were refused for their signatures.
        throttle_every: Each so many-th request is throttled; 0 for none.
        secrets: What requests may be signed with.
        seed: Of the places where streams are cut.
    """

    def __init__(self, upstream_port: int, *, seed: int = 1) -> None:
        self.upstream_port = upstream_port
        self.asked: list[dict[str, str]] = []
        self.refused: list[str] = []
        self.throttle_every = 0
        self.stream_delay_s = 0.0
        self.secrets = {ACCESS_KEY: (SECRET_KEY, TOKEN)}
        self.seed = seed
        self._count = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"runtime": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def count(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    runtime: SageMakerRuntime
    # One write for each piece, at once: a double must not make its own delays.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        runtime = self.runtime
        runtime.asked.append({name.lower(): value for name, value in self.headers.items()})
        parts = self.path.split("/")
        name, verb = parts[2], "/".join(parts[3:])
        if verb.startswith("openai/"):
            if self.headers.get("Authorization") != "Bearer token-of-the-test":
                self._fail(403, "AccessDeniedException", {"Message": "bad token"})
                return
            self._pass_through(body, "/" + verb.partition("/")[2])
            return
        wrong = self._wrong_signature(body)
        if wrong:
            runtime.refused.append(wrong)
            # AWS repeats what it had signed, word for word.
            echoed = "\n".join(f"{k}:{v}" for k, v in self.headers.items() if k[:2] in "X-x-")
            self._fail(403, "InvalidSignatureException", {"message": f"{wrong}: {echoed}"})
        elif name == "missing":
            self._fail(400, "ValidationError", {"Message": "Endpoint missing not found."})
        elif runtime.throttle_every and runtime.count() % runtime.throttle_every == 0:
            self._fail(400, "ThrottlingException", {"message": "Rate exceeded"})
        elif name == "slow":
            said = "Your invocation timed out while waiting for a response from container primary"
            self._fail(424, "ModelError", {"Message": said, "OriginalStatusCode": 0})
        elif verb == "invocations":
            self._forward_whole(body)
        else:
            self._forward_stream(body, name)

    def _wrong_signature(self, body):
        runtime = self.runtime
        return wrong_signature(self.headers, f"{runtime.url}{self.path}", body, runtime.secrets)

    def _fail(self, status, name, body):
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("x-amzn-ErrorType", f"{name}:http://internal.amazon.com/coral/")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _ask(self, body, path=None):
        route = self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "")
        chat = b'"messages"' in body
        path = path or route.removeprefix("route=")
        path = path or ("/v1/chat/completions" if chat else "/v1/completions")
        upstream = http.client.HTTPConnection("127.0.0.1", self.runtime.upstream_port, timeout=30)
        upstream.request("POST", path, body, {"Content-Type": "application/json"})
        return upstream, upstream.getresponse()

    def _forward_whole(self, body):
        upstream, answer = self._ask(body)
        data = answer.read()
        upstream.close()
        if answer.status != 200:
            self._fail(424, "ModelError", {"Message": "Received server error",
                       "OriginalStatusCode": answer.status,
                       "OriginalMessage": data.decode()})  # fmt: skip
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _pass_through(self, body, path):
        upstream, answer = self._ask(body, path)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while data := answer.read1(65536):
            self._chunk(data)
        self.wfile.write(b"0\r\n\r\n")
        upstream.close()

    def _forward_stream(self, body, name):
        rng = random.Random(f"{self.runtime.seed}/{len(self.runtime.asked)}")
        upstream, answer = self._ask(body)
        if answer.status != 200:
            self._fail(424, "ModelError", {"Message": "Received server error",
                       "OriginalStatusCode": answer.status,
                       "OriginalMessage": answer.read().decode()})  # fmt: skip
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.amazon.eventstream")
        self.send_header("X-Amzn-SageMaker-Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = 0
        try:
            while data := answer.read1(65536):
                pieces += 1
                if name == "dies" and pieces == 3:
                    fault = {"Message": "worker died", "ErrorCode": "ContainerFailed"}
                    self._send(frame_of(json.dumps(fault).encode(), message_type="exception",
                                        exception_type="ModelStreamError"), rng)  # fmt: skip
                    break
                if name == "corrupt" and pieces == 3:
                    self._send(frame_of(data, **PART)[:-1] + b"\0", rng)
                    break
                for payload in _cut(data, rng):
                    self._send(frame_of(payload, **PART), rng)
                if self.runtime.stream_delay_s:
                    time.sleep(self.runtime.stream_delay_s)
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):  # either side went away
            self.close_connection = True
        finally:
            answer.close()
            upstream.close()

    def _send(self, frame, rng):
        for piece in _cut(frame, rng):
            self._chunk(piece)

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _cut(data, rng):
    """In one to three pieces."""
    places = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, rng.randrange(3))))
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]
