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
from collections.abc import Callable, Sequence

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
#: Steps of the search for the largest target that holds.
_TARGET_STEPS = 7


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


class PlayedDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day that was played.

    Attributes:
        held_fraction: Share of windows in which every limit held.
        safe_fraction: Share of windows in which they would hold without the lost instances.
        within_fraction: Share of requests within the limits on latencies.
        requests: Requests of the day.
        instance_hours: Instances times hours, those that start included.
        usd: Price of these on demand.
        fewest: Fewest instances that served.
        most: Most instances that served.
        serving: Instances that served, by window.
        paid: Instances that were paid for, by window.
        in_flight: Requests in flight per instance, by window.
        missing_s: Times of windows in which a limit was missed.
        wait_s: Wait behind a backlog, by window.
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


class _Table:
    """A load curve by equal steps of the rate, for quick reading."""

    def __init__(self, fleet: Fleet) -> None:
        curve = fleet.curve
        self.most = curve.most_per_s
        rates = np.linspace(0, self.most, _PLACES + 1)
        self.in_flight = [curve.in_flight(rate) for rate in rates.tolist()]
        self.within = [curve.within_fraction(rate) for rate in rates.tolist()]
        self._scale = _PLACES / self.most

    def read(self, values: list[float], rate: float) -> float:
        """Value at a rate up to the largest."""
        place = min(rate, self.most) * self._scale
        low = min(int(place), _PLACES - 1)
        share = place - low
        return values[low] * (1 - share) + values[low + 1] * share


def play(traffic: Traffic, fleet: Fleet, policy: ScalingPolicy) -> PlayedDay:
    """A day under a scaling policy; equal numbers of `minimum` and `maximum` are a fixed fleet."""
    return _play(traffic.windows(policy.period_s), fleet, policy, _Table(fleet))


def _play(
    rates: NDArray[np.float64], fleet: Fleet, policy: ScalingPolicy, table: _Table
) -> PlayedDay:
    capacity, copies, window_s = fleet.curve.capacity_per_s() or 0.0, fleet.copies, policy.period_s
    most = table.most
    first = max(1e-9, copies * fleet.curve.rate_with(policy.target / copies))
    tracker = TargetTracker(policy, fleet.start_up_s, math.ceil(float(rates[0]) / first))
    backlog = total = within = 0.0
    held = safe = 0
    serving, paid, in_flight, missing, waits = [], [], [], [], []
    for number, rate in enumerate(rates.tolist()):
        now_s = (number + 1) * window_s
        tracker.advance(now_s - window_s)
        units = tracker.serving * copies
        each = rate / units
        if backlog > 0 or each > most:
            backlog = max(0.0, backlog + (rate - units * most) * window_s)
        wait_s = backlog / (units * most)
        loaded = most if backlog else each
        present = units * table.read(table.in_flight, loaded) + backlog
        if backlog:
            holds = not fleet.curve.missed(min(each, most), wait_s * MS_PER_S)
        else:
            holds = each <= capacity * (1 + 1e-9)
        held += holds
        if not holds:
            missing.append(now_s - window_s)
        left = (tracker.serving - fleet.lost) * copies
        safe += left * capacity * (1 + 1e-9) >= rate
        share = table.read(table.within, loaded)
        count = rate * window_s
        total += count
        within += count * (share if holds or not backlog else 0.0)
        serving.append(tracker.serving)
        paid.append(tracker.serving + tracker.starting)
        in_flight.append(present / tracker.serving)
        waits.append(wait_s)
        tracker.observe(now_s, present)
    hours = sum(paid) * window_s / 3600
    count = len(rates)
    return PlayedDay(
        held_fraction=held / count,
        safe_fraction=safe / count,
        within_fraction=within / total if total else 1.0,
        requests=total,
        instance_hours=hours,
        usd=hours * fleet.usd_per_hour,
        fewest=min(serving),
        most=max(serving),
        serving=tuple(serving),
        paid=tuple(paid),
        in_flight=tuple(in_flight),
        missing_s=tuple(missing),
        wait_s=tuple(waits),
    )


class ChosenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest policy under which a day holds its limits.

    Attributes:
        policy: The policy.
        played: The day under it.
        tried: Days that were played to find it.
    """

    policy: ScalingPolicy
    played: PlayedDay
    tried: int


def cheapest_policy(traffic: Traffic, fleet: Fleet) -> ChosenPolicy:
    """The cheapest policy that holds every limit in every window of a day.

    For several minimum numbers of instances, the largest target that holds is found by bisection,
    from that of a load at the limits down. A fleet of the peak's size that never changes is the
    last resort, and always holds.

    Raises:
        InputError: The limits never hold on this kind of instance.
    """
    if not fleet.capacity_per_s:
        raise InputError("the limits hold at no load", hint="relax --limits")
    rates, table = traffic.windows(), _Table(fleet)
    peak = fleet.needed(traffic.peak_per_s)
    least = fleet.needed(float(rates.min()))
    full = fleet.target_at(fleet.capacity_per_s)
    fixed = ScalingPolicy(minimum=peak, maximum=peak, target=full)
    best, tried = ChosenPolicy(policy=fixed, played=_play(rates, fleet, fixed, table), tried=1), 1

    def at(minimum: int, share: float) -> PlayedDay:
        nonlocal tried
        tried += 1
        return _play(rates, fleet, policy_of(minimum, share), table)

    def policy_of(minimum: int, share: float) -> ScalingPolicy:
        # Room above the peak's need: what is scaled by a lower target has more instances.
        target = rounded(share * full)
        rate = max(1e-9, fleet.copies * fleet.curve.rate_with(target / fleet.copies))
        most = max(peak, math.ceil(traffic.peak_per_s / rate) + 1)
        return ScalingPolicy(minimum=minimum, maximum=most, target=target)

    for minimum in _between(least, peak):
        share, played = _largest_share(lambda share, at_least=minimum: at(at_least, share))
        if played is not None and played.usd < best.played.usd:
            best = ChosenPolicy(policy=policy_of(minimum, share), played=played, tried=tried)
    used = min(best.policy.maximum, max(peak, best.played.most + 1))
    policy = msgspec.structs.replace(best.policy, maximum=max(used, best.policy.minimum))
    return ChosenPolicy(policy=policy, played=_play(rates, fleet, policy, table), tried=tried)


def rounded(target: float) -> float:
    """A target as it is written: to a tenth, whole from ten on, never above what it was."""
    return float(math.floor(target)) if target >= 10 else max(0.1, math.floor(target * 10) / 10)


def _between(least: int, peak: int) -> list[int]:
    """A few numbers of instances from the least that is ever needed to the peak's."""
    steps = np.linspace(0, 1, 7)[:-1]
    return sorted({round(least + share * (peak - least)) for share in steps.tolist()})


def _largest_share(play_at: Callable[[float], PlayedDay]) -> tuple[float, PlayedDay | None]:
    """The largest share of the full target with which the day holds, and that day."""
    played = play_at(1.0)
    if played.held:
        return 1.0, played
    low, high, best = 0.0, 1.0, None
    share = 0.7
    found = 0.0
    for _ in range(_TARGET_STEPS):
        played = play_at(share)
        if played.held:
            low, found, best = share, share, played
        else:
            high = share
        share = (low + high) / 2
        if share < 0.05:
            break
    return found, best


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
