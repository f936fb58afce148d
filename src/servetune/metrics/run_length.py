"""Run length that a comparison needs: repeats of a run, by how far repeats differ.

The rule of a gate (`metrics.gate`) fails a difference that is told apart from none and whose
interval reaches the threshold. `runs_for` is the smallest number of runs with which it fails a true
difference of the threshold in at least `POWER` of comparisons.
"""

from __future__ import annotations

import math

from servetune.metrics.differences import LEVEL, POWER, scipy_part, t_quantile

#: Fewest and most runs of each side that are recommended.
LEAST_RUNS, MOST_RUNS = 5, 200
#: Standard errors of an effect that is always told.
_CERTAIN = 30
#: Confidence that the spread of pairs, and of runs, is no larger than planned with. What seeds do
#: to a p99 is skewed (a few have the long queues), so that few runs show too little of it: at 80%,
#: plans of five runs caught 75 to 84% of differences rather than 90% (`benchmarks/metrics`).
_PAIRS_LEVEL, _RUNS_LEVEL = 0.8, 0.95
#: Standard deviation from seed to seed of what a slower server does to a p99 of requests that come
#: at times of their own, as a share of its mean: equal servers do not show it. 0.28 to 0.49 on
#: seven simulated loads of 500 and 1,000 requests, 0.00 to 0.14 where users wait for answers.
_UNEVEN = 0.5


def power_of(effect: float, spread: float, runs: int, *, paired: bool, tests: int = 1) -> float:
    """Probability with which a true difference of the threshold's size is failed, at least.

    Args:
        effect: Difference of logarithms, which is also the threshold.
        spread: Standard deviation of the logarithm from run to run; of pairs, of their differences.
        runs: Runs of each side.
        paired: Whether they are pairs.
        tests: Number of tests that share the probability of a false alarm.
    """
    freedom = runs - 1 if paired else 2 * runs - 2
    error = spread * math.sqrt((1 if paired else 2) / runs)
    if effect > _CERTAIN * error:  # beyond what SciPy's distribution computes
        return (1 + LEVEL) / 2
    needed = t_quantile(1 - (1 - LEVEL) / 2 / tests, freedom)
    told = 1 - float(scipy_part("special").nctdtr(freedom, effect / error, needed))
    # The interval of a true difference of the threshold ends short of it in so many comparisons; of
    # others the estimate is past half, since the interval also leaves none out.
    short = (1 - LEVEL) / 2
    return max(0.0, told - short)


def runs_for(
    effect: float, spread: float, *, paired: bool, tests: int = 1, least: int = LEAST_RUNS
) -> int | None:
    """Smallest number of runs of each side with `POWER`; `None` where `MOST_RUNS` do not do."""
    for runs in range(least, MOST_RUNS + 1):
        if power_of(effect, spread, runs, paired=paired, tests=tests) >= POWER:
            return runs
    return None


def with_uneven_effect(spread: float, effect: float) -> float:
    """Spread of the differences of a latency under load at times of its own, for a true effect.

    Queues lengthen a server's slowness, in some seeds more than in others.

    Args:
        spread: Spread of the differences of equal servers.
        effect: Difference of logarithms that is to be told.
    """
    return math.hypot(spread, _UNEVEN * effect)


def likely_most(spread: float, freedom: float, *, paired: bool) -> float:
    """Spread that the true one does not exceed in most cases, for one estimated by few runs.

    Args:
        spread: Standard deviation that was found.
        freedom: Degrees of freedom of it; infinite where it is taken as known.
        paired: Whether it is of the differences of pairs, of 80% of cases, else of runs, of 95%.
    """
    if math.isinf(freedom):
        return spread
    level = _PAIRS_LEVEL if paired else _RUNS_LEVEL
    chi_square = 2 * float(scipy_part("special").gammaincinv(freedom / 2, 1 - level))
    return spread * math.sqrt(freedom / chi_square)
