"""Requests of a run, prepared once in memory that all its processes share.

The bodies are written to an anonymous file before the clock starts; a process maps the file and
sends straight out of it. Nothing is copied between processes, however many there are.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable

import msgspec


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request before it is written to the file.

    Attributes:
        body: JSON.
        output_tokens: Requested output tokens; 0 where the answer may have any length.
        due_s: Due time from the start of the run.
        think_s: Think time after the answer that it follows.
        next: Index of the request that follows its answer; -1 for none.
        messages_at: Start and end of the inside of the list of messages in the body, where a
            conversation continues; `(0, 0)` otherwise.
        first: Whether it follows no answer.
    """

    body: bytes
    output_tokens: int = 0
    due_s: float = 0.0
    think_s: float = 0.0
    next: int = -1
    messages_at: tuple[int, int] = (0, 0)
    first: bool = True


class RequestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a request file, one entry a request, packed as C arrays.

    Attributes:
        begins: Positions of the bodies, int64, and one more for the end.
        due_s: Due times, double.
        output_tokens: Requested output tokens, int64.
        think_s: Think times, double.
        nexts: Following requests, int64.
        message_begins: Starts of the messages in the bodies, int64.
        message_ends: Ends of the messages, int64.
    """

    begins: bytes
    due_s: bytes
    output_tokens: bytes = b""
    think_s: bytes = b""
    nexts: bytes = b""
    message_begins: bytes = b""
    message_ends: bytes = b""


class RequestFile:
    """Anonymous file of all bodies, until it is closed.

    Attributes:
        fd: File descriptor.
        columns: Positions and properties of the requests.
        firsts: Indices of the requests that follow no answer.
    """

    def __init__(self, fd: int, columns: RequestColumns, firsts: list[int]) -> None:
        self.fd = fd
        self.columns = columns
        self.firsts = firsts

    def close(self) -> None:
        """Close the file; processes that map it keep it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def write_request_file(request_file: Iterable[PreparedRequest]) -> RequestFile:
    """Write all requests to a new file; if one cannot be made, the file is closed and that
    raised.
    """
    fd = os.memfd_create("servetune-asks", os.MFD_CLOEXEC)
    try:
        columns, firsts = _written(fd, request_file)
    except BaseException:
        os.close(fd)
        raise
    return RequestFile(fd, columns, firsts)


def _written(fd: int, request_file: Iterable[PreparedRequest]) -> tuple[RequestColumns, list[int]]:
    begins, due_s, think_s = array("q", [0]), array("d"), array("d")
    nexts, message_begins, message_ends = array("q"), array("q"), array("q")
    output_tokens = array("q")
    firsts: list[int] = []
    with os.fdopen(os.dup(fd), "wb", buffering=1 << 20) as file:
        for index, request in enumerate(request_file):
            file.write(request.body)
            begins.append(begins[-1] + len(request.body))
            due_s.append(request.due_s)
            output_tokens.append(request.output_tokens)
            think_s.append(request.think_s)
            nexts.append(request.next)
            message_begins.append(request.messages_at[0])
            message_ends.append(request.messages_at[1])
            if request.first:
                firsts.append(index)
    alone = all(index < 0 for index in nexts)
    columns = RequestColumns(
        begins=begins.tobytes(),
        due_s=due_s.tobytes(),
        output_tokens=output_tokens.tobytes(),
        think_s=think_s.tobytes() if any(think_s) else b"",
        nexts=b"" if alone else nexts.tobytes(),
        message_begins=b"" if alone else message_begins.tobytes(),
        message_ends=b"" if alone else message_ends.tobytes(),
    )
    return columns, firsts


class RequestReader:
    """Request file as a sender process reads it."""

    def __init__(self, fd: int, columns: RequestColumns) -> None:
        self._begins = array("q", columns.begins)
        self.due_s = array("d", columns.due_s)
        self._output_tokens = array("q", columns.output_tokens)
        self._think_s = array("d", columns.think_s)
        self._nexts = array("q", columns.nexts)
        self._message_begins = array("q", columns.message_begins)
        self._message_ends = array("q", columns.message_ends)
        size = self._begins[-1]
        self._memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self.due_s)

    def body(self, index: int) -> bytes:
        """Body of a request, JSON."""
        return self._memory[self._begins[index] : self._begins[index + 1]]

    def next(self, index: int) -> int:
        """Request that follows the answer; -1 for none."""
        return self._nexts[index] if self._nexts else -1

    def output_tokens(self, index: int) -> int:
        """Requested output tokens; 0 where the answer may have any length."""
        return self._output_tokens[index] if self._output_tokens else 0

    def think_s(self, index: int) -> float:
        """Think time between the answer before and this request."""
        return self._think_s[index] if self._think_s else 0.0

    def messages_at(self, index: int) -> tuple[int, int]:
        """Start and end of the inside of the list of messages in the body."""
        return self._message_begins[index], self._message_ends[index]
