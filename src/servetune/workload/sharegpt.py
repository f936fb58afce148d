"""Conversations from a file in ShareGPT's form: real words with real lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from servetune.errors import InputError
from servetune.workload.lengths import Observed
from servetune.workload.prompts import Prompt, Tokenizer

__all__ = ["CHARACTERS_PER_TOKEN", "Conversation", "load_sharegpt", "observed", "sample"]

CHARACTERS_PER_TOKEN = 4.0
"""Of English text under common vocabularies; used where there is no tokenizer."""

MIN_TOKENS = 2
"""Shorter questions or answers are left out, as SGLang's and llm-optimizer's clients do."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The first two turns of a conversation: a question, and how long its answer was.

    Attributes:
        exact: Whether the lengths were counted by a tokenizer or estimated.
    """

    question: str
    input_tokens: int
    output_tokens: int
    exact: bool

    @property
    def prompt(self) -> Prompt:
        return Prompt(text=self.question, token_count=self.input_tokens, exact=self.exact)


class _Turn(msgspec.Struct):
    value: str


class _Entry(msgspec.Struct):
    conversations: list[_Turn] | None = None
    conversation: list[_Turn] | None = None  # the spelling of some derived files

    @property
    def turns(self) -> list[_Turn]:
        return self.conversations or self.conversation or []


def load_sharegpt(
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    max_total_tokens: int | None = None,
) -> tuple[Conversation, ...]:
    """Every usable conversation of the file, in its order.

    As in the clients that this replaces, the first turn is the question and the second the
    answer, whoever they are said to be from; conversations of one turn are left out, and so
    are those whose question or answer has less than two tokens.

    Args:
        path: A JSON list of `{"conversations": [{"from": ..., "value": ...}, ...]}`.
        tokenizer: The model's; without one four characters are taken for a token.
        max_total_tokens: Longer pairs of question and answer are left out.

    Raises:
        InputError: With the line, or the place in the structure, that cannot be read.
    """
    count = _counter(tokenizer)
    found = []
    for entry in _entries(Path(path)):
        if len(entry.turns) < 2:
            continue
        question, answer = entry.turns[0].value, entry.turns[1].value
        input_tokens, output_tokens = count(question), count(answer)
        if min(input_tokens, output_tokens) < MIN_TOKENS:
            continue
        if max_total_tokens is not None and input_tokens + output_tokens > max_total_tokens:
            continue
        found.append(
            Conversation(
                question=question,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                exact=tokenizer is not None,
            )
        )
    if not found:
        raise InputError(
            f"{path} holds no conversation with a question and an answer",
            hint="each entry needs a list `conversations` with two turns or more",
        )
    return tuple(found)


def sample(
    conversations: Sequence[Conversation], count: int, seed: int
) -> tuple[Conversation, ...]:
    """`count` of them in random order; all again in a new order when there are too few."""
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    chosen: list[Conversation] = []
    while len(chosen) < count:
        chosen += rng.sample(conversations, min(len(conversations), count - len(chosen)))
    return tuple(chosen)


def observed(conversations: Sequence[Conversation], name: str = "sharegpt") -> Observed:
    """Their lengths as a law, in the same order: request i asks conversation i."""
    return Observed(
        name=name, pairs=tuple((one.input_tokens, one.output_tokens) for one in conversations)
    )


def _counter(tokenizer: Tokenizer | None) -> Callable[[str], int]:
    if tokenizer is None:
        return lambda text: round(len(text) / CHARACTERS_PER_TOKEN)
    return lambda text: len(tokenizer.encode(text).ids)


def _entries(path: Path) -> list[_Entry]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the data set {path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=list[_Entry])
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path} is not in ShareGPT's form: {error}",
            hint='it is a list of {"conversations": [{"from": "human", "value": "..."}]}',
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not JSON, line {_line(content, error)}: {error}") from error


def _line(content: bytes, error: Exception) -> int:
    """Line of the byte that the parser names; the last line for a file that breaks off."""
    _, _, tail = str(error).rpartition("(byte ")
    digits = tail.rstrip(")")
    end = int(digits) if digits.isdigit() else len(content)
    return content[:end].count(b"\n") + 1
