"""Request: lengths, due time and shared content of one prompt."""

from __future__ import annotations

import msgspec

from servetune.errors import InputError

#: Known content: its id (0 or more), and how many of its tokens, from its first one on.
Piece = tuple[int, int]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a workload, before it has words.

    A prompt begins with `prefix`, pieces of content that other prompts may have too, and
    goes on with tokens of its own. Two prompts are equal as far as their pieces are:

    - a system prompt of 500 tokens: `((7, 500),)`
    - a second turn: first turn's pieces, its answer, what the user says now:
      `((7, 500), (21, 80), (22, 140), (23, 60))` where the first turn had `answer_id=22`
    - a trace with one hash per block of 512 tokens: `((46, 512), (47, 512), (98, 130))`

    Attributes:
        index: Position in the workload, from 0.
        due_s: Arrival time from the start of the run; in a closed loop the time from
            which it may leave, as soon as one of the users is free.
        input_tokens: Length of the prompt, prefix included.
        output_tokens: Tokens that the answer shall have.
        text: Text of the prompt where the workload has its own.
        prefix: Pieces that the prompt begins with; empty where it shares nothing.
        answer_id: Content id of the answer where a later prompt contains it.
        priority: Priority; smaller is served first by an engine that schedules by priority.
        session: Number of the conversation that it belongs to, where it belongs to one.
        turn: Position in that conversation, from 0.
        follows: Index of the request whose answer this one continues. It is due `think_s`
            after that answer ended, and `due_s` is only the earliest that this can be.
        think_s: Think time of the user of a conversation before this request.
    """

    index: int
    due_s: float
    input_tokens: int
    output_tokens: int
    text: str | None = None
    prefix: tuple[Piece, ...] = ()
    answer_id: int | None = None
    priority: int = 0
    session: int | None = None
    turn: int = 0
    follows: int | None = None
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.follows is not None and not 0 <= self.follows < self.index:
            raise InputError(
                f"request {self.index} follows request {self.follows}, which is not before it"
            )
        if self.prefix:
            for content_id, tokens in self.prefix:
                if content_id < 0 or tokens < 1:
                    raise InputError(
                        f"request {self.index} has a piece ({content_id}, {tokens}) in its prefix",
                        hint="a piece is a content id from 0 on and at least one token",
                    )
            if self.prefix_tokens > self.input_tokens:
                raise InputError(
                    f"request {self.index} has a prefix of {self.prefix_tokens} tokens "
                    f"in a prompt of {self.input_tokens}"
                )

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prompt that other prompts may have too."""
        return sum(tokens for _, tokens in self.prefix)
