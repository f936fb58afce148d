"""Keep-alive connection: a state machine whose current state is the method that handles events.

The kernel stamps arriving bytes where it can (Linux's SO_TIMESTAMPNS on TCP gives the time at which
the last of the bytes that were read arrived), so that neither a busy process nor one that sleeps
for a moment shifts a time. TLS hides the kernel's stamps; there the clock is read when the bytes
are.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from servetune.traffic.http import (
    LARGEST_HEAD_BYTES,
    Body,
    Chunked,
    Head,
    Malformed,
    Sized,
    body_of,
    read_head,
)
from servetune.traffic.sleep_planner import SleepPlanner

if TYPE_CHECKING:
    import ssl

    from servetune.traffic.answer import Answer
    from servetune.traffic.sagemaker_answer import SageMakerAnswer

RECEIVE_BYTES = 65_536
DIGEST_READS = 32
"""Reads kept before they are parsed: enough to make parsing cheap, and so few that the end of an
answer is known within a few hundredths of a millisecond.
"""

MOST_RECORDS = 256
"""Most TLS records that are read in a row, so that a fast server holds nobody up; a record has
16 KiB at most, so one read takes all of it.
"""

_SO_TIMESTAMPNS = 35
"""Option number in asm-generic/socket.h, SO_TIMESTAMPNS_OLD; Python has no name for it."""

_unpack_stamp = struct.Struct("qq").unpack
LONGEST_AGO_S = 60.0
"""Age above which a stamp is wrong, as is one from the future: the wall clock was set meanwhile."""
_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
_IN_OUT = _IN | _OUT
_END = b"\r\n\r\n"
"""End of a chunked body, an empty line; searched from the end, in a third of the time of `in`."""

monotonic = time.monotonic


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a server, and how its certificate is checked.

    Attributes:
        scheme: `http` or `https`.
        host: Host name or IP address.
        port: Port.
        cafile: Certificates to trust instead of the system's.
    """

    scheme: str
    host: str
    port: int
    cafile: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual_port = 443 if self.scheme == "https" else 80
        return f"{self.scheme}://{host}" + ("" if self.port == usual_port else f":{self.port}")


class Call:
    """Request in flight; the one mutable object that controller, reactor and connection share.

    Attributes:
        index: Index of the request in the run.
        due_s: Due time.
        output_tokens: Requested output tokens; 0 where the answer may have any length.
        limit_s: Time limit, from when the reactor gets it.
        sent_s: Time at which its first byte left; of the connection attempt if none did.
        end_s: Time at which the answer was complete, or the failure noticed.
        connect_s: Time spent connecting; `None` on a kept connection.
        left: Pieces of the body that the answer has not taken in yet, with their times.
        outcome: `ok` when a whole HTTP message came, with any status.
    """

    __slots__ = (
        "answer",
        "answer_began",
        "connect_s",
        "connection",
        "deadline_s",
        "detail",
        "done",
        "due_s",
        "end_s",
        "index",
        "left",
        "limit_s",
        "on_done",
        "outcome",
        "output_tokens",
        "payload",
        "retried",
        "reused",
        "sent_s",
        "status",
        "target",
    )

    def __init__(
        self,
        index: int,
        payload: bytes,
        answer: Answer | SageMakerAnswer,
        on_done: Callable[[Call], None],
        *,
        target: int = 0,
        due_s: float = 0.0,
        output_tokens: int = 0,
        limit_s: float = float("inf"),
    ) -> None:
        self.index = index
        self.payload = payload
        self.answer = answer
        self.on_done = on_done
        self.target = target
        self.due_s = due_s
        self.output_tokens = output_tokens
        self.limit_s = limit_s
        self.deadline_s = float("inf")
        self.connection: Connection | None = None
        self.sent_s: float | None = None
        self.end_s = 0.0
        self.connect_s: float | None = None
        self.outcome = "ok"
        self.detail = ""
        self.status: int | None = None
        self.left: tuple[list[bytes], list[float]] = ([], [])
        self.done = False
        self.answer_began = False
        self.reused = False
        self.retried = False

    def take_rest(self) -> None:
        """Have the answer take in the rest of the body."""
        pieces, came_s = self.left
        if pieces:
            self.left = ([], [])
            self.answer.take(pieces, came_s)


