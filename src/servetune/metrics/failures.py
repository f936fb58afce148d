"""What went wrong: failures by kind, answers of the wrong length, token counts that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servetune.metrics.columns import BoolArray
from servetune.metrics.record import Record

__all__ = ["WRONG_LENGTH", "failures_of", "token_check", "wrong_lengths"]

WRONG_LENGTH = "wrong_length"
#: Samples of each kind that are kept.
SAMPLES = 3


def failures_of(
    records: Sequence[Record], wrong: Mapping[int, str] | None = None
) -> list[dict[str, Any]]:
    """Each kind of failure with its count and up to three different samples, commonest first.

    Args:
        records: All of a run.
        wrong: By place in `records`, answers that count as failures for their length, and
            what is said of them.
    """
    kinds: dict[str, tuple[int, list[str]]] = {}
    failed = [(record.outcome, record.detail) for record in records if record.outcome != "ok"]
    for kind, detail in [*failed, *((WRONG_LENGTH, said) for said in (wrong or {}).values())]:
        count, samples = kinds.get(kind, (0, []))
        if len(samples) < SAMPLES and detail not in samples:
            samples.append(detail)
        kinds[kind] = (count + 1, samples)
    return [
        {"outcome": kind, "count": count, "sample": samples[0], "samples": samples}
        for kind, (count, samples) in sorted(kinds.items(), key=lambda item: -item[1][0])
    ]


def wrong_lengths(records: Sequence[Record], asked: Mapping[int, int]) -> dict[int, str]:
    """Answers that are whole and have not the tokens that were asked for.

    Args:
        records: All of a run.
        asked: Output tokens by `Record.index`, of the requests that forbade the server to
            stop by itself (`ignore_eos`); others are not judged.

    Returns:
        By place in `records`, what is wrong.
    """
    return {
        place: f"request {record.index}: asked {asked[record.index]} tokens, "
        f"got {record.output_tokens}"
        for place, record in enumerate(records)
        if record.outcome == "ok"
        and asked.get(record.index, record.output_tokens) != record.output_tokens
    }


def without(whole: BoolArray, places: Mapping[int, str]) -> BoolArray:
    """The requests answered whole, less those at some places."""
    kept = whole.copy()
    kept[list(places)] = False
    return kept


def token_check(records: Sequence[Record]) -> dict[str, Any] | None:
    """The server's token counts against our tokenizer's; `None` where nothing was counted.

    Only answers that were counted take part, in both sums.
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
