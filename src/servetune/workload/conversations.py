"""Dialogues from a data set's rows: who said what, and how long the answers were.

Rows are read in the forms that are about: ShareGPT's (`conversations` of `from` and `value`),
OpenAI's (`messages` of `role` and `content`), and plain columns for a prompt and its answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.outline import Item, Turn
from servetune.workload.rows import read_rows
from servetune.workload.traffic import DataSet, Part

__all__ = ["Dialogue", "Exchange", "counted_items", "dialogue_of", "dialogues_of"]

MESSAGE_COLUMNS = ("messages", "conversations", "conversation")
PROMPT_COLUMNS = ("prompt", "question", "instruction", "text", "query", "input")
OUTPUT_COLUMNS = ("output_tokens", "completion", "response", "output", "answer")
SYSTEM_COLUMNS = ("system", "system_prompt")

#: Whose words the names of published data sets mean; all others are a user's.
_ANSWERING = frozenset(("assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard"))


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What a user said, and what is known of the answer.

    Attributes:
        content: Words, or parts of a message as OpenAI's API takes them.
        answer: Its words, where there are any.
        output_tokens: Its length, where a row tells that instead.
    """

    content: str | list[Any]
    answer: str | None = None
    output_tokens: int | None = None

    @property
    def words(self) -> str:
        if isinstance(self.content, str):
            return self.content
        texts = (part.get("text") for part in self.content if isinstance(part, dict))
        return " ".join(text for text in texts if isinstance(text, str))


