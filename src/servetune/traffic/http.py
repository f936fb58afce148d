"""HTTP/1.1 responses (RFC 9112): the head, and three ways in which a body can be framed.

Bodies are read in bulk. A connection keeps what it received as pairs (bytes, time) and hands
over many at once, which costs a fraction of taking each apart as it comes; no time is lost by
it, because the times are the kernel's or were taken when the bytes were read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate, repeat
from typing import Protocol

from servetune.secret import beginning

LARGEST_HEAD_BYTES = 65_536
LONGEST_LINE_BYTES = 4096
"""Most bytes of a chunk's length and its extensions."""
LARGEST_CHUNK_BYTES = 16 << 20
MOST_LENGTH_DIGITS = 15
"""Most digits of a Content-Length; what can be sent in a lifetime has fewer."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")
_SIZE = re.compile(rb"[0-9A-Fa-f]+(?=\r\n|[; \t])")
_HEX_DIGITS = b"0123456789ABCDEFabcdef"

_HEAD_OF = {len(b"%x" % size) + size + 4: b"%x\r\n" % size for size in range(1, 1024)}
"""Beginnings of usual chunks, by their length including framing."""


class Malformed(Exception):
    """Error of bytes that are not HTTP/1.1.

    Attributes:
        before: Pieces of content that came before it, and their times.
    """

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.before: tuple[list[bytes], list[float]] = ([], [])


class Head:
    """Status line and headers of a response.

    Attributes:
        status: HTTP status.
        content_type: Content type in lower case, without parameters.
        keep_alive: Whether the server means to keep the connection.
        length: Length of the body in bytes, where the head has it.
        error_name: Name of an AWS service's error (`x-amzn-ErrorType`); empty for others.
        body_at: Position of the body in the bytes that the head was read from.
    """

    __slots__ = (
        "body_at",
        "chunked",
        "content_type",
        "error_name",
        "keep_alive",
        "length",
        "status",
    )

    def __init__(self, status: int, body_at: int, *, keep_alive: bool) -> None:
        self.status = status
        self.body_at = body_at
        self.keep_alive = keep_alive
        self.content_type = ""
        self.error_name = ""
        self.chunked = False
        self.length: int | None = None

    @property
    def interim(self) -> bool:
        """Whether the final response is still to come (100 Continue and other 1xx)."""
        return 100 <= self.status < 200


def read_head(data: bytes) -> Head | None:
    r"""The head at the beginning of these bytes; `None` while it is not complete.

    Raises:
        Malformed: It is no head of an HTTP/1 response.

    Example:
        >>> head = read_head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        >>> head.status, head.length, head.body_at
        (200, 2, 38)
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if not b"HTTP/1.".startswith(data[:7]):
            raise Malformed(_first_line(data))
        if len(data) > LARGEST_HEAD_BYTES:
            raise Malformed(f"a head without end: {_first_line(data)}")
        return None
    if end > LARGEST_HEAD_BYTES:
        raise Malformed(f"a head of {end} bytes: {_first_line(data)}")
    lines = data[:end].split(b"\r\n")
    status = _STATUS.match(lines[0])
    if status is None:
        raise Malformed(_first_line(data))
    head = Head(int(status[1]), end + 4, keep_alive=lines[0].startswith(b"HTTP/1.1"))
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise Malformed(f"no header: {_shown(line)}")
        _note(head, name.lower(), value.strip())
    if head.status in {204, 304}:
        head.chunked, head.length = False, 0
    return head


def _note(head: Head, name: bytes, value: bytes) -> None:
    if name == b"content-type":
        head.content_type = value.decode("latin-1").partition(";")[0].strip().lower()
    elif name == b"transfer-encoding":
        head.chunked = value.lower().endswith(b"chunked")
    elif name == b"content-length":
        known = value.isdigit() and len(value) <= MOST_LENGTH_DIGITS
        if not known or head.length not in {None, int(value)}:
            raise Malformed(f"no length: {_shown(value)}")
        head.length = int(value)
    elif name == b"x-amzn-errortype":
        head.error_name = value.decode("latin-1")
    elif name == b"connection":
        words = {word.strip() for word in value.lower().split(b",")}
        head.keep_alive = (head.keep_alive or b"keep-alive" in words) and b"close" not in words