class ConnectionOwner(Protocol):
    """Interface of the loop that a connection belongs to.

    Attributes:
        offset_s: Monotonic clock less the wall clock.
        turn_s: Time at which the clock was last read.
        opened_count: Connections made.
        sleep_planner: Statistics of when answers end.
    """

    offset_s: float
    turn_s: float
    opened_count: int
    sleep_planner: SleepPlanner

    def register(self, connection: Connection, mask: int) -> None: ...
    def modify(self, connection: Connection, mask: int) -> None: ...
    def forget(self, connection: Connection) -> None: ...
    def idle(self, connection: Connection) -> None: ...
    def again(self, call: Call) -> None: ...
    def opened_ahead(self, connection: Connection | None) -> None: ...
    def ended(self, call: Call, outcome: str, at_s: float, detail: str = "") -> None: ...


class Connection:
    """Connection to one address: connecting, busy with one call, or idle."""

    __slots__ = (
        "_addresses",
        "_ahead",
        "_body",
        "_call",
        "_connecting_s",
        "_head",
        "_head_bytes",
        "_interim_bytes",
        "_keep_alive",
        "_mask",
        "_most_parts",
        "_on_body",
        "_out",
        "_owner",
        "_parts",
        "_pieces",
        "_receive",
        "_recvmsg",
        "_sock",
        "_times_s",
        "_tls",
        "address",
        "connect_s",
        "fd",
        "ready",
        "target",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        target: int,
        address: Address,
        resolved: list[tuple[int, tuple[object, ...]]],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._owner = owner
        self.target = target
        self.address = address
        self._addresses = list(resolved)
        self._tls = tls
        self._call: Call | None = None
        self._ahead = False
        self.connect_s: float | None = None  # of a connection that has carried no call yet
        self._sock: socket.socket | None = None
        self._connecting_s = 0.0
        self._out: memoryview | None = None
        self._head_bytes = b""
        self._interim_bytes = 0
        self._head: Head | None = None
        self._body: Body | None = None
        self._most_parts = 1
        self._mask = 0
        self._pieces = 0
        self._keep_alive = False
        self._parts: list[bytes] = []
        self._times_s: list[float] = []
        self.fd = -1
        self.ready: Callable[[int], None] = self._on_connected
        self._receive: Callable[[], bool] = (
            self._receive_plain if tls is None else self._receive_tls
        )
        self._on_body: Callable[[int], None] = (
            self._on_plain_body if tls is None else self._on_tls_body
        )

    # connecting

    def connect(self, call: Call) -> None:
        """Open the connection for a call."""
        self._call = call
        call.connection = self
        self._connecting_s = monotonic()
        self._connect_next("no address")

    def open_ahead(self) -> None:
        """Open the connection before there is a call for it."""
        self._ahead = True
        self._connecting_s = monotonic()
        self._connect_next("no address")

    def _connect_next(self, why: str) -> None:
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # no more files, or an address family that this machine lacks
                why = _words(error)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            code = sock.connect_ex(address)
            if code in {0, errno.EINPROGRESS}:
                self._sock, self.fd = sock, sock.fileno()
                self.ready = self._on_connected
                self._mask = _OUT
                self._owner.register(self, _OUT)
                return
            sock.close()
            why = os.strerror(code)
        self._refuse(why)

    def _refuse(self, why: str) -> None:
        call = self._call
        self._close()
        if self._ahead:
            self._ahead = False
            self._owner.opened_ahead(None)
        if call is None:
            return
        words = f"cannot connect to {self.address}: {why}"
        if call.sent_s is None:
            call.sent_s = self._connecting_s
        if call.retried:  # it had left once: the server died rather than refused it
            self._owner.ended(call, "disconnected", monotonic(), f"connection lost, then {words}")
        else:
            self._owner.ended(call, "refused", monotonic(), words)

    def _on_connected(self, mask: int) -> None:
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._owner.forget(self)
            self._sock.close()
            self._sock, self.fd = None, -1
            self._connect_next(os.strerror(code))
            return
        if self._tls is None:
            self._opened()
            return
        plain, self._sock = self._sock, None
        self._owner.forget(self)
        try:
            self._sock = self._tls.wrap_socket(
                plain, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        except OSError as error:  # connection lost before its first byte
            plain.close()
            self._refuse(_words(error))
            return
        self.ready = self._on_handshake
        self._mask = _OUT
        self._owner.register(self, _OUT)
        self._on_handshake(mask)

    def _on_handshake(self, mask: int) -> None:
        import ssl

        assert isinstance(self._sock, ssl.SSLSocket)
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch_for(_IN)
        except ssl.SSLWantWriteError:
            self._watch_for(_OUT)
        except OSError as error:
            self._refuse(_words(error))
        else:
            self._opened()

    def _opened(self) -> None:
        assert self._sock is not None
        self._addresses = []
        self._recvmsg = self._sock.recvmsg
        self._owner.opened_count += 1
        call = self._call
        connect_s = monotonic() - self._connecting_s
        if self._ahead:
            self._ahead = False
            self.connect_s = connect_s
            self.ready = self._on_idle
            self._watch_for(_IN)
            self._owner.opened_ahead(self)
            return
        if call is None:  # call ended while connecting
            self._close()
            return
        call.connect_s = connect_s
        self.start(call)

    def _watch_for(self, mask: int) -> None:
        if mask != self._mask:
            self._mask = mask
            self._owner.modify(self, mask)

    # sending

    def start(self, call: Call) -> None:
        """Send a call's request on the open connection."""
        self._call = call
        call.connection = self
        self._head = self._body = None
        self._head_bytes = b""
        self._interim_bytes = 0
        self._parts, self._times_s = [], []
        self._pieces = 0
        self._out = memoryview(call.payload)
        if call.sent_s is None:  # a retry keeps the first departure, so that its cost is not hidden
            call.sent_s = monotonic()
        self.ready = self._on_sending
        self._send()

    def _send(self) -> None:
        assert self._sock is not None
        assert self._out is not None
        try:
            sent = self._sock.send(self._out)
        except OSError as error:
            if not _would_block(error):  # the server's answer before it hung up can still be read
                self._only_receive()
                return
            sent = 0
        if sent == len(self._out):
            self._only_receive()
        else:
            self._out = self._out[sent:]
            self._watch_for(_IN_OUT)

    def _only_receive(self) -> None:
        self._out = None
        self.ready = self._on_head if self._head is None else self._on_body
        self._watch_for(_IN)

    def _on_sending(self, mask: int) -> None:
        if mask & _OUT:
            self._send()
        if self._out is not None and mask & ~_OUT:
            # Answer before all was sent, TLS's own messages, or the end: a server may
            # answer early and still read the rest.
            if self._head is None:
                self._on_head(mask)
            else:
                self._on_body(mask)

    # receiving

    def _receive_plain(self) -> bool:
        """Keep the bytes that arrived; whether there were any, and not the end of the
        connection.
        """
        try:
            data, notes, _, _ = self._recvmsg(RECEIVE_BYTES, 32)
        except OSError as error:
            if not _would_block(error):
                self._lost(error)
            return False
        if not data:
            self._lost(None)
            return False
        self._parts.append(data)
        self._times_s.append(self._came_s(notes))
        return True

    def _came_s(self, notes: list[tuple[int, int, bytes]]) -> float:
        """Arrival time by the kernel's stamp; the current time without one."""
        now_s = monotonic()
        if notes:
            seconds, nanoseconds = _unpack_stamp(notes[0][2])
            stamp_s: float = seconds + nanoseconds * 1e-9 + self._owner.offset_s
            if now_s - LONGEST_AGO_S < stamp_s < now_s:
                return stamp_s
        return now_s

    def _receive_tls(self) -> bool:
        assert self._sock is not None
        came = False
        while True:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except OSError as error:
                if not _would_block(error):
                    if came:
                        self._digest_if_begun()
                    self._lost(error)
                    return False
                return came
            if not data:
                if came:
                    self._digest_if_begun()
                self._lost(None)
                return False
            came = True
            self._parts.append(data)
            self._times_s.append(monotonic())
            if len(self._parts) >= MOST_RECORDS:  # whole ones: what is left, epoll tells
                return True

    def _digest_if_begun(self) -> None:
        if self._call is not None and self._head is None:
            self._read_head()
        elif self._call is not None and self._parts:
            self._digest()

    def _on_head(self, mask: int) -> None:
        if self._receive():
            self._read_head()

    def _read_head(self) -> None:
        call = self._call
        assert call is not None
        call.answer_began = True
        data = self._head_bytes + b"".join(self._parts)
        at_s = self._times_s[-1]
        self._parts, self._times_s = [], []
        try:
            head = read_head(data)
            while head is not None and head.interim:
                self._interim_bytes += head.body_at
                if self._interim_bytes > LARGEST_HEAD_BYTES:
                    raise Malformed("interim answers without end")
                data = data[head.body_at :]
                head = read_head(data) if data else None
        except Malformed as error:
            self._fail("malformed", at_s, f"not HTTP: {error}")
            return
        if head is None:
            self._head_bytes = data
            return
        call.status = head.status
        if head.error_name:
            call.answer.named(head.error_name)
        call.answer.head(head.status, head.content_type)
        self._head = head
        self._body = body_of(head)
        self._look_ahead()
        self._keep_alive = head.keep_alive
        if self._out is None:
            self.ready = self._on_body
        rest = data[head.body_at :]
        if rest or (isinstance(self._body, Sized) and not head.length):
            self._parts.append(rest)
            self._times_s.append(at_s)
            self._digest()

    def _on_tls_body(self, mask: int) -> None:
        if not self._receive_tls():
            return
        parts = self._parts
        if len(parts) >= self._most_parts or parts[-1].rfind(_END) >= 0 or len(parts[-1]) < 5:
            self._digest()

    def _on_plain_body(self, mask: int) -> None:
        """Handle an event of an answer's body, the code that runs for every token.

        It is `_receive_plain` and `_came_s` without the calls.
        """
        try:
            data, notes, _, _ = self._recvmsg(RECEIVE_BYTES, 32)
        except OSError as error:
            if not _would_block(error):
                self._lost(error)
            return
        if not data:
            self._lost(None)
            return
        owner = self._owner
        turn_s = owner.turn_s
        at_s = turn_s
        if notes:
            seconds, nanoseconds = _unpack_stamp(notes[0][2])
            at_s = seconds + nanoseconds * 1e-9 + owner.offset_s
        if not turn_s - LONGEST_AGO_S < at_s < turn_s:  # it arrived in this turn, or seems to have
            at_s = self._came_s(notes)
        parts = self._parts
        parts.append(data)
        self._times_s.append(at_s)
        if len(parts) >= self._most_parts or data.rfind(_END) >= 0 or len(data) < 5:
            self._digest()

    def digest_before(self, silent_since_s: float) -> None:
        """Parse bytes that arrived before a time: an error in them would otherwise never be
        seen.
        """
        if self._parts and self._body is not None and self._times_s[-1] < silent_since_s:
            self._digest()

    def _digest(self) -> None:
        call, body = self._call, self._body
        assert call is not None
        assert body is not None
        parts, times_s = self._parts, self._times_s
        self._parts, self._times_s = [], []
        try:
            pieces, came_s = body.feed(parts, times_s)
        except Malformed as error:
            call.answer.take(*error.before)
            self._fail("malformed", times_s[-1], f"not HTTP: {error}")
            return
        if (
            body.ended_s is not None
        ):  # the content can be parsed later, the end of the answer cannot wait
            call.left = (pieces, came_s)
            self._finish(body, times_s, len(pieces))
            return
        self._update_plan(times_s, len(pieces))
        if pieces and (reason := call.answer.take(pieces, came_s)):
            self._fail("malformed", times_s[-1], reason)

    def _update_plan(self, times_s: list[float], pieces: int) -> None:
        assert self._call is not None
        self._pieces += pieces
        sleep_planner = self._owner.sleep_planner
        sleep_planner.read(times_s, pieces)
        if self._look_ahead() == 1:
            sleep_planner.expect_end(self, times_s[-1])

    def _look_ahead(self) -> int:
        """Reads left until the end, if known; the last but one is parsed to check that it is."""
        assert self._call is not None
        left = self._owner.sleep_planner.reads_left(self._call.output_tokens, self._pieces)
        if isinstance(self._body, Chunked):
            self._most_parts = min(DIGEST_READS, left - 1) if left > 1 else DIGEST_READS
        else:
            self._most_parts = 1
        return left

    def _finish(self, body: Body, times_s: list[float], pieces: int) -> None:
        call = self._call
        assert call is not None
        assert body.ended_s is not None
        self._call = None
        call.connection = None
        sleep_planner = self._owner.sleep_planner
        sleep_planner.read(times_s, 0)
        sleep_planner.ended(self, call.output_tokens, self._pieces, (len(times_s), pieces))
        if self._keep_alive and not body.overrun and self._out is None:
            self.ready = self._on_idle
            self._owner.idle(self)
        else:
            self._close()
        self._owner.ended(call, "ok", body.ended_s)

    def _on_idle(self, mask: int) -> None:
        """Close an idle connection on which the server hung up or sent something."""
        if self._tls is None or not self._only_housekeeping():
            self._close()

    def _only_housekeeping(self) -> bool:
        """Whether there is nothing to read but TLS's own messages, such as session tickets."""
        assert self._sock is not None
        try:
            self._sock.recv(1)
        except OSError as error:
            return _would_block(error)
        return False

    # ending

    def _fail(self, outcome: str, at_s: float, detail: str) -> None:
        call = self._call
        self._close()
        if call is not None:
            self._owner.ended(call, outcome, at_s, detail)

    def _lost(self, error: OSError | None) -> None:
        call = self._call
        if call is not None and self._parts and self._body is not None:
            self._digest()
            call = self._call
        self._close()
        if call is None:
            return
        now_s = monotonic()
        if error is None and self._body is not None and self._body.close(now_s):
            self._owner.ended(call, "ok", now_s)  # HTTP/1.0: the close is the end of the body
            return
        if call.reused and not call.answer_began and not call.retried:
            # A server may close an idle connection just as the next request leaves on it,
            # which is no failure of either (RFC 9112, 9.3.1).
            call.retried = True
            call.reused = False
            self._owner.again(call)
            return
        where = "while answering" if call.answer_began else "before any answer"
        reason = f": {_words(error)}" if error is not None else ""
        self._owner.ended(call, "disconnected", now_s, f"connection lost {where}{reason}")

    def give_up(self) -> None:
        """Keep what has arrived for the call, and close the connection without ending the call."""
        call = self._call
        if call is not None and call.sent_s is None:
            call.sent_s = self._connecting_s
        if call is not None and self._parts and self._body is not None:
            self._digest()
        self._close()

    def _close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.connection = None
            self._owner.sleep_planner.forget(self)
        # Bound methods would keep a connection alive that nothing refers to any more, as this
        # process collects no garbage.
        self.ready, self._on_body, self._receive = _nothing, _nothing, _nothing_came
        if self._sock is not None:
            self._owner.forget(self)
            self._sock.close()
            self._sock = None
            self.fd = -1


def _nothing(mask: int) -> None:
    """Ignore an event of a closed connection."""


def _nothing_came() -> bool:
    return False


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    return type(error).__name__ in {"SSLWantReadError", "SSLWantWriteError"}


def _words(error: OSError) -> str:
    """Error text without its number."""
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    if type(error).__module__ != "ssl" and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
