"""Columns: the records of a run as arrays, one value per request and quantity.

Each value is read from its record once, since summaries use the same few numbers many times.
A missing value (no first token, no new connection) is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from servetune.metrics.record import Record

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]
IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]
BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Columns:
    """Times and counts of records, in their order; each array has shape (requests,).

    Every latency is defined here for arrays and in `Record` for a single request.

    Attributes:
        first_s: Arrival of the first chunk; NaN without one or for an answer that did not stream.
        last_s: Arrival of the last chunk.
        pieces: Number of chunks.
        connect_s: Connection time; NaN on a reused connection.
        whole: Whether the answer was complete.
    """

    due_s: FloatArray
    sent_s: FloatArray
    end_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    pieces: FloatArray
    connect_s: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    whole: BoolArray

    def __len__(self) -> int:
        return len(self.due_s)

    def only(self, chosen: BoolArray | IntArray) -> Columns:
        """Columns of a subset, by mask or by index."""
        return Columns(**{name: getattr(self, name)[chosen] for name in self.__annotations__})

    @cached_property
    def e2e_s(self) -> FloatArray:
        """End-to-end latency, from due."""
        return self.end_s - self.due_s

    @cached_property
    def ttft_s(self) -> FloatArray:
        """Time to first token, from due."""
        return self.first_s - self.due_s

    @cached_property
    def streamed_s(self) -> FloatArray:
        """Time from the first chunk to the last."""
        return self.last_s - self.first_s

    @cached_property
    def tpot_s(self) -> FloatArray:
        """Time per output token after the first; NaN for fewer than two, and for a broken answer
        of which one arrival is known.
        """
        known = (self.output_tokens > 1) & (self.whole | (self.pieces > 1))
        after_first = np.where(known, self.output_tokens - 1, np.nan)
        return self.streamed_s / after_first

    @cached_property
    def wait_s(self) -> FloatArray:
        """Time from due to sent: queueing in the client, connecting included."""
        return self.sent_s - self.due_s

    @cached_property
    def ttft_from_sent_s(self) -> FloatArray:
        """Time to first token, from sent."""
        return self.first_s - self.sent_s

    @cached_property
    def e2e_from_sent_s(self) -> FloatArray:
        """End-to-end latency, from sent."""
        return self.end_s - self.sent_s

    @cached_property
    def normalized_s(self) -> FloatArray:
        """End-to-end latency per output token; NaN without one."""
        return self.e2e_s / np.where(self.output_tokens > 0, self.output_tokens, np.nan)

    @cached_property
    def output_rate_per_s(self) -> FloatArray:
        """Output tokens per second after the first; NaN where all arrived at once."""
        return 1 / np.where(self.tpot_s > 0, self.tpot_s, np.nan)


def columns_of(records: Sequence[Record]) -> Columns:
    """Columns of some records."""
    times = [record.chunk_times_s for record in records]
    return Columns(
        due_s=_column(records, "due_s"),
        sent_s=_column(records, "sent_s"),
        end_s=_column(records, "end_s"),
        first_s=_filled([at_s[0] if len(at_s) else np.nan for at_s in times]),
        last_s=_filled([at_s[-1] if len(at_s) else np.nan for at_s in times]),
        pieces=_filled([len(at_s) for at_s in times]),
        connect_s=_filled([np.nan if r.connect_s is None else r.connect_s for r in records]),
        input_tokens=_column(records, "input_tokens"),
        output_tokens=_column(records, "output_tokens"),
        whole=np.array([record.outcome == "ok" for record in records], dtype=np.bool_),
    )


def known(values: FloatArray) -> FloatArray:
    """Values that are not NaN."""
    return values[~np.isnan(values)]


def _column(records: Sequence[Record], name: str) -> FloatArray:
    read: Callable[[Any], float] = attrgetter(name)
    return np.fromiter(map(read, records), dtype=np.float64, count=len(records))


def _filled(values: Iterable[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)
