"""Dialogues from a data set's rows: messages, and lengths of the answers.

Rows are read in the common forms: ShareGPT's (`conversations` of `from` and `value`),
OpenAI's (`messages` of `role` and `content`), and plain columns for a prompt and its answer.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject, JsonValue
from servetune.workload.parts import DataSet, Part
from servetune.workload.rows import file_stamp, read_rows

MESSAGE_COLUMNS = ("messages", "conversations", "conversation")
PROMPT_COLUMNS = ("prompt", "question", "instruction", "text", "query", "input")
OUTPUT_COLUMNS = ("output_tokens", "completion", "response", "output", "answer")
SYSTEM_COLUMNS = ("system", "system_prompt")

#: Roles of the answering side in published data sets; all others are a user's.
_ANSWERING = frozenset(("assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard"))


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """User's message, and what is known of its answer.

    Attributes:
        content: Words, or parts of a message as OpenAI's API takes them.
        answer: Words of the answer, where the row has them.
        output_tokens: Length of the answer in tokens, where the row has that instead.
    """

    content: str | list[object]
    answer: str | None = None
    output_tokens: int | None = None

    @property
    def words(self) -> str:
        if isinstance(self.content, str):
            return self.content
        texts = (part.get("text") for part in self.content if isinstance(part, dict))
        return " ".join(text for text in texts if isinstance(text, str))


class Dialogue(msgspec.Struct, frozen=True, kw_only=True):
    """Conversation, or a single question.

    Attributes:
        where: Place in the data set, for messages.
        turns: User's messages in order.
        system: System message, where there is one.
    """

    where: str
    turns: tuple[Exchange, ...]
    system: str | None = None

    def messages(self, turn: int = 0, *, with_system: bool = True) -> tuple[JsonObject, ...]:
        """Messages that are new in a turn."""
        user: JsonObject = {"role": "user", "content": self.turns[turn].content}
        if turn or not self.system:
            return (user,)
        if with_system:
            return {"role": "system", "content": self.system}, user
        return ({"role": "user", "content": f"{self.system}\n\n{self.turns[0].words}"},)

    def as_text(self) -> str:
        """First question as text, for a route without messages."""
        words = self.turns[0].words
        return f"{self.system}\n\n{words}" if self.system else words


def shuffled_dialogues(dataset: DataSet, seed: int) -> tuple[Dialogue, ...]:
    """Dialogues of a data set in random order; rows in which nobody asks anything are left out.

    Raises:
        InputError: A row cannot be read, with its place; or there is none.
    """
    usable = list(_dialogues(dataset, file_stamp(dataset.path)))
    random.Random(seed).shuffle(usable)  # noqa: S311 - an order, not a secret
    return tuple(usable)


@functools.lru_cache(maxsize=2)
def _dialogues(dataset: DataSet, _stamp: tuple[int, int]) -> tuple[Dialogue, ...]:
    rows = [dialogue_of(row, where, dataset) for where, row in read_rows(dataset)]
    usable = tuple(each for each in rows if each is not None)
    if not usable:
        raise InputError(
            f"{dataset.path} has no usable row",
            hint="a row needs a prompt or a conversation; name the column that has it",
        )
    return usable


def dialogue_of(row: JsonMembers, where: str, dataset: DataSet) -> Dialogue | None:
    """Dialogue in a row; `None` where nobody asks anything in it.

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
    written = _column(row, dataset.output_column, OUTPUT_COLUMNS, where)
    answer, output_tokens = _answer(written, where)
    system = _column(row, dataset.system_column, SYSTEM_COLUMNS, where)
    return Dialogue(
        where=where,
        turns=(Exchange(content=prompt, answer=answer, output_tokens=output_tokens),),
        system=str(system) if system else None,
    )


def answered(dialogue: Dialogue, part: Part) -> tuple[Exchange, ...]:
    """Turns that can be asked: those with an answer, or all where the part has a law of answers.

    Raises:
        InputError: The length of the first answer is not known.
    """
    assert part.dataset is not None
    turns = dialogue.turns if part.dataset.conversations else dialogue.turns[:1]
    if part.output_tokens is not None:
        return turns
    known = [turn.answer is not None or turn.output_tokens is not None for turn in turns]
    if not known[0] and part.dataset.min_tokens > 1:
        return (msgspec.structs.replace(turns[0], answer=""),)  # too short, so it is left out
    if not known[0]:
        raise InputError(
            f"{dialogue.where} has no answer, so its length is not known",
            hint="give output_tokens for the part, or name the column of the answers",
        )
    return turns[: known.index(False)] if False in known else turns


def _from_messages(messages: JsonValue, where: str) -> Dialogue | None:
    if not isinstance(messages, list):
        raise InputError(f"{where}: a conversation is a list, not {type(messages).__name__}")
    system: list[str] = []
    turns: list[Exchange] = []
    for number, message in enumerate(messages, start=1):
        role, content = _role_and_content(message, f"{where}, message {number}")
        if role in ("system", "developer") and not turns:
            system.append(_words(content))
        elif role in _ANSWERING:
            if turns and turns[-1].answer is None:
                turns[-1] = msgspec.structs.replace(turns[-1], answer=_words(content))
        else:
            turns.append(Exchange(content=content))
    nonempty = tuple(turn for turn in turns if turn.words.strip())
    if not nonempty:
        return None
    return Dialogue(where=where, turns=nonempty, system="\n".join(system) or None)


def _role_and_content(message: JsonValue, where: str) -> tuple[str, str | list[object]]:
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


def _words(content: str | list[object]) -> str:
    return Exchange(content=content).words


def _answer(written: JsonValue, where: str) -> tuple[str | None, int | None]:
    """Words of an answer, or its number of tokens: CSV writes both as text."""
    if written is None or written == "":
        return None, None
    if isinstance(written, str) and not written.strip().isdigit():
        return written, None
    try:
        tokens = int(written) if isinstance(written, str | int | float) else 0
    except ValueError:
        tokens = 0
    if isinstance(written, bool) or tokens < 1:
        raise InputError(
            f"{where}: '{written}' is neither an answer nor a number of tokens from 1 on"
        )
    return None, tokens


def _column(row: JsonMembers, named: str | None, usual: Sequence[str], where: str) -> JsonValue:
    """Value of the named column, which must be there, or of a column with a usual name."""
    if named is not None:
        if named not in row:
            raise InputError(
                f"{where} has no column {named}", hint=f"it has {', '.join(row)[:200] or 'none'}"
            )
        chosen: JsonValue = row[named]
        return chosen
    value: JsonValue = next((row[name] for name in usual if row.get(name) is not None), None)
    return value
