"""SageMaker's runtime: invocations, their event stream, and the OpenAI-compatible route.

It answers by itself, or hands every request on to a server that speaks the engine's own
HTTP (a real vLLM, the simulated engine). Frames are cut anywhere on purpose: real ones are
aligned neither to server-sent events nor to HTTP chunks.
"""

from __future__ import annotations

import http.client
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TOO_LATE = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)

#: Bytes in one frame of a stream: neither an event nor a chunk.
FRAME_BYTES = 23

#: For a stream to begin, at least.
BEGIN_S = 10.0


class Asked(NamedTuple):
    """One invocation, as the container gets it."""

    endpoint: str
    component: str | None
    route: str
    body: bytes


class ContainerRefused(Exception):
    """The container said no, or nothing in time: `ModelError` for who asked the service."""

    def __init__(
        self, status: int, text: str, *, said: str = "Received server error from primary"
    ) -> None:
        super().__init__(said)
        self.body = {"Message": said, "OriginalStatusCode": status, "OriginalMessage": text}


class Runtime:
    """How an invocation is answered.

    Attributes:
        pieces: Text that a model of ours streams.
        upstream: `http://host:port` of an engine that answers instead.
        containers: The container behind an endpoint and a component, `http://host:port`, where
            one was started for it; it comes before `upstream`.
        faults: Endpoint name -> (status, error type, body) before any stream.
        break_after: Events after which the stream breaks with `ModelStreamError`.
        break_every: Each so many-th stream only; every one unless said.
        limit_s: The service ends an invocation whose container is silent for so long.
        is_serving: Whether an endpoint, and a component on it, answers now.
        secrets: What requests may be signed with; any signature will do where it is empty.
    """

    def __init__(self, is_serving: Callable[[str, str | None], str]) -> None:
        self.pieces = ["Hel", "lo ", "world"]
        self.upstream: str | None = None
        self.faults: dict[str, tuple[int, str, dict[str, Any]]] = {}
        self.break_after: int | None = None
        self.break_every = 1
        self.limit_s = 60.0
        self.is_serving = is_serving
        self.containers: Callable[[str, str | None], str | None] = lambda *_: None
        self.secrets: dict[str, tuple[str, str]] = {}
        self._streams = itertools.count(1)

    def refusal(
        self, endpoint: str, component: str | None
    ) -> tuple[int, str, dict[str, Any]] | None:
        if endpoint in self.faults:
            return self.faults[endpoint]
        wrong = self.is_serving(endpoint, component)
        return (400, "ValidationError", {"Message": wrong}) if wrong else None

    def whole(self, asked: Asked) -> tuple[int, str, bytes]:
        """Status, content type and body of an answer in one piece."""
        connection, answer = self._ask(asked)
        if answer is not None:
            try:
                kind = answer.headers.get("Content-Type", "application/json")
                return answer.status, kind, answer.read()
            finally:
                connection.close()
        text = "".join(self.pieces)
        said = {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": len(self.pieces)},
        }
        return 200, "application/json", json.dumps(said).encode()

    def events(self, asked: Asked) -> Iterator[bytes]:
        """Bytes of server-sent events as they come.

        Raises:
            ContainerRefused: What the container said instead, before the first of them.
        """
        connection, answer = self._ask(asked, begins=True)
        if answer is None:
            return self._own_events()
        if answer.status != 200:
            said = answer.read()
            connection.close()
            raise ContainerRefused(answer.status, said.decode("utf-8", "replace"))
        return self._passed_on(connection, answer)

    def _own_events(self) -> Iterator[bytes]:
        said = [{"choices": [{"delta": {"content": piece}}]} for piece in self.pieces]
        said.append({"choices": [], "usage": {"completion_tokens": len(self.pieces)}})
        for event in said:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _passed_on(connection: http.client.HTTPConnection, answer: Any) -> Iterator[bytes]:
        try:
            while piece := answer.read1(65536):
                yield piece
        finally:
            connection.close()

    def frames(self, asked: Asked) -> Iterator[bytes]:
        """The same in event-stream frames, broken off where that is asked for.

        Raises:
            ContainerRefused: See `events`.
        """
        breaks = self.break_after is not None and next(self._streams) % self.break_every == 0
        return self._framed(self.events(asked), self.break_after if breaks else None)

    def _framed(self, events: Iterator[bytes], break_after: int | None) -> Iterator[bytes]:
        try:
            for count, piece in enumerate(events):
                if break_after is not None and count >= break_after:
                    yield broken("ContainerFailed", "worker died")
                    return
                for start in range(0, len(piece), FRAME_BYTES):
                    yield part(piece[start : start + FRAME_BYTES])
        except TimeoutError:
            yield broken("ModelInvocationTimeExceeded", TOO_LATE)

    def _ask(self, asked: Asked, *, begins: bool = False) -> tuple[http.client.HTTPConnection, Any]:
        """The container's answer; `None` for it where no container is.

        One that begins before it has anything to say is given time to: a busy machine may need
        more for it than a limit that is meant for the silence after.
        """
        url = self.containers(asked.endpoint, asked.component) or self.upstream
        if url is None:
            return http.client.HTTPConnection("nowhere"), None
        patience_s = max(self.limit_s, BEGIN_S) if begins else self.limit_s
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=patience_s)
        about = {"Content-Type": "application/json"}
        try:
            connection.connect()
            socket = connection.sock
            connection.request("POST", asked.route, asked.body, about)
            answer = connection.getresponse()
            socket.settimeout(self.limit_s)
            return connection, answer
        except TimeoutError:
            connection.close()
            raise ContainerRefused(0, "", said=TOO_LATE) from None


def broken(code: str, said: str) -> bytes:
    """The frame that ends a stream which cannot go on."""
    return frame(
        {
            ":exception-type": "ModelStreamError",
            ":content-type": "application/json",
            ":message-type": "exception",
        },
        json.dumps({"Message": said, "ErrorCode": code}).encode(),
    )


def part(payload: bytes) -> bytes:
    return frame(
        {
            ":event-type": "PayloadPart",
            ":content-type": "application/octet-stream",
            ":message-type": "event",
        },
        payload,
    )


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One message: lengths, their checksum, headers, payload, checksum of all before."""
    packed = b""
    for name, value in headers.items():
        packed += bytes([len(name)]) + name.encode() + b"\x07"
        packed += struct.pack("!H", len(value)) + value.encode()
    start = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    start += struct.pack("!I", zlib.crc32(start))
    message = start + packed + payload
    return message + struct.pack("!I", zlib.crc32(message))
