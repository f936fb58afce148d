"""Machines of least cost whose capacities together cover a rate, even when some of them are lost.

The programme is: the least sum of n_i * price_i with whole n_i >= 0, where the fleet without its
`lost` largest machines still has a capacity of at least the rate. It is solved exactly.

**Lost machines.** Let j be the smallest kind among the lost ones of a best fleet. The lost ones are
at least as large as j, so they cost at least `lost` times the cheapest kind of that size; all
others are at most as large as j and cover the rate by themselves. Whichever fleet is made of such
parts survives the loss. So the least cost over j of both parts is the least cost of all.

**Cover.** Let e be the kind with the least price per capacity. Any fleet costs what its capacity
would cost of e, plus its waste: for each machine the price beyond that, n_i * w_i, and the capacity
beyond the rate at e's price. Machines of e alone waste less than one price of e; so in a better
fleet the waste of all others is below that. And m machines of kind i are never needed where
machines of e with at least their capacity cost no more, so that only few of each remain. These
combinations are listed once; filled up with machines of e, the cheapest is the answer for any rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Relative difference below which a capacity reaches a rate all the same: sums of floats.
_SLACK = 1e-9
#: Machines of one kind beside the cheapest per capacity, at most; kinds that tie with it for ever
#: gain nothing beyond.
_MOST_BESIDE = 1000


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine, and what one of it does.

    Attributes:
        name: Name of the kind.
        rate_per_s: Requests per second that one machine serves.
        usd_per_hour: Price of one machine.
    """

    name: str
    rate_per_s: float
    usd_per_hour: float

    @property
    def usd_per_request(self) -> float:
        """Price per hour over requests per second."""
        return self.usd_per_hour / self.rate_per_s

    def replaces(self, rate_per_s: float, usd_per_hour: float) -> bool:
        """Whether machines of this kind do the work of one such machine for no more.

        It holds for lost machines, too: either one machine that is at least as large takes its
        place, or several that are smaller.
        """
        count = max(1, math.ceil(rate_per_s / self.rate_per_s - _SLACK))
        return count * self.usd_per_hour <= usd_per_hour


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of least cost for a rate.

    Attributes:
        counts: Number of machines by kind, those with most capacity first.
        usd_per_hour: Price of them all.
        rate_per_s: Capacity of them all.
        rest_per_s: Capacity of those that are left when the largest are lost.
    """

    counts: dict[str, int]
    usd_per_hour: float
    rate_per_s: float
    rest_per_s: float

    @property
    def machines(self) -> int:
        """Number of machines."""
        return sum(self.counts.values())


class LeastCost:
    """The least cost of machines for any rate.

    Args:
        kinds: Kinds of machines.
        lost: Largest machines that may be lost.

    Raises:
        ValueError: There is no kind, or one without capacity or price.

    Example:
        >>> small = Capacity(name="small", rate_per_s=1.0, usd_per_hour=1.0)
        >>> large = Capacity(name="large", rate_per_s=5.0, usd_per_hour=4.0)
        >>> LeastCost([small, large]).of(11).counts
        {'large': 2, 'small': 1}
        >>> LeastCost([small, large], lost=1).of(4).counts
        {'small': 5}
    """

    def __init__(self, kinds: Sequence[Capacity], lost: int = 0) -> None:
        if not kinds:
            raise ValueError("no kind of machine")
        for kind in kinds:
            if not (kind.rate_per_s > 0 and kind.usd_per_hour > 0):
                raise ValueError(f"{kind.name} needs a capacity and a price above zero")
        self._kinds = _needed(kinds)
        self._lost = lost
        self._parts: list[tuple[Capacity | None, _Combinations]] = []
        if not lost:
            self._parts.append((None, _Combinations(self._kinds)))
            return
        for smallest in self._kinds:
            larger = [kind for kind in self._kinds if kind.rate_per_s >= smallest.rate_per_s]
            others = [kind for kind in self._kinds if kind.rate_per_s <= smallest.rate_per_s]
            spare = min(larger, key=lambda kind: (kind.usd_per_hour, kind.rate_per_s))
            self._parts.append((spare, _Combinations(others)))

    def of(self, rate_per_s: float) -> Cover:
        """Machines of least cost for a rate."""

        def cost(part: tuple[Capacity | None, _Combinations]) -> float:
            spare, others = part
            return others.best(rate_per_s)[1] + (self._lost * spare.usd_per_hour if spare else 0)

        spare, others = min(self._parts, key=cost)
        counts = dict(others.best(rate_per_s)[0])
        if spare is not None:
            counts[spare.name] = counts.get(spare.name, 0) + self._lost
        by_name = {kind.name: kind for kind in self._kinds}
        order = sorted(counts, key=lambda name: -counts[name] * by_name[name].rate_per_s)
        each = sorted(
            (by_name[name].rate_per_s for name in counts for _ in range(counts[name])), reverse=True
        )
        return Cover(
            counts={name: counts[name] for name in order},
            usd_per_hour=math.fsum(by_name[name].usd_per_hour * counts[name] for name in order),
            rate_per_s=math.fsum(each),
            rest_per_s=math.fsum(each[self._lost :]),
        )


def _needed(kinds: Sequence[Capacity]) -> list[Capacity]:
    """Kinds without those whose work others do for no more; of equals the first stays."""
    kept: list[Capacity] = []
    for kind in sorted(kinds, key=lambda one: (one.usd_per_request, one.usd_per_hour)):
        if not any(other.replaces(kind.rate_per_s, kind.usd_per_hour) for other in kept):
            kept.append(kind)
    return [
        kind
        for kind in kept
        if not any(
            other is not kind and other.replaces(kind.rate_per_s, kind.usd_per_hour)
            for other in kept
        )
    ]


class _Combinations:
    """Machines beside those of the kind with the least price per capacity."""

    def __init__(self, kinds: Sequence[Capacity]) -> None:
        self._cheapest = min(kinds, key=lambda kind: (kind.usd_per_request, kind.usd_per_hour))
        self._beside = [kind for kind in kinds if kind is not self._cheapest]
        per_rate, limit = self._cheapest.usd_per_request, self._cheapest.usd_per_hour
        counts = np.zeros((1, 0), dtype=np.int64)
        rate: NDArray[np.float64] = np.zeros(1)
        price: NDArray[np.float64] = np.zeros(1)
        for kind in self._beside:
            number = np.arange(_most_needed(kind, self._cheapest))
            grown_rate = rate[:, None] + number * kind.rate_per_s
            grown_price = price[:, None] + number * kind.usd_per_hour
            rows, columns = np.nonzero(grown_price - per_rate * grown_rate < limit)
            counts = np.column_stack([counts[rows], number[columns]])
            rate, price = grown_rate[rows, columns], grown_price[rows, columns]
        self._counts, self._rate, self._price = counts, rate, price

    @functools.lru_cache(maxsize=512)  # noqa: B019 - lives as long as its few thousand numbers
    def best(self, rate_per_s: float) -> tuple[tuple[tuple[str, int], ...], float]:
        """Number of machines by kind, and their price; of equal prices the fewest machines."""
        left = (rate_per_s * (1 - _SLACK) - self._rate) / self._cheapest.rate_per_s
        filled = np.maximum(0, np.ceil(left))
        cost = self._price + filled * self._cheapest.usd_per_hour
        least = cost.min()
        equal = np.flatnonzero(cost <= least * (1 + _SLACK))
        place = equal[(self._counts[equal].sum(axis=1) + filled[equal]).argmin()]
        found = [(self._cheapest.name, int(filled[place]))]
        found += [
            (kind.name, int(count))
            for kind, count in zip(self._beside, self._counts[place], strict=True)
        ]
        return tuple((name, count) for name, count in found if count), float(cost[place])


def _most_needed(kind: Capacity, cheapest: Capacity) -> int:
    """Least number of machines of a kind that machines of the cheapest replace for no more."""
    number = np.arange(1, _MOST_BESIDE)
    replaced = np.ceil(number * kind.rate_per_s / cheapest.rate_per_s - _SLACK)
    enough = replaced * cheapest.usd_per_hour <= number * kind.usd_per_hour * (1 + _SLACK)
    places = np.flatnonzero(enough)
    return int(number[places[0]]) if len(places) else _MOST_BESIDE
