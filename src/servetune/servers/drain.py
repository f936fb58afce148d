"""A log that is always drained and never fills the disk.

The watchdog reads what a server writes and keeps it here. A file may grow to `MOST_BYTES`;
then its middle is left out and this stays: the beginning, where servers say what they took and
how much memory they found; lines of the middle that tell of trouble or of the cache; the end.
Readers open the file by its name: it is replaced as a whole, never cut under them.

Like the watchdog it runs on the standard library alone.
"""

from __future__ import annotations

import os
import re

MOST_BYTES = 32 << 20
HEAD_FRACTION, TAIL_FRACTION = 0.25, 0.25
MOST_NOTED_LINES = 2000
MOST_NOTED_BYTES = 400  # of one line

#: Words worth keeping of a log that is too long to keep whole, in small letters. Plain
#: words: a regular expression took longer than a server needs to write as much.
_OF_NOTE = (
    *(b"error", b"exception", b"traceback", b"fatal", b"out of memory", b"killed", b"abort"),
    *(b"cuda", b"nccl", b"no space", b"kv cache", b"concurrency", b"compil", b"captur"),
    *(b"loading model", b"loading weights", b" seconds"),
)
MOST_OF_A_WORD = 10_000  # lines looked at in one stretch


class BoundedLog:
    """A log file open for writing; no trouble with the disk reaches the server.

    Args:
        path: The file, replaced if it is there.
        most_bytes: Largest size of the log.

    Attributes:
        lost_bytes: Bytes that could not be written to the disk.
    """

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._head_bytes = int(most_bytes * HEAD_FRACTION)
        self._tail_bytes = int(most_bytes * TAIL_FRACTION)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._size = 0
        self._kept = b""  # the head, once the middle has been left out
        self._begin = 0  # of what was written since then
        self._noted: dict[bytes, bytes] = {}  # by the line without its numbers
        self._left_out_bytes = 0
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Take what the server wrote; never raises for want of room."""
        most = max(1, self._most_bytes // 4)  # of a piece, so that room can be made for each
        for begin in range(0, len(data), most):
            piece = data[begin : begin + most]
            if self._size + len(piece) > self._most_bytes:
                self._make_room()
            self._write(piece)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                done = os.write(self._file, data)
            except OSError:
                self.lost_bytes += len(data)
                return
            self._size += done
            data = data[done:]

    def _make_room(self) -> None:
        try:
            self._leave_out_the_middle()
        except OSError:
            # No room for a second file: what is there stays, and growth ends here.
            self._start_over()

    def close(self) -> None:
        os.close(self._file)

    def _leave_out_the_middle(self) -> None:
        if not self._kept:
            self._kept = _until_line_end(os.pread(self._file, self._head_bytes, 0))
            self._begin = len(self._kept)
        tail_at = self._size - self._tail_bytes
        middle = os.pread(self._file, tail_at - self._begin, self._begin)
        tail = os.pread(self._file, self._tail_bytes, tail_at)
        cut = tail.find(b"\n") + 1  # whole lines only
        middle, tail = middle + tail[:cut], tail[cut:]
        self._note(middle)
        self._left_out_bytes += len(middle)
        noted_text = self._noted_text()
        replacement = f"{self._path}.new"
        fresh = os.open(replacement, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            for part in (self._kept, noted_text, tail):
                _write_all(fresh, part)
            os.replace(replacement, self._path)  # noqa: PTH105  this file stays light: no pathlib
        except OSError:
            os.close(fresh)
            os.unlink(replacement)  # noqa: PTH108
            raise
        os.close(self._file)
        self._file = fresh
        self._begin = len(self._kept) + len(noted_text)
        self._size = self._begin + len(tail)

    def _note(self, middle: bytes) -> None:
        for line in lines_of_note(middle):
            if len(self._noted) >= MOST_NOTED_LINES:
                return
            self._noted.setdefault(re.sub(rb"\d+", b"", line), line[:MOST_NOTED_BYTES])

    def _noted_text(self) -> bytes:
        lines = list(self._noted.values())
        more = ", the first of each kind" if lines else ""
        head = f"[servetune left {self._left_out_bytes} bytes out here; {len(lines)} lines of note"
        return b"\n".join([f"{head}{more}:]".encode(), *lines, b"[what follows is the end]", b""])

    def _start_over(self) -> None:
        self.lost_bytes += self._size - len(self._kept)
        os.ftruncate(self._file, min(self._size, self._head_bytes))
        self._size = os.fstat(self._file).st_size
        self._kept, self._begin = b"", 0


def lines_of_note(text: bytes) -> list[bytes]:
    """Lines that tell of trouble, of the cache or of how long something took, in order."""
    small, found = text.lower(), {}
    for word in _OF_NOTE:
        at = small.find(word)
        for _ in range(MOST_OF_A_WORD):
            if at < 0:
                break
            begin, end = small.rfind(b"\n", 0, at) + 1, small.find(b"\n", at)
            end = len(text) if end < 0 else end
            found[begin] = text[begin:end]
            at = small.find(word, end)
    return [found[begin] for begin in sorted(found)]


def _until_line_end(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    return data[:end] if end else data


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
