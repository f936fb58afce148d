"""Early end of a trial: when it can no longer hold a constraint, or its time is over.

A limit is missed for certain when no further answer could change that: more requests above a 99th
percentile's limit than one in a hundred of all, a sum that is above the mean's limit already.
Otherwise it is plainly missed when the 99 % interval of the settled part lies wholly beyond the
limit. The beginning is not settled: users that begin all at once wait longer than they ever will
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from servetune.metrics import Constraint, PrecisionTarget, Record
from servetune.metrics.columns import Columns, FloatArray, columns_of, known
from servetune.metrics.intervals import (
    gap_percentile_interval,
    mean_interval,
    percentile_interval,
    rate_interval,
    ratio_interval,
    stretches_of,
)
from servetune.metrics.latency import gaps_of
from servetune.trials.budget import Budget
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import Workload

LEVEL = 0.99
FEWEST_SETTLED = 100
SETTLED_SHARE = 0.25  # of all requests, before an interval is believed

Why = Literal["violates", "trial_time", "budget", "until", "put_off"]


class Early(msgspec.Struct, frozen=True):
    """Reason why a trial ended early.

    Attributes:
        why: `violates` a constraint; its own time was over (`trial_time`); the run's was
            (`budget`), or its user put it off (`put_off`), and the trial is as if it had not been
            begun; the precision of its workload was reached (`until`).
    """

    why: Why
    reason: str


class TrialJudge:
    """Judge of one trial; `loadgen` calls it about once a second.

    Args:
        workload: Requests of the whole trial.
        constraints: Constraints that end it when they are plainly missed; none where they shall
            not.
        max_trial_s: Time limit from the first request on; `None` for no limit.
        budget: Budget of the whole study.
        put_off: Tells whether the trial is to end now and run later.

    Attributes:
        early: Early end; `None` while the trial may go on.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        constraints: Sequence[Constraint] = (),
        max_trial_s: float | None = None,
        budget: Budget | None = None,
        put_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._constraints = tuple(constraints)
        self._request_count = len(workload.requests())
        self._users = workload.concurrency if workload.closed_loop else None
        self._until = PrecisionTarget.parse(workload.until) if workload.until else None
        self._max_trial_s, self._budget, self._put_off = max_trial_s, budget, put_off
        self.early: Early | None = None

    def __call__(self, records: Sequence[Record], elapsed_s: float) -> str | None:
        self.early = self._judged(records, elapsed_s)
        return self.early.reason if self.early else None

    def _judged(self, records: Sequence[Record], elapsed_s: float) -> Early | None:
        if self._put_off():
            return Early("put_off", "it was put off")
        if self._until is not None and self._until.met(records).met:
            return Early("until", f"{self._until.label} was reached")
        exceeded = self._budget.exceeded() if self._budget else None
        if exceeded is not None:
            return Early("budget", exceeded)
        if self._max_trial_s is not None and elapsed_s >= self._max_trial_s:
            return Early("trial_time", f"the trial's {format_seconds(self._max_trial_s)} were over")
        missed = plainly_missed(
            self._constraints, records, request_count=self._request_count, users=self._users
        )
        return Early("violates", missed) if missed else None


def plainly_missed(
    constraints: Sequence[Constraint],
    records: Sequence[Record],
    *,
    request_count: int,
    users: int | None = None,
) -> str | None:
    """First constraint that a trial cannot hold any more, in words; `None` while it may hold all.

    Args:
        constraints: Constraints on the whole trial.
        records: Records so far, in any order.
        request_count: Requests of the whole trial.
        users: Users of a closed loop.
    """
    if not constraints or not records:
        return None
    ordered = sorted(records, key=lambda record: record.due_s)
    columns = columns_of(ordered)
    for constraint in constraints:
        miss = _certainly(constraint, columns, request_count) or _likely(
            constraint, ordered, request_count, users
        )
        if miss is not None:
            return f"{constraint.label} is missed: {miss}"
    return None


