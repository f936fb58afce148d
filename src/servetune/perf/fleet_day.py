"""A fleet through a day in windows: copies over time, their load, the limits, the dollars.

A day of thousands of requests per second cannot be simulated one by one. In each window of ten
seconds the traffic is divided evenly among the copies that serve, each of which answers as its load
curve says; what comes faster than they can serve waits for the next window. The autoscaler sees the
requests in flight that follow. `perf.sim.fleet_requests` plays the same request by request, and
`benchmarks/simulation/fleet_day.py` compares the two.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError
from servetune.perf.copy_curve import CopyCurve
from servetune.perf.target_tracking import ScalingPolicy, TargetTracker
from servetune.units import MS_PER_S
from servetune.workload.day import Traffic

#: Places of a load curve in the table that a day is played by.
_PLACES = 512
#: Targets that are tried, as shares of the requests in flight at the limits, until one that holds
#: is so much dearer than another: a lower one may miss what a higher one holds, as instances come
#: in other steps.
_TARGETS = tuple(round(1 - 0.03 * step, 2) for step in range(30))
_DEARER = 1.02


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of one kind.

    Attributes:
        curve: Load curve of one copy.
        copies: Copies on an instance.
        start_up_s: Time from the decision to add an instance until it serves.
        usd_per_hour: Price of an instance.
        lost: Instances whose loss the others must bear.
    """

    curve: CopyCurve
    copies: int
    start_up_s: float
    usd_per_hour: float
    lost: int = 0

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of one instance within the limits; 0 where they never hold."""
        return self.copies * (self.curve.capacity_per_s() or 0.0)

    def needed(self, rate_per_s: float) -> int:
        """Instances that hold the limits at a rate when some are lost."""
        return max(1, math.ceil(rate_per_s / self.capacity_per_s - 1e-9)) + self.lost

    def target_at(self, rate_per_s: float) -> float:
        """Requests in flight of an instance that serves a rate."""
        return self.copies * self.curve.in_flight(rate_per_s / self.copies)

    def rate_at(self, target: float) -> float:
        """Requests per second of an instance with so many in flight."""
        return max(1e-9, self.copies * self.curve.rate_with(target / self.copies))


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of another kind that always run beside those that are scaled.

    A router divides requests among both kinds by the capacity of what serves, so that all have the
    same share of their limit.

    Attributes:
        fleet: The kind.
        count: Number of them; 0 for none.
    """

    fleet: Fleet
    count: int

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of all within the limits."""
        return self.count * self.fleet.capacity_per_s if self.count else 0.0

    def needed_beside(self, fleet: Fleet, rate_per_s: float) -> int:
        """Instances of a kind that hold the limits with these, when the largest are lost."""
        each = fleet.capacity_per_s
        if not self.count:
            return fleet.needed(rate_per_s)
        spare = self.lost_per_s(fleet)
        return max(1, math.ceil((rate_per_s + spare - self.capacity_per_s) / each - 1e-9))

    def lost_per_s(self, fleet: Fleet) -> float:
        """Capacity that is lost at most: of the larger kind first."""
        each, own = fleet.capacity_per_s, self.fleet.capacity_per_s
        if own <= each:
            return fleet.lost * each
        of_base = min(fleet.lost, self.count)
        return of_base * own + (fleet.lost - of_base) * each

    def usd(self, lasts_s: float) -> float:
        """Price on demand."""
        return self.count * self.fleet.usd_per_hour * lasts_s / 3600


class PlayedDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day that was played.

    Attributes:
        held_fraction: Share of windows in which every limit held.
        safe_fraction: Share of windows in which they would hold without the lost instances.
        within_fraction: Share of requests within the limits on latencies.
        requests: Requests of the day.
        instance_hours: Instances times hours, those that start or always run included.
        usd: Price of these on demand.
        fewest: Fewest instances that served, of those that are scaled.
        most: Most of these.
        serving: Instances that served, of those that are scaled, by window.
        paid: Instances of these that were paid for, by window.
        in_flight: Requests in flight per instance of these, by window.
        missing_s: Times of windows in which a limit was missed.
        wait_s: Seconds behind a backlog, by window.
    """

    held_fraction: float
    safe_fraction: float
    within_fraction: float
    requests: float
    instance_hours: float
    usd: float
    fewest: int
    most: int
    serving: tuple[int, ...]
    paid: tuple[int, ...]
    in_flight: tuple[float, ...]
    missing_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()

    @property
    def held(self) -> bool:
        """Whether every limit held in every window, with the loss as well."""
        return self.held_fraction >= 1 and self.safe_fraction >= 1


