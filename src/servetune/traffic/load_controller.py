"""LoadController: departure of requests in closed loops, open loops and conversations.

In a closed loop there are users, each with one request at a time; a request is due when its user's
last answer ended. In an open loop each request is due at its time, whatever the server does; where
a limit delays it, the wait is part of every latency. The next turn of a conversation is due when
its user's think time after the answer before is over.
"""

from __future__ import annotations

import os
import select
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from servetune.traffic.answer import ANSWERS, MOST_TIMES_REQUESTED, USUAL_TOKENS
from servetune.traffic.connection import Call, monotonic
from servetune.traffic.messages import Heartbeat, RequestTrace, Setup, traceparent
from servetune.traffic.reactor import Reactor
from servetune.traffic.request_file import RequestReader
from servetune.traffic.sagemaker_answer import SageMakerAnswer
from servetune.traffic.sigv4 import Credentials, Signer

_INDEX = struct.Struct("<I")
_STARVED_S = 0.0005
"""Time after which an empty queue is read again, while its end has not come."""

AWAKE_S = 0.0003
"""Time before the start at which the process is awake, as waking up takes part of it."""

SENT_A_TURN = 32
"""Requests that leave in one turn of the loop; what arrived is read in between."""

OK = 200

MOST_LAGS = 32
"""Most turns of the loop that one heartbeat reports."""

Clock = Callable[[], float]


