"""Words and pictures for drafts: the content of their pieces, and words of no other prompt."""

from __future__ import annotations

import base64
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from servetune.workload.laws import IntArray
from servetune.workload.parts import Images
from servetune.workload.request import Piece
from servetune.workload.sampler import Draft
from servetune.workload.words import TOKENS_PER_WORD, Stock, content_row, distinct_rows

#: Rounds of mending after which a text that still has another length keeps it.
_ROUNDS = 24


class Words(msgspec.Struct, frozen=True):
    """Words of one prompt: the shared beginning, and the user's own."""

    shared: str
    user: str

    @property
    def whole(self) -> str:
        """Both as one text; a long one is not copied where there is no shared beginning."""
        return f"{self.shared} {self.user}".strip() if self.shared else self.user


def compose(drafts: Sequence[Draft], stock: Stock, seed: int) -> Iterator[Words]:
    """Words of each draft, in order; see `words` for their exact number of tokens."""
    words = np.array(stock.words, dtype=object)
    known: dict[Piece, str] = {}

    def text(row: IntArray) -> str:
        return " ".join(words[row].tolist())

    def of(piece: Piece) -> str:
        if piece not in known:
            content_id, tokens = piece
            known[piece] = text(content_row(stock, content_id, _words(stock, tokens), seed))
        return known[piece]

    rows = distinct_rows(stock, [_words(stock, draft.own_tokens) for draft in drafts], seed)
    for draft, row in zip(drafts, rows, strict=True):
        own = (text(row),) if len(row) else ()
        yield Words(
            shared=" ".join(of(piece) for piece in draft.shared),
            user=" ".join((*(of(piece) for piece in draft.placed), *own)),
        )


def compose_ids(drafts: Sequence[Draft], stock: Stock, seed: int) -> Iterator[array[int]]:
    """Token ids of each draft, four bytes each."""
    assert stock.ids is not None
    low, _ = stock.ids
    known: dict[Piece, IntArray] = {}

    def of(piece: Piece) -> IntArray:
        if piece not in known:
            known[piece] = content_row(stock, *piece, seed)
        return known[piece]

    def own_tokens(draft: Draft) -> int:
        pieces = sum(tokens for _, tokens in (*draft.shared, *draft.placed))
        # Ids have neither a template nor tokens that a tokenizer adds: the rest is the prompt's.
        return draft.request.input_tokens - pieces

    rows = distinct_rows(stock, [own_tokens(draft) for draft in drafts], seed)
    for draft, row in zip(drafts, rows, strict=True):
        pieces = [of(piece) for piece in (*draft.shared, *draft.placed)]
        yield array("I", (np.concatenate([*pieces, row]) + low).astype(np.uint32).tobytes())


def mended(
    texts: Mapping[int, str],
    target_tokens: Mapping[int, int],
    words: Sequence[str],
    counts: Callable[[Mapping[int, str]], dict[int, int]],
    found: dict[int, int],
) -> dict[int, str]:
    """Texts made longer or shorter at their ends until each has the wanted number of tokens.

    Args:
        texts: Texts to be adjusted, by their places.
        target_tokens: Tokens of each.
        words: Words appended to a text that is too short.
        counts: Function that counts the tokens of many texts.
        found: The texts' own counts; what they have in the end is written to it, another
            number than wanted where no words fit.
    """
    made = dict(texts)
    for round_ in range(_ROUNDS):
        tried = {
            i: _nearer(text, found[i], target_tokens[i], words, round_)
            for i, text in made.items()
            if found[i] != target_tokens[i]
        }
        if not tried:
            break
        for i, count in counts(tried).items():
            if abs(count - target_tokens[i]) < abs(found[i] - target_tokens[i]):
                made[i], found[i] = tried[i], count
    return made


def pictures(images: Images, seed: int, index: int) -> list[dict[str, object]]:
    """A prompt's pictures as parts of a chat message, unlike those of every other prompt."""
    rng = np.random.default_rng((seed, 3, index))
    return [
        {"type": "image_url", "image_url": {"url": data_url(images.width, images.height, rng)}}
        for _ in range(images.each)
    ]


def _words(stock: Stock, tokens: int) -> int:
    """Number of words for so many tokens: equal, or an estimate without a tokenizer."""
    return tokens if stock.counted or tokens == 0 else max(1, round(tokens / TOKENS_PER_WORD))


def _nearer(text: str, has: int, target_tokens: int, words: Sequence[str], turn: int) -> str:
    """The text with its end changed: by words while it is far off, by letters when it is near."""
    own, missing = text.split(" "), target_tokens - has
    a_word = max(1.0, has / len(own))
    other = words[turn * 7 % len(words)]
    if abs(missing) <= 8 * a_word and turn % 4:
        if turn % 4 == 1:
            return text + "e" * missing if missing > 0 else text[:missing].rstrip() or text[:1]
        if turn % 4 == 2:
            return " ".join((*own[:-1], other))
        longer = (*own, other[: 1 + turn // 4])
        return " ".join(longer if missing > 0 else (*own[:-2], other))
    step = max(1, round(abs(missing) / a_word))
    if missing < 0:
        return " ".join(own[: max(1, len(own) - step)])
    return " ".join((*own, *(words[(turn * 7 + k) % len(words)] for k in range(step))))


#: Side of a square of one colour, in pixels. Noise to the pixel cannot be packed: a thousand
#: pictures of 512x512 would be a gigabyte, and their upload the thing that is measured.
GRAIN = 8


def png(width: int, height: int, rng: np.random.Generator) -> bytes:
    """A picture of random squares, 8 bits of red, green and blue."""
    small = rng.integers(0, 256, (-(-height // GRAIN), -(-width // GRAIN), 3), dtype=np.uint8)
    rows = np.repeat(small, GRAIN, axis=1)[:, :width].reshape(len(small), width * 3)
    # Each row says how it differs from the one above (filter 2), so that equal rows are zeros.
    lines = []
    above = np.zeros(width * 3, dtype=np.uint8)
    for square, row in enumerate(rows):
        lines.append(b"\x02" + (row - above).tobytes())
        same = min(GRAIN, height - square * GRAIN) - 1
        lines.append((b"\x02" + bytes(width * 3)) * same)
        above = row
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(b"".join(lines), 6)),
            _chunk(b"IEND", b""),
        )
    )


def data_url(width: int, height: int, rng: np.random.Generator) -> str:
    """A picture as a `data:` URL, as a chat message carries it."""
    return "data:image/png;base64," + base64.b64encode(png(width, height, rng)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
