"""Overload test: whether requests arrive faster than they are served, so the queue diverges.

In an open loop the requests in the system are arrivals minus departures. A stable queue
returns what it takes in; an unstable one grows by the difference of the two rates for as long
as the run lasts. Rates in twenty equal time bins are compared by Student's t:

- with a known, constant offered rate, departures must fall short of it by more than their
  own variation, and the queue must grow. A burst of arrivals alone does not do that, so a
  verdict needs few requests;
- without one, the growth must exceed the variation of both arrivals and departures.

In either case the growth is at least 3 % of the arrivals, and already positive in the first
half of the time.

Two queues are tested: requests in the system, and requests that wait for their first token.
The second grows sooner where answers are long, the first where many are served at once.

The ramp-up is excluded: requests in service are no queue. The test starts at twice the time
within which four of five of the first 20 requests ended, and gives no verdict before as much
time again has passed.

Checks are geometric: during a run the state is tested after 50 requests, 60, 72 and so on,
and not in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from servetune.metrics.columns import FloatArray, columns_of
from servetune.metrics.intervals import student_t
from servetune.metrics.record import Record
from servetune.units import format_rate

FIRST_CHECK = 50
GROWTH = 1.2
TIME_BINS = 20
#: Probability of calling a stable queue unstable, at one check.
CHANCE = 0.002
#: Same probability for the growth test alone, used with a known offered rate.
GROWN_CHANCE = 0.05
#: First requests, which measure the time in the system without a queue.
FIRST = 20
#: Ramp-up time, in multiples of the time in the system.
FILLING = 2.0
#: Smallest growth that counts, as a share of the arrivals.
LEAST_FRACTION = 0.03
#: Verdict on a run that ended before its ramp-up did.
STILL_FILLING = "the system was still filling up"


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on the queue of an open loop.

    Attributes:
        saturated: Whether the queue diverged.
        words: Verdict as a sentence.
        arrivals_per_s: Arrivals in the tested time.
        served_per_s: Departures in the tested time, failures included; first tokens where the
            words say "begun".
        growth_per_s: Difference of the two rates.
        requests: Arrivals at the check.
    """

    saturated: bool
    words: str
    arrivals_per_s: float | None = None
    served_per_s: float | None = None
    growth_per_s: float | None = None
    requests: int = 0


def saturation(
    records: Sequence[Record],
    offered_rate: float | None = None,
    *,
    now_s: float | None = None,
    in_flight: Iterable[tuple[float, float | None]] = (),
) -> Saturation:
    """Overload verdict of a run, over requests in the system and requests without a token.

    Args:
        records: Ended requests of an open loop.
        offered_rate: Configured requests per second, where constant; the verdict says so if
            the load generator did not reach it.
        now_s: Time since the start, for a run in progress.
        in_flight: Due time and first-token time of each request that has not ended, for a run
            in progress.
    """
    columns = columns_of(records)
    still = np.array([(due_s, _or_never(at_s)) for due_s, at_s in in_flight]).reshape(-1, 2)
    cut_off = np.array([record.outcome == "cancelled" for record in records], dtype=np.bool_)
    # Cancelled at the end of the run, so not departed.
    end_s = np.where(cut_off, np.inf, columns.end_s)
    begun_s = np.where(np.isnan(columns.first_s), end_s, columns.first_s)
    due_s = np.concatenate((columns.due_s, still[:, 0]))
    verdict = saturation_of(
        due_s, np.concatenate((end_s, np.full(len(still), np.inf))), offered_rate, now_s=now_s
    )
    if verdict.saturated:
        return verdict
    waiting = saturation_of(
        due_s, np.concatenate((begun_s, still[:, 1])), offered_rate, now_s=now_s, left="begun"
    )
    return waiting if waiting.saturated else verdict


