"""Hits of a perfect prefix cache: unlimited, to the token, of requests one by one."""

from __future__ import annotations

from collections.abc import Iterable

from servetune.workload.request import Piece, Request


class PerfectCache:
    """Remembers everything that was asked and answered, by content."""

    def __init__(self) -> None:
        # What was seen after a prompt's beginning: how many tokens of a content.
        self._seen: dict[tuple[int, int], int] = {}
        # A beginning that goes on: the one before it, a content and how much of that.
        self._beginnings: dict[tuple[int, int, int], int] = {}

    def look_up(self, pieces: Iterable[Piece]) -> int:
        """Tokens that are found of a prompt which begins with these pieces; they are kept."""
        beginning, found, whole = 0, 0, True
        for content_id, tokens in pieces:
            known = self._seen.get((beginning, content_id), 0)
            if whole:
                found += min(known, tokens)
                whole = known >= tokens
            if tokens > known:
                self._seen[beginning, content_id] = tokens
            beginning = self._beginnings.setdefault(
                (beginning, content_id, tokens), len(self._beginnings) + 1
            )
        return found


def hit_fraction(requests: Iterable[Request]) -> float:
    """Share of all prompt tokens that a perfect cache finds, of requests one after another.

    A prompt's last token is always computed, whatever is known of it. An engine finds less:
    it keeps whole blocks, forgets what it has no room for, and requests at the same
    time cannot use what the other is still computing.
    """
    cache, found, total_tokens = PerfectCache(), 0, 0
    for request in requests:
        found += min(cache.look_up(request.prefix), request.input_tokens - 1)
        total_tokens += request.input_tokens
        if request.answer_id is not None and request.prefix_tokens == request.input_tokens:
            cache.look_up((*request.prefix, (request.answer_id, request.output_tokens)))
    return found / total_tokens if total_tokens else 0.0
