"""Cost of an endpoint: its instances per hour, and a million of its output tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from servetune.deploy.evidence import Evidence
from servetune.deploy.hosting import Hosting
from servetune.hardware.device import Price
from servetune.perf.copies import host_fraction
from servetune.units import format_usd


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Price of an endpoint's instances for each hour that they run, of the dearest type.

    Attributes:
        instances: Instances that it begins with.
        most_instances: Most instances that scaling allows.
        instance_type: The dearest type, or one without a price.
        price: Price of one instance on demand; `None` where it is not known.
        reservation_arn: Reservation that pays for the instances, instead of their price on demand.
        beside: New instances that run beside the old ones, at most, while an update exchanges them.
        meanwhile_usd_per_hour: Price of old and new ones together for that time; 0 where no update
            does it, `None` where not known.
    """

    instances: int
    most_instances: int
    instance_type: str
    price: Price | None = None
    reservation_arn: str | None = None
    beside: int = 0
    meanwhile_usd_per_hour: float | None = 0.0

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the first instances; 0 where a reservation pays, `None` where not known."""
        return self._per_hour(self.instances)

    @property
    def most_usd_per_hour(self) -> float | None:
        """Price of the most instances; 0 where a reservation pays, `None` where not known."""
        return self._per_hour(self.most_instances)

    @property
    def peak_usd_per_hour(self) -> float | None:
        """The higher one of the price at the most instances and of that during an update."""
        most, meanwhile = self.most_usd_per_hour, self.meanwhile_usd_per_hour
        return None if most is None or meanwhile is None else max(most, meanwhile)

    def _per_hour(self, instances: int) -> float | None:
        if self.reservation_arn:
            return 0.0
        return None if self.price is None else self.price.usd_per_hour * instances

    @property
    def lines(self) -> tuple[str, ...]:
        """The price per hour and per day: of the first and of the most instances, during an update.

        A line each, the first for what stands afterwards.
        """
        machines = f"{self.instances} x {self.instance_type}"
        if self.reservation_arn:
            return (
                f"{machines}, paid for by {self.reservation_arn}, whose fee is not counted here",
            )
        if self.price is None:
            return (f"{machines} at a price that is not known",)
        found = ", ".join(filter(None, (self.price.region, self.price.date, self.price.source)))
        first = f"{_per_hour_and_day(self.price.usd_per_hour * self.instances)}: {machines}"
        most = self.price.usd_per_hour * self.most_instances
        grown = f"up to {_per_hour_and_day(most)} at {self.most_instances} instances"
        more: tuple[str, ...] = (grown,) if self.most_instances > self.instances else ()
        if self.beside:
            usd = self.meanwhile_usd_per_hour
            price = "a price that is not known" if usd is None else f"{format_usd(usd)} an hour"
            more += (f"up to {price} during the update, with {self.beside} more beside the old",)
        return (f"{first} ({found})" if found else first, *more)


def _per_hour_and_day(usd_per_hour: float) -> str:
    return f"{format_usd(usd_per_hour)} an hour, {format_usd(usd_per_hour * 24)} a day"


def cost_of(hosting: Hosting, prices: Mapping[str, Price | None]) -> Cost:
    """Cost of a hosting's instances.

    Args:
        hosting: Instances and their scaling.
        prices: Prices by instance type; a type may be missing.
    """
    types = hosting.instance_types
    unknown = [name for name in types if prices.get(name) is None]
    dearest = max(types, key=lambda name: _usd(prices.get(name)))
    named = unknown[0] if unknown else dearest
    return Cost(
        instances=hosting.instance_count,
        most_instances=hosting.most_instances,
        instance_type=named,
        price=prices.get(named),
        reservation_arn=hosting.reservation_arn,
    )


def _usd(price: Price | None) -> float:
    return 0.0 if price is None else price.usd_per_hour


class TokenCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a million output tokens of an endpoint, and the load that it is for.

    Attributes:
        usd_per_million: Dollars per million output tokens.
        load: Copies, instances and load, for a reader.
    """

    usd_per_million: float
    load: str


def token_cost(
    hosting: Hosting, price: Price | None, evidence: Evidence | None
) -> TokenCost | None:
    """Cost of a million output tokens of the whole endpoint.

    Copies are taken to serve as fast as the trial's, whose throughput is shared among the copies
    that it had, but for what copies on one machine cost each other (`perf.copies`). With
    autoscaling it is the cost at the load that the policy holds: as many requests in flight per
    copy as its target, with every instance full of copies.

    Returns:
        `None` without a price on demand or a throughput.
    """
    per_s = evidence.results.get("output_throughput") if evidence else None
    if evidence is None or price is None or hosting.reservation_arn:
        return None
    if not isinstance(per_s, int | float) or not math.isfinite(per_s) or per_s <= 0:
        return None
    copies = hosting.copies is not None
    one = "copy" if copies else "instance"
    if hosting.scaling is not None:
        held = evidence.throughput_at(hosting.scaling.requests_per_copy)
        if held is None:
            return None
        per_instance_s = held * (_alone(hosting.copies_per_instance, evidence) if copies else 1)
        load = (
            f"{hosting.scaling.requests_per_copy:g} requests in flight per {one}, as scaling holds"
        )
    elif hosting.copies is not None:
        per_instance = hosting.copies / hosting.instance_count
        per_instance_s = per_s / evidence.copies * _alone(per_instance, evidence)
        load = (
            f"{_counted(hosting.copies, 'copy')} on {_counted(hosting.instance_count, 'instance')}"
        )
    else:
        per_instance_s, load = per_s, _counted(hosting.instance_count, "instance")
    return TokenCost(usd_per_million=price.usd_per_hour / 3600 / per_instance_s * 1e6, load=load)


def _alone(per_instance: float, evidence: Evidence) -> float:
    """Copies alone that serve as much as so many on one instance, by those of the trial."""
    shared = host_fraction(per_instance) / host_fraction(evidence.copies)
    return per_instance * shared


def _counted(count: int, noun: str) -> str:
    plural = "copies" if noun == "copy" else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
