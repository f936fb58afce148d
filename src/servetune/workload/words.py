"""Text of an exact number of tokens, made of words that are one token each.

Encoding ten thousand prompts of a thousand tokens takes seconds, so lengths are met by
construction first. Words are taken from the vocabulary: small letters, one token with the
space before them, and none of the vocabulary's tokens may reach over the end of one word into
the next. Then a text of n of these words, one space between two, has n tokens, whatever the
words, and only its first one (which has no space before it) needs a word that is one token
there, too. That is checked by encoding: all of a small run, a sample of a large one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.laws import IntArray

if TYPE_CHECKING:
    from servetune.workload.model_tokenizer import ModelTokenizer

TOKENS_PER_WORD = 1.3
"""English prose under byte-pair vocabularies of 32,000 to 150,000 entries: 1.2 to 1.4."""

FEWEST_WORDS = 16
"""Least number of words of one token each; fewer would make prompts too much alike."""

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


MOST_WORDS = 4096
"""Words that are taken from a vocabulary at most; enough that prompts are unlike."""

#: What byte-level and SentencePiece vocabularies write for the space before a word.
_MARKS = ("Ġ", "▁")


class Stock(msgspec.Struct, frozen=True, kw_only=True):
    """Words or token ids that prompts are made of.

    Attributes:
        words: Words of one token each inside a text. Empty for token ids, see `ids`.
        starters: Number of words, from the first on, that may also begin a text.
        text_specials: Tokens that the tokenizer puts around a text by itself.
        additive: Whether any text of n of these words is known to have n tokens; otherwise
            every text has to be encoded and mended.
        counted: Whether a tokenizer said so; without one a word is an estimate.
        ids: Lowest token id and number of ids, where prompts are ids.
    """

    words: tuple[str, ...] = ()
    starters: int = 0
    text_specials: int = 0
    additive: bool = False
    counted: bool = False
    ids: tuple[int, int] | None = None

    @property
    def kinds(self) -> int:
        return self.ids[1] if self.ids else len(self.words)

    @property
    def first_kinds(self) -> int:
        return self.ids[1] if self.ids else self.starters


def stock_of(tokenizer: ModelTokenizer) -> Stock:
    """Words of one token each, from a tokenizer's own vocabulary.

    A tokenizer with hardly any (letters, bytes) gets common English words, and every text
    has to be mended.
    """
    specials = tokenizer.counts([""])[0]
    found, separable = _candidates(tokenizer.tokenizer)
    pool = found or list(WORDS)
    the = tokenizer.counts(["the the"])[0]
    inside = tokenizer.counts([f"the the {word}" for word in pool])
    pool = [word for word, count in zip(pool, inside, strict=True) if count == the + 1]
    if len(pool) < FEWEST_WORDS:
        return Stock(words=WORDS, starters=len(WORDS), text_specials=specials, counted=True)
    alone = tokenizer.counts(pool)
    starters = [w for w, count in zip(pool, alone, strict=True) if count == specials + 1]
    others = [w for w, count in zip(pool, alone, strict=True) if count != specials + 1]
    words = (*(starters or pool), *(others if starters else ()))
    whole = tokenizer.counts([" ".join(words)])[0] == specials + len(words)
    return Stock(
        words=words,
        starters=len(starters) or len(words),
        text_specials=specials,
        additive=separable and whole and bool(starters),
        counted=True,
    )


def unchecked_stock() -> Stock:
    """Common words, where no tokenizer says how many tokens they are."""
    return Stock(words=WORDS, starters=len(WORDS))


def ids_stock(vocab_size: int) -> Stock:
    """Token ids without those at both ends of the vocabulary.

    The bottom (up to 1,000 ids) and the top fiftieth are left out: the special tokens of the
    common families are there, Tekken's first thousand as well as Qwen's and Llama's last hundreds.
    """
    low = min(1000, vocab_size // 8)
    kinds = vocab_size - vocab_size // 50 - low
    if kinds < 2:
        raise InputError(f"a vocabulary of {vocab_size} tokens is too small for random prompts")
    return Stock(ids=(low, kinds), additive=True, counted=True)


def content_row(stock: Stock, content_id: int, tokens: int, seed: int) -> IntArray:
    """The first tokens of a content that several prompts have; equal for equal ids."""
    rng = np.random.default_rng((seed, 1, content_id))
    row = rng.integers(0, stock.kinds, tokens)
    # The first comes from a stream of its own: a shorter piece is the beginning of a longer one.
    row[:1] = np.random.default_rng((seed, 2, content_id)).integers(0, stock.first_kinds, 1)[
        : len(row)
    ]
    return row


def distinct_rows(stock: Stock, lengths: Sequence[int], seed: int) -> Iterator[IntArray]:
    """Random rows of these lengths, distinct as long as rows of their length can be.

    Row i starts with the i-th entry of a permutation; where there are more rows than entries,
    each round through the permutation has a second entry of its own.
    """
    rng = np.random.default_rng((seed, 0))
    firsts, seconds = rng.permutation(stock.first_kinds), rng.permutation(stock.kinds)
    several = len(lengths) > len(firsts)
    for i, length in enumerate(lengths):
        row = rng.integers(0, stock.kinds, length)
        round_, place = divmod(i, len(firsts))
        row[:1] = firsts[place]
        if several:
            row[1:2] = seconds[round_ % len(seconds)]
        yield row


def _candidates(tokenizer: object) -> tuple[list[str], bool]:
    """Words that follow a space, and whether no token goes from one word to the next."""
    if not hasattr(tokenizer, "get_vocab"):
        return [], False
    if (
        type(getattr(tokenizer, "model", None)).__name__ == "WordLevel"
    ):  # whatever it does not know is one token
        return [], True
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    for mark in _MARKS:
        usual = re.compile(f"{mark}[a-z]{{3,10}}").fullmatch
        words = sorted(token[1:] for token in vocabulary if usual(token))
        if len(words) >= FEWEST_WORDS:
            across = re.search(f"[a-z]{mark}", "\n".join(vocabulary)) is not None
            step = -(-len(words) // MOST_WORDS)
            return words[::step], not across
    return [], False
