"""Selection of the trials that a page holds, where all would not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from servetune.metrics import Constraint
from servetune.report.ranking import ranked
from servetune.search import Recommendation
from servetune.store.schema import TrialRecord

#: Most trials of a page: as many as it draws and sorts within a second.
MOST_TRIALS = 10_000
#: Most bytes of the trials of a page before they are compressed, to about a fifteenth.
MOST_BYTES = 40_000_000


def in_order_of_interest(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    picks: Mapping[str, Recommendation],
    pareto: Sequence[str],
) -> Iterator[int]:
    """Indices of all trials: picks and runners-up, the Pareto front, then the best by rank, an
    even sample of the others and those that failed, in turn.
    """
    chosen = [pick for pick in picks.values() if pick.chosen is not None]
    first = [pick.chosen.key for pick in chosen if pick.chosen is not None]
    first += [pick.runner_up.key for pick in chosen if pick.runner_up is not None]
    places = {record.key: place for place, record in enumerate(records)}
    merit = [places[record.key] for record in ranked(records, constraints)]
    failed = [place for place, record in enumerate(records) if record.status != "ok"]
    seen: set[int] = set()
    turns = zip_longest(merit, _evenly(merit), failed)
    for place in (
        *(places[key] for key in (*first, *pareto)),
        *(p for turn in turns for p in turn),
    ):
        if place is not None and place not in seen:
            seen.add(place)
            yield place


def _evenly(places: Sequence[int]) -> Iterator[int]:
    """The places in an order whose every beginning is spread evenly over them: 0, 1/2, 1/4, 3/4,
    1/8, ...
    """
    count = len(places)
    step = 1 << max(count - 1, 0).bit_length()
    if count:
        yield places[0]
    while step > 1:
        yield from (places[at] for at in range(step // 2, count, step))
        step //= 2