def _certainly(constraint: Constraint, columns: Columns, request_count: int) -> str | None:
    limit = constraint.value
    if constraint.op not in ("<", "<="):
        return None
    if constraint.metric == "error_rate":
        failed = int((~columns.whole).sum())
        share = failed / request_count
        return f"{failed} of {request_count} requests failed already" if share > limit else None
    values_ms = _values_ms(constraint.metric, columns.only(columns.whole))
    if values_ms is None:
        return None
    if constraint.statistic == "mean":
        least_ms = float(values_ms.sum()) / request_count
        return f"it is {_ms(least_ms)} at least" if least_ms > limit else None
    percent = _percent(constraint)
    if percent is None:
        return None
    allowed = math.ceil((1 - percent / 100) * (request_count - 1)) + 1
    above = int((values_ms > limit).sum())
    return f"{above} of {request_count} requests are above it already" if above > allowed else None


def _likely(
    constraint: Constraint, ordered: Sequence[Record], request_count: int, users: int | None
) -> str | None:
    """Constraint that the interval of the settled part misses."""
    begin = 2 * users if users is not None else len(ordered) // 10
    settled = [record for record in ordered[begin:] if record.outcome == "ok"]
    if len(settled) < max(FEWEST_SETTLED, SETTLED_SHARE * request_count):
        return None
    low, high = _interval_of(constraint, settled)
    if constraint.op in ("<", "<=") and low is not None and low > constraint.value:
        return f"{_shown(constraint, low)} or more in {len(settled)} answers"
    if constraint.op in (">", ">=") and high is not None and high < constraint.value:
        return f"{_shown(constraint, high)} or less in {len(settled)} answers"
    return None


def _interval_of(
    constraint: Constraint, settled: Sequence[Record]
) -> tuple[float | None, float | None]:
    columns = columns_of(settled)
    rate = _AMOUNTS.get(constraint.metric)
    if rate is not None:
        from_s, until_s = float(columns.end_s.min()), float(columns.end_s.max())
        interval = rate_interval(columns.end_s, rate(columns), from_s, until_s, LEVEL)
        return (interval.low, interval.high) if interval else (None, None)
    percent = _percent(constraint)
    stretches = stretches_of(columns).get(constraint.metric)
    if constraint.metric == "itl":
        gaps = gaps_of(settled)
        if not len(gaps.seconds):
            return None, None
        interval = (
            ratio_interval(gaps.sums_s, gaps.counts.astype(np.float64), LEVEL, stretches=stretches)
            if constraint.statistic == "mean"
            else gap_percentile_interval(gaps, percent, LEVEL, stretches=stretches)
            if percent is not None
            else None
        )
        scale = MS_PER_S
    else:
        values_ms = _values_ms(constraint.metric, columns)
        if values_ms is None:
            return None, None
        interval = (
            mean_interval(values_ms, LEVEL, stretches=stretches)
            if constraint.statistic == "mean"
            else percentile_interval(values_ms, percent, LEVEL, stretches=stretches)
            if percent is not None
            else None
        )
        scale = 1.0
    if interval is None:
        return None, None
    return tuple(None if end is None else end * scale for end in interval.ends)  # type: ignore[return-value]


_AMOUNTS: dict[str, Callable[[Columns], FloatArray | None]] = {
    "request_throughput": lambda _: None,
    "output_throughput": lambda columns: columns.output_tokens,
    "input_throughput": lambda columns: columns.input_tokens,
}


def _values_ms(metric: str, answered: Columns) -> FloatArray | None:
    values_s = {
        "ttft": lambda: answered.ttft_s,
        "tpot": lambda: answered.tpot_s,
        "e2e_latency": lambda: answered.e2e_s,
    }.get(metric)
    return None if values_s is None else known(values_s()) * MS_PER_S


def _percent(constraint: Constraint) -> float | None:
    if constraint.statistic == "median":
        return 50.0
    return float(constraint.statistic[1:]) if constraint.statistic.startswith("p") else None


def _shown(constraint: Constraint, value: float) -> str:
    return f"{value:.4g}" if constraint.metric in _AMOUNTS else _ms(value)


def _ms(value_ms: float) -> str:
    return format_seconds(value_ms / MS_PER_S)