def _sample(lags_s: list[float]) -> array[float]:
    """Longest turn and an even choice of the others: hours of all of them would fill memory."""
    if len(lags_s) <= MOST_LAGS:
        return array("d", lags_s)
    step = -(-len(lags_s) // MOST_LAGS)
    return array("d", [max(lags_s), *lags_s[::step]])


class _Message(msgspec.Struct):
    role: str
    content: str


class LoadController:
    """Controller of one process's requests.

    Attributes:
        finished: Whether nothing is left to do.
    """

    def __init__(
        self, setup: Setup, reactor: Reactor, request_file: RequestReader, send: Callable[[], None]
    ) -> None:
        """Wait for the start.

        Args:
            setup: Configuration of this process.
            reactor: The process's only event loop.
            request_file: Reader of every request's body.
            send: Sends a heartbeat at once.
        """
        self._setup = setup
        self._send_heartbeat = send
        self._reactor = reactor
        self._requests = request_file
        self._answer = ANSWERS[setup.api]
        self._signers: list[Signer] = []
        if setup.credentials is not None:
            self._signers = [Signer(signing, setup.credentials) for signing in setup.signing]
        self._start_s = 0.0
        self._started = False
        self._users = setup.users
        # Open loop: requests that may still leave.
        self._free = 1 << 62 if setup.users is None else setup.users
        self._active_users = 0
        self._users_to_release = 0
        self._queue_ended = False
        self._queue = select.poll()
        self._queue.register(setup.queue_fd, select.POLLIN)
        self._pulled: tuple[float, int] | None = (
            None  # open loop: the next to leave, with its due time
        )
        self._waiting: deque[tuple[float, int]] = deque()
        self._thinking_count = 0
        self._stopping = False
        self._next_target = 0
        self._histories: dict[int, bytes] = {}  # by index of the request that continues them
        self._held_until_s = 0.0
        self._begun_count = 0
        self._open_count = 0  # begun and not yet ended
        self._starved = False
        self._skipped: list[int] = []
        self._traces: list[RequestTrace] = []
        self._lateness_s = array("d")
        self._released_s: list[float] = []
        self._prepared: deque[Call] = deque()  # of the first users
        self._lost = False
        self._failures_in_a_row = 0
        self._paused = False
        self._held_count = 0
        self.finished = False

    # commands

    def prepare(self) -> None:
        """Take the first users' requests before the clock starts, so that they only have to
        leave.
        """
        if self._setup.closed and self._users is not None:
            while len(self._prepared) < self._users and (index := self._take()) is not None:
                self._prepared.append(self._call(index, 0.0))

    def start(self, start_s: float) -> None:
        """Start the run; the first users are due at the start."""
        self._start_s = self._held_until_s = start_s
        self._started = True
        if self._setup.closed:
            if self._users is None:
                self._reactor.at(start_s, self._all_at_once)
            else:
                self.prepare()
                self._active_users += len(self._prepared)
                self._reactor.at(start_s - AWAKE_S, self._first_users)
                self.take_users([start_s] * (self._users - len(self._prepared)))
        else:
            self._reactor.at(start_s, self._pull)

    def take_users(self, dues_s: list[float]) -> None:
        """Add users, each due when its last answer ended."""
        if not self._setup.closed:
            for _ in dues_s:
                self._slot_free()
            return
        self._active_users += len(dues_s)
        for due_s in dues_s:
            self._reactor.at(due_s, self._user_free, due_s)

    def release_users(self, count: int) -> None:
        """Remove users when their answers have ended."""
        self._users_to_release += count
        while not self._setup.closed and self._users_to_release and self._free > 0:
            self._free -= 1
            self._users_to_release -= 1
            self._released_s.append(monotonic())

    def resume(self) -> None:
        """Send again after failures in a row."""
        self._paused = False

    def stop(self, outcome: str, detail: str, grace_s: float) -> None:
        """Send nothing more, and end what is in flight after `grace_s`."""
        self._stopping = True
        self._waiting.clear()
        self._pulled = None
        if self._setup.closed:
            self._active_users -= self._thinking_count
        self._thinking_count = 0
        if grace_s > 0:
            self._reactor.at(monotonic() + grace_s, self._reactor.abandon, outcome, detail)
        else:
            self._reactor.abandon(outcome, detail)
        self._check_finished()

    def sign_with(self, credentials: Credentials) -> None:
        """Sign further requests with refreshed credentials."""
        for signer in self._signers:
            signer.use(credentials)

    def heartbeat(self, cpu_s: float) -> Heartbeat:
        """Heartbeat: everything that happened since the last one."""
        self._look_for_end()
        reactor = self._reactor
        heartbeat = Heartbeat(
            traces=self._traces,
            begun_count=self._begun_count,
            in_flight_count=reactor.in_flight_count,
            skipped=self._skipped,
            idle=self._is_idle(),
            lost=self._lost,
            held_count=self._held_count,
            cpu_s=cpu_s,
            at_s=monotonic(),
            lateness_s=self._lateness_s.tobytes(),
            lags_s=_sample(reactor.lags_s).tobytes(),
            released_s=self._released_s,
            paused=self._paused,
        )
        self._traces, self._skipped, self._released_s, self._lost = [], [], [], False
        self._lateness_s = array("d")
        reactor.lags_s.clear()
        return heartbeat

    # closed loop

    def _first_users(self) -> None:
        """Send all first users' requests at the start, one right after the other."""
        while monotonic() < self._start_s:
            continue  # a sleep until then would end late
        while self._prepared and not self._stopping:
            self._leave(self._prepared.popleft(), self._start_s, self._start_s)

    def _all_at_once(self) -> None:
        """Send everything that there is at once, each request for a user of its own: no limit is
        set.
        """
        for _ in range(SENT_A_TURN):
            index = None if self._stopping else self._take()
            if index is None:
                break
            self._active_users += 1
            self._send(index, self._start_s)
        else:
            self._reactor.at(monotonic(), self._all_at_once)
            return
        if not self._queue_ended and not self._stopping:
            self._reactor.at(monotonic() + _STARVED_S, self._all_at_once)
        self._check_finished()

    def _user_free(self, since_s: float) -> None:
        """Send the next request of a user whose answer's last byte came at `since_s`.

        The time in between is this process's lateness, and reported as such; it is no part of the
        latency of the next request.
        """
        if self._users_to_release and not self._stopping:
            self._users_to_release -= 1
            self._active_users -= 1
            self._released_s.append(since_s)
            self._check_finished()
            return
        index = None if self._stopping else self._take()
        if index is not None:
            first = since_s <= self._start_s
            think_s = 0.0 if first else self._requests.think_s(index)
            if think_s > 0:
                self._think(index, since_s + think_s)
            else:
                self._send(index, since_s if first else monotonic(), since_s=since_s)
        elif self._queue_ended or self._stopping:
            self._active_users -= 1
            self._check_finished()
        else:
            self._reactor.at(monotonic() + _STARVED_S, self._user_free, since_s)

    # open loop

    def _pull(self) -> None:
        """Take the next request, and wait until it is due.

        While no request may leave none is taken, as another process may be free to send it.
        """
        for _ in range(SENT_A_TURN):
            if self._stopping or self._pulled is not None or self._waiting or self._free <= 0:
                break
            index = self._take()
            if index is None:
                if not self._queue_ended and not self._starved:
                    self._starved = True
                    self._reactor.at(monotonic() + _STARVED_S, self._pull_again)
                break
            due_s = self._start_s + self._requests.due_s[index]
            if due_s > monotonic():
                self._pulled = (due_s, index)
                self._reactor.at(due_s, self._pulled_due)
                return
            self._arrive(due_s, index)
        else:
            self._reactor.at(monotonic(), self._pull)
        self._check_finished()

    def _pull_again(self) -> None:
        self._starved = False
        self._pull()

    def _pulled_due(self) -> None:
        if self._pulled is not None and not self._stopping:
            due_s, index = self._pulled
            self._pulled = None
            self._arrive(due_s, index)
        self._pull()

    def _arrive(self, due_s: float, index: int) -> None:
        if self._free > 0:
            self._free -= 1
            self._send(index, due_s)
        else:
            self._waiting.append((due_s, index))

    def _slot_free(self) -> None:
        if self._users_to_release:
            self._users_to_release -= 1
            self._released_s.append(monotonic())
            self._check_finished()
            return
        if self._free == 0:
            self._held_until_s = monotonic()
        self._free += 1
        if self._waiting and not self._stopping:
            due_s, index = self._waiting.popleft()
            self._free -= 1
            self._send(index, due_s)
        self._pull()

    # conversations

    def _think(self, index: int, due_s: float) -> None:
        self._thinking_count += 1
        self._reactor.at(due_s, self._finish_thinking, index, due_s)

    def _finish_thinking(self, index: int, due_s: float) -> None:
        if self._stopping:
            return
        self._thinking_count -= 1
        if self._setup.closed:
            self._send(index, due_s)
        else:
            self._arrive(due_s, index)

    def _carry_on(self, call: Call, following: int, before: bytes) -> None:
        """Put the conversation so far before the next request's new messages."""
        begin, end = self._requests.messages_at(call.index)
        messages = self._requests.body(call.index)[begin:end]
        answer = msgspec.json.encode(_Message("assistant", "".join(call.answer.texts)))
        self._histories[following] = b",".join(part for part in (before, messages, answer) if part)

    # sending

    def _take(self) -> int | None:
        """Next index of the queue that all processes share; `None` if there is none now, or if
        paused.
        """
        if self._queue_ended or self._paused:
            return None
        try:
            packed = os.read(self._setup.queue_fd, 4)
        except BlockingIOError:
            return None
        if not packed:
            self._queue_ended = True
            return None
        return int(_INDEX.unpack(packed)[0])

    def _send(self, index: int, due_s: float, *, since_s: float | None = None) -> None:
        could_leave_s = max(due_s, self._held_until_s) if since_s is None else since_s
        self._leave(self._call(index, due_s), due_s, could_leave_s)

    def _call(self, index: int, due_s: float) -> Call:
        setup = self._setup
        target = self._choose()
        following = self._requests.next(index)
        inner = self._answer(
            streamed=setup.streamed, keep_text=following >= 0 or index < setup.keep_text_below
        )
        requested = self._requests.output_tokens(index)
        if requested:
            inner.most_tokens = max(USUAL_TOKENS, MOST_TIMES_REQUESTED * requested)
        answer = SageMakerAnswer(inner) if setup.sagemaker else inner
        return Call(
            index,
            self._payload(index, target),
            answer,
            self._done,
            target=target,
            due_s=due_s,
            output_tokens=requested,
            limit_s=setup.timeout_s,
        )

    def _leave(self, call: Call, due_s: float, could_leave_s: float) -> None:
        call.due_s = due_s
        self._held_count += self._held_until_s > due_s
        self._lateness_s.append(max(0.0, monotonic() - could_leave_s))
        self._begun_count += 1
        self._open_count += 1
        self._reactor.exchange(call)

    def _choose(self) -> int:
        count = len(self._setup.addresses)
        if count == 1:
            return 0
        first = self._next_target
        self._next_target = (first + 1) % count
        if self._setup.routing == "round_robin":
            return first
        order = [(first + i) % count for i in range(count)]
        return min(order, key=self._reactor.in_flight_to)

    def _payload(self, index: int, target: int) -> bytes:
        body = self._requests.body(index)
        history = self._histories.get(index)
        if history is not None:
            begin, _ = self._requests.messages_at(index)
            body = body[:begin] + history + b"," + body[begin:]
        run_id, header = self._setup.run_id, b""
        if run_id:
            trace = traceparent(run_id, index, self._setup.trace_id)
            header = f"traceparent: {trace}\r\n".encode()
        if self._signers:
            header += self._signers[target].headers(body, time.time())
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (
            self._setup.heads[target],
            header,
            len(body),
            body,
        )

    # answers

    def _done(self, call: Call) -> None:
        """Handle a request that ended: its user's next request goes first, its trace is made later.

        After a failure the trace is made first, as the next request may be one too many.
        """
        following = self._requests.next(call.index)
        end_s = call.answer.end_s(call.outcome, call.end_s)
        self._open_count -= 1
        history = self._histories.pop(call.index, b"")
        doubtful = self._failures_in_a_row or call.outcome != "ok" or call.status != OK
        if following < 0 and not doubtful:
            self._reactor.later(self._account_later, call)
            self._go_on(end_s)
            return
        outcome = self._account(call)
        if following < 0:
            self._go_on(end_s)
        elif outcome != "ok":
            self._skip(following)
            self._go_on(end_s)
        elif not self._stopping:
            self._carry_on(call, following, history)
            # First, as the run is over once nobody thinks and nothing is left to be pulled.
            self._think(following, end_s + self._requests.think_s(following))
            if not self._setup.closed:
                self._slot_free()
        else:
            self._go_on(end_s)

    def _go_on(self, end_s: float) -> None:
        """Free the place of a request that ended."""
        if not self._setup.closed:
            self._slot_free()
        elif self._users is None:
            self._active_users -= 1
            self._check_finished()
        else:
            self._user_free(end_s)

    def _account_later(self, call: Call) -> None:
        self._account(call)

    def _account(self, call: Call) -> str:
        """Add the trace of a request to the next heartbeat; its outcome."""
        answer = call.answer
        call.take_rest()
        outcome, status, detail = answer.settle(call.outcome, call.status, call.detail, call.end_s)
        times_s, counts, output_tokens = answer.packed()
        kept = call.index < self._setup.keep_text_below
        assert call.sent_s is not None
        self._traces.append(
            RequestTrace(
                call.index,
                call.due_s,
                call.sent_s,
                answer.end_s(call.outcome, call.end_s),
                times_s,
                counts,
                answer.prompt_tokens,
                output_tokens,
                outcome,
                status,
                detail,
                call.connect_s,
                call.target,
                answer.characters,
                "".join(answer.texts) if kept else None,
            )
        )
        if outcome in {"refused", "disconnected"}:
            self._lost = True
        self._count_failure(failed=outcome != "ok")
        return outcome

    def _count_failure(self, *, failed: bool) -> None:
        """Pause after failures in a row.

        A server that fails at once would otherwise get hundreds of further requests before the
        process that runs the load has heard of it.
        """
        limit = self._setup.failures_limit
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        if limit is not None and self._failures_in_a_row >= limit and not self._stopping:
            self._failures_in_a_row = 0
            self._paused = True
            self._send_heartbeat()

    def _skip(self, following: int) -> None:
        """Skip the further turns of a conversation that broke off; they will never be due."""
        while following >= 0:
            self._skipped.append(following)
            following = self._requests.next(following)

    def _is_idle(self) -> bool:
        if self._open_count or self._thinking_count:
            return False
        if self._setup.closed:
            return self._active_users <= 0
        return self._pulled is None and not self._waiting

    def _look_for_end(self) -> None:
        """Look for the queue's end, which a process without users does not read."""
        if self._queue_ended or not self._started or not self._is_idle():
            return
        ready = self._queue.poll(0)
        if ready and ready[0][1] & select.POLLHUP and not ready[0][1] & select.POLLIN:
            self._queue_ended = True
            self._check_finished()

    def _check_finished(self) -> None:
        if (self._queue_ended or self._stopping) and self._is_idle():
            self.finished = True
            self._reactor.stop()
