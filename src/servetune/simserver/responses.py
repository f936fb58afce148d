"""The answer to one request, written to its connection as its tokens come.

Chunks have the members and the order of the default engine's: a chat opens with a chunk that names
the role, the last token's chunk has the finish reason, then usage where it was asked for,
then `[DONE]`. What of a chunk is the same for all tokens is built once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from servetune.json_value import JsonObject
from servetune.perf.sim.admission import Limit
from servetune.simserver.faults import Fault
from servetune.simserver.requests import CompletionRequest, RequestRefused


class ResponseWriter(Protocol):
    """A connection that an answer is written to."""

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer."""

    def begin_stream(self) -> None:
        """Send the head of a stream."""

    def send_part(self, data: bytes) -> None:
        """Send a part of a stream."""

    def end_stream(self) -> None:
        """End the stream as HTTP does."""

    def drop(self) -> None:
        """Lose the connection."""


class ResponseStream:
    """Implements `live.TokenListener`.

    Tokens are gathered until `flush`, so that all that came at once leave in one write.

    Args:
        request: The request.
        number: Number of the answer, for its id.
        wire: Connection that it is written to.
        fault: Fault of the stream, if any.
        breaks_after: Tokens after which the fault occurs.
        touched: Called when there is something to flush that was not there before.
        error_body: Writer of the body of an error.

    Attributes:
        received_all: Whether all tokens came from the engine.
    """

    __slots__ = (
        "_after", "_before", "_breaks_after", "_broken", "_closed", "_created", "_error_body",
        "_fault", "_id", "_is_touched", "_parts", "_request", "_sent", "_touched", "_wire",
        "received_all",
    )  # fmt: skip

    def __init__(
        self,
        request: CompletionRequest,
        number: int,
        wire: ResponseWriter,
        *,
        fault: Fault | None,
        breaks_after: int,
        touched: Callable[[ResponseStream], None],
        error_body: Callable[[RequestRefused], bytes],
    ) -> None:
        self._request, self._wire, self._touched = request, wire, touched
        self._error_body = error_body
        self._fault, self._breaks_after = fault, breaks_after
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-simulated-{number}"
        self._created = int(time.time())
        self._parts: list[bytes] = []
        self._sent = 0
        self._broken = False  # its fault has struck
        self._closed = False
        self._is_touched = False
        self.received_all = False
        self._before, self._after = self._frame(None)

    def tokens(self, count: int) -> None:
        """Take in the next tokens, which are one chunk as in a real server's stream."""
        request, sent = self._request, self._sent
        self._sent = sent + count
        if self._fault is not None and self._sent > self._breaks_after:
            count = max(0, self._breaks_after - sent)
            if not self._broken:
                self._broken = True
                self._touch()
        if not request.streamed or not count:
            return
        self._touch()
        self._add_tokens(sent, count)

    def ended(self) -> None:
        """All tokens came."""
        self.received_all = True
        self._broken = self._broken or self._fault is not None
        self._touch()
        if self._request.streamed and not self._broken:
            self._add_end()

    def accepted(self) -> None:
        """The engine will answer; the status of a stream does not wait for its first token."""
        if self._request.streamed:
            self._wire.begin_stream()

    def refused(self, limit: Limit) -> None:
        """The engine refuses the request, since a limit is reached."""
        self.received_all = self._closed = True
        rule = limit.rule
        error = RequestRefused(rule.status, rule.message, kind=rule.kind)
        self._wire.reply(rule.status, self._error_body(error))

    def flush(self) -> None:
        """Write what was gathered, and the end where there is nothing to follow."""
        self._is_touched = False
        if self._parts:
            self._wire.send_part(b"".join(self._parts))
            self._parts.clear()
        if self._closed or self._fault == "stall" or not (self._broken or self.received_all):
            return
        self._closed = True
        if self._broken and not (self._fault == "truncate" and self._request.streamed):
            self._wire.drop()
        elif self._request.streamed:
            self._wire.end_stream()
        else:
            self._wire.reply(200, self._whole())

    def _touch(self) -> None:
        if not self._is_touched:
            self._is_touched = True
            self._touched(self)

    # The answer's form, which a subclass may have otherwise.

    def _add_tokens(self, sent: int, count: int) -> None:
        """Add the chunks of `count` tokens after the first `sent`."""
        request = self._request
        if sent == 0 and request.chat:
            self._parts.append(self._opening())
        if sent + count == request.output_tokens:
            before, after = self._frame(request.finish_reason)
        else:
            before, after = self._before, self._after
        text = b"".join(request.piece(number) for number in range(sent, sent + count))
        usage = self._running_usage(sent + count)
        self._parts.append(b"%b%b%b%b}\n\n" % (before, text, after, usage))

    def _add_end(self) -> None:
        """Add what follows the last token."""
        if self._request.usage_at_end:
            self._parts.append(
                self._head() + b',"choices":[]' + self._usage_json(self._sent) + b"}\n\n"
            )
        self._parts.append(b"data: [DONE]\n\n")

    def _usage_json(self, sent: int) -> bytes:
        counts = (self._request.prompt_tokens, self._request.prompt_tokens + sent, sent)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % counts

    def _running_usage(self, sent: int) -> bytes:
        return self._usage_json(sent) if self._request.usage_always else b""

    def _head(self) -> bytes:
        """The members that all chunks begin with, without the closing brace."""
        kind = "chat.completion.chunk" if self._request.chat else "text_completion"
        members = {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
        }
        return b"data: " + msgspec.json.encode(members)[:-1]

    def _frame(self, finish_reason: str | None) -> tuple[bytes, bytes]:
        """Bytes before and behind a token's text, up to the usage."""
        reason = msgspec.json.encode(finish_reason)
        if self._request.chat:
            before = b',"choices":[{"index":0,"delta":{"content":"'
            after = b'"},"logprobs":null,"finish_reason":' + reason + b"}]"
        else:
            before = b',"choices":[{"index":0,"text":"'
            after = b'","logprobs":null,"finish_reason":' + reason + b"}]"
        return self._head() + before, after

    def _opening(self) -> bytes:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        choices = b',"choices":' + msgspec.json.encode([choice])
        return self._head() + choices + self._running_usage(0) + b"}\n\n"

    def _whole(self) -> bytes:
        request = self._request
        choice: JsonObject = {"index": 0}
        if request.chat:
            choice["message"] = {"role": "assistant", "content": request.text()}
        else:
            choice["text"] = request.text()
        choice |= {"logprobs": None, "finish_reason": request.finish_reason}
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if request.chat else "text_completion",
                "created": self._created,
                "model": request.model,
                "choices": [choice],
                "usage": {
                    "prompt_tokens": request.prompt_tokens,
                    "total_tokens": request.prompt_tokens + request.output_tokens,
                    "completion_tokens": request.output_tokens,
                },
            }
        )
