"""Prompts: words, token ids or chat messages, of random content here; see `prepare`.

No two random prompts of a run begin alike, as far as the vocabulary allows, so that a server's
prefix cache finds nothing unless the workload asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonObject
from servetune.workload.request import Request
from servetune.workload.words import TOKENS_PER_WORD, distinct_rows, ids_stock, unchecked_stock


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt of one request: words, token ids or chat messages, exactly one of them.

    Attributes:
        text: Words, or `None`.
        token_ids: Token ids, or `None`; with ids a server has nothing left to count. A tuple, or
            an array of 32-bit numbers where prompts are many or long; see `ids_json`.
        messages: Chat messages, their images included, or `None`. Of a turn that follows an
            answer only the new ones: the run puts the history and the answer before them.
        token_count: Length in tokens; of a turn that follows, with the history before it and
            the answer that was asked for.
        exact: Whether `token_count` is counted rather than estimated. A chat template adds
            its own tokens to either, unless whoever made the prompt allowed for them.
        members: Further members of this request's body as JSON text, such as tools or a
            response format.
        model: Adapter to ask instead of the target's model.
    """

    token_count: int
    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: tuple[JsonObject, ...] | None = None
    exact: bool
    members: str = ""
    model: str | None = None

    def __post_init__(self) -> None:
        given_forms = (self.text, self.token_ids, self.messages)
        if sum(each is not None for each in given_forms) != 1:
            raise InputError("a prompt is one of text, token ids and messages")

    def ids_json(self) -> bytes:
        """Token ids as a JSON list, whatever holds them."""
        return msgspec.json.encode(list(self.token_ids or ()))


class Encoding(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...


class Tokenizer(Protocol):
    """Part of Hugging Face's `tokenizers.Tokenizer` that is used."""

    def encode(self, text: str, /) -> Encoding: ...


def load_tokenizer(path: str) -> Tokenizer:
    """Tokenizer in a `tokenizer.json`."""
    try:
        import tokenizers  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise InputError(
            "exact token counts of text need the package tokenizers",
            hint="pip install tokenizers, or use prompts made of token ids",
        ) from error
    try:
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise InputError(f"cannot read the tokenizer {path}: {error}") from error
    return tokenizer


def token_prompts(requests: Sequence[Request], vocab_size: int, seed: int) -> list[Prompt]:
    """Prompts of random token ids, each exactly as long as its request.

    First ids are drawn without replacement, so all prompts differ from their first token on
    while there are fewer of them than usable ids.

    Args:
        requests: Requests, of which only the lengths matter; see `prepare` for shared content.
        vocab_size: Entries of the model's vocabulary.
        seed: Seed of the ids.
    """
    stock = ids_stock(vocab_size)
    assert stock.ids is not None
    low, _ = stock.ids
    rows = distinct_rows(stock, [request.input_tokens for request in requests], seed)
    return [
        Prompt(token_ids=tuple((row + low).tolist()), token_count=len(row), exact=True)
        for row in rows
    ]


def text_prompts(requests: Sequence[Request], seed: int) -> list[Prompt]:
    """Prompts of common English words in random order, 1.3 tokens a word; lengths are estimates."""
    stock = unchecked_stock()
    counts = [request.input_tokens for request in requests]
    lengths = [max(1, round(count / TOKENS_PER_WORD)) for count in counts]
    return [
        Prompt(text=" ".join(stock.words[i] for i in row), token_count=count, exact=False)
        for count, row in zip(counts, distinct_rows(stock, lengths, seed), strict=True)
    ]


def unlike(prompt: Prompt, seed: int) -> Prompt:
    """Prompt of the same tokens or words in another order, unknown to a prefix cache.

    Pictures stay as they are.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    if prompt.token_ids is not None:
        ids = list(prompt.token_ids)
        rng.shuffle(ids)
        return msgspec.structs.replace(prompt, token_ids=tuple(ids))
    if prompt.messages is not None:
        messages = tuple(_unlike_message(message, rng) for message in prompt.messages)
        return msgspec.structs.replace(prompt, messages=messages)
    return msgspec.structs.replace(prompt, text=_shuffled(prompt.text or "", rng))


def _unlike_message(message: JsonObject, rng: random.Random) -> JsonObject:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _shuffled(content, rng)}
    if not isinstance(content, list):
        return message
    parts = [
        {**part, "text": _shuffled(part["text"], rng)}
        if isinstance(part.get("text"), str)
        else part
        for part in content
    ]
    return {**message, "content": parts}


def _shuffled(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    rng.shuffle(words)
    return " ".join(words)
