"""Text that estimates share: headings, rows of plans, times, prices and confidence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from servetune.api.choosing import Miss, Selection
from servetune.hardware import Node
from servetune.metrics import LATENCIES
from servetune.models import NetworkShape
from servetune.perf.roofline import Interval, OperatingPoint, SafetyFactors
from servetune.perf.sweep import Offer, Swept
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd
from servetune.workload import Workload

#: Width that terminals have at least.
COLUMNS = 80
#: Head of the rows of `row_text`, and of rows of several machines.
COLUMNS_TEXT = "   #  users  out tok/s   req/s  TTFT      ITL       E2E          $/M tok"
COLUMNS_OF_MACHINES = (
    "   #  users out tok/s  req/s  TTFT      ITL       E2E       $/M tok  accuracy"
)


def wrap(text: str, *, subsequent_indent: str = "") -> list[str]:
    """Lines of at most `COLUMNS` columns."""
    return textwrap.wrap(text, COLUMNS, subsequent_indent=subsequent_indent, break_on_hyphens=False)


def row_text(
    number: int, swept: Swept, machine: Node | None = None, interval: Interval | None = None
) -> Iterator[str]:
    """Two lines of a plan in a ranking: its figures, then the machine and the plan.

    Of several machines each row has its own accuracy, by the interval of its prediction.
    """
    point = swept.point
    times = "".join(f"{time:<10}" for time in times_texts(point))
    cost = format_usd(swept.cost_per_million_tokens_usd)
    rates = format_rate(point.output_tokens_per_s), format_rate(point.requests_per_s)
    line = f"{number:>4}  {point.concurrency:>5}"
    if interval is None:
        yield f"{line}  {rates[0]:>9}  {rates[1]:>6}  {times}  {cost:>8}"
    else:
        yield f"{line} {rates[0]:>9} {rates[1]:>6}  {times}{cost:>7}  {rows_text(interval)}"
    place = ""
    if machine is not None:
        price = machine.price
        rent = f" at {format_usd(price.usd_per_hour)} per hour" if price else ""
        place = f"{machine.label}{rent}: "
    yield from wrap(f"      {place}{swept.plan.label}", subsequent_indent=" " * 8)


def rows_text(interval: Interval) -> str:
    """Median error and number of measured rows of a machine's kind: `9% of 41`.

    Rows are laboratories'; `*` marks publishers' where those have none, `-` is none at all.
    """
    found, mark = interval.accuracy, ""
    if not found.rows and found.published is not None:
        found, mark = found.published, "*"
    if found.median_percent is None:
        return "-"
    return f"{found.median_percent:.0f}% of {found.rows}{mark}"


def legend_text(intervals: Sequence[Interval]) -> str:
    """Meaning of the column of `rows_text`."""
    marks = {"*": "* published runs, as no laboratory's are like it", "-": "- none is like it"}
    texts = [rows_text(each) for each in intervals]
    shown = [text for mark, text in marks.items() if any(each.endswith(mark) for each in texts)]
    return (
        "accuracy: median error of predicted times per token for so many measured rows of the "
        f"nearest kind of run{''.join(f'; {text}' for text in shown)}"
    )


def order_text(names: Sequence[str], as_good: Sequence[bool | None]) -> str:
    """Which of the plans shown may be as good as the first, and how surely that is predicted.

    Args:
        names: Names of the plans, the best first.
        as_good: Whether each may be as good; `None` where one of the two has no price.
    """
    best, *named = (name for name, good in zip(names, as_good, strict=True) if good)
    if named:
        text = (
            f"{_listed(named)} may be as good as {best}: of measured pairs predicted to be as "
            "close, more than one in ten had the other order. Measure them before you choose."
        )
    else:
        text = (
            f"{best} is ahead of the others shown: of measured pairs predicted to be as far "
            "apart, some nine in ten had the predicted order."
        )
    silent = [name for name, good in zip(names, as_good, strict=True) if good is None]
    return f"{text} Without a price: {_listed(silent)}." if silent else text


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def confidence_text(cautions: Sequence[SafetyFactors]) -> str:
    """Effect of the confidence on the times that constraints judged, in words."""
    confidence = cautions[0].confidence
    if confidence == 0.5:
        return "Constraints were judged by predictions at face value (--confidence 0.5)."
    gaps = _range_text([caution.tpot_factor for caution in cautions])
    first = _range_text([caution.ttft_factor for caution in cautions])
    return (
        f"Constraints hold with confidence {confidence:g}: they were judged with times {gaps} and "
        f"first tokens {first} times as long as shown."
    )


def _range_text(factors: Sequence[float]) -> str:
    low, high = f"{min(factors):.2f}", f"{max(factors):.2f}"
    return low if low == high else f"{low} to {high}"


def factors_text(interval: Interval) -> str:
    """Factors of an interval on times and rates, and those on first tokens."""
    return (
        f"Times and rates within a factor of {interval.low_factor:.3g} to "
        f"{interval.high_factor:.3g}, first tokens {interval.ttft_low_factor:.3g} to "
        f"{interval.ttft_high_factor:.3g}"
    )


def keeping_up_text(rate_per_s: float, most_per_s: float, interval: Interval) -> str:
    """Doubt whether a rate is served at all; empty where the interval's slow end serves it, too.

    Args:
        rate_per_s: Requests that come per second.
        most_per_s: Requests that are served per second at best, as predicted.
        interval: Factors of the prediction.
    """
    fewest_per_s = most_per_s / interval.high_factor
    if rate_per_s <= fewest_per_s:
        return ""
    come, most, fewest = map(format_rate, (rate_per_s, most_per_s, fewest_per_s))
    return (
        f"may not keep up: {come} requests/s come, {most} are served at best and {fewest} at the "
        "slow end of the interval. Where fewer are served than come, requests queue for as long as "
        "they come, and no interval holds"
    )


def basis_text(interval: Interval) -> str:
    """Source of an interval's factors, in words that agree with the accuracy beside them."""
    if interval.extrapolation != "silicon":
        return interval.basis
    _, _, rest = interval.basis.partition("; ")
    published = interval.accuracy.published
    known = f" (published runs like it: {published.rows})" if published and published.rows else ""
    return (
        "no laboratory measured this device under this engine, or only under other releases"
        f"{known}; {rest}"
    )


