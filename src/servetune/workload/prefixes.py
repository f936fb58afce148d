"""Beginnings that prompts have in common, such as system prompts."""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.request import Piece

__all__ = ["SharedPrefixes"]

#: Kept apart from the draws of lengths and arrivals, which stay what they were without prefixes.
_STREAM = 8


class SharedPrefixes(msgspec.Struct, frozen=True, kw_only=True):
    """Every prompt begins with one of a few texts, drawn with equal chances.

    The beginning comes before the tokens that the law of lengths draws: a prompt is as long as
    both together (vLLM's `--random-prefix-len` counts likewise).

    Attributes:
        count: Different texts.
        tokens: Of each.
    """

    count: int
    tokens: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"prompts begin with one of 1 or more texts, got {self.count}")
        if self.tokens < 1:
            raise InputError(f"a beginning has 1 or more tokens, got {self.tokens}")

    def drawn(self, requests: int, seed: int) -> tuple[tuple[Piece, ...], ...]:
        """What each request begins with, as `Request.prefix`."""
        rng = np.random.default_rng((seed, _STREAM))
        chosen = rng.integers(self.count, size=requests)
        return tuple(((int(text), self.tokens),) for text in chosen)

    def hit_fraction(self, own_tokens: float, requests: int, block_tokens: int = 1) -> float:
        """Share of all prompts' tokens that a cache has which never loses anything.

        Of `requests` prompts with `own_tokens` of their own, each text is computed once, by the
        first that begins with it: n * (1 - (1 - 1/n)^requests) texts are expected to occur.
        Only full blocks are found. It is less where the cache is too small to keep them, or
        where several prompts with the same beginning come before the first is computed.

        Example:
            >>> system = SharedPrefixes(count=1, tokens=300)
            >>> round(system.hit_fraction(own_tokens=100, requests=1000), 3)
            0.749
        """
        occurring = self.count * (1 - (1 - 1 / self.count) ** requests)
        found = self.tokens // block_tokens * block_tokens
        return float((1 - occurring / requests) * found / (self.tokens + own_tokens))
