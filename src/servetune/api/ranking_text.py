"""Text of a ranking of plans, and of the nearest where none holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servetune.api.choosing import Selection
from servetune.api.ranking import Priced, Ranked
from servetune.api.wording import (
    COLUMNS_OF_MACHINES,
    COLUMNS_TEXT,
    basis_text,
    confidence_text,
    factors_text,
    heading_text,
    legend_text,
    miss_text,
    order_text,
    row_text,
    wrap,
)
from servetune.engines import priced_release
from servetune.hardware import Node
from servetune.metrics import LATENCIES, value_of
from servetune.store import Results
from servetune.units import MS_PER_S, format_seconds


def sweep_text(
    ranked: Sequence[Ranked], priced: Priced, nodes: Sequence[Node], selection: Selection
) -> Iterator[str]:
    """The ranking, line by line; machines are named where there are several."""
    several = len(nodes) > 1
    where = f"{len(nodes)} machines" if several else nodes[0].label
    yield heading_text(selection.shape, where, selection.workload)
    yield f"Best of {priced.count:,} combinations of plan and concurrency"
    if not ranked:
        yield from _nothing_text(priced, selection)
        return
    yield ""
    yield COLUMNS_OF_MACHINES if several else COLUMNS_TEXT
    for number, one in enumerate(ranked, start=1):
        own = (one.node, one.interval) if several else (None, None)
        yield from row_text(number, one.swept, *own)
    yield ""
    if several:
        yield from wrap(legend_text([one.interval for one in ranked]))
    as_good = [one.as_good for one in ranked]
    if any(good is not None for good in as_good[1:]):
        yield from wrap(order_text([str(n) for n in range(1, len(ranked) + 1)], as_good))
    yield from wrap(_interval_text(ranked))
    yield from wrap(priced_release(selection.plan).sentence)
    if selection.limits:
        yield ""
        yield from wrap(confidence_text([one.caution for one in ranked]))
    if any(one.results for one in ranked):
        yield ""
        yield f"Percentiles (p99) of simulated runs, {priced.simulated} in all:"
        for number, one in enumerate(ranked, start=1):
            yield f"{number:>4}  {_tails_text(one.results or Results())}"


def _nothing_text(priced: Priced, selection: Selection) -> Iterator[str]:
    if priced.at_face_value and priced.confidence > 0.5 and not priced.layouts:
        yield from wrap(
            f"no plan holds every constraint with confidence {priced.confidence:g}; taken at "
            f"face value {priced.at_face_value:,} combinations hold those on means: "
            "--confidence 0.5 lists them, a measurement decides"
        )
    else:
        yield "no plan holds every constraint; relax them or name a larger machine"
    if priced.simulated:
        yield from wrap(
            f"Percentiles were judged by {priced.simulated} simulated runs of the "
            f"{priced.layouts} layouts that hold the limits on means."
        )
    nearest = priced.nearest
    if nearest is not None:
        users = nearest.swept.point.concurrency
        where = f" on {nearest.node.label}" if nearest.node.label else ""
        yield from wrap(
            f"nearest: {nearest.swept.plan.label}{where} with {users} concurrent users",
            subsequent_indent="  ",
        )
        for miss in nearest.misses:
            yield f"  {miss_text(miss, selection.confidence)}"


def _interval_text(ranked: Sequence[Ranked]) -> str:
    widest = max((one.interval for one in ranked), key=lambda each: each.high_factor)
    return f"{factors_text(widest)}: {basis_text(widest)}. Accuracy: {widest.accuracy.sentence}"


def _tails_text(results: Results) -> str:
    return ", ".join(
        f"{name} {format_seconds(value / MS_PER_S)}"
        for name in LATENCIES
        if (value := value_of(results, name, "p99")) is not None
    )
