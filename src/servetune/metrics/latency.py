"""Latency distributions out of records, in seconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from servetune.metrics.record import Record

__all__ = ["FloatArray", "e2e_latencies_s", "itl_gaps_s", "tpots_s", "ttfts_s"]

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]


def ttfts_s(records: Iterable[Record]) -> FloatArray:
    """Times to first token of the answered requests, from due."""
    return _array(record.ttft_s for record in records)


def tpots_s(records: Iterable[Record]) -> FloatArray:
    """Times per output token after the first, one per request with two tokens or more."""
    return _array(record.tpot_s for record in records)


def e2e_latencies_s(records: Iterable[Record]) -> FloatArray:
    """End-to-end latencies, from due."""
    return _array(record.e2e_s for record in records)


def itl_gaps_s(records: Iterable[Record]) -> FloatArray:
    """Inter-token latencies: one gap per token after each request's first.

    A piece that brings k tokens after a gap g counts as k gaps of g / k, so that the sum
    of gaps is the time from first to last token whatever the pieces were.
    """
    longer = [record for record in records if len(record.chunk_times_s) > 1]
    filled = 0
    # Into one array: a million small ones would take more room than what they hold.
    all_gaps_s: FloatArray = np.empty(sum(map(_gap_count, longer)))
    for record in longer:
        gaps_s = np.diff(np.asarray(record.chunk_times_s))
        if len(record.chunk_tokens):
            tokens = np.asarray(record.chunk_tokens[1:])
            told = tokens > 0
            gaps_s = np.repeat(gaps_s[told] / tokens[told], tokens[told])
        all_gaps_s[filled : filled + len(gaps_s)] = gaps_s
        filled += len(gaps_s)
    return all_gaps_s


def _gap_count(record: Record) -> int:
    if not len(record.chunk_tokens):
        return len(record.chunk_times_s) - 1
    return sum(tokens for tokens in record.chunk_tokens[1:] if tokens > 0)


def _array(values: Iterable[float | None]) -> FloatArray:
    return np.array([value for value in values if value is not None], dtype=np.float64)
