"""Record of one request, on one monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Outcome = Literal[
    "ok",  # complete answer
    "refused",  # no connection
    "http_status",  # answered with an error status
    "timeout",  # not finished within the limit
    "disconnected",  # connection lost before or while answering
    "truncated",  # stream ended without its end marker
    "malformed",  # bytes that are not the protocol
    "empty",  # complete answer without a token
    "cancelled",  # the run was stopped
]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one request. All times are seconds since the run began.

    *Due* is the time at which the user would have sent the request: its arrival time, or, in a
    closed loop, the end of the user's last answer. *Sent* is the time at which its bytes left.
    Every latency counts from *due*, so that queueing inside the load generator is never
    hidden; the report states the same figures from *sent* as well.

    Attributes:
        chunk_times_s: Arrival time of each chunk of content, in order.
        chunk_tokens: Tokens of each chunk; empty means one token each.
        output_tokens: Completion tokens of the server's usage field; without it, the number of
            chunks.
        end_s: Time at which the answer was complete or the failure was noticed.
        detail: Description of a failure.
        connect_s: Connection time, TLS included, before or after the due time; `None` on a
            reused connection.
        counted_output_tokens: Answer length by the client's tokenizer; `None` if not counted.
        session: Index of its conversation; `None` for a single request.
        turn: Position in the conversation, from 0.
        target: Index of the server address.
        model: LoRA adapter of the request; empty for the target's own model.
        text_characters: Characters of text that arrived, reasoning and tool calls included; `None`
            where no text is sent, as in a simulation.
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
    text_characters: int | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from due; `None` without a token."""
        return self.chunk_times_s[0] - self.due_s if self.chunk_times_s else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency, from due."""
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; `None` for fewer than two, and for a broken answer
        of which one arrival is known.
        """
        if self.output_tokens < 2 or not len(self.chunk_times_s):
            return None
        if len(self.chunk_times_s) < 2 and self.outcome != "ok":
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.output_tokens - 1)
