"""Results of fleet sizing: instances, fleets for rates, and a day that was played."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from servetune.api.fleet_instances import LeftOut, SizedInstance
from servetune.api.frames import TableRow, Tabular, json_object
from servetune.api.wording import wrap
from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.perf.fleet_day import PlayedDay
from servetune.perf.target_tracking import ScalingPolicy
from servetune.report.plain_page import LineChart, PageTable, Series, plain_page
from servetune.report.quantities import DASH
from servetune.search.least_cost import Cover
from servetune.units import format_rate, format_usd
from servetune.workload.day import HOUR_S, Traffic

#: Points of a chart of a day.
_CHART_POINTS = 288
#: Share of a price from which on it is called a saving.
_SHOWN_SAVING = 0.005
_COLUMNS = tuple[str, ...]


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling of the instances of one type.

    Attributes:
        instance: Name of the type.
        minimum: Least instances.
        maximum: Most instances.
        target: Requests in flight per instance at which another is added.
        target_per_copy: The same per copy, for a cluster that scales copies.
        traffic_fraction: Share of the requests that a router sends there.
        commands: Commands that deploy it, in order.
    """

    instance: str
    minimum: int
    maximum: int
    target: float
    target_per_copy: float
    traffic_fraction: float
    commands: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether instances are added and removed at all."""
        return self.minimum != self.maximum

    @property
    def label(self) -> str:
        """The range and target in words."""
        if not self.changes:
            return f"{self.minimum} always"
        return (
            f"{self.minimum}:{self.maximum} at {self.target:g} in flight per instance, "
            f"{self.target_per_copy:g} per copy (the threshold for KEDA)"
        )


class FleetLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet of least cost for one rate.

    Attributes:
        rate_per_s: Requests per second.
        fleet: Instances, on demand.
        one_type: The cheapest fleet of one type of instance; `None` where `fleet` has one.
        slow: The fleet of least cost if every type did as at the slow end of its interval; `None`
            where no type holds the limits there, or nothing is known of it.
        reserved_usd_per_hour: Price with every instance reserved; `None` without a discount.
        scaling: Scaling of each type.
    """

    rate_per_s: float
    fleet: Cover
    one_type: Cover | None
    slow: Cover | None
    reserved_usd_per_hour: float | None
    scaling: tuple[Scaled, ...]


class FleetDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day's traffic on an autoscaled fleet, as it was played.

    Attributes:
        traffic: The traffic.
        scaling: Instances that are scaled, and how.
        base: Instances of another type that always run beside them; `None` without.
        policy: The policy that was played.
        played: The day under it.
        load_fraction: Load at the target over that at the limits.
        largest_rise: Largest factor by which traffic rises while an instance starts.
        full_target: The day with instances scaled at the limits themselves, with the same least
            number, for comparison.
        fixed: Fleet of least cost that holds the peak and never changes.
        fixed_usd: Price of that fleet for the day.
        reserved: Instances that are worth reserving; `None` without a discount.
        reserved_usd: Price of the day with these reserved.
        slow_policy: Policy at the slow end of the intervals; `None` where the limits hold at no
            load then.
        slow_usd: Price of the day under it.
        tried: Days that were played to find the policy.
        alone: The cheapest scaling of one type, where two together cost less.
        alone_usd: Price of the day under it, with what is worth reserving reserved.
        mixed_usd: Price of the day under the cheapest two types that were played, the answer or
            not; `None` where arithmetic left none to play.
        mixes: Numbers of two types that were compared by arithmetic.
    """

    traffic: Traffic
    scaling: Scaled
    base: Scaled | None = None
    policy: ScalingPolicy
    played: PlayedDay
    load_fraction: float
    largest_rise: float
    full_target: PlayedDay
    fixed: Cover
    fixed_usd: float
    reserved: int | None = None
    reserved_usd: float | None = None
    slow_policy: ScalingPolicy | None = None
    slow_usd: float | None = None
    tried: int = 1
    alone: Scaled | None = None
    alone_usd: float | None = None
    mixed_usd: float | None = None
    mixes: int = 0

    @property
    def parts(self) -> tuple[Scaled, ...]:
        """Each type with its scaling."""
        return (self.scaling,) if self.base is None else (self.base, self.scaling)


class FleetPlan(Tabular, frozen=True, kw_only=True):
    """Fleets for rates, or for a day.

    Attributes:
        model: Name of the model.
        limits: Limits that they hold.
        load: Requests in words.
        instances: Instances that hold the limits, by price per request.
        left_out: Other instances, and why no fleet has them.
        levels: Fleets by rate.
        day: The day; `None` without one.
        survive: Lost instances that each fleet bears.
        headroom: Share of each instance's load that is kept free in `levels`.
        reserved_discount: Discount on reserved instances; `None` where none was given.
    """

    model: str
    limits: tuple[Constraint, ...]
    load: str
    instances: tuple[SizedInstance, ...]
    left_out: tuple[LeftOut, ...]
    levels: tuple[FleetLevel, ...] = ()
    day: FleetDay | None = None
    survive: int = 0
    headroom: float = 0.0
    reserved_discount: float | None = None

    @property
    def feasible(self) -> bool:
        """Whether the limits hold: of a day, in every window that was played."""
        return self.day is None or self.day.played.held

    def as_rows(self) -> Iterable[TableRow]:
        """One row per rate; of a day, one per window."""
        return _day_rows(self.day) if self.day is not None else map(_level_row, self.levels)

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(
            {
                "model": self.model,
                "limits": [limit.label for limit in self.limits],
                "load": self.load,
                "survive": self.survive,
                "headroom": self.headroom,
                "reserved_discount": self.reserved_discount,
                "instances": [_instance_json(one) for one in self.instances],
                "left_out": self.left_out,
                "levels": self.levels,
                "day": _day_json(self.day) if self.day is not None else None,
            }
        )

    def _facts(self) -> Sequence[tuple[str, str]]:
        return (
            ("model", self.model),
            ("requests", self.load),
            ("limits", "; ".join(limit.label for limit in self.limits)),
            ("curves", self._basis()),
        )

    def _basis(self) -> str:
        words = {
            "predicted": "predicted: copies were simulated under random arrivals, nothing was "
            "measured",
            "simulated": "from trials on the simulated engine",
            "measured": "from measured trials",
        }
        kinds = dict.fromkeys(one.basis for one in self.instances)
        return ", ".join(words[kind] for kind in kinds)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"FLEET of {self.model}: {self.load}"
        yield from wrap(f"limits: {'; '.join(limit.label for limit in self.limits)}")
        yield from wrap(self._basis())
        yield ""
        yield from _text_table(*_instance_table(self.instances))
        yield from wrap(f"prices: {_prices_text(self.instances)}")
        yield from wrap(_slow_text(self.instances))
        if self.levels:
            yield ""
            yield from _text_table(*_level_table(self))
            yield from wrap(self._level_note())
        if self.day is not None:
            yield ""
            yield from _day_lines(self.day, self)
        yield from self._commands()
        for reason, names in _by_reason(self.left_out).items():
            yield from wrap(f"left out, {reason}: {', '.join(names)}")

    def _level_note(self) -> str:
        words = [f"{self.headroom:.0%} of each instance is kept free (--headroom)"]
        targets = {each.instance: each.target for level in self.levels for each in level.scaling}
        listed = ", ".join(f"{name} at {target:g}" for name, target in targets.items())
        words.append(f"autoscaling by requests in flight per instance: {listed}")
        if self.survive:
            words.append(f"the limits hold when the {_largest(self.survive)} lost")
        if any(len(level.fleet.counts) > 1 for level in self.levels):
            words.append("each type is an endpoint of its own, requests divided by its capacity")
        services = {name.startswith("ml.") for level in self.levels for name in level.fleet.counts}
        if len(services) > 1:
            words.append(
                "types of SageMaker (ml.) and of EC2 are in one list, as they were named; those of "
                "one fleet may be of both"
            )
        if any(level.slow is None for level in self.levels) and any(
            one.slow_curve is not None for one in self.instances
        ):
            words.append(f"{DASH}: no type holds the limits at the slow end")
        return "; ".join(words)

    def _commands(self) -> Iterator[str]:
        if self.day is not None:
            scaled = self.day.parts
        elif len(self.levels) == 1:
            scaled = self.levels[0].scaling
        else:
            return
        yield ""
        for each in scaled:
            yield from wrap(f"{each.instance}: {each.label}")
            for command in each.commands:
                yield f"  {command}"

    def page(self) -> str:
        """The same as an HTML page with charts."""
        tables = [PageTable("What one instance does", *_instance_table(self.instances))]
        charts: list[LineChart] = []
        if self.levels:
            tables.insert(0, PageTable("Fleets by rate", *_level_table(self)))
            charts += _level_charts(self)
        lines: list[str] = []
        if self.day is not None:
            lines = list(_day_lines(self.day, self, width=None))
            charts += _day_charts(self.day)
        if self.left_out:
            rows = [
                (reason, ", ".join(names)) for reason, names in _by_reason(self.left_out).items()
            ]
            tables.append(PageTable("Left out", ("why", "instances"), rows))
        lines.append(_slow_text(self.instances))
        parts = self.day.parts if self.day is not None else ()
        if len(self.levels) == 1:
            parts = self.levels[0].scaling
        commands = tuple(command for each in parts for command in each.commands)
        return plain_page(
            f"Fleet of {self.model}",
            facts=(*self._facts(), ("prices", _prices_text(self.instances))),
            charts=charts,
            lines=lines,
            tables=tables,
            commands=commands,
        )

    def _page(self) -> str:
        return self.page()


def _instance_table(
    instances: Sequence[SizedInstance],
) -> tuple[_COLUMNS, list[_COLUMNS]]:
    heads = ("instance", "devices", "plan", "requests/s", "slow end", "in flight", "$/h")
    rows: list[_COLUMNS] = [
        (
            one.name,
            f"{one.node.device_count}x {one.node.device.name}",
            one.plan.label,
            format_rate(one.capacity_per_s),
            format_rate(one.slow_capacity_per_s) if one.slow_capacity_per_s else DASH,
            f"{one.in_flight(one.capacity_per_s):,.0f}",
            f"{one.price.usd_per_hour:.4g}",
        )
        for one in instances
    ]
    return heads, rows


def _counts(cover: Cover | None) -> str:
    if cover is None:
        return DASH
    return " + ".join(f"{count} x {name}" for name, count in cover.counts.items())


def _level_table(plan: FleetPlan) -> tuple[_COLUMNS, list[_COLUMNS]]:
    reserved = plan.reserved_discount is not None
    mixed = any(level.one_type is not None for level in plan.levels)
    heads = ["requests/s", "fleet", "$/h"]
    heads += ["reserved $/h"] if reserved else []
    heads += ["one type", "$/h"] if mixed else []
    heads += ["at the slow end", "$/h"]
    rows = []
    for level in plan.levels:
        row = [f"{level.rate_per_s:,g}", _counts(level.fleet), f"{level.fleet.usd_per_hour:,.2f}"]
        if reserved:
            row.append(f"{level.reserved_usd_per_hour:,.2f}")
        if mixed:
            one = level.one_type
            row += [_counts(one), f"{one.usd_per_hour:,.2f}"] if one else ["the same", ""]
        slow = level.slow
        row += [_counts(slow), f"{slow.usd_per_hour:,.2f}" if slow else DASH]
        rows.append(tuple(row))
    return tuple(heads), rows


def _text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of text; those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    right = [all(_is_number(row[place]) for row in rows) for place in range(len(heads))]
    for cells in (heads, *rows):
        shown = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        yield "  ".join(shown).rstrip()


def _is_number(cell: str) -> bool:
    return cell in ("", DASH) or (cell.lstrip("$")[:1].isdigit() and " x " not in cell)


def _prices_text(instances: Sequence[SizedInstance]) -> str:
    """Region, source and date of the prices, and whose they are where sources differ."""
    names: dict[str, list[str]] = {}
    for one in instances:
        price = one.price
        about = ", ".join(filter(None, (price.region, price.source, price.date)))
        names.setdefault(f"on demand, {about}" if price.date else about, []).append(one.name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{about} ({', '.join(of)})" for about, of in names.items())


def _slow_text(instances: Sequence[SizedInstance]) -> str:
    """What the slow end of the intervals means, in words."""
    factors = [one.slow_factor for one in instances if one.slow_factor is not None]
    firsts = [one.slow_ttft_factor for one in instances if one.slow_ttft_factor is not None]
    bases = ", ".join(dict.fromkeys(one.interval for one in instances if one.interval))
    if not factors:
        return f"slow end: {bases}" if bases else ""
    return (
        f"slow end: the 90% interval's, where times are {_range(factors)} and first tokens "
        f"{_range(firsts)} times as long as predicted ({bases})"
    )


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"


def _by_reason(left_out: Sequence[LeftOut]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in left_out:
        found.setdefault(each.reason, []).append(each.instance)
    return found


def _day_lines(day: FleetDay, plan: FleetPlan, width: int | None = 100) -> Iterator[str]:
    """What the day showed, as sentences."""

    def fold(text: str) -> Iterable[str]:
        return wrap(text) if width else (text,)

    played, traffic, policy = day.played, day.traffic, day.policy
    name = day.scaling.instance
    yield from fold(
        f"day '{traffic.name}': {played.requests:,.0f} requests in {traffic.lasts_s / HOUR_S:g} h, "
        f"at most {format_rate(traffic.peak_per_s)}/s"
    )
    base = f"{day.base.minimum} x {day.base.instance} always, and " if day.base else ""
    if policy.minimum == policy.maximum:
        yield from fold(
            f"{base}{policy.minimum} x {name}, always: no scaling that holds the limits costs "
            f"less{' with reservations' if day.reserved_usd is not None else ''}; "
            f"{format_usd(played.usd)}"
            f"{' on demand' if day.reserved_usd is not None else ''}"
        )
    else:
        yield from fold(
            f"{base}{policy.minimum} to {policy.maximum} x {name}, one more at "
            f"{policy.target:g} requests in flight per instance: "
            f"{played.instance_hours:,.1f} instance-hours, {format_usd(played.usd)} on demand"
        )
    if _mix_text(day):
        yield from fold(_mix_text(day))
    yield from fold(
        f"played in the simulator: limits held in {_share(played.held_fraction)} of "
        f"{len(played.serving):,} windows of {policy.period_s:g} s and for "
        f"{_share(played.within_fraction)} of the requests; "
        f"{_instances(played.fewest, played.most)} {f'of {name} ' if day.base else ''}served"
        + (
            f"; with {plan.survive} lost they would hold in {_share(played.safe_fraction)}"
            if plan.survive
            else ""
        )
    )
    started = next(one for one in plan.instances if one.name == name)
    if policy.minimum != policy.maximum:
        yield from fold(
            f"an instance takes {started.start_up_s:.0f} s to start ({started.start_up_source}); "
            f"traffic rises by up to {day.largest_rise:.2f} times meanwhile, so instances are "
            f"scaled at {day.load_fraction:.0%} of their limit"
        )
        minutes = (1 - day.full_target.held_fraction) * traffic.lasts_s / 60
        if minutes:
            yield from fold(
                f"scaled at that limit instead, they would miss it for {minutes:,.0f} minutes"
            )
    saved = 1 - played.usd / day.fixed_usd
    yield from fold(
        f"fixed fleet for the peak: {_counts(day.fixed)}, {format_usd(day.fixed_usd)}"
        + (f"; scaling saves {saved:.0%}" if saved >= _SHOWN_SAVING else "")
    )
    if day.reserved is not None and day.reserved_usd is not None and plan.reserved_discount:
        all_reserved_usd = day.fixed_usd * (1 - plan.reserved_discount)
        saved = 1 - day.reserved_usd / all_reserved_usd
        yield from fold(
            f"{_reserved(day)} reserved at {plan.reserved_discount:.0%} off and the rest on "
            f"demand: {format_usd(day.reserved_usd)}; the fixed fleet, all of it reserved: "
            f"{format_usd(all_reserved_usd)}"
            + (f", so that scaling saves {saved:.0%}" if saved >= _SHOWN_SAVING else "")
        )
    if day.slow_policy is not None and day.slow_usd is not None:
        slow = day.slow_policy
        yield from fold(
            f"at the slow end of the interval: {_instances(slow.minimum, slow.maximum)}"
            f"{f' of {name} beside the same {day.base.instance}' if day.base else ''}, "
            + (
                f"one more at {slow.target:g} in flight"
                if slow.minimum != slow.maximum
                else "always"
            )
            + f", {format_usd(day.slow_usd)}"
            + (" with reservations" if day.reserved_usd is not None else "")
            + ("; other types may cost less then" if day.base else "")
        )
    elif started.slow_curve is not None:
        yield from fold("at the slow end of the interval this instance holds the limits at no load")


def _mix_text(day: FleetDay) -> str:
    """What a second type does for the day, in words."""
    reserving = " with reservations" if day.reserved_usd is not None else ""
    if day.base is not None and day.alone is not None and day.alone_usd is not None:
        return (
            "a router divides requests by the capacity of what serves, "
            f"{day.base.traffic_fraction:.0%} of them to {day.base.instance}; one type alone: "
            f"{_range_text(day.alone.minimum, day.alone.maximum)} x {day.alone.instance}, "
            f"{format_usd(day.alone_usd)}{reserving}"
        )
    if not day.mixes:
        return ""
    words = f"two types together do not cost less ({day.mixes} mixes compared)"
    if day.mixed_usd is None:
        return words
    return f"{words}: the cheapest that was played takes {format_usd(day.mixed_usd)}{reserving}"


def _reserved(day: FleetDay) -> str:
    if day.base is None:
        return f"{day.reserved}"
    return f"{day.base.minimum} x {day.base.instance} and {day.reserved} x {day.scaling.instance}"


def _range_text(fewest: int, most: int) -> str:
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def _instances(fewest: int, most: int) -> str:
    return f"{_range_text(fewest, most)} {'instance' if most == 1 else 'instances'}"


def _share(fraction: float) -> str:
    """A share that is called whole only where it is."""
    return "all" if fraction >= 1 else f"{min(fraction, 0.9999):.2%}"


def _level_row(level: FleetLevel) -> dict[str, Any]:
    return {
        "rate_per_s": level.rate_per_s,
        "fleet": _counts(level.fleet),
        "instances": level.fleet.machines,
        "usd_per_hour": level.fleet.usd_per_hour,
        "capacity_per_s": level.fleet.rate_per_s,
        "one_type": _counts(level.one_type or level.fleet),
        "one_type_usd_per_hour": (level.one_type or level.fleet).usd_per_hour,
        "slow": _counts(level.slow),
        "slow_usd_per_hour": level.slow.usd_per_hour if level.slow else None,
        "reserved_usd_per_hour": level.reserved_usd_per_hour,
    }


def _day_rows(day: FleetDay) -> Iterator[dict[str, Any]]:
    period_s, missing = day.policy.period_s, set(day.played.missing_s)
    rates = day.traffic.windows(period_s).tolist()
    start_s = 0.0
    for rate, serving, paid, in_flight, wait_s in zip(
        rates, day.played.serving, day.played.paid, day.played.in_flight, day.played.wait_s,
        strict=True,
    ):  # fmt: skip
        yield {
            "time_s": start_s,
            "rate_per_s": rate,
            "serving": serving,
            "always": day.base.minimum if day.base is not None else 0,
            "paid": paid,
            "in_flight_per_instance": in_flight,
            "wait_s": wait_s,
            "held": start_s not in missing,
        }
        start_s += period_s


def _instance_json(one: SizedInstance) -> JsonObject:
    return {
        "instance": one.name,
        "devices": f"{one.node.device_count}x {one.node.device.name}",
        "plan": one.plan,
        "copies": one.copies,
        "capacity_per_s": one.capacity_per_s,
        "slow_capacity_per_s": one.slow_capacity_per_s or None,
        "in_flight": one.in_flight(one.capacity_per_s),
        "price": one.price,
        "basis": one.basis,
        "interval": one.interval,
        "start_up_s": one.start_up_s,
        "start_up_source": one.start_up_source,
        "key": one.key or None,
        "curve": one.curve.points,
    }


def _day_json(day: FleetDay) -> JsonObject:
    named: JsonObject = {name: getattr(day, name) for name in day.__struct_fields__}
    named["held"] = day.played.held
    for name in ("played", "full_target"):
        played: PlayedDay = named[name]
        series = ("serving", "paid", "in_flight", "missing_s", "wait_s")
        named[name] = {
            each: getattr(played, each) for each in played.__struct_fields__ if each not in series
        }
    rows = list(_day_rows(day))
    named["windows"] = rows[:: max(1, len(rows) // _CHART_POINTS)]
    return named


def _level_charts(plan: FleetPlan) -> list[LineChart]:
    if len(plan.levels) < 2:
        return []
    rates = [level.rate_per_s for level in plan.levels]
    series = [Series("point", rates, [level.fleet.usd_per_hour for level in plan.levels])]
    slow = [level for level in plan.levels if level.slow is not None]
    if slow:
        costs = [level.slow.usd_per_hour for level in slow if level.slow is not None]
        series.append(Series("slow end", [level.rate_per_s for level in slow], costs))
    return [LineChart("Dollars per hour", "requests/s", series, logarithmic=True)]


def _day_charts(day: FleetDay) -> list[LineChart]:
    rows = list(_day_rows(day))
    rows = rows[:: max(1, len(rows) // _CHART_POINTS)]
    hours = [*(row["time_s"] / HOUR_S for row in rows), day.traffic.lasts_s / HOUR_S]

    def series(label: str, name: str) -> Series:
        return Series(label, hours, [*(float(row[name]) for row in rows), float(rows[-1][name])])

    return [
        LineChart("Requests per second", "hour", [series("rate", "rate_per_s")]),
        LineChart(
            "Instances over time",
            "hour",
            [
                series("serving", "serving"),
                series("paid for", "paid"),
                *([series(f"always: {day.base.instance}", "always")] if day.base else []),
            ],
        ),
        LineChart(
            "Requests in flight per instance",
            "hour",
            [series("in flight", "in_flight_per_instance")],
        ),
    ]


def _largest(count: int) -> str:
    return "largest instance is" if count == 1 else f"{count} largest instances are"
