"""Failures by kind, answers of the wrong length, and differing token counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from servetune.metrics.columns import BoolArray
from servetune.metrics.record import Record
from servetune.metrics.results import JsonObject

WRONG_LENGTH = "wrong_length"
#: Kept samples of each kind.
SAMPLES = 3


def failures_of(
    records: Sequence[Record], wrong: Mapping[int, str] | None = None
) -> list[JsonObject]:
    """Failures by kind, with counts and up to three distinct samples, most frequent first.

    Args:
        records: All records of a run.
        wrong: Descriptions of answers that fail by their length, by index in `records`.
    """
    kinds: dict[str, tuple[int, list[str]]] = {}
    failed = [(record.outcome, record.detail) for record in records if record.outcome != "ok"]
    for kind, detail in [*failed, *((WRONG_LENGTH, text) for text in (wrong or {}).values())]:
        count, samples = kinds.get(kind, (0, []))
        if len(samples) < SAMPLES and detail not in samples:
            samples.append(detail)
        kinds[kind] = (count + 1, samples)
    return [
        {"outcome": kind, "count": count, "sample": samples[0], "samples": samples}
        for kind, (count, samples) in sorted(kinds.items(), key=lambda item: -item[1][0])
    ]


def wrong_lengths(records: Sequence[Record], requested: Mapping[int, int]) -> dict[int, str]:
    """Complete answers whose length differs from the requested one.

    Args:
        records: All records of a run.
        requested: Output tokens by `Record.index`, of the requests with `ignore_eos`; others
            are not judged.

    Returns:
        Descriptions of the differences, by index in `records`.
    """
    return {
        place: f"request {record.index}: asked {requested[record.index]} tokens, "
        f"got {record.output_tokens}"
        for place, record in enumerate(records)
        if record.outcome == "ok"
        and requested.get(record.index, record.output_tokens) != record.output_tokens
    }


def without(whole: BoolArray, places: Mapping[int, str]) -> BoolArray:
    """Mask of complete answers with some indexes removed."""
    kept = whole.copy()
    kept[list(places)] = False
    return kept


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
