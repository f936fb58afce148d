"""Answers through SageMaker: the container's own answer inside the service's frames.

The container's stream arrives in frames of an event stream; failures of the service have names
(`x-amzn-ErrorType`, or a frame's exception), which come first in the detail. SageMaker ends an
invocation by itself after its limit (60 s until the answer, 8 minutes of a stream); that is neither
the client's time-out nor the model's failure, and is named `InvocationTimeLimit`.
"""

from __future__ import annotations

import msgspec

from servetune.traffic.answer import Answer, excerpt
from servetune.traffic.eventstream import BadFrame, EventStream, StreamError

FRAMED = "application/vnd.amazon.eventstream"
TIME_LIMIT = "InvocationTimeLimit"

KEPT_BYTES = 64 * 1024


class _Failure(msgspec.Struct):
    """Failure as the service reports it, in its several spellings."""

    Message: str | None = None
    message: str | None = None
    ErrorCode: str | None = None
    OriginalStatusCode: int | None = None
    OriginalMessage: str | None = None
    type_: str | None = msgspec.field(default=None, name="__type")


_decode_failure = msgspec.json.Decoder(_Failure, strict=False).decode


class SageMakerAnswer:
    """Response of InvokeEndpoint(WithResponseStream), around a dialect's own answer.

    It has the methods that the controller and a connection use of an `Answer`.
    """

    __slots__ = ("_error_name", "_failed", "_frames", "_inner", "_kept")

    def __init__(self, inner: Answer) -> None:
        self._inner = inner
        self._frames: EventStream | None = None
        self._kept = bytearray()
        self._error_name = ""
        self._failed: tuple[str, int | None, str] | None = None

    @property
    def prompt_tokens(self) -> int | None:
        return self._inner.prompt_tokens

    @property
    def texts(self) -> list[str]:
        return self._inner.texts

    # while it arrives

    def named(self, error_name: str) -> None:
        """Take the name of the error from the head."""
        # The service may append a URL to the name: "ModelError:http://...".
        self._error_name = error_name.partition(":")[0].rpartition("#")[2].strip()

    def head(self, status: int, content_type: str) -> None:
        """Take status and content type, once the head is complete."""
        framed = content_type == FRAMED
        if framed and 200 <= status < 300:
            self._frames = EventStream()
            content_type = "text/event-stream"
        self._inner.head(status, content_type)

    def take(self, pieces: list[bytes], times_s: list[float]) -> None:
        """Take pieces of the body; never raises for what a server sent."""
        frames = self._frames
        if frames is None:
            if len(self._kept) < KEPT_BYTES:
                self._kept += b"".join(pieces)
            self._inner.take(pieces, times_s)
            return
        if self._failed is not None:
            return
        try:
            payloads, came_s = frames.take(pieces, times_s)
        except BadFrame as error:
            payloads, came_s = error.before
            self._failed = ("malformed", None, f"not an event stream: {error}")
        if payloads:
            self._inner.take(payloads, came_s)
        if frames.error is not None and self._failed is None:
            self._failed = _in_stream(frames.error)

    # when it is over

    def settle(
        self, outcome: str, status: int | None, detail: str, end_s: float
    ) -> tuple[str, int | None, str]:
        """Outcome, status and detail, the service's name of a failure first."""
        settled = self._inner.settle(outcome, status, detail, end_s)
        if self._failed is not None:
            kind, code, detail = self._failed
            return kind, code or status, detail
        if status is not None and not 200 <= status < 300:
            return self._refused(status)
        if settled[0] == "truncated" and self._frames is not None and self._frames.is_cut:
            return settled[0], settled[1], f"{settled[2]}, inside a frame"
        return settled

    def end_s(self, outcome: str, end_s: float) -> float:
        """See `Answer.end_s`."""
        return self._inner.end_s(outcome, end_s)

    def packed(self) -> tuple[bytes, bytes, int]:
        """See `Answer.packed`."""
        return self._inner.packed()

    def _refused(self, status: int) -> tuple[str, int | None, str]:
        try:
            failure = _decode_failure(bytes(self._kept))
        except msgspec.MsgspecError:
            failure = _Failure(Message=bytes(self._kept).decode("utf-8", "replace"))
        name = self._error_name or (failure.type_ or "").rpartition("#")[2] or f"status {status}"
        return _outcome_of(name, failure, status)


def _in_stream(error: StreamError) -> tuple[str, int | None, str]:
    try:
        failure = _decode_failure(error.words)
    except msgspec.MsgspecError:
        failure = _Failure(Message=error.words.decode("utf-8", "replace"))
    return _outcome_of(error.name, failure, None, where=" in the stream")


def _outcome_of(
    name: str, failure: _Failure, status: int | None, *, where: str = ""
) -> tuple[str, int | None, str]:
    words = failure.Message or failure.message or ""
    if failure.OriginalMessage and failure.OriginalMessage not in words:
        words += f" (the container, status {failure.OriginalStatusCode}: {failure.OriginalMessage})"
    if _is_time_limit(failure, words):
        return "timeout", status, excerpt(f"{TIME_LIMIT}: {name}{where}: {words}")
    code = f" {failure.ErrorCode}" if failure.ErrorCode else ""
    return "http_status", status, excerpt(f"{name}{code}{where}: {words}")


def _is_time_limit(failure: _Failure, words: str) -> bool:
    """Whether the service gave the container up, in either of its wordings."""
    return failure.ErrorCode == "ModelInvocationTimeExceeded" or "invocation timed out" in (
        words.lower()
    )
