"""Timeline of a run as plain values: one bar a request, and curves of how full the engine was."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.json_value import JsonObject
from servetune.metrics import Record


class TimelineCurves(msgspec.Struct, frozen=True, kw_only=True):
    """Mean numbers of requests over bins of equal width."""

    width_s: float
    running: list[float]
    waiting: list[float]


#: Index, due, admitted, first token and end in seconds, tokens in, tokens out, and whether the
#: answer was complete.
Bar = tuple[int, float, float | None, float | None, float, int | None, int | None, bool]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Request timeline of a single trial; `seen_by_client` where its admissions are send times."""

    duration_s: float
    total: int
    seen_by_client: bool
    bars: list[Bar]
    curves: TimelineCurves
    kv: list[tuple[float, float]]


#: Largest number of request bars, so that drawing is instant and the page stays below half a
#: megabyte.
MOST_BARS = 2000
#: Points of a curve, about the columns of a screen.
_POINTS = 400
#: Decimals of times in seconds; a tenth of a millisecond is less than a pixel.
_DECIMALS = 4


def timeline_of(
    records: Sequence[Record],
    admitted_s: Sequence[float | None],
    kv_use: Sequence[tuple[float, float]],
    *,
    seen_by_client: bool = False,
) -> JsonObject:
    """Bars of single requests, and curves of the whole run.

    Of more than `MOST_BARS` requests an even sample is drawn; the curves are of all. A request
    is running from its first scheduling to its last token, and waiting from due until then. A
    preempted request still counts as running.

    Args:
        records: Records in order of index, at least one.
        admitted_s: Time of each request's first scheduling, if any.
        seen_by_client: Whether these are send times, as the client cannot see scheduling.
        kv_use: Pairs of seconds and used share of the KV cache.
    """
    end_s = max(record.end_s for record in records)
    chosen = _even(len(records), MOST_BARS)
    starts = [
        record.end_s if at is None else at for record, at in zip(records, admitted_s, strict=True)
    ]
    return {
        "duration_s": end_s,
        "total": len(records),
        "seen_by_client": seen_by_client,
        "bars": [_bar(records[i], admitted_s[i]) for i in chosen],
        "curves": _curves(records, starts, end_s),
        "kv": [
            [round(time_s, _DECIMALS), round(share, 5)]
            for time_s, share in (kv_use[i] for i in _even(len(kv_use), _POINTS))
        ],
    }


def _even(count: int, most: int) -> list[int]:
    """Indexes of at most `most` of `count` items, evenly spaced, both ends included."""
    if count <= most:
        return list(range(count))
    return [round(i) for i in np.linspace(0, count - 1, most)]


def _bar(record: Record, admitted_s: float | None) -> list[float | None]:
    """Index, due, admitted, first token, end, tokens in, tokens out, and whether the answer
    was complete; a missing time is `None`.
    """
    first_s = record.chunk_times_s[0] if record.chunk_times_s else None
    times_s = (record.due_s, admitted_s, first_s, record.end_s)
    return [
        record.index,
        *(None if at is None else round(at, _DECIMALS) for at in times_s),
        record.input_tokens,
        record.output_tokens,
        record.outcome == "ok",
    ]


def _curves(records: Sequence[Record], starts_s: Sequence[float], end_s: float) -> JsonObject:
    """Curves of means over time bins, so that no peak between two points is lost."""
    edges_s = np.linspace(0.0, end_s or 1.0, _POINTS + 1)
    due = _area(np.array([record.due_s for record in records]), edges_s)
    started = _area(np.array(starts_s), edges_s)
    ended = _area(np.array([record.end_s for record in records]), edges_s)
    width_s = edges_s[1] - edges_s[0]
    return {
        "width_s": float(width_s),
        "running": _means(started - ended, width_s),
        "waiting": _means(due - started, width_s),
    }


_Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _area(times_s: _Floats, edges_s: _Floats) -> _Floats:
    """Integral up to each edge of the number of past times: sum of (edge - time)."""
    ordered = np.sort(times_s)
    past = np.searchsorted(ordered, edges_s, side="right")
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    area: _Floats = edges_s * past - sums[past]
    return area


def _means(area: _Floats, width_s: float) -> list[float]:
    return [round(max(0.0, float(mean)), 3) for mean in np.diff(area) / width_s]
