"""Requests in the system over time, and the law that ties them to rate and time.

A request is in the system from when it is due to when it ends, whatever its outcome.
"""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.metrics.columns import Columns, FloatArray

__all__ = ["LittlesLaw", "in_system_means", "littles_law", "mean_in_system"]


class LittlesLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Little's law over a stretch of time, each side measured by itself.

    Attributes:
        in_system: Mean number of requests in the system, integrated over the stretch.
        rate_per_s: Requests that became due in it, per second.
        mean_time_s: Mean time in the system of those, wherever it ended.
        residual: (in_system - rate_per_s * mean_time_s) / in_system. Near zero over a steady
            stretch that is much longer than one request; over a whole run that began and
            ended empty it is zero but for what lies outside the run.
    """

    in_system: float
    rate_per_s: float
    mean_time_s: float | None
    residual: float | None


def littles_law(columns: Columns, from_s: float, until_s: float) -> LittlesLaw | None:
    """Both sides of Little's law between two times; `None` for no time at all."""
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
    """Time that all requests spent between two times, over the time between them."""
    spent_s = np.minimum(end_s, until_s) - np.maximum(due_s, from_s)
    return float(np.maximum(spent_s, 0).sum()) / (until_s - from_s)


def in_system_means(due_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Mean number in the system between each two neighbouring edges.

    Returns:
        Shape (edges - 1,).
    """
    spent_s = _spent_s(np.sort(due_s), edges_s) - _spent_s(np.sort(end_s), edges_s)
    return np.diff(spent_s) / np.diff(edges_s)


def _spent_s(since_s: FloatArray, at_s: FloatArray) -> FloatArray:
    """Sum over all moments of the time since each, at some times; moments in order."""
    before = np.searchsorted(since_s, at_s)
    sums_s = np.concatenate(([0.0], np.cumsum(since_s)))
    return before * at_s - sums_s[before]
