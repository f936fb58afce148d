"""SageMaker's runtime: invocations, their event stream, and the OpenAI-compatible route.

It answers by itself, or hands every request on to a server that speaks the engine's own
HTTP (a real vLLM, the simulated engine). Frames are cut anywhere on purpose: real ones are
aligned neither to server-sent events nor to HTTP chunks.
"""

from __future__ import annotations

import http.client
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

#: Bytes in one frame of a stream: neither an event nor a chunk.
FRAME_BYTES = 23


class Runtime:
    """How an invocation is answered.

    Attributes:
        pieces: Text that a model of ours streams.
        upstream: `http://host:port` of an engine that answers instead.
        faults: Endpoint name -> (status, error type, body) before any stream.
        break_after: Events after which the stream breaks with `ModelStreamError`.
        is_serving: Whether an endpoint, and a component on it, answers now.
    """

    def __init__(self, is_serving: Callable[[str, str | None], str]) -> None:
        self.pieces = ["Hel", "lo ", "world"]
        self.upstream: str | None = None
        self.faults: dict[str, tuple[int, str, dict[str, Any]]] = {}
        self.break_after: int | None = None
        self.is_serving = is_serving

    def refusal(
        self, endpoint: str, component: str | None
    ) -> tuple[int, str, dict[str, Any]] | None:
        if endpoint in self.faults:
            return self.faults[endpoint]
        wrong = self.is_serving(endpoint, component)
        return (400, "ValidationError", {"Message": wrong}) if wrong else None

    def whole(self, route: str, body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of an answer in one piece."""
        if self.upstream:
            connection, answer = self._ask(route, body)
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

    def events(self, route: str, body: bytes) -> Iterator[bytes]:
        """Bytes of server-sent events as they come."""
        if self.upstream:
            connection, answer = self._ask(route, body)
            try:
                while piece := answer.read1(65536):
                    yield piece
            finally:
                connection.close()
            return
        said = [{"choices": [{"delta": {"content": piece}}]} for piece in self.pieces]
        said.append({"choices": [], "usage": {"completion_tokens": len(self.pieces)}})
        for event in said:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def frames(self, route: str, body: bytes) -> Iterator[bytes]:
        """The same in event-stream frames, broken off where that is asked for."""
        for count, piece in enumerate(self.events(route, body)):
            if self.break_after is not None and count >= self.break_after:
                broken = {"Message": "worker died", "ErrorCode": "ModelInvocationTimeExceeded"}
                yield frame(
                    {
                        ":exception-type": "ModelStreamError",
                        ":content-type": "application/json",
                        ":message-type": "exception",
                    },
                    json.dumps(broken).encode(),
                )
                return
            for start in range(0, len(piece), FRAME_BYTES):
                yield part(piece[start : start + FRAME_BYTES])

    def _ask(self, route: str, body: bytes) -> tuple[http.client.HTTPConnection, Any]:
        assert self.upstream
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=60)
        connection.request("POST", route, body, {"Content-Type": "application/json"})
        return connection, connection.getresponse()


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