def miss_text(miss: Miss, confidence: float) -> str:
    """A missed limit with its values, in the limit's unit."""
    limit = miss.limit
    if miss.predicted is None or miss.judged is None:
        return f"{limit.label}: nothing is predicted that it could be judged by"
    values = [miss.predicted, miss.judged]
    if limit.metric in LATENCIES:
        predicted, judged = (format_seconds(value / MS_PER_S) for value in values)
    else:
        predicted, judged = (f"{value:.3g}" for value in values)
    sure = f", {judged} with confidence {confidence:g}" if judged != predicted else ""
    return f"{limit.label}: {predicted} predicted{sure}"


def heading_text(shape: NetworkShape, where: str, workload: Workload) -> str:
    """The first line of every estimate: what it is of, and that nothing was run."""
    pair = workload.lengths.fixed_pair
    load = f"{pair[0]} in, {pair[1]} out tokens" if pair else f"{workload.name}'s lengths"
    shared = workload.shared_prefix()
    if shared is not None and shared.tokens is None:
        load += f", {shared.count:,} different prompts"
    elif shared is not None:
        one = "a shared prefix" if shared.count == 1 else f"one of {shared.count:,} prefixes"
        load += f", {one} of {shared.tokens:,.0f} tokens"
    return f"ESTIMATE (arithmetic, nothing was run)\n{shape.name} on {where}, {load}"


def buying_text(
    found: Sequence[Offer], intervals: Sequence[Interval], selection: Selection
) -> Iterator[str]:
    """Machines by cost, line by line.

    Args:
        found: All machines, those that hold the limits by cost.
        intervals: Intervals of these, in order.
        selection: Constraints and objective.
    """
    top = selection.top
    yield heading_text(selection.shape, f"{len(found)} machines", selection.workload)
    yield "Machines by cost per million output tokens"
    yield ""
    usable = [offer for offer in found if offer.best is not None]
    yield COLUMNS_OF_MACHINES
    for number, (offer, interval) in enumerate(zip(usable[:top], intervals, strict=False), 1):
        assert offer.best is not None
        yield from row_text(number, offer.best, offer.node, interval)
    if intervals:
        yield ""
        least_sure = max(intervals[:top], key=lambda each: each.high_factor)
        yield from wrap(legend_text(intervals[:top]))
        yield from wrap(f"{factors_text(least_sure)} on the least sure (each in --json)")
    as_good = [offer.as_good for offer in usable[:top]]
    if any(good is not None for good in as_good[1:]):
        yield ""
        yield from wrap(order_text([str(n) for n in range(1, len(as_good) + 1)], as_good))
    priced = [offer for offer in usable if offer.node.price]
    if priced:
        cheapest = min(priced, key=lambda o: o.node.price.usd_per_hour if o.node.price else 0.0)
        assert cheapest.node.price is not None
        yield ""
        yield from wrap(
            f"cheapest per hour: {cheapest.node.label} at "
            f"{format_usd(cheapest.node.price.usd_per_hour)}; cheapest per token: "
            f"{priced[0].node.label}"
        )
        yield from _prices_text(priced[:top])
    left_out = [offer for offer in found if offer.best is None]
    if left_out:
        reasons = sorted({offer.why_not for offer in left_out})
        yield f"{len(left_out)} machines left out: {' or '.join(reasons)}"


def _prices_text(priced: Sequence[Offer]) -> Iterator[str]:
    """Source and date of the prices of the listed machines, in words."""
    priced_from: dict[tuple[str, str, str], list[str]] = {}
    for offer in priced:
        price = offer.node.price
        assert price is not None
        instance_name, _, source = price.source.rpartition(": ")
        place = priced_from.setdefault((price.region, source, price.date), [])
        place.append(instance_name or offer.node.name)
    for (region, source, date), names in priced_from.items():
        listed = ", ".join(dict.fromkeys(names))
        yield from wrap(f"prices: {source}, {region}, on demand, read {date}: {listed}")


def times_texts(point: OperatingPoint) -> tuple[str, str, str]:
    """TTFT, ITL and end-to-end; answers of one token have no ITL."""
    ttft_s, itl_s, e2e_s = (
        time_ms / MS_PER_S for time_ms in (point.ttft_ms, point.itl_ms, point.e2e_ms)
    )
    return format_seconds(ttft_s), format_seconds(itl_s or None), format_seconds(e2e_s)
