"""Page of an estimate: the figure's data, and the same as tables without scripts."""

from __future__ import annotations

import msgspec
import pytest

from servetune.report import (
    BandPoint,
    Curve,
    Dot,
    EstimateHeading,
    MachineCost,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
    estimate_page,
)
from servetune.report.dashboard.page import page_data_in

HEADING = EstimateHeading(
    title="<model> & co on 1x X",
    model="<model> & co",
    machine="1x X",
    engine="vLLM, TP1",
    workload="1,024 tokens in, 512 out",
)
FIGURE = RooflineFigure(
    device="X",
    memory_bytes_per_s=1e12,
    roofs=(Roof(dtype="bf16", flops_per_s=1e14),),
    dots=(
        Dot(
            name="up",
            kind="matrices",
            phase="prefill",
            flops_per_byte=300,
            flops_per_s=8e13,
            share_fraction=0.6,
        ),
    ),
    bars=(
        StepBar(
            phase="prefill",
            label="a prefill",
            time_ms=20,
            bound="compute",
            slices=(
                StepSlice(name="up", kind="matrices", share_fraction=0.6, time_ms=12),
                StepSlice(name="waiting", kind="agreement", share_fraction=0.4, time_ms=8),
            ),
        ),
    ),
    curves=(
        Curve(
            title="TTFT",
            unit="ms",
            points=tuple(
                BandPoint(concurrency=n, value=100 * n, low=80 * n, high=130 * n) for n in (1, 2, 4)
            ),
        ),
    ),
    chosen_concurrency=4,
    knee_concurrency=2,
    dots_note="A dot is an operation.",
    curves_note="Nine of ten.",
)
MACHINES = (
    MachineCost(machine="a", label="TP1, 8 users", cost=1.25, low=1, high=2, predicted=True),
    MachineCost(machine="b", label="", cost=None, holds=False, missed="does not fit"),
)


def test_the_figure_is_in_the_page_as_it_is():
    page = estimate_page(HEADING, roofline=FIGURE, machines=MACHINES)
    figures = page_data_in(page)["figures"]
    assert msgspec.convert(figures["roofline"], RooflineFigure) == FIGURE
    assert tuple(msgspec.convert(figures["machines"], list[MachineCost])) == MACHINES
    assert page_data_in(page)["header"]["machine"] == "1x X"
    assert page_data_in(page)["trials"] == []
    assert page == estimate_page(HEADING, roofline=FIGURE, machines=MACHINES)


def test_names_are_text_and_never_markup():
    page = estimate_page(HEADING, roofline=FIGURE)
    assert "<model>" not in page
    assert "&lt;model&gt; &amp; co on 1x X" in page


@pytest.mark.parametrize(
    "cells",
    [
        ("waiting", "agreement", "8.00 ms", "40.0%"),
        ("4", "400.0 ms", "320.0 ms", "520.0 ms"),
        ("b", "–", "–", "–", "–", "–", "does not fit"),
        ("a", "$1.25", "$1.00", "$2.00", "–", "TP1, 8 users", "holds every limit"),
    ],
)
def test_the_page_has_the_same_as_tables(cells):
    page = estimate_page(HEADING, roofline=FIGURE, machines=MACHINES)
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "<caption>a prefill: 20.0 ms, bound by compute</caption>" in page
