"""Fleets for a day: a type of instance that is scaled, alone or beside others that always run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.api.fleet_instances import Sized, SizedInstance
from servetune.api.fleet_results import FleetDay, Scaled
from servetune.perf.fleet_day import (
    Base,
    ChosenPolicy,
    Fleet,
    cheapest_policy,
    play,
    reserved_count,
    reserved_usd,
)
from servetune.search.least_cost import LeastCost
from servetune.workload.day import HOUR_S, Traffic

#: Types alone, and mixes of two, with which a day is played; the cheapest by arithmetic first.
_TYPES_PLAYED, _MIXES_PLAYED = 6, 6
#: Numbers of instances that always run, of each type, that are compared by arithmetic.
_COUNTS = 12
#: Share of the price of one type that a mix of two must stay below, as it takes a router and a
#: second endpoint.
_WORTHWHILE = 0.99
#: Windows by which prices are compared by arithmetic.
_COARSE_S = 300.0


class _Mix(msgspec.Struct, frozen=True, kw_only=True):
    """A type that is scaled, and those that always run beside it.

    Attributes:
        one: The type that is scaled.
        other: The type that always runs; `None` for one type alone.
        count: Number of these.
        lost: Instances whose loss the others must bear.
    """

    one: SizedInstance
    other: SizedInstance | None = None
    count: int = 0
    lost: int

    @property
    def fleet(self) -> Fleet:
        return _fleet(self.one, self.lost)

    @property
    def base(self) -> Base | None:
        if self.other is None:
            return None
        return Base(fleet=_fleet(self.other, self.lost), count=self.count)

    def least_usd(self, rates: NDArray[np.float64], hours: float, discount: float | None) -> float:
        """Price if the number of instances followed the traffic at once."""
        fleet, base = self.fleet, self.base or Base(fleet=self.fleet, count=0)
        short = rates + base.lost_per_s(fleet) - base.capacity_per_s
        needed = np.maximum(1, np.ceil(short / fleet.capacity_per_s - 1e-9)).astype(int).tolist()
        reserved = reserved_count(needed, discount) if discount else 0
        window_s = hours * HOUR_S / len(needed)
        usd = reserved_usd(needed, reserved, discount or 0.0, fleet.usd_per_hour, window_s)
        return usd + self.base_usd(hours, discount)

    def base_usd(self, hours: float, discount: float | None) -> float:
        """Price of those that always run."""
        return (self.base.usd(hours * HOUR_S) if self.base else 0.0) * (1 - (discount or 0.0))

    def slow(self) -> tuple[Fleet, Base | None] | None:
        """The same at the slow end of the intervals; `None` where a type holds no load then."""
        made: list[Fleet] = []
        for one in (self.one, *((self.other,) if self.other else ())):
            if one.slow_curve is None or not one.slow_capacity_per_s:
                return None
            made.append(msgspec.structs.replace(_fleet(one, self.lost), curve=one.slow_curve))
        return made[0], Base(fleet=made[1], count=self.count) if self.other else None


def fleet_day(
    traffic: Traffic, sized: Sized, *, lost: int, discount: float | None, one_type: bool
) -> FleetDay:
    """The cheapest autoscaled fleet that holds the limits all day, as played; without commands.

    Args:
        traffic: The day.
        sized: Instances to choose from.
        lost: Instances whose loss the others must bear.
        discount: Discount on reserved instances; `None` where all are on demand.
        one_type: Whether all instances are of one type.
    """
    rates, hours = traffic.windows(_COARSE_S), traffic.lasts_s / HOUR_S
    dearer: dict[str, float] = {}

    def expected_usd(mix: _Mix) -> float:
        """Price by arithmetic, what is scaled as much dearer as it was when it was played alone."""
        always = mix.base_usd(hours, discount)
        scaled = mix.least_usd(rates, hours, discount) - always
        return always + dearer.get(mix.one.name, 1.0) * scaled

    def best_of(mixes: list[_Mix], most: int, best_usd: float) -> tuple[_Mix, ChosenPolicy] | None:
        found = None
        expected = sorted(((expected_usd(mix), n) for n, mix in enumerate(mixes)))
        for usd, n in expected[:most]:
            if usd > best_usd:
                break
            mix = mixes[n]
            chosen = cheapest_policy(traffic, mix.fleet, mix.base, discount)
            if mix.other is None:
                dearer[mix.one.name] = chosen.usd / usd
            if found is None or chosen.usd < found[1].usd:
                found, best_usd = (mix, chosen), min(best_usd, chosen.usd)
        return found

    single = [_Mix(one=one, lost=lost) for one in sized.instances]
    alone = best_of(single, _TYPES_PLAYED, math.inf)
    assert alone is not None
    mixed, pairs = None, list[_Mix]()
    if not one_type:
        pairs = [m for m in _mixes(sized, lost, traffic.peak_per_s) if m.one.name in dearer]
        mixed = best_of(pairs, _MIXES_PLAYED, _WORTHWHILE * alone[1].usd)
    worthwhile = mixed is not None and mixed[1].usd < _WORTHWHILE * alone[1].usd
    mix, chosen = mixed if mixed is not None and worthwhile else alone
    return msgspec.structs.replace(
        _described(
            traffic, _only(sized, alone[0].one) if one_type else sized, mix, chosen, discount
        ),
        alone_usd=alone[1].usd if worthwhile else None,
        alone=_scaled(alone[0].one, alone[1], 1.0) if worthwhile else None,
        mixed_usd=mixed[1].usd if mixed is not None else None,
        mixes=len(pairs),
    )


def _only(sized: Sized, one: SizedInstance) -> Sized:
    return msgspec.structs.replace(sized, instances=(one,))


def _fleet(one: SizedInstance, lost: int) -> Fleet:
    return Fleet(
        curve=one.curve,
        copies=one.copies,
        start_up_s=one.start_up_s,
        usd_per_hour=one.price.usd_per_hour,
        lost=lost,
    )


def _mixes(sized: Sized, lost: int, peak_per_s: float) -> Iterator[_Mix]:
    """Every two types, with several numbers of the one that always runs."""
    for one in sized.instances:
        for other in sized.instances:
            most = math.ceil(peak_per_s / other.capacity_per_s)
            if other.name != one.name:
                for count in {round(n) for n in np.linspace(1, most, _COUNTS).tolist()}:
                    yield _Mix(one=one, other=other, count=count, lost=lost)


def _scaled(one: SizedInstance, chosen: ChosenPolicy, traffic_fraction: float) -> Scaled:
    policy = chosen.policy
    return Scaled(
        instance=one.name,
        minimum=policy.minimum,
        maximum=policy.maximum,
        target=policy.target,
        target_per_copy=round(policy.target / one.copies, 1),
        traffic_fraction=traffic_fraction,
    )


def _described(
    traffic: Traffic, sized: Sized, mix: _Mix, chosen: ChosenPolicy, discount: float | None
) -> FleetDay:
    one, fleet, base, policy = mix.one, mix.fleet, mix.base, chosen.policy
    full = msgspec.structs.replace(policy, target=fleet.target_at(fleet.capacity_per_s))
    kinds = [each.capacity(0.0) for each in sized.instances]
    fixed = LeastCost(kinds, mix.lost).of(traffic.peak_per_s)
    slow_parts = mix.slow()
    slow = None if slow_parts is None else cheapest_policy(traffic, *slow_parts, discount)
    share = 1.0
    if base is not None:
        rates = traffic.windows(policy.period_s)
        served = np.array(chosen.played.serving) * fleet.capacity_per_s
        share = float(np.average(served / (served + base.capacity_per_s), weights=rates))
    always = None
    if mix.other is not None:
        target = round(mix.other.in_flight(mix.other.capacity_per_s), 1)
        always = Scaled(
            instance=mix.other.name,
            minimum=mix.count,
            maximum=mix.count,
            target=target,
            target_per_copy=round(target / mix.other.copies, 1),
            traffic_fraction=1 - share,
        )
    return FleetDay(
        traffic=traffic,
        scaling=_scaled(one, chosen, share),
        base=always,
        policy=policy,
        played=chosen.played,
        load_fraction=fleet.rate_at(policy.target) / fleet.capacity_per_s,
        largest_rise=traffic.largest_rise(one.start_up_s),
        full_target=play(traffic, fleet, full, base),
        fixed=fixed,
        fixed_usd=fixed.usd_per_hour * traffic.lasts_s / HOUR_S,
        reserved=None if discount is None else reserved_count(chosen.played.paid, discount),
        reserved_usd=None if discount is None else chosen.usd,
        slow_policy=slow.policy if slow else None,
        slow_usd=slow.usd if slow else None,
        tried=chosen.tried,
    )
