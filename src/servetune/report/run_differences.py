"""Differences between two runs: the same configuration's results in both, with their doubt.

The interval of a difference is that of two independent runs (`metrics.differences`). Without an
interval of both there is none of the difference, and nothing says whether it is more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from servetune.metrics import interval_of
from servetune.metrics.differences import Ends, joined_reach
from servetune.metrics.results import ResultFields
from servetune.report.comparison import COMPARED, PredictionPair, pairs_between
from servetune.report.quantities import quantity_value
from servetune.store.schema import TrialRecord


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one configuration in two runs.

    Attributes:
        key: Key of this run's trial.
        label: Settings of the trial that differ.
        quantity: Quantity.
        statistic: Statistic of it.
        here: Value of this run.
        here_ends: Ends of its 95% sampling interval; `None` where unknown.
        there: Value of the other run.
        there_ends: Ends of its 95% sampling interval.
        change_fraction: Relative difference, here / there - 1.
        change_low: Lower end of the interval of the difference; `None` where unknown.
        change_high: Upper end of the interval of the difference.
        told_apart: Whether the interval leaves out 0; `None` where that is not known.
    """

    key: str
    label: str
    quantity: str
    statistic: str
    here: float
    here_ends: Ends
    there: float
    there_ends: Ends
    change_fraction: float
    change_low: float | None
    change_high: float | None
    told_apart: bool | None


def run_differences(
    here: Sequence[TrialRecord], there: Sequence[TrialRecord]
) -> tuple[RunDifference, ...]:
    """Differences in every metric of `comparison.COMPARED`, for the configurations of both runs.

    Measured trials are compared with measured ones and simulated with simulated ones; a prediction
    and its measurement are a pair of `comparison`.
    """
    pairs = [
        pair
        for simulated in (False, True)
        for pair in pairs_between(
            *([record for record in run if record.simulated == simulated] for run in (here, there))
        )
    ]
    return tuple(difference for pair in pairs for difference in _differences(pair))


def _differences(pair: PredictionPair) -> Iterator[RunDifference]:
    for quantity, statistic in COMPARED:
        here, there = (
            quantity_value(results, quantity, statistic)
            for results in (pair.predicted, pair.measured)
        )
        if not here or not there or here < 0 or there < 0:
            continue
        own, other = (
            _ends(results, quantity, statistic) for results in (pair.predicted, pair.measured)
        )
        low = joined_reach((here, own[0]), (there, other[1]))
        high = joined_reach((here, own[1]), (there, other[0]))
        ratio = here / there
        change_low = None if low is None else ratio / math.exp(low) - 1
        change_high = None if high is None else ratio * math.exp(high) - 1
        yield RunDifference(
            key=pair.key,
            label=pair.label,
            quantity=quantity,
            statistic=statistic,
            here=here,
            here_ends=own,
            there=there,
            there_ends=other,
            change_fraction=ratio - 1,
            change_low=change_low,
            change_high=change_high,
            told_apart=_told_apart(ratio - 1, change_low, change_high),
        )


def _ends(results: ResultFields, quantity: str, statistic: str) -> Ends:
    return interval_of(results, quantity, statistic) or (None, None)


def _told_apart(change: float, low: float | None, high: float | None) -> bool | None:
    """Whether the end towards no difference stays on its side of it."""
    if low is None and high is None:
        return None
    end = low if change > 0 else high
    return None if end is None else (end > 0 if change > 0 else end < 0)