def saturation_of(
    due_s: FloatArray,
    end_s: FloatArray,
    offered_rate: float | None = None,
    *,
    now_s: float | None = None,
    left: str = "served",
) -> Saturation:
    """Overload verdict from due times and departure times (infinity: still queued).

    `left` is the verdict's word for a departure.
    """
    order = np.argsort(due_s, kind="stable")
    due_s, end_s = due_s[order], end_s[order]
    if now_s is not None:
        come = int(np.searchsorted(due_s, now_s, side="right"))
        due_s, end_s = due_s[:come], end_s[:come]
    checked = _last_check(len(due_s))
    if not checked or not due_s[checked - 1] > due_s[0]:
        return Saturation(saturated=False, words="too few requests to tell", requests=checked)
    until_s = float(due_s[checked - 1])
    ends_s = np.sort(end_s)
    from_s = _filled_s(due_s, end_s)
    if until_s - due_s[0] < 2 * (from_s - due_s[0]):
        return Saturation(saturated=False, words=STILL_FILLING, requests=checked)
    arrived = _count(due_s, from_s, until_s)
    served = _count(ends_s, from_s, until_s)
    length_s = until_s - from_s
    if served < TIME_BINS or arrived <= served:
        words = "the queue did not grow" if served >= TIME_BINS else "too few answers to tell"
        return Saturation(saturated=False, words=words, requests=checked)
    rates = {
        "arrivals_per_s": arrived / length_s,
        "served_per_s": served / length_s,
        "growth_per_s": (arrived - served) / length_s,
    }
    half_s = (from_s + until_s) / 2
    grown = (
        arrived - served >= max(LEAST_FRACTION * arrived, 2)
        and _count(due_s, from_s, half_s) > _count(ends_s, from_s, half_s)
        and _certain(due_s, ends_s, from_s, until_s, offered_rate)
    )
    if not grown:
        words = "the queue did not grow more than chance allows"
        return Saturation(saturated=False, words=words, requests=checked, **rates)
    return Saturation(
        saturated=True, words=_words(rates, offered_rate, left), requests=checked, **rates
    )


def _or_never(at_s: float | None) -> float:
    return math.inf if at_s is None else at_s


def _last_check(count: int) -> int:
    """Largest check point not above `count`; 0 before the first."""
    last, following = 0, FIRST_CHECK
    while following <= count:
        last, following = following, math.ceil(following * GROWTH)
    return last


def _filled_s(due_s: FloatArray, end_s: FloatArray) -> float:
    """End of the ramp-up, from the time in the system of the first requests.

    The 80th percentile of that time is used, so a few that hang do not matter.
    """
    first = np.sort(end_s[:FIRST] - due_s[:FIRST])
    return float(due_s[0] + FILLING * first[int(0.8 * len(first))])


def _count(at_s: FloatArray, from_s: float, until_s: float) -> int:
    """Number of ordered times after `from_s` and not after `until_s`."""
    first, last = np.searchsorted(at_s, (from_s, until_s), side="right")
    return int(last - first)


def _certain(
    due_s: FloatArray,
    ends_s: FloatArray,
    from_s: float,
    until_s: float,
    offered_rate: float | None,
) -> bool:
    """Whether departures fell short of arrivals by more than chance."""
    edges_s = np.linspace(from_s, until_s, TIME_BINS + 1)
    came = np.diff(np.searchsorted(due_s, edges_s, side="right"))
    served = np.diff(np.searchsorted(ends_s, edges_s, side="right"))
    grown = came - served
    if offered_rate is None:
        spread = max(float(grown.std(ddof=1)), float(served.std(ddof=1)))
        return _beyond(float(grown.mean()), spread, CHANCE)
    # The offered rate has no variation: the queue must grow, and the server fall short.
    offered = offered_rate * (until_s - from_s) / TIME_BINS
    short = offered - float(served.mean())
    return _beyond(short, float(served.std(ddof=1)), CHANCE) and _beyond(
        float(grown.mean()), float(grown.std(ddof=1)), GROWN_CHANCE
    )


def _beyond(mean: float, spread: float, chance: float) -> bool:
    return mean > student_t(1 - chance, TIME_BINS - 1) * spread / math.sqrt(TIME_BINS)


def _words(rates: dict[str, float], offered_rate: float | None, left: str) -> str:
    arrivals, served, growth = (format_rate(value) for value in rates.values())
    words = f"arrivals {arrivals}/s, {left} {served}/s: the queue grew by {growth}/s"
    if offered_rate is not None and rates["arrivals_per_s"] < 0.9 * offered_rate:
        words += f" (offered {format_rate(offered_rate)}/s, which was not reached)"
    return words