def _shown(data: bytes, *, most: int = 80) -> str:
    """First bytes of what came, as Python writes them."""
    return repr(beginning(data[:LARGEST_HEAD_BYTES].decode("latin-1"), most).encode("latin-1"))


def _first_line(data: bytes) -> str:
    return f"it begins with {_shown(data, most=60)}"


class Body(Protocol):
    """Reader that takes the framing off a body.

    Attributes:
        ended_s: Arrival time of the last byte; `None` while more is to come.
        overrun: Whether bytes came after the end.
    """

    ended_s: float | None
    overrun: bool

    def feed(self, parts: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """Pieces of content in these bytes, and when the last byte of each came.

        Raises:
            Malformed: The framing is broken.
        """

    def close(self, at_s: float) -> bool:
        """End the body with its connection; whether it is whole."""


def body_of(head: Head) -> Body:
    """Body reader for the framing that a head announces."""
    if head.chunked:
        return Chunked()
    return UntilClosed() if head.length is None else Sized(head.length)


class Sized:
    """Body whose length the head has."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.ended_s: float | None = None
        self.overrun = False

    def feed(self, parts: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """See `Body`."""
        for i, part in enumerate(parts):
            if len(part) >= self.left:
                self.overrun = len(part) > self.left or i + 1 < len(parts)
                self.ended_s = times_s[i]
                parts = [*parts[:i], part[: self.left]]
                self.left = 0
                return parts, times_s[: i + 1]
            self.left -= len(part)
        return parts, times_s

    def close(self, at_s: float) -> bool:
        """See `Body`."""
        return self.left == 0


class UntilClosed:
    """Body that ends with the connection (HTTP/1.0)."""

    def __init__(self) -> None:
        self.ended_s: float | None = None
        self.overrun = False

    def feed(self, parts: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """See `Body`."""
        return parts, times_s

    def close(self, at_s: float) -> bool:
        """See `Body`."""
        self.ended_s = at_s
        return True


class Chunked:
    """Body in chunks, each with its length.

    Nearly always each read brings a whole chunk of a usual size (`_one_by_one`), or several of them
    at least have no CRLF inside, so that cutting the bytes at every CRLF gives lengths and chunks
    in turn (`_cut`). Whether it did is checked for every single chunk; if not, the chunks are read
    one after another (`_feed_slowly`).
    """

    def __init__(self) -> None:
        self.ended_s: float | None = None
        self.overrun = False
        self._left = b""  # of a chunk that is not complete
        self._more = bytearray()  # behind it, and still not enough
        self._lacking = 0

    def feed(self, parts: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """See `Body`."""
        if self._lacking:  # a huge chunk is joined once, not at every read
            self._lacking -= sum(map(len, parts))
            if self._lacking > 0:
                self._more += b"".join(parts)
                return [], []
            self._left += self._more
            self._more.clear()
        if self._left:
            parts, times_s = [self._left, *parts], [times_s[0], *times_s]
        chunks = _one_by_one(parts)
        if chunks is not None:
            self._left = b""
            return chunks, times_s
        pieces, came_s = self._cut(b"".join(parts), parts, times_s)
        if len(self._left) > LONGEST_LINE_BYTES and self.ended_s is None:
            try:
                self._lacking = _lacking(self._left)
            except Malformed as error:
                error.before = pieces, came_s
                raise
        return pieces, came_s

    def _cut(
        self, raw: bytes, parts: list[bytes], times_s: list[float]
    ) -> tuple[list[bytes], list[float]]:
        pieces = raw.split(b"\r\n")
        count = (len(pieces) - 1) // 2
        # One more than there are chunks, where the last chunk has only begun.
        sizes, chunks = pieces[0 : len(pieces) - 1 : 2], pieces[1 : 2 * count : 2]
        if not all(sizes) or b"".join(sizes).translate(None, _HEX_DIGITS):
            return self._feed_slowly(raw, parts, times_s)
        lengths = [int(size, 16) for size in sizes[:count]]
        if lengths != list(map(len, chunks)):
            return self._feed_slowly(raw, parts, times_s)
        if len(sizes) > count and 0 < int(sizes[-1], 16) < len(pieces[-1]) - 1:  # it has no end
            return self._feed_slowly(raw, parts, times_s)
        ends = list(accumulate(map(_whole_length, sizes, chunks)))  # as far as both go
        self._left = raw[ends[-1] :] if ends else raw
        arrived_s = _arrivals(ends, parts, times_s)
        if 0 in lengths:
            last = lengths.index(0)
            self.ended_s = arrived_s[last]
            self.overrun = last + 1 < count or bool(self._left)
            return chunks[:last], arrived_s[:last]
        return chunks, arrived_s

    def close(self, at_s: float) -> bool:
        """See `Body`."""
        return self.ended_s is not None

    def _feed_slowly(
        self, raw: bytes, parts: list[bytes], times_s: list[float]
    ) -> tuple[list[bytes], list[float]]:
        chunks: list[bytes] = []
        ends: list[int] = []
        at = 0
        while (line_end := raw.find(b"\r\n", at)) >= 0:
            size = _SIZE.match(raw, at)
            if size is None:
                error = Malformed(_no_length(raw[at:line_end]))
                error.before = chunks, _arrivals(ends, parts, times_s)
                raise error
            length = int(size[0], 16)
            begin = line_end + 2
            if length == 0:
                end = _end_of_trailers(raw, begin)
                if end is not None:
                    self.ended_s = _arrivals([end], parts, times_s)[0]
                    self.overrun = end < len(raw)
                    at = len(raw)
                break
            if begin + length + 2 > len(raw):
                break
            if raw[begin + length : begin + length + 2] != b"\r\n":
                error = Malformed("a chunk is longer than it says")
                error.before = chunks, _arrivals(ends, parts, times_s)
                raise error
            chunks.append(raw[begin : begin + length])
            at = begin + length + 2
            ends.append(at)
        self._left = raw[at:]
        return chunks, _arrivals(ends, parts, times_s)


def _one_by_one(parts: list[bytes]) -> list[bytes] | None:
    """Content of the chunks, if each part is a whole chunk of usual size; else `None`."""
    heads = [_HEAD_OF.get(len(part), b"?") for part in parts]
    whole = all(map(bytes.startswith, parts, heads)) and all(
        map(bytes.endswith, parts, repeat(b"\r\n"))
    )
    if not whole:
        return None
    return [part[len(head) : -2] for part, head in zip(parts, heads, strict=True)]


def _lacking(left: bytes) -> int:
    """Bytes without which the chunk that begins here cannot be complete.

    Raises:
        Malformed: No chunk begins here, it is too large, or its trailers have no end.
    """
    line_end = left.find(b"\r\n", 0, LONGEST_LINE_BYTES)
    size = _SIZE.match(left)
    if size is None or line_end < 0:
        raise Malformed(_no_length(left))
    length = int(size[0], 16)
    if length == 0 and len(left) > LARGEST_HEAD_BYTES:
        raise Malformed("trailers without end")
    if length > LARGEST_CHUNK_BYTES:
        raise Malformed(f"a chunk of more than {LARGEST_CHUNK_BYTES >> 20} MiB")
    return max(0, line_end + 2 + length + 2 - len(left))


def _no_length(line: bytes) -> str:
    return f"no length of a chunk: {_shown(line)}"


def _whole_length(size: bytes, chunk: bytes) -> int:
    return len(size) + len(chunk) + 4


def _arrivals(ends: list[int], parts: list[bytes], times_s: list[float]) -> list[float]:
    """Arrival time of the byte before each of these offsets."""
    part_ends = list(accumulate(map(len, parts)))
    return [times_s[bisect_left(part_ends, end)] for end in ends]


def _end_of_trailers(raw: bytes, begin: int) -> int | None:
    """End of the empty line behind the last chunk and its trailers, if it has come."""
    if raw.startswith(b"\r\n", begin):
        return begin + 2
    end = raw.find(b"\r\n\r\n", begin)
    return None if end < 0 else end + 4
