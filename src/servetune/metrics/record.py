"""Record: what one request did, on one monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["Outcome", "Record"]

Outcome = Literal[
    "ok",  # answered whole
    "refused",  # no connection
    "http_status",  # answered with an error status
    "timeout",  # not finished within the limit
    "disconnected",  # connection lost before or while answering
    "truncated",  # stream ended without its end marker
    "malformed",  # what came is not the protocol
    "empty",  # finished with no token
    "cancelled",  # the run was stopped
]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one request did. All times are seconds since the run began.

    A request is *due* when its user would have sent it: at its arrival time, or, in a
    closed loop, when its user's last answer ended. It is *sent* when its bytes leave.
    Every latency counts from *due*, so that waiting inside the load generator is never
    hidden; the report gives the same figures from *sent* beside them.

    Attributes:
        chunk_times_s: When each piece of content arrived, in order.
        chunk_tokens: Tokens in each piece; empty means one each.
        output_tokens: As the server's usage says; the number of pieces where it is silent.
        end_s: When the answer was complete, or the failure was noticed.
        detail: For a failure, what was seen.
        connect_s: Time spent connecting, TLS included, whether before the request was due or
            after; `None` on a connection that had carried one before.
        counted_output_tokens: Our own tokenizer's count of the answer; `None` where it was
            not counted.
        session: Which conversation it belongs to; `None` for a request by itself.
        turn: Its place in the conversation, from 0.
        target: Which of several addresses was asked.
        model: The adapter that was asked, where it was not the target's own model.
    """

    index: int
    input_tokens: int
    output_tokens: int
    due_s: float
    sent_s: float
    end_s: float
    chunk_times_s: Sequence[float] = ()
    chunk_tokens: Sequence[int] = ()
    outcome: Outcome = "ok"
    status: int | None = None
    detail: str = ""
    connect_s: float | None = None
    counted_output_tokens: int | None = None
    session: int | None = None
    turn: int = 0
    target: int = 0
    model: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from due; `None` when none came."""
        return self.chunk_times_s[0] - self.due_s if self.chunk_times_s else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency, from due."""
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; `None` for fewer than two."""
        if self.output_tokens < 2 or not self.chunk_times_s:
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.output_tokens - 1)
