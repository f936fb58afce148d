"""Lengths of answers: what was requested, what the server counts, and what arrived.

A server that gives answers of another length than requested has done other work than the one it
is compared with, and one that counts tokens it did not send looks faster than it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from servetune.json_value import JsonObject
from servetune.metrics.record import Record
from servetune.metrics.results import ResultFields


class RequestedLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Requested lengths of a run's answers.

    Attributes:
        output_tokens: Output tokens by `Record.index`.
        exact: Whether answers have that length (`ignore_eos`) rather than at most that.
    """

    output_tokens: Mapping[int, int]
    exact: bool = True

    def differs(self, record: Record) -> bool:
        """Whether a complete answer cannot have the length that the server counts."""
        requested = self.output_tokens.get(record.index)
        if requested is None or record.outcome != "ok":
            return False
        return record.output_tokens > requested or (self.exact and record.output_tokens < requested)


def wrong_lengths(records: Sequence[Record], requested: RequestedLengths) -> dict[int, str]:
    """Complete answers whose length is not as requested.

    Returns:
        Descriptions of the differences, by index in `records`.
    """
    return {
        place: f"request {record.index}: asked {requested.output_tokens[record.index]} tokens, "
        f"got {record.output_tokens}"
        for place, record in enumerate(records)
        if requested.differs(record)
    }


def arrived(records: Sequence[Record]) -> JsonObject | None:
    """Pieces and characters of text that complete answers brought, and the tokens counted for them.

    `None` where no text is sent, as in a simulation.
    """
    whole = [
        (len(record.chunk_times_s), record.text_characters, record.output_tokens)
        for record in records
        if record.outcome == "ok" and record.text_characters is not None
    ]
    if not whole:
        return None
    pieces, characters, tokens = map(int, np.array(whole, dtype=np.int64).sum(axis=0))
    return {
        "pieces": pieces,
        "characters": characters,
        "characters_per_token": characters / tokens if tokens else None,
    }


#: Share of the other trials' characters per token below which a trial's tokens are doubted.
LEAST_TEXT_FRACTION = 0.5


def short_texts(trials: Sequence[ResultFields]) -> list[str | None]:
    """Findings on trials whose server counts more tokens than their text can be.

    Answers of one model to one load have about as many characters a token in each trial, so that a
    trial with less than half of the median of the others has an answer that was cut, or a count
    that is not of what was sent.

    Args:
        trials: Results of trials of one study.

    Returns:
        A sentence for each trial; `None` where nothing is found.
    """
    found = [_characters_per_token(results) for results in trials]
    ordered = sorted(value for value in found if value is not None)
    return [_short_text(value, ordered) for value in found]


def _characters_per_token(results: ResultFields) -> float | None:
    text = results.get("arrived")
    value = text.get("characters_per_token") if isinstance(text, dict) else None
    return value if isinstance(value, float) else None


def _short_text(value: float | None, ordered: Sequence[float]) -> str | None:
    if value is None or len(ordered) < 2:
        return None
    place = (len(ordered) - 2) // 2  # of the median among the others
    others = ordered[place + (bisect_left(ordered, value) <= place)]
    if value >= LEAST_TEXT_FRACTION * others:
        return None
    return (
        f"its answers have {value:.3g} characters for each token that the server counts, those of "
        f"the other trials {others:.3g}: tokens were counted that did not arrive"
    )


def token_check(records: Sequence[Record]) -> JsonObject | None:
    """Token counts of the server and of the client's tokenizer; `None` without client counts.

    Both sums are over the answers that the client counted.
    """
    pairs = [
        (record.output_tokens, record.counted_output_tokens)
        for record in records
        if record.outcome == "ok" and record.counted_output_tokens is not None
    ]
    if not pairs:
        return None
    server, counted = np.array(pairs, dtype=np.int64).T
    differences = np.abs(server - counted)
    return {
        "requests": len(pairs),
        "server_tokens": int(server.sum()),
        "counted_tokens": int(counted.sum()),
        "largest_difference": int(differences.max()),
        "equal_fraction": float((differences == 0).mean()),
    }
