"""Little's law: requests in the system, their rate and their time in the system.

A request is in the system from its due time to its end, whatever its outcome.
"""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.metrics.columns import Columns, FloatArray


class LittlesLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Little's law over one interval of time, each side measured independently.

    Attributes:
        in_system: Mean number of requests in the system over the interval.
        rate_per_s: Requests due in the interval, per second.
        mean_time_s: Mean time in the system of those requests, up to their end.
        residual: Relative difference (in_system - rate_per_s * mean_time_s) / in_system. Near zero
            over a steady interval that is much longer than one request; zero over a whole run that
            began and ended empty, apart from requests outside the run.
    """

    in_system: float
    rate_per_s: float
    mean_time_s: float | None
    residual: float | None


def littles_law(columns: Columns, from_s: float, until_s: float) -> LittlesLaw | None:
    """Little's law between two times; `None` for an empty interval."""
    if not until_s > from_s:
        return None
    in_system = mean_in_system(columns.due_s, columns.end_s, from_s, until_s)
    due = (columns.due_s >= from_s) & (columns.due_s < until_s)
    rate_per_s = float(due.sum()) / (until_s - from_s)
    mean_time_s = float(columns.e2e_s[due].mean()) if due.any() else None
    residual = None
    if in_system > 0 and mean_time_s is not None:
        residual = (in_system - rate_per_s * mean_time_s) / in_system
    return LittlesLaw(
        in_system=in_system, rate_per_s=rate_per_s, mean_time_s=mean_time_s, residual=residual
    )


def mean_in_system(due_s: FloatArray, end_s: FloatArray, from_s: float, until_s: float) -> float:
    """Mean number of requests in the system between two times."""
    spent_s = np.minimum(end_s, until_s) - np.maximum(due_s, from_s)
    return float(np.maximum(spent_s, 0).sum()) / (until_s - from_s)


def in_system_means(due_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Mean number of requests in the system in each interval between neighbouring edges.

    Returns:
        Shape (edges - 1,).
    """
    spent_s = _spent_s(np.sort(due_s), edges_s) - _spent_s(np.sort(end_s), edges_s)
    return np.diff(spent_s) / np.diff(edges_s)


def _spent_s(since_s: FloatArray, at_s: FloatArray) -> FloatArray:
    """Sum of the elapsed times since each moment of `since_s` (sorted), at each of `at_s`."""
    before = np.searchsorted(since_s, at_s)
    sums_s = np.concatenate(([0.0], np.cumsum(since_s)))
    return before * at_s - sums_s[before]
