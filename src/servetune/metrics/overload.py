"""Whether requests come faster than they are served, so that the queue grows without end.

In an open loop the requests in the system are arrivals less departures. A queue that holds
gives back what it takes in; one that does not grows by the difference of the two rates, for
as long as the run goes on. Twenty stretches of time are compared, by Student's t:

- where the asked rate is known and constant, departures must fall short of it by more than
  their own unevenness, and the queue must grow. A burst of arrivals alone, which any queue
  shows, does not do that, so a verdict needs few requests;
- where it is not, the growth must exceed the unevenness of arrivals and departures both.

In either case growth is at least 3 % of what arrived, and there in the first half of the
time too.

Two queues are looked at: the requests in the system, and those that wait for their first
token, which grows sooner where answers are long, and later where many are served at once.

The system fills up first: a request in service is no queue. Nothing is looked at before
twice the time that four of five of the first 20 requests took, and there is no verdict
before as long again has passed.

The looks are geometric: asked again and again during a run, it looks at the state after 50
requests, 60, 72 and so on, and not between.
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

__all__ = ["Saturation", "saturation", "saturation_of"]

FIRST_LOOK = 50
GROWTH = 1.2
STRETCHES = 20
#: That a queue which holds is called growing, at one look.
CHANCE = 0.002
#: Likewise, beside a known rate that the server falls short of.
GROWN_CHANCE = 0.05
#: Requests that tell how long one stays while there is no queue.
FIRST = 20
#: Times the time in the system that a system takes to fill up.
FILLING = 2.0
#: Growth below this share of the arrivals is no matter.
LEAST_FRACTION = 0.03


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on an open loop.

    Attributes:
        saturated: Whether the queue grew without end.
        words: The verdict in a sentence.
        arrivals_per_s: While it was looked at.
        served_per_s: Likewise; failures are served too. Where the words say "begun", requests
            whose first token came.
        growth_per_s: The difference.
        requests: How many had come at the look.
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
    """Whether the queue grows without end.

    Two queues are looked at: requests in the system, and those that wait for their first
    token. Where answers are long the second one tells sooner, as it needs no filling up.

    Args:
        records: Of an open loop, those that have ended.
        offered_rate: Requests per second that were asked for, where that is constant; a
            load generator that could not send so many is named.
        now_s: For a run that goes on: the time, from its start.
        in_flight: For a run that goes on: when each request was due that has not ended,
            sent or not, and when its first token came.
    """
    columns = columns_of(records)
    still = np.array([(due_s, _or_never(at_s)) for due_s, at_s in in_flight]).reshape(-1, 2)
    cut_off = np.array([record.outcome == "cancelled" for record in records], dtype=np.bool_)
    # The end of the run cut these off, they did not end.
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
    """`saturation` of arrays: when each was due, and left the queue (infinity: not yet).

    `left` is the verdict's word for having left it.
    """
    order = np.argsort(due_s, kind="stable")
    due_s, end_s = due_s[order], end_s[order]
    if now_s is not None:
        come = int(np.searchsorted(due_s, now_s, side="right"))
        due_s, end_s = due_s[:come], end_s[:come]
    looked = _look(len(due_s))
    if not looked or not due_s[looked - 1] > due_s[0]:
        return Saturation(saturated=False, words="too few requests to tell", requests=looked)
    until_s = float(due_s[looked - 1])
    ends_s = np.sort(end_s)
    from_s = _filled_s(due_s, end_s)
    if until_s - due_s[0] < 2 * (from_s - due_s[0]):
        words = "the system was still filling up"
        return Saturation(saturated=False, words=words, requests=looked)
    arrived = _count(due_s, from_s, until_s)
    served = _count(ends_s, from_s, until_s)
    length_s = until_s - from_s
    if served < STRETCHES or arrived <= served:
        words = "the queue did not grow" if served >= STRETCHES else "too few answers to tell"
        return Saturation(saturated=False, words=words, requests=looked)
    told = {
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
        return Saturation(saturated=False, words=words, requests=looked, **told)
    return Saturation(
        saturated=True, words=_words(told, offered_rate, left), requests=looked, **told
    )


def _or_never(at_s: float | None) -> float:
    return math.inf if at_s is None else at_s


def _look(count: int) -> int:
    """The last number of requests, not above `count`, at which there is a look; or 0."""
    last, following = 0, FIRST_LOOK
    while following <= count:
        last, following = following, math.ceil(following * GROWTH)
    return last


def _filled_s(due_s: FloatArray, end_s: FloatArray) -> float:
    """When the system had filled up: as of how long its first requests stayed, before a queue.

    Four of five ended within what is taken as long; so a few that hang do not matter.
    """
    first = np.sort(end_s[:FIRST] - due_s[:FIRST])
    return float(due_s[0] + FILLING * first[int(0.8 * len(first))])


def _count(at_s: FloatArray, from_s: float, until_s: float) -> int:
    """How many of some ordered times are after one time and not after another."""
    first, last = np.searchsorted(at_s, (from_s, until_s), side="right")
    return int(last - first)


def _certain(
    due_s: FloatArray,
    ends_s: FloatArray,
    from_s: float,
    until_s: float,
    offered_rate: float | None,
) -> bool:
    """Whether departures fell short of arrivals by more than the unevenness of either."""
    edges_s = np.linspace(from_s, until_s, STRETCHES + 1)
    came = np.diff(np.searchsorted(due_s, edges_s, side="right"))
    served = np.diff(np.searchsorted(ends_s, edges_s, side="right"))
    grown = came - served
    if offered_rate is None:
        spread = max(float(grown.std(ddof=1)), float(served.std(ddof=1)))
        return _beyond(float(grown.mean()), spread, CHANCE)
    # What was asked for has no unevenness: the queue must grow, and the server fall short.
    asked = offered_rate * (until_s - from_s) / STRETCHES
    short = asked - float(served.mean())
    return _beyond(short, float(served.std(ddof=1)), CHANCE) and _beyond(
        float(grown.mean()), float(grown.std(ddof=1)), GROWN_CHANCE
    )


def _beyond(mean: float, spread: float, chance: float) -> bool:
    return mean > student_t(1 - chance, STRETCHES - 1) * spread / math.sqrt(STRETCHES)


def _words(told: dict[str, float], offered_rate: float | None, left: str) -> str:
    arrivals, served, growth = (format_rate(value) for value in told.values())
    words = f"arrivals {arrivals}/s, {left} {served}/s: the queue grew by {growth}/s"
    if offered_rate is not None and told["arrivals_per_s"] < 0.9 * offered_rate:
        words += f" (asked for {format_rate(offered_rate)}/s, which were not reached)"
    return words
