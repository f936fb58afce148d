"""Page of an estimate: figures of what was predicted, without any trial, and the same as tables."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from servetune.report.dashboard.page import escaped, page_html, table_html
from servetune.report.machines import MachineCost
from servetune.report.page_data import Figures, page_data, short
from servetune.report.quantities import DASH, shown
from servetune.report.roofline import RooflineFigure
from servetune.units import MS_PER_S, format_seconds


class EstimateHeading(msgspec.Struct, frozen=True, kw_only=True):
    """Subject of an estimate, as the page's heading.

    Attributes:
        title: Model and machine.
        model: Name of the model.
        machine: Name of the machine, or number of machines.
        engine: Engine, and the plan where there is one.
        workload: Load that was priced.
    """

    title: str
    model: str
    machine: str
    engine: str
    workload: str


def estimate_page(
    heading: EstimateHeading,
    *,
    roofline: RooflineFigure | None = None,
    machines: tuple[MachineCost, ...] = (),
) -> str:
    """Page as HTML; equal arguments give equal pages.

    Args:
        heading: Subject of the page.
        roofline: Figure of one plan on one machine.
        machines: Costs of several machines.
    """
    data = page_data((), (), title=heading.title)
    header = msgspec.structs.replace(
        data.header,
        model=heading.model,
        machine=heading.machine,
        engine=heading.engine,
        workload=heading.workload,
    )
    figures = Figures(
        roofline=short(roofline) if roofline is not None else None,
        machines=[short(each) for each in machines],
    )
    data = msgspec.structs.replace(data, header=header, figures=figures)
    tables = [
        *(_roofline_tables(roofline) if roofline is not None else ()),
        *(_machine_tables(machines) if machines else ()),
    ]
    subtitle = f"{heading.engine} · {heading.workload} · predicted by formula, nothing was run"
    static = "\n".join(
        [
            f'<div class="static"><h1>{escaped(heading.title)}</h1>',
            f"<p>{escaped(subtitle)}</p>",
            *tables,
            "</div>",
        ]
    )
    return page_html(data, static)


def _roofline_tables(figure: RooflineFigure) -> Iterator[str]:
    for bar in figure.bars:
        rows = [
            (s.name, s.kind, shown(s.time_ms, "ms"), f"{s.share_fraction:.1%}") for s in bar.slices
        ]
        time = format_seconds(bar.time_ms / MS_PER_S)
        caption = f"{bar.label}: {time}, bound by {bar.bound}"
        yield table_html(("operation", "kind", "time", "share"), rows, caption)
    for curve in figure.curves:
        points = [
            [f"{p.concurrency:,}", *(shown(v, curve.unit) for v in (p.value, p.low, p.high))]
            for p in curve.points
        ]
        yield table_html(("users", "predicted", "low", "high"), points, curve.title)


def _machine_tables(machines: tuple[MachineCost, ...]) -> Iterator[str]:
    rows = [
        (
            one.machine,
            shown(one.cost, "USD"),
            shown(one.low, "USD"),
            shown(one.high, "USD"),
            shown(one.usd_per_hour, "USD"),
            one.label or DASH,
            "holds every limit" if one.holds else one.missed,
        )
        for one in machines
    ]
    heads = ("machine", "per million tokens", "low", "high", "per hour", "plan", "limits")
    yield table_html(heads, rows, "Cost per million output tokens")
