"""Server-sent events from bytes that may be cut anywhere (WHATWG HTML, 9.2).

Only an event's data is kept. The APIs that stream over SSE repeat the event's name inside
the data, and comments and ids mean nothing to a measurement.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

DONE = b"[DONE]"
"""Data of the event with which OpenAI-like servers end a stream."""

LONGEST_EVENT_BYTES = 16 << 20
"""Most bytes of one event; some servers repeat the whole answer in the last one."""

_BOM = b"\xef\xbb\xbf"
_PREFIXES = (b"data: ", b"data:")


class Events:
    r"""Cuts a byte stream into the data of its events.

    Lines may end in LF, CRLF or CR. A CR at the end of a read ends its line at once: an LF
    that follows in the next read is dropped, so that no event waits for another packet.

    Example:
        >>> events = Events()
        >>> events.take([b"data: one\n\ndata: t", b"wo\n\n"], [0.1, 0.2])
        ([b'one', b'two'], [0.1, 0.2])

    Attributes:
        too_long: Whether an event was longer than `LONGEST_EVENT_BYTES`, and dropped.
    """

    __slots__ = ("_after_cr", "_left", "_more", "_started", "too_long")

    def __init__(self) -> None:
        self._left = b""
        self._more = bytearray()  # further bytes of an event without end, joined once
        self.too_long = False
        self._after_cr = False
        self._started = False

    def take(self, pieces: list[bytes], times_s: list[float]) -> tuple[list[bytes], list[float]]:
        """Data of the events that these pieces complete, and when the end of each came."""
        if not self._left and not self._after_cr:
            whole = b"".join(pieces)
            for prefix in _PREFIXES:
                if whole.startswith(prefix) and whole.endswith(b"\n\n"):
                    found = _all_alike(whole, prefix, pieces, times_s)
                    if found is not None:
                        self._started = True
                        return found
                    break
        events: list[bytes] = []
        came_s: list[float] = []
        for piece, at_s in zip(pieces, times_s, strict=True):
            complete = self.feed(piece)
            events += complete
            came_s += [at_s] * len(complete)
        return events, came_s

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that these bytes complete, in order."""
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if self._left:
            more = self._more
            before = more or self._left
            if b"\n\n" not in data and not (data.startswith(b"\n") and before.endswith(b"\n")):
                more += data
                self._drop_too_long(len(more))
                return []
            data = b"".join((self._left, more, data))
            more.clear()
        *events, self._left = data.split(b"\n\n")
        self._drop_too_long(len(self._left))
        if not events:
            return events
        if not self._started:
            self._started = True
            events[0] = events[0].removeprefix(_BOM)
        return _data_of_each(events)

    def close(self) -> list[bytes]:
        """Data of a last event whose blank line never came.

        The standard drops such an event; servers that forget the blank line exist, and the
        bytes were received.
        """
        left = b"".join((self._left, self._more))
        self._left = b""
        self._more.clear()
        return _data_of_each([left if self._started else left.removeprefix(_BOM)])

    def _drop_too_long(self, byte_count: int) -> None:
        if byte_count > LONGEST_EVENT_BYTES:
            self.too_long = True
            self._left = b""
            self._more.clear()

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = data.endswith(b"\r") or (self._after_cr and not data)
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _all_alike(
    whole: bytes, prefix: bytes, pieces: list[bytes], times_s: list[float]
) -> tuple[list[bytes], list[float]] | None:
    """The events of bytes that hold nothing but one line of data each; `None` for others."""
    events = whole[len(prefix) : -2].split(b"\n\n" + prefix)
    if whole.count(b"\n") != 2 * len(events) or b"\r" in whole:
        return None
    if prefix == b"data:" and b"\n\ndata: " in whole:  # a space more than the first one had
        return None
    around = len(prefix) + 2
    lengths = [len(event) + around for event in events]
    if lengths == list(map(len, pieces)):
        return events, times_s
    piece_ends = list(accumulate(map(len, pieces)))
    return events, [times_s[bisect_left(piece_ends, end)] for end in accumulate(lengths)]


def _data_of_each(events: list[bytes]) -> list[bytes]:
    found = []
    for event in events:
        if event.startswith(b"data: ") and b"\n" not in event:  # nearly every event
            found.append(event[6:])
        else:
            data = _data_lines(event)
            if data:
                found.append(b"\n".join(data))
    return found


def _data_lines(event: bytes) -> list[bytes]:
    """Values of the event's data lines; none for an event of comments or other fields."""
    values = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return values
