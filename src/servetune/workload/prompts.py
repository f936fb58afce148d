"""Prompts of a wanted length: random token ids, or words.

No two prompts of a run begin alike, as far as the vocabulary allows, so that a server's
prefix cache finds nothing unless the workload means it to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.request import Request

__all__ = [
    "FEWEST_WORDS",
    "WORDS",
    "Prompt",
    "Tokenizer",
    "load_tokenizer",
    "text_prompts",
    "token_prompts",
    "unlike",
]

TOKENS_PER_WORD = 1.3
"""English prose under byte-pair vocabularies of 32,000 to 150,000 entries: 1.2 to 1.4."""

FEWEST_WORDS = 16
"""Of one token each, below which prompts would be too much alike."""

_WORDS_TEXT = """
able about above across after again air all almost along also always among and animal
another answer any area around ask away back bad ball bank base be because bed been before
began begin behind being below best better between big bird black blue boat body book both
bottom box boy bring brown build but buy by call came can car care carry center change
check child city class clean clear close cold color come common complete could country
course cover cross cut dark day deep did different do does dog done door down draw drive
dry during each early earth ease east eat end enough even ever every example eye face fact
fall family far farm fast father feel feet few field figure fill final find fine fire first
fish five floor fly follow food foot for force form found four free friend from front full
game gave get girl give go gold gone good got government great green ground group grow had
half hand happen hard has have he head hear heart heat help her here high him his hold home
horse hot hour house how hundred idea if in inch interest island it job just keep kind king
knew know land language large last late laugh lay lead learn leave left less let letter life
light like line list listen little live long look lot love low machine made main make man
"""
WORDS = tuple(_WORDS_TEXT.split())


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What is put to the model: words, token ids or chat messages, exactly one of them.

    Attributes:
        text: The words, or `None`.
        token_ids: The ids, or `None`. With ids a server has nothing left to count. A tuple, or
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
    messages: tuple[dict[str, Any], ...] | None = None
    exact: bool
    members: str = ""
    model: str | None = None

    def __post_init__(self) -> None:
        said = (self.text, self.token_ids, self.messages)
        if sum(each is not None for each in said) != 1:
            raise InputError("a prompt is words, token ids or messages, and only one of them")

    def ids_json(self) -> bytes:
        """The token ids as a JSON list, whatever holds them."""
        return msgspec.json.encode(list(self.token_ids or ()))


class Encoding(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...


class Tokenizer(Protocol):
    """What is needed of Hugging Face's `tokenizers.Tokenizer`."""

    def encode(self, text: str, /) -> Encoding: ...


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`."""
    try:
        import tokenizers  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise InputError(
            "exact token counts of words need the package tokenizers",
            hint="pip install tokenizers, or use prompts made of token ids",
        ) from error
    try:
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise InputError(f"cannot read the tokenizer {path}: {error}") from error
    return tokenizer


def token_prompts(requests: Sequence[Request], vocab_size: int, seed: int) -> list[Prompt]:
    """Prompts of random token ids, each exactly as long as its request says.

    First ids are drawn without replacement, so all prompts differ from their first token on
    while there are fewer of them than usable ids. The bottom of the vocabulary (up to 1,000
    ids) and its top fiftieth are left out: that is where the special tokens of the common
    families are, Tekken's first thousand as well as Qwen's and Llama's last few hundred.

    Args:
        requests: Only their lengths matter.
        vocab_size: Of the model.
        seed: The same seed gives the same prompts.
    """
    low = min(1000, vocab_size // 8)
    high = vocab_size - vocab_size // 50
    if high - low < 2:
        raise InputError(f"a vocabulary of {vocab_size} tokens is too small for random prompts")
    rows = _distinct_rows([request.input_tokens for request in requests], high - low, seed)
    return [
        Prompt(token_ids=tuple((row + low).tolist()), token_count=len(row), exact=True)
        for row in rows
    ]


def text_prompts(
    requests: Sequence[Request], seed: int, tokenizer: Tokenizer | None = None
) -> list[Prompt]:
    """Prompts of common English words in random order.

    With the model's tokenizer each is as long as its request says, special tokens that the
    tokenizer adds included; where a length cannot be met (shorter than the special tokens,
    say) the prompt carries the length that it has. Without one, a word is taken for
    1.3 tokens and the prompts say that they are not exact.
    """
    counts = [request.input_tokens for request in requests]
    if tokenizer is None:
        lengths = [max(1, round(count / TOKENS_PER_WORD)) for count in counts]
        rows = _distinct_rows(lengths, len(WORDS), seed)
        texts = [" ".join(WORDS[i] for i in row.tolist()) for row in rows]
        return [
            Prompt(text=text, token_count=count, exact=False)
            for text, count in zip(texts, counts, strict=True)
        ]
    whole = _whole_words(tokenizer)
    words = whole if len(whole) >= FEWEST_WORDS else WORDS
    rows = _distinct_rows(counts, len(words), seed)
    return [
        _fitted([words[i] for i in row.tolist()], whole, count, tokenizer)
        for row, count in zip(rows, counts, strict=True)
    ]


def unlike(prompt: Prompt, seed: int) -> Prompt:
    """The same tokens or words in another order: as long, and unknown to a prefix cache.

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


def _unlike_message(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
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


def _distinct_rows(
    lengths: Sequence[int], kinds: int, seed: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Random rows over 0..kinds-1, distinct as long as rows of their length can be.

    Row i starts with the i-th entry of a permutation. Where there are more rows than entries,
    each round through the permutation has a second entry of its own.
    """
    if not lengths:
        return []
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, kinds, sum(lengths))
    rows = np.split(flat, np.cumsum(lengths)[:-1])
    firsts, seconds = rng.permutation(kinds), rng.permutation(kinds)
    for i, row in enumerate(rows):
        round_, place = divmod(i, kinds)
        row[0] = firsts[place]
        if len(rows) > kinds and len(row) > 1:
            row[1] = seconds[round_ % kinds]
    return rows


def _whole_words(tokenizer: Tokenizer) -> list[str]:
    """Those of `WORDS` that are one token inside a sentence."""
    stem = len(tokenizer.encode("the the").ids)
    return [word for word in WORDS if len(tokenizer.encode(f"the the {word}").ids) == stem + 1]


def _fitted(
    kept: list[str], whole: Sequence[str], wanted_tokens: int, tokenizer: Tokenizer
) -> Prompt:
    """As many of the words as make the wanted length, filled up with words of one token."""

    def length(count: int) -> int:
        return len(tokenizer.encode(" ".join(kept[:count])).ids)

    low, high = 1, len(kept)  # a word more is never a token less
    likely = max(1, high - (length(high) - wanted_tokens))  # right for words of one token
    if likely <= high and length(likely) == wanted_tokens:
        low = high = likely
    while low < high:
        middle = (low + high + 1) // 2
        if length(middle) <= wanted_tokens:
            low = middle
        else:
            high = middle - 1
    if whole:
        missing = max(0, wanted_tokens - length(low))
        kept = kept[:low] + [whole[(low + i) % len(whole)] for i in range(missing)]
        low += missing
    return Prompt(text=" ".join(kept[:low]), token_count=length(low), exact=True)
