"""AWS's event stream (application/vnd.amazon.eventstream): frames around pieces of a stream.

A frame is its length and its headers' length (four bytes each), a checksum of those eight, headers,
payload, and a checksum of all before it. Frames are read in bulk, as bodies are (`traffic.http`):
many pieces with their times go in, and the payloads come out with the time at which the last byte
of each frame came. A payload may be cut anywhere in its content.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import accumulate
from zlib import crc32

import msgspec

_PRELUDE = struct.Struct("!III")
_CHECKSUM = struct.Struct("!I")
#: Length of the prelude and the last checksum.
_AROUND = 16

LARGEST_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame by the specification: 16 MiB, of which the headers may take 128 KiB."""

LARGEST_HEADERS_BYTES = 128 * 1024

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
                kind = kinds[headers] = _kind_of(headers)
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
