"""Latency distributions of records, in seconds; defined in `docs/reference/metrics.md`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from servetune.metrics.columns import BoolArray, FloatArray, IntArray, columns_of, known
from servetune.metrics.record import Record

#: Chunks per batch: few enough to fit a processor's cache.
_BATCH_CHUNKS = 100_000


def ttfts_s(records: Iterable[Record]) -> FloatArray:
    """Times to first token, from due."""
    return known(columns_of(list(records)).ttft_s)


def itl_gaps_s(records: Iterable[Record]) -> FloatArray:
    """Inter-token latencies: one gap per token after each request's first; see `gaps_between`."""
    return gaps_of(list(records)).seconds


class Arrivals(NamedTuple):
    """Arrival times of the chunks of several answers, one request after the other.

    An answer that did not stream is one chunk, which arrives at its end.

    Attributes:
        times_s: Arrival times, shape (chunks,).
        tokens: Tokens of each chunk; `None` where each is one.
        lengths: Chunks of each request, shape (requests,).
    """

    times_s: FloatArray
    tokens: IntArray | None
    lengths: IntArray

    @property
    def owners(self) -> IntArray:
        """Request index of each chunk, shape (chunks,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def only(self, chosen: BoolArray) -> Arrivals:
        """Arrivals of the chosen requests."""
        if chosen.all():
            return self
        kept = np.repeat(chosen, self.lengths)
        tokens = None if self.tokens is None else self.tokens[kept]
        return Arrivals(self.times_s[kept], tokens, self.lengths[chosen])


class Gaps(NamedTuple):
    """Inter-token gaps of several requests, one request after the other.

    Attributes:
        seconds: Gap lengths, shape (gaps,).
        counts: Gaps of each request, shape (requests,).
    """

    seconds: FloatArray
    counts: IntArray

    def only(self, chosen: BoolArray) -> Gaps:
        """Gaps of the chosen requests."""
        if chosen.all():
            return self
        return Gaps(self.seconds[np.repeat(chosen, self.counts)], self.counts[chosen])

    @property
    def sums_s(self) -> FloatArray:
        """Sum of each request's gaps, shape (requests,)."""
        some = self.counts > 0
        sums_s = np.zeros(len(self.counts))
        if some.any():
            starts = (np.cumsum(self.counts) - self.counts)[some]
            sums_s[some] = np.add.reduceat(self.seconds, starts)
        return sums_s


def arrivals_of(records: Sequence[Record]) -> Arrivals:
    """Chunk arrivals of some records."""
    times_s, tokens = array("d"), array("q")
    lengths = np.array([len(record.chunk_times_s) for record in records], dtype=np.int64)
    several = any(len(r.chunk_tokens) or _came_whole(r) for r in records)
    for place, record in enumerate(records):
        times_s += array("d", record.chunk_times_s)
        if not several:
            continue
        if _came_whole(record):
            times_s.append(record.end_s)
            tokens.append(record.output_tokens)
            lengths[place] = 1
        else:  # a measured run packs them as narrower integers than these
            pieces = len(record.chunk_times_s)
            tokens += array("q", record.chunk_tokens if len(record.chunk_tokens) else [1] * pieces)
    return Arrivals(
        np.frombuffer(times_s) if times_s else np.empty(0),
        np.frombuffer(tokens, dtype=np.int64) if tokens else None,
        lengths,
    )


def gaps_between(
    arrivals: Arrivals, from_s: float | None = None, until_s: float | None = None
) -> Gaps:
    """Inter-token gaps: one per token after each request's first chunk.

    A chunk of k tokens after a gap g counts as k gaps of g / k, so that the gaps sum to the
    time from first to last token however tokens are packed into chunks. Tokens of the first
    chunk have no gap. A chunk without tokens ends no gap: the next one is measured from the
    last token.

    Args:
        arrivals: Chunk arrivals of the requests.
        from_s: Earliest end of a kept gap.
        until_s: Time before which a kept gap ends.
    """
    times_s, tokens, lengths = arrivals
    if tokens is not None and not (tokens > 0).all():
        times_s, tokens, lengths = _with_tokens(arrivals)
    gaps_s = np.diff(times_s)
    ends = np.cumsum(lengths)
    inside = np.ones(len(gaps_s), dtype=np.bool_)
    between = ends[(lengths > 0) & (ends < len(times_s))] - 1
    inside[between[between >= 0]] = False  # from one request's last chunk to another's first
    if from_s is not None:
        inside &= times_s[1:] >= from_s
    if until_s is not None:
        inside &= times_s[1:] < until_s
    weights = inside if tokens is None else tokens[1:] * inside
    counts = _sums(weights, np.maximum(lengths - 1, 0), ends - lengths)
    gaps_s = gaps_s[inside]
    if tokens is not None:
        counted = tokens[1:][inside]
        gaps_s = np.repeat(gaps_s / counted, counted)
    return Gaps(gaps_s, counts)


def gaps_of(records: Sequence[Record]) -> Gaps:
    """Inter-token gaps of some records, in batches to bound memory; see `gaps_between`."""
    counts = np.zeros(len(records), dtype=np.int64)
    seconds = array("d")
    for batch in _batches(records):
        gaps = gaps_between(arrivals_of(records[batch.start : batch.stop]))
        seconds.frombytes(gaps.seconds.tobytes())
        counts[batch.start : batch.stop] = gaps.counts
    return Gaps(np.frombuffer(seconds) if seconds else np.empty(0), counts)


def _with_tokens(arrivals: Arrivals) -> Arrivals:
    """Arrivals without empty chunks, except the first of each request."""
    times_s, tokens, lengths = arrivals
    assert tokens is not None
    owners = arrivals.owners
    kept = (tokens > 0) | (np.diff(owners, prepend=-1) > 0)
    lengths = np.bincount(owners[kept], minlength=len(lengths))
    return Arrivals(times_s[kept], tokens[kept], lengths)


def _sums(values: BoolArray | IntArray, lengths: IntArray, starts: IntArray) -> IntArray:
    """Sum of the values of each request; a request may have none."""
    some = lengths > 0
    sums = np.zeros(len(lengths), dtype=np.int64)
    if some.any():
        # A request's values run to the next start; values in between are no gaps and count as 0.
        sums[some] = np.add.reduceat(values, starts[some], dtype=np.int64)
    return sums


def _came_whole(record: Record) -> bool:
    return record.output_tokens > 0 and not len(record.chunk_times_s)


def _batches(records: Sequence[Record]) -> Iterator[range]:
    """Ranges of records with about `_BATCH_CHUNKS` chunks each."""
    start = pieces = 0
    for place, record in enumerate(records):
        pieces += len(record.chunk_times_s)
        if pieces >= _BATCH_CHUNKS:
            yield range(start, place + 1)
            start, pieces = place + 1, 0
    if start < len(records):
        yield range(start, len(records))
