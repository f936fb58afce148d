"""Answers through SageMaker: the container's own answer inside the service's frames.

The container's stream arrives in frames of an event stream; failures of the service have names
(`x-amzn-ErrorType`, or a frame's exception), which come first in the detail. SageMaker ends an
invocation by itself after its limit (60 s until the answer, 8 minutes of a stream); that is neither
the client's time-out nor the model's failure, and is named `InvocationTimeLimit`.

A frame of an event stream (application/vnd.amazon.eventstream) is its length and its headers'
length (four bytes each), a checksum of those eight, headers, payload, and a checksum of all before
it. Frames are read in bulk, as bodies are (`traffic.http`): many pieces with their times go in, and
the payloads come out with the time at which the last byte of each frame came. A payload may be cut
anywhere in its content.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import accumulate
from zlib import crc32

import msgspec

from servetune.traffic.answer import Answer, excerpt

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
    def characters(self) -> int:
        return self._inner.characters

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

    def take(self, pieces: list[bytes], times_s: list[float]) -> str:
        """See `Answer.take`."""
        frames = self._frames
        if frames is None:
            if len(self._kept) < KEPT_BYTES:
                self._kept += b"".join(pieces)
            return self._inner.take(pieces, times_s)
        if self._failed is not None:
            return self._failed[2]
        try:
            payloads, came_s = frames.take(pieces, times_s)
        except BadFrame as error:
            payloads, came_s = error.before
            self._failed = ("malformed", None, f"not an event stream: {error}")
        reason = self._inner.take(payloads, came_s) if payloads else ""
        if frames.error is not None and self._failed is None:
            self._failed = _in_stream(frames.error)
        return reason

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


_PRELUDE = struct.Struct("!III")
_CHECKSUM = struct.Struct("!I")
#: Length of the prelude and the last checksum.
_AROUND = 16

LARGEST_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame by the specification: 16 MiB, of which the headers may take 128 KiB."""

LARGEST_HEADERS_BYTES = 128 * 1024

MOST_KINDS = 64
"""Most forms of headers that are remembered."""

MOST_PARTS = 4096
"""Most pieces of a frame before they are joined; tiny ones cost more than they hold."""

_STRING = 7
#: Length of a header's value by its type; strings and bytes carry their own.
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class BadFrame(Exception):
    """Error of bytes that are no event stream.

    Attributes:
        before: Payloads that came before it, and their times.
    """

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.before: tuple[list[bytes], list[float]] = ([], [])


class StreamError(msgspec.Struct, frozen=True):
    """Failure that the stream reports.

    Attributes:
        name: Name, such as `ModelStreamError`.
        words: Message, JSON as it came.
    """

    name: str
    words: bytes


