"""Token counts of prompts, and words of simulated answers.

Token ids count themselves. Text is counted by the model's own tokenizer where one is at
hand; otherwise a word is taken for 1.3 tokens, as `workload.prompts` does, and the server
says so when it starts. A chat's template cannot be run here: each message counts five tokens
and the answer's opening three more, which is what ChatML puts around them.

Answers are common English words, one per token: in the vocabularies of the common families
each of them, with the blank before it, is one token; with the tokenizer at hand only those
are used that are. Which word an answer begins with follows from the prompt alone.
"""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path

import msgspec

from servetune.workload.prompts import Tokenizer, load_tokenizer
from servetune.workload.request import Piece
from servetune.workload.words import TOKENS_PER_WORD, WORDS

MESSAGE_TOKENS = 5  # <|im_start|>, role, line end, <|im_end|>, line end
OPENING_TOKENS = 3  # <|im_start|>, assistant, line end

_FEWEST_WORDS = 16
_CHUNK_WORDS = 10
_SMALLEST_ID = 1000  # below lie special tokens


class Vocabulary:
    """Conversion of text to a number of tokens and back.

    Attributes:
        exact: Whether text is counted by the model's tokenizer.
        pieces: Words of one token, each with the blank before it.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self.exact = tokenizer is not None
        self._tokenizer = tokenizer
        words = WORDS if tokenizer is None else _single(tokenizer)
        self.pieces = tuple(f" {word}" for word in words)
        self.encoded_pieces = tuple(piece.encode() for piece in self.pieces)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text; without a tokenizer as many made-up ones as it would have."""
        if self._tokenizer is not None:
            return list(self._tokenizer.encode(text).ids)
        count = self.count(text)
        first = zlib.crc32(text.encode()) % _SMALLEST_ID
        return [_SMALLEST_ID + (first + i) % _SMALLEST_ID for i in range(count)]

    def count(self, text: str) -> int:
        """Tokens of a text."""
        if self._tokenizer is not None:
            return len(self._tokenizer.encode(text).ids)
        words = len(text.split())
        return max(1, round(words * TOKENS_PER_WORD)) if text else 0

    def content(self, prompt: str | list[int], block_tokens: int) -> tuple[Piece, ...]:
        """Content of a prompt, block by block, so that a prefix cache finds equal beginnings.

        Without a tokenizer ten words are a piece of thirteen tokens.
        """
        if isinstance(prompt, str) and not self.exact:
            words = prompt.split()
            chunks = [words[i : i + _CHUNK_WORDS] for i in range(0, len(words), _CHUNK_WORDS)]
            return tuple(
                (zlib.crc32(" ".join(chunk).encode()), max(1, int(len(chunk) * TOKENS_PER_WORD)))
                for chunk in chunks
            )
        ids = self.ids(prompt) if isinstance(prompt, str) else prompt
        blocks = [ids[i : i + block_tokens] for i in range(0, len(ids), block_tokens)]
        return tuple((zlib.crc32(msgspec.json.encode(block)), len(block)) for block in blocks)

    def first_piece(self, prompt: str | list[int]) -> int:
        """Index in `pieces` with which the answer to a prompt begins."""
        raw = prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt)
        return zlib.crc32(raw) % len(self.pieces)


def vocabulary_of(model: str, tokenizer: str | None = None) -> Vocabulary:
    """Vocabulary of the named tokenizer, else of the model's own if it can be read.

    Raises:
        InputError: A tokenizer was named and cannot be read.
    """
    for name in (tokenizer, model):
        if name is None:
            continue
        path = Path(name).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file() and file.suffix == ".json" and (name == tokenizer or _can_read()):
            return Vocabulary(load_tokenizer(str(file)))
    return Vocabulary()


def _can_read() -> bool:
    return importlib.util.find_spec("tokenizers") is not None


def _single(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Words that are one token behind another word; all where that holds for hardly any."""
    stem = len(tokenizer.encode(" the the").ids)
    single = [word for word in WORDS if len(tokenizer.encode(f" the the {word}").ids) == stem + 1]
    return tuple(single) if len(single) >= _FEWEST_WORDS else WORDS
