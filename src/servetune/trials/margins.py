"""Margin of a trial: how far the worst of the limits is used up that load makes worse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from servetune.metrics import LATENCIES, Constraint, interval_of, value_of
from servetune.store import Results, TrialRecord

#: Relative standard error of a figure whose results have no confidence interval.
ASSUMED_SD = 0.05
#: Relative variation from run to run, which no interval within a run shows.
RUN_TO_RUN_SD = 0.02

#: Metrics that more load makes worse, where a constraint limits them from above.
_WORSENED = (*LATENCIES, "error_rate")
#: Normal quantile of the intervals of results, which are 95% wide.
_QUANTILE = 1.96


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """Margin of a trial.

    Attributes:
        ratio: Value over limit of the constraint that comes nearest to its limit or misses it
            most; infinite where the server could not bear the load.
        sd: Standard error of the ratio's logarithm; 0 where another run would show the same.
        assumed: Whether the results have no interval, and the error is `ASSUMED_SD`.
    """

    ratio: float
    sd: float = 0.0
    assumed: bool = False


def worsened_by_load(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Constraints that hold up to some load and not beyond it."""
    return tuple(
        each for each in constraints if each.op in ("<", "<=") and each.metric in _WORSENED
    )


def margin_of(record: TrialRecord, constraints: Sequence[Constraint]) -> Margin:
    """Margin of a trial that ended.

    A trial that failed, or whose queue grew without bound, has no ratio but has missed for certain.

    Args:
        record: The trial.
        constraints: Constraints that load makes worse; at least one.
    """
    if record.status != "ok":
        return Margin(ratio=math.inf)
    found = margin_in(record.results, constraints)
    if record.simulated and not record.provenance:  # in virtual time
        return Margin(ratio=found.ratio)
    return found


def margin_in(results: Results, constraints: Sequence[Constraint]) -> Margin:
    """Margin of results, measured or predicted; see `margin_of`."""
    if _saturated(results):
        return Margin(ratio=math.inf)
    margins = [_margin(each, results) for each in constraints]
    worst = max(margins, key=lambda margin: margin.ratio)
    if worst.ratio <= 1 and _ended_by(results, constraints):
        return Margin(ratio=math.inf)  # its last requests would have shown the miss
    return worst


def _margin(constraint: Constraint, results: Results) -> Margin:
    value = value_of(results, constraint.metric, constraint.statistic)
    if value is None:
        return Margin(ratio=math.inf)
    if not (value > 0 and constraint.value > 0):
        return Margin(ratio=0.0 if constraint.holds(results) else math.inf)
    sd = _interval_sd(constraint, value, results)
    return Margin(
        ratio=value / constraint.value,
        sd=math.hypot(ASSUMED_SD if sd is None else sd, RUN_TO_RUN_SD),
        assumed=sd is None,
    )


def _interval_sd(constraint: Constraint, value: float, results: Results) -> float | None:
    """Relative standard error of a value out of its interval within the run."""
    if constraint.metric == "error_rate":
        count = (results.completed or 0) + (results.failed or 0)
        return math.sqrt(max(0.0, 1 - value) / (count * value)) if count else None
    low, high = interval_of(results, constraint.metric, constraint.statistic) or (None, None)
    if low is not None and low > 0 and high is not None:
        return math.log(high / low) / (2 * _QUANTILE)
    if low is not None and low > 0:  # too few values for an upper end
        return math.log(value / low) / _QUANTILE
    return None


def _saturated(results: Results) -> bool:
    """Whether requests arrived faster than they were answered."""
    verdict = results.saturation
    return bool((verdict and verdict.saturated) or (results.server or {}).get("saturated"))


def _ended_by(results: Results, constraints: Sequence[Constraint]) -> bool:
    """Whether the trial was ended early because one of the constraints was missed."""
    reason = results.ended_reason or ""
    return any(reason.startswith(f"{each.label} is missed") for each in constraints)