class EventStream:
    """Reader that takes payloads out of frames.

    Attributes:
        error: Failure that the stream reported, after which nothing more is read.
    """

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self._left = b""
        self._more: list[bytes] = []
        self._lacking = 0
        # All frames of a stream have the same few headers, so each form is parsed once.
        self._kinds: dict[bytes, tuple[str, str]] = {}

    @property
    def is_cut(self) -> bool:
        """Whether a frame has begun that is not complete."""
        return bool(self._left)

    def take(self, pieces: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """Payloads that these pieces complete, and when each did.

        Raises:
            BadFrame: A length or a checksum is wrong.
        """
        if self._lacking > 0:
            self._lacking -= sum(map(len, pieces))
            self._more += pieces
            if self._lacking > 0:
                if len(self._more) > MOST_PARTS:
                    self._more = [b"".join(self._more)]
                return [], []
            kept = self._more[: len(self._more) - len(pieces)]
            pieces = [b"".join([*kept, pieces[0]]), *pieces[1:]]
            self._more.clear()
        if self._left:
            pieces, times_s = [self._left, *pieces], [times_s[0], *times_s]
        raw = b"".join(pieces)
        payloads: list[bytes] = []
        ends: list[int] = []
        try:
            at = self._cut(raw, payloads, ends)
        except BadFrame as error:
            error.before = payloads, _arrivals(ends, pieces, times_s)
            raise
        self._left = raw[at:]
        self._lacking = self._missing() if self._left else 0
        return payloads, _arrivals(ends, pieces, times_s)

    def _missing(self) -> int:
        """Smallest number of bytes with which the current frame can be checked or completed."""
        if len(self._left) < 12:
            return 12 - len(self._left)
        return max(0, int.from_bytes(self._left[:4], "big") - len(self._left))

    def _cut(self, raw: bytes, payloads: list[bytes], ends: list[int]) -> int:
        at, size = 0, len(raw)
        kinds = self._kinds
        while size - at >= 12 and self.error is None:
            length, headers_length, checksum = _PRELUDE.unpack_from(raw, at)
            if crc32(raw[at : at + 8]) != checksum:
                raise BadFrame("the checksum of a frame's beginning is wrong")
            if length < headers_length + _AROUND or length > LARGEST_FRAME_BYTES:
                raise BadFrame(f"a frame of {length} bytes with {headers_length} of headers")
            if headers_length > LARGEST_HEADERS_BYTES:
                raise BadFrame(f"a frame with {headers_length} bytes of headers")
            end = at + length
            if end > size:
                break
            if crc32(raw[at : end - 4]) != _CHECKSUM.unpack_from(raw, end - 4)[0]:
                raise BadFrame("the checksum of a frame is wrong")
            begin = at + 12 + headers_length
            headers, payload = raw[at + 12 : begin], raw[begin : end - 4]
            kind = kinds.get(headers)
            if kind is None:
                kind = _kind_of(headers)
                if len(kinds) < MOST_KINDS:
                    kinds[headers] = kind
            at = end
            if kind[0] == "event":
                if kind[1] == "PayloadPart" and payload:
                    payloads.append(payload)
                    ends.append(at)
            else:
                self.error = StreamError(kind[1] or kind[0], payload)
        return at


def _kind_of(headers: bytes) -> tuple[str, str]:
    """Type of a frame: `event`, `exception` or `error`, with the name of its event or error."""
    values: dict[str, str] = {}
    at = 0
    try:
        while at < len(headers):
            name_end = at + 1 + headers[at]
            name, kind = headers[at + 1 : name_end].decode(), headers[name_end]
            at = name_end + 1
            if kind in _FIXED:
                at += _FIXED[kind]
                continue
            length = int.from_bytes(headers[at : at + 2], "big")
            value = headers[at + 2 : at + 2 + length]
            if kind not in {6, _STRING} or len(value) != length:
                raise BadFrame(f"a header of type {kind}")
            values[name] = value.decode("utf-8", "replace") if kind == _STRING else ""
            at += 2 + length
    except (IndexError, UnicodeDecodeError):
        raise BadFrame("a frame's headers are cut short") from None
    message_type = values.get(":message-type", "event")
    if message_type == "event":
        return "event", values.get(":event-type", "")
    return message_type, values.get(":exception-type") or values.get(":error-code", "")


def frame_of(payload: bytes, **headers: str) -> bytes:
    """Frame with string headers, as a test double of the service writes it.

    Underscores in a name stand for dashes, and every name gets its colon.
    """
    packed = b""
    for name, value in headers.items():
        key, text = f":{name.replace('_', '-')}".encode(), value.encode()
        packed += struct.pack("!B", len(key)) + key + struct.pack("!BH", _STRING, len(text)) + text
    prelude = struct.pack("!II", len(packed) + len(payload) + _AROUND, len(packed))
    message = prelude + _CHECKSUM.pack(crc32(prelude)) + packed + payload
    return message + _CHECKSUM.pack(crc32(message))


def _arrivals(ends: list[int], pieces: list[bytes], times_s: list[float]) -> list[float]:
    """Arrival time of the byte before each of these offsets."""
    piece_ends = list(accumulate(map(len, pieces)))
    return [times_s[bisect_left(piece_ends, end)] for end in ends]
