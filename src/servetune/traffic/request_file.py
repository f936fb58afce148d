"""What is asked, laid out once in memory that all processes of a run share.

The bodies are written to an anonymous file before the clock starts; a process maps the file
and sends straight out of it. Nothing is copied between processes, however many there are.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable

import msgspec

__all__ = [
    "PreparedRequest",
    "RequestColumns",
    "RequestFile",
    "RequestReader",
    "write_request_file",
]


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request before it is laid out.

    Attributes:
        body: JSON.
        output_tokens: That are asked for; 0 where the answer may have any length.
        due_s: From the start of the run.
        think_s: Between the answer before it and this request, where it follows one.
        next: Index of the request that follows its answer; -1 for none.
        messages_at: Where the inside of the list of messages begins and ends in the body,
            where a conversation is carried on; `(0, 0)` otherwise.
        first: Whether it waits for no answer.
    """

    body: bytes
    output_tokens: int = 0
    due_s: float = 0.0
    think_s: float = 0.0
    next: int = -1
    messages_at: tuple[int, int] = (0, 0)
    first: bool = True


class RequestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything is in the shared file; arrays are packed as C has them.

    Attributes:
        begins: int64, one more than there are bodies: where each begins.
        due_s: double.
        output_tokens: int64.
        think_s: double.
        nexts: int64.
        message_begins: int64.
        message_ends: int64.
    """

    begins: bytes
    due_s: bytes
    output_tokens: bytes = b""
    think_s: bytes = b""
    nexts: bytes = b""
    message_begins: bytes = b""
    message_ends: bytes = b""


class RequestFile:
    """All bodies in an anonymous file, until it is closed.

    Attributes:
        fd: Of the file.
        columns: Where everything is in it.
        firsts: Indices of the requests that wait for no answer.
    """

    def __init__(self, fd: int, columns: RequestColumns, firsts: list[int]) -> None:
        self.fd = fd
        self.columns = columns
        self.firsts = firsts

    def close(self) -> None:
        """Let go of the file; processes that map it keep it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def write_request_file(request_file: Iterable[PreparedRequest]) -> RequestFile:
    """Write all bodies down; whatever cannot be made is raised, and nothing is left open."""
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
        for index, ask in enumerate(request_file):
            file.write(ask.body)
            begins.append(begins[-1] + len(ask.body))
            due_s.append(ask.due_s)
            output_tokens.append(ask.output_tokens)
            think_s.append(ask.think_s)
            nexts.append(ask.next)
            message_begins.append(ask.messages_at[0])
            message_ends.append(ask.messages_at[1])
            if ask.first:
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
    """The same, as a process reads it."""

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
        """The request's JSON."""
        return self._memory[self._begins[index] : self._begins[index + 1]]

    def next(self, index: int) -> int:
        """The request that follows its answer; -1 for none."""
        return self._nexts[index] if self._nexts else -1

    def output_tokens(self, index: int) -> int:
        """That were asked for; 0 where the answer may have any length."""
        return self._output_tokens[index] if self._output_tokens else 0

    def think_s(self, index: int) -> float:
        """Between the answer before it and this request."""
        return self._think_s[index] if self._think_s else 0.0

    def messages_at(self, index: int) -> tuple[int, int]:
        """Where the inside of the list of messages is in its body."""
        return self._message_begins[index], self._message_ends[index]
