"""The roofline picture: well-formed, complete, and its marks where the numbers say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from servetune.report import (
    BandPoint,
    Curve,
    Dot,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
    roofline_html,
    roofline_svg,
)

SVG = "{http://www.w3.org/2000/svg}"


def dot(name, phase, intensity, rate, share, kind="matrices"):
    return Dot(
        name=name,
        kind=kind,
        phase=phase,
        flops_per_byte=intensity,
        flops_per_s=rate,
        share_fraction=share,
    )


FIGURE = RooflineFigure(
    title="<model> & co on 1x X",
    subtitle="TP1",
    device="X",
    memory_bytes_per_s=1e12,
    roofs=(Roof(dtype="bf16", flops_per_s=1e14), Roof(dtype="fp8", flops_per_s=2e14)),
    dots=(
        dot("up", "prefill", 300, 8e13, 0.6),
        dot("up", "decode", 10, 9e12, 0.3),
        dot("attention", "decode", 10, 9e12, 0.3, "attention"),
    ),
    bars=(
        StepBar(
            phase="prefill",
            label="a prefill",
            time="20 ms",
            bound="compute",
            slices=(
                StepSlice(name="up", kind="matrices", share_fraction=0.6, time="12 ms"),
                StepSlice(name="waiting", kind="agreement", share_fraction=0.4, time="8 ms"),
            ),
        ),
        StepBar(
            phase="decode",
            label="a decode",
            time="10 ms",
            bound="memory",
            slices=(StepSlice(name="up", kind="matrices", share_fraction=1.0, time="10 ms"),),
        ),
    ),
    curves=tuple(
        Curve(
            title=title,
            unit=unit,
            points=tuple(
                BandPoint(concurrency=n, value=0.1 * n, low=0.08 * n, high=0.13 * n)
                for n in (1, 2, 4, 6, 8)
            ),
        )
        for title, unit in (("TTFT", "s"), ("ITL", "s"), ("Output tokens per second", "/s"))
    ),
    chosen_concurrency=6,
    footnote="Bands: nine of ten.",
)


def root_of(figure=FIGURE):
    return ET.fromstring(roofline_svg(figure).split("\n", 1)[1])


def texts(root):
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def test_equal_figures_give_equal_files_that_load_nothing():
    assert roofline_svg(FIGURE) == roofline_svg(FIGURE)
    for drawn in (roofline_svg(FIGURE), roofline_html(FIGURE)):
        assert "<script" not in drawn
        assert not re.search(r"(?:href|src)=|url\(|@import", drawn)


def test_names_are_text_and_never_markup():
    assert "<model> & co on 1x X" in texts(root_of())
    assert "<model>" not in roofline_html(FIGURE)


def test_every_operation_and_point_is_there_with_its_numbers():
    tips = [each.text or "" for each in root_of().iter(f"{SVG}title")]
    for each in FIGURE.dots:
        assert any(tip.startswith(f"{each.phase}, {each.name}: ") for tip in tips)
    for bar in FIGURE.bars:
        for part in bar.slices:
            assert any(tip.startswith(f"{part.name}: {part.time}, ") for tip in tips)
    points = [e for e in root_of().iter(f"{SVG}circle") if e.get("class") == "point"]
    assert len(points) == sum(len(curve.points) for curve in FIGURE.curves)


def test_the_roof_bends_where_compute_meets_memory():
    roofs = [e for e in root_of().iter(f"{SVG}polyline") if e.get("class") == "roof"]
    assert len(roofs) == 2
    corners = [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in roofs]
    (bf16, fp8) = corners
    assert bf16[1][1] == bf16[2][1]  # flat beyond the ridge
    assert fp8[1][1] < bf16[1][1]  # the higher rate is drawn higher
    assert fp8[1][0] > bf16[1][0]  # and its ridge is further right
    slope = [(c[1][1] - c[0][1]) / (c[1][0] - c[0][0]) for c in corners]
    assert slope[0] == pytest.approx(slope[1], rel=1e-2)  # one memory line


def test_no_dot_is_drawn_above_its_roof():
    root = root_of()
    circle = next(e for e in root.iter(f"{SVG}circle") if e.get("class") == "dot")
    roof = next(e for e in root.iter(f"{SVG}polyline") if e.get("class") == "roof")
    flat = float(roof.get("points").split()[-1].split(",")[1])
    assert float(circle.get("cy")) > flat


def test_an_area_is_a_share():
    big, small = (
        float(e.get("r"))
        for figure in (
            FIGURE,
            msgspec.structs.replace(FIGURE, dots=(dot("up", "prefill", 300, 8e13, 0.15),)),
        )
        for e in root_of(figure).iter(f"{SVG}circle")
        if e.get("class") == "dot"
    )
    assert (big / small) ** 2 == pytest.approx(4, rel=0.02)


def test_bars_are_as_long_as_their_shares():
    rects = [e for e in root_of().iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]
    widths = [float(e.get("width")) + 1.5 for e in rects]
    assert widths[0] / widths[1] == pytest.approx(0.6 / 0.4, rel=0.01)
    assert widths[0] + widths[1] == pytest.approx(widths[2], rel=0.01)


def test_labels_do_not_lie_on_each_other():
    crowd = tuple(dot(f"operation {n}", "decode", 10 + n, 9e12, 0.1) for n in range(8))
    root = root_of(msgspec.structs.replace(FIGURE, dots=crowd))
    boxes = []
    for each in root.iter(f"{SVG}text"):
        said = "".join(each.itertext())
        if not said.startswith("operation"):
            continue
        x, y, wide = float(each.get("x")), float(each.get("y")), 6.5 * len(said)
        left = {"start": x, "end": x - wide, "middle": x - wide / 2}[each.get("text-anchor")]
        boxes.append((left, y - 12, left + wide, y + 4))
    assert len(boxes) > 3
    for index, a in enumerate(boxes):
        for b in boxes[index + 1 :]:
            apart = (
                a[2] <= b[0] + 0.2 or b[2] <= a[0] + 0.2 or a[3] <= b[1] + 0.2 or b[3] <= a[1] + 0.2
            )
            assert apart, (a, b)


def test_colours_are_the_dashboards_light_and_dark():
    drawn = roofline_svg(FIGURE)
    assert "prefers-color-scheme: dark" in drawn
    named = set(re.findall(r"var\((--[\w-]+)\)", drawn))
    light, dark = drawn.split("@media (prefers-color-scheme: dark)")
    for name in named:
        assert f"{name}:" in light
        assert f"{name}:" in dark


def test_the_page_has_the_same_as_tables():
    page = roofline_html(FIGURE)
    assert page.count("<table>") == len(FIGURE.bars) + len(FIGURE.curves)
    assert "waiting</td><td>agreement" in page