class Dialogue(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, or a single question.

    Attributes:
        where: Its place, for messages.
    """

    where: str
    turns: tuple[Exchange, ...]
    system: str | None = None

    def messages(self, turn: int = 0, *, with_system: bool = True) -> tuple[dict[str, Any], ...]:
        """What is new in a turn, as chat messages."""
        user: dict[str, Any] = {"role": "user", "content": self.turns[turn].content}
        if turn or not self.system:
            return (user,)
        if with_system:
            return {"role": "system", "content": self.system}, user
        return ({"role": "user", "content": f"{self.system}\n\n{self.turns[0].words}"},)

    def as_text(self) -> str:
        """Its first question for a route without messages."""
        words = self.turns[0].words
        return f"{self.system}\n\n{words}" if self.system else words


def dialogues_of(dataset: DataSet, count: int, seed: int) -> tuple[Dialogue, ...]:
    """Up to `count` dialogues of a data set, in random order.

    Rows in which nobody asks anything are left out.

    Raises:
        InputError: A row cannot be read, with its place; or there is none.
    """
    rows = [dialogue_of(row, where, dataset) for where, row in read_rows(dataset)]
    usable = [each for each in rows if each is not None]
    if not usable:
        raise InputError(
            f"{dataset.path} has no row that asks something",
            hint="a row needs a prompt or a conversation; name the column that has it",
        )
    random.Random(seed).shuffle(usable)  # noqa: S311 - an order, not a secret
    return tuple(usable[:count])


def dialogue_of(row: Mapping[str, Any], where: str, dataset: DataSet) -> Dialogue | None:
    """What one row says; `None` where nobody asks anything in it.

    Raises:
        InputError: A named column is missing, or a value is of the wrong kind.
    """
    messages = _column(row, dataset.messages_column, MESSAGE_COLUMNS, where)
    if messages is not None and dataset.prompt_column is None:
        return _from_messages(messages, where)
    prompt = _column(row, dataset.prompt_column, PROMPT_COLUMNS, where)
    if prompt is None:
        raise InputError(
            f"{where} has no column that is a prompt, it has {', '.join(row)[:200] or 'none'}",
            hint="name the column, or call it prompt",
        )
    if isinstance(prompt, list):
        return _from_messages(prompt, where)
    if not isinstance(prompt, str):
        raise InputError(f"{where}: the prompt is no text but {type(prompt).__name__}")
    if not prompt.strip():
        return None
    answer, output_tokens = _answer(
        _column(row, dataset.output_column, OUTPUT_COLUMNS, where), where
    )
    system = _column(row, dataset.system_column, SYSTEM_COLUMNS, where)
    return Dialogue(
        where=where,
        turns=(Exchange(content=prompt, answer=answer, output_tokens=output_tokens),),
        system=str(system) if system else None,
    )


def counted_items(
    dialogues: Sequence[Dialogue],
    part: Part,
    counts: Callable[[Sequence[str]], list[int]],
    first_counts: Callable[[Sequence[Dialogue]], list[int]],
    seed: int,
) -> list[Item]:
    """The tokens of each dialogue, for `outline`.

    Args:
        dialogues: Rows of the part's data set.
        part: Whose `output_tokens`, where it has them, replace the answers' lengths.
        counts: Of many texts, the tokens that their words have.
        first_counts: Of the first question of each dialogue, its system message included.
        seed: Of the law of answers.

    Raises:
        InputError: An answer's length is known from nowhere.
    """
    assert part.dataset is not None
    whole = part.dataset.conversations
    kept = [_answered(each, part, whole) for each in dialogues]
    later = [turn.words for turns in kept for turn in turns[1:]]
    answers = [turn.answer or "" for turns in kept for turn in turns]
    later_tokens, answer_tokens = iter(counts(later)), iter(counts(answers))
    law = None
    if part.output_tokens is not None:
        drawn = part.output_tokens.draw(len(answers), np.random.default_rng((seed, 12)))
        law = iter(drawn.tolist())
    items = []
    for turns, first in zip(kept, first_counts(dialogues), strict=True):
        made = []
        for number, turn in enumerate(turns):
            counted = next(answer_tokens)
            output = next(law) if law else turn.output_tokens or counted
            made.append(
                Turn(
                    input_tokens=next(later_tokens) if number else first,
                    output_tokens=max(1, output),
                )
            )
        items.append(Item(turns=tuple(made)))
    return items


def _answered(dialogue: Dialogue, part: Part, whole: bool) -> tuple[Exchange, ...]:
    """The turns that can be asked: all that have an answer or a law of answers."""
    turns = dialogue.turns if whole else dialogue.turns[:1]
    if part.output_tokens is not None:
        return turns
    known = [turn.answer is not None or turn.output_tokens is not None for turn in turns]
    if not known[0]:
        raise InputError(
            f"{dialogue.where} has no answer, so its length is not known",
            hint="give output_tokens for the part, or name the column of the answers",
        )
    return turns[: known.index(False)] if False in known else turns


def _from_messages(messages: Any, where: str) -> Dialogue | None:
    if not isinstance(messages, list):
        raise InputError(f"{where}: a conversation is a list, not {type(messages).__name__}")
    system: list[str] = []
    turns: list[Exchange] = []
    for number, message in enumerate(messages, start=1):
        role, content = _said(message, f"{where}, message {number}")
        if role in ("system", "developer") and not turns:
            system.append(_words(content))
        elif role in _ANSWERING:
            if turns and turns[-1].answer is None:
                turns[-1] = msgspec.structs.replace(turns[-1], answer=_words(content))
        else:
            turns.append(Exchange(content=content))
    asked = tuple(turn for turn in turns if turn.words.strip())
    if not asked:
        return None
    return Dialogue(where=where, turns=asked, system="\n".join(system) or None)


def _said(message: Any, where: str) -> tuple[str, str | list[Any]]:
    if not isinstance(message, Mapping):
        raise InputError(f"{where} is not an object")
    role = message.get("role", message.get("from", "user"))
    content = message.get("content", message.get("value"))
    if content is None and message.get("tool_calls"):
        content = msgspec.json.encode(message["tool_calls"]).decode()
    if not isinstance(content, str | list) or not isinstance(role, str):
        raise InputError(
            f"{where} has no text", hint="it is {role, content}, or ShareGPT's {from, value}"
        )
    return role.lower(), content


def _words(content: str | list[Any]) -> str:
    return Exchange(content=content).words


def _answer(written: Any, where: str) -> tuple[str | None, int | None]:
    """An answer's words, or a number of tokens: CSV writes both as text."""
    if written is None or written == "":
        return None, None
    if isinstance(written, str) and not written.strip().isdigit():
        return written, None
    try:
        tokens = int(written)
    except (TypeError, ValueError):
        tokens = 0
    if isinstance(written, bool) or tokens < 1:
        raise InputError(
            f"{where}: '{written}' is neither an answer nor a number of tokens from 1 on"
        )
    return None, tokens


def _column(row: Mapping[str, Any], named: str | None, usual: Sequence[str], where: str) -> Any:
    """A column by the name that was given, which must be there, or by a usual one."""
    if named is not None:
        if named not in row:
            raise InputError(
                f"{where} has no column {named}", hint=f"it has {', '.join(row)[:200] or 'none'}"
            )
        return row[named]
    return next((row[name] for name in usual if row.get(name) is not None), None)
