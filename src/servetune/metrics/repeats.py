"""Results of several runs of one load, as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from servetune.json_value import JsonObject
from servetune.metrics.results import ResultFields

#: Counts of requests, which add up; every other number is averaged.
_COUNTS = frozenset({"completed", "failed"})


def mean_results(runs: Sequence[ResultFields]) -> JsonObject:
    """Mean of the figures of independent runs, with the interval of the mean.

    Figures that a run lacks are absent; members that are no numbers are the first run's. The mean
    of n runs has, on each side, the root of the sum of squares of their intervals' reaches over n.

    Args:
        runs: Results of equal trials with different seeds; at least one.
    """
    first, merged = runs[0], dict(runs[0])
    for name in first:
        values = [run.get(name) for run in runs]
        if _is_number(first[name]):
            numbers = [value for value in values if value is not None and _is_number(value)]
            whole = len(numbers) == len(runs)
            merged[name] = None if not whole else _joined(name, numbers)
    quantiles = [run.get("quantiles") or {} for run in runs]
    if quantiles[0]:
        merged["quantiles"] = {
            metric: _mean_of_members([each.get(metric) or {} for each in quantiles])
            for metric in quantiles[0]
        }
    intervals = [run.get("intervals") or {} for run in runs]
    if intervals[0]:
        merged["intervals"] = {
            field: ends
            for field in intervals[0]
            if (ends := _interval(field, runs, merged.get(field))) is not None
        }
    return merged


def _joined(name: str, numbers: Sequence[float]) -> float:
    return sum(numbers) if name in _COUNTS else sum(numbers) / len(numbers)


def _mean_of_members(members: Sequence[Mapping[str, float | None]]) -> JsonObject:
    found: JsonObject = {}
    for name in members[0]:
        values = [each.get(name) for each in members]
        known = [value for value in values if value is not None]
        found[name] = sum(known) / len(known) if len(known) == len(values) else None
    return found


def _interval(
    field: str, runs: Sequence[ResultFields], mean: float | None
) -> list[float | None] | None:
    """Interval of a mean; `None` where a run has no value or no interval."""
    pairs = [(run.get(field), (run.get("intervals") or {}).get(field)) for run in runs]
    known = [(value, ends) for value, ends in pairs if value is not None and ends is not None]
    if mean is None or len(known) < len(pairs):
        return None
    low, high = (_reach([(value, ends[side]) for value, ends in known]) for side in (0, 1))
    return [None if low is None else mean - low, None if high is None else mean + high]


def _reach(pairs: Sequence[tuple[float, float | None]]) -> float | None:
    """Distance from the mean to an end of its interval; `None` where an end is not known."""
    reaches = [value - end for value, end in pairs if end is not None]
    return math.hypot(*reaches) / len(pairs) if len(reaches) == len(pairs) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