class _Day:
    """A day of traffic on a kind of instance, ready to be played under many policies.

    Args:
        rates: Requests per second of each window.
        fleet: The instances that are scaled.
        window_s: Length of a window.
        base: Instances that always run. Where the limits are missed, no backlog of theirs is kept.
    """

    def __init__(
        self, rates: NDArray[np.float64], fleet: Fleet, window_s: float, base: Base | None = None
    ) -> None:
        curve = fleet.curve
        self._rates, self._fleet, self._window_s = rates, fleet, window_s
        self._base = base or Base(fleet=fleet, count=0)
        self._most, self._capacity = curve.most_per_s, curve.capacity_per_s() or 0.0
        # Capacity of the base, in copies of those that are scaled, and what may be lost.
        self._beside = self._base.capacity_per_s / self._capacity if self._base.count else 0.0
        self._lost = self._base.lost_per_s(fleet) / self._capacity if self._capacity else 0.0
        grid = np.linspace(0, self._most, _PLACES + 1)
        self._grid = grid
        self._in_flight = [curve.in_flight(rate) for rate in grid.tolist()]
        self._within = [curve.within_fraction(rate) for rate in grid.tolist()]

    def first_count(self, policy: ScalingPolicy) -> int:
        """Instances that the policy has in the end when traffic stays as it begins."""
        wanted = float(self._rates[0]) / self._fleet.rate_at(policy.target)
        return max(1, math.ceil(wanted - self._beside / self._fleet.copies))

    def play(self, policy: ScalingPolicy, *, while_held: bool = False) -> PlayedDay | None:
        """The day under a policy; `None` with `while_held` where a window is missed."""
        fleet, window_s, most = self._fleet, self._window_s, self._most
        copies, limit = fleet.copies, self._capacity * (1 + 1e-9)
        beside, lost = self._beside, self._lost
        table, scale = self._in_flight, _PLACES / most
        tracker = TargetTracker(policy, fleet.start_up_s, self.first_count(policy))
        serving, paid, in_flight, waits = [], [], [], []
        backlog = now_s = 0.0
        for rate in self._rates.tolist():
            tracker.advance(now_s)
            now_s += window_s
            count = tracker.serving
            units = count * copies
            each = rate / (units + beside)
            if while_held and (each > limit or rate > (units + beside - lost) * limit):
                return None
            if backlog > 0 or each > most:
                backlog = max(0.0, backlog + (each - most) * units * window_s)
                each = most if backlog else each
            place = each * scale
            low = min(int(place), _PLACES - 1)
            present = units * (table[low] + (place - low) * (table[low + 1] - table[low])) + backlog
            serving.append(count)
            paid.append(count + tracker.starting)
            in_flight.append(present / count)
            waits.append(backlog / (units * most))
            tracker.observe(now_s, present)
        return self._judged(serving, paid, in_flight, waits)

    def _judged(
        self, serving: list[int], paid: list[int], in_flight: list[float], waits: list[float]
    ) -> PlayedDay:
        fleet, rates, window_s = self._fleet, self._rates, self._window_s
        waiting, base = np.array(waits), self._base
        units = np.array(serving) * fleet.copies
        each = rates / (units + self._beside)
        holds = (each <= self._capacity * (1 + 1e-9)) & (waiting == 0)
        for place in np.flatnonzero(waiting > 0).tolist():
            wait_ms = waits[place] * MS_PER_S
            holds[place] = not fleet.curve.missed(min(float(each[place]), self._most), wait_ms)
        left = (units + self._beside - self._lost) * self._capacity * (1 + 1e-9)
        within = np.interp(np.where(waiting > 0, self._most, each), self._grid, self._within)
        within[(waiting > 0) & ~holds] = 0.0
        if base.count:
            share = units / (units + self._beside)
            within = share * within + (1 - share) * self._within_base(each)
        hours = (sum(paid) + base.count * len(paid)) * window_s / 3600
        lasts_s = len(paid) * window_s
        total = float(rates.sum())
        return PlayedDay(
            held_fraction=float(holds.mean()),
            safe_fraction=float((left >= rates).mean()),
            within_fraction=float((within * rates).sum()) / total if total else 1.0,
            requests=total * window_s,
            instance_hours=hours,
            usd=sum(paid) * window_s / 3600 * fleet.usd_per_hour + base.usd(lasts_s),
            fewest=min(serving),
            most=max(serving),
            serving=tuple(serving),
            paid=tuple(paid),
            in_flight=tuple(in_flight),
            missing_s=tuple((np.flatnonzero(~holds) * window_s).tolist()),
            wait_s=tuple(waits),
        )

    def _within_base(self, each: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the base's requests within the limits, at the same share of its capacity."""
        curve = self._base.fleet.curve
        grid = np.linspace(0, curve.most_per_s, _PLACES + 1)
        within = [curve.within_fraction(rate) for rate in grid.tolist()]
        own = each / self._capacity * (curve.capacity_per_s() or 0.0)
        return np.asarray(np.interp(own, grid, within, right=0.0))


def play(
    traffic: Traffic, fleet: Fleet, policy: ScalingPolicy, base: Base | None = None
) -> PlayedDay:
    """A day under a scaling policy; equal numbers of `minimum` and `maximum` are a fixed fleet."""
    played = _Day(traffic.windows(policy.period_s), fleet, policy.period_s, base).play(policy)
    assert played is not None
    return played


class ChosenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest policy under which a day holds its limits.

    Attributes:
        policy: The policy.
        played: The day under it.
        usd: Price of the day under it, with what is worth reserving reserved.
        tried: Days that were played to find it.
    """

    policy: ScalingPolicy
    played: PlayedDay
    usd: float
    tried: int


def cheapest_policy(
    traffic: Traffic, fleet: Fleet, base: Base | None = None, discount: float | None = None
) -> ChosenPolicy:
    """The cheapest policy that holds every limit in every window of a day.

    Several least numbers of instances and targets are played. A fleet of the peak's size that never
    changes is the last resort, and always holds.

    Args:
        traffic: The day.
        fleet: Kind of instance that is scaled.
        base: Instances that always run beside them.
        discount: Discount on reserved instances; `None` where all are on demand.

    Raises:
        InputError: The limits never hold on this kind of instance.
    """
    if not fleet.capacity_per_s:
        raise InputError("the limits hold at no load", hint="relax --limits")
    rates, base = traffic.windows(), base or Base(fleet=fleet, count=0)
    peak = base.needed_beside(fleet, traffic.peak_per_s)
    least = base.needed_beside(fleet, float(rates.min()))
    full = fleet.target_at(fleet.capacity_per_s)
    fixed = ScalingPolicy(minimum=peak, maximum=peak, target=full)
    day = _Day(rates, fleet, fixed.period_s, base)
    always = day.play(fixed)
    assert always is not None

    def usd(played: PlayedDay) -> float:
        return day_usd(played, fleet, base, discount, fixed.period_s)

    best = ChosenPolicy(policy=fixed, played=always, usd=usd(always), tried=1)
    tried = 1
    for minimum in _between(least, peak):
        least_usd = minimum * fleet.usd_per_hour * traffic.lasts_s / 3600
        if (least_usd + base.usd(traffic.lasts_s)) * (1 - (discount or 0.0)) >= best.usd:
            break
        least_seen = math.inf
        for share in _TARGETS:
            target = rounded(share * full)
            # A lower target keeps more instances, for which there has to be room.
            most = max(peak, math.ceil(traffic.peak_per_s / fleet.rate_at(target)) + 1)
            policy = ScalingPolicy(minimum=minimum, maximum=most, target=target)
            played, tried = day.play(policy, while_held=True), tried + 1
            if played is None:
                continue
            price = usd(played)
            if price > _DEARER * least_seen:
                break  # lower targets keep still more instances
            least_seen = min(price, least_seen)
            if price < best.usd:
                used = msgspec.structs.replace(policy, maximum=max(minimum, played.most))
                best = ChosenPolicy(policy=used, played=played, usd=price, tried=tried)
    return msgspec.structs.replace(best, tried=tried)


def day_usd(
    played: PlayedDay, fleet: Fleet, base: Base | None, discount: float | None, window_s: float
) -> float:
    """Price of a day: on demand, or with what is worth reserving reserved at a discount."""
    if discount is None:
        return played.usd
    reserved = reserved_count(played.paid, discount)
    usd = reserved_usd(played.paid, reserved, discount, fleet.usd_per_hour, window_s)
    return usd + (base.usd(len(played.paid) * window_s) * (1 - discount) if base else 0.0)


def rounded(target: float) -> float:
    """A target as it is written: to a tenth, whole from ten on, never above what it was."""
    return float(math.floor(target)) if target >= 10 else max(0.1, math.floor(target * 10) / 10)


def _between(least: int, peak: int) -> list[int]:
    """A few numbers of instances from the least that is ever needed to the peak's."""
    steps = np.linspace(0, 1, 5)[:-1]
    return sorted({round(least + share * (peak - least)) for share in steps.tolist()})


def reserved_count(paid: Sequence[int], discount: float) -> int:
    """Instances to reserve for a whole day at a discount, by how many are paid for over time.

    One more pays where it runs for at least the share of the time that its price is of the price
    on demand.

    Example:
        >>> reserved_count([2, 2, 3, 4], discount=0.4)
        2
    """
    counts = sorted(paid)
    fewest_running = (1 - discount) * len(counts)
    reserved = 0
    while reserved < counts[-1]:
        running = len(counts) - bisect.bisect_left(counts, reserved + 1)
        if running < fewest_running:
            break
        reserved += 1
    return reserved


def reserved_usd(
    paid: Sequence[int], reserved: int, discount: float, usd_per_hour: float, window_s: float
) -> float:
    """Price of a day with so many instances reserved, the others on demand."""
    on_demand = sum(max(0, count - reserved) for count in paid)
    hours = window_s / 3600
    return usd_per_hour * hours * (len(paid) * reserved * (1 - discount) + on_demand)
