"""Request: one thing asked of a server."""

from __future__ import annotations

import msgspec

__all__ = ["Request"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a workload, before it has words.

    Attributes:
        index: Position in the workload, from 0.
        due_s: Arrival time from the start of the run; in a closed loop the time from
            which it may leave, as soon as one of the users is free.
        input_tokens: Length of the prompt.
        output_tokens: Tokens that the answer shall have.
        text: The words of the prompt where the workload has its own.
    """

    index: int
    due_s: float
    input_tokens: int
    output_tokens: int
    text: str | None = None
