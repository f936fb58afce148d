"""Roofline figure of one plan: its data, and the SVG drawn from it.

Colours are those of the dashboard, light and dark; shapes mark the phase and labels the
operation, so that colour never carries meaning alone. The file has no scripts and no external
resources.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources

import msgspec

from servetune.units import format_rate, format_seconds


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """Compute roof of one dtype (or of several at one rate)."""

    dtype: str
    flops_per_s: float


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """Operation of one step under the roof; `phase` is `prefill` or `decode`."""

    name: str
    kind: str
    phase: str
    flops_per_byte: float
    flops_per_s: float
    share_fraction: float


class StepSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Share of one operation in a step's time, operations without a dot included."""

    name: str
    kind: str
    share_fraction: float
    time: str


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """Step with its time, its bottleneck and its slices."""

    phase: str
    label: str
    time: str
    bound: str
    slices: tuple[StepSlice, ...]


class BandPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Value at one concurrency, with its 90% prediction band."""

    concurrency: int
    value: float
    low: float
    high: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Quantity over concurrency; `unit` is `s` or `/s`."""

    title: str
    unit: str
    points: tuple[BandPoint, ...]


class RooflineFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Data of the whole figure."""

    title: str
    subtitle: str
    device: str
    memory_bytes_per_s: float
    roofs: tuple[Roof, ...]
    dots: tuple[Dot, ...]
    bars: tuple[StepBar, ...]
    curves: tuple[Curve, ...]
    chosen_concurrency: int
    footnote: str


#: Dashboard colour by kind of operation.
_COLOURS = {
    "matrices": "--c0",
    "experts": "--c1",
    "attention": "--c3",
    "agreement": "--c2",
    "small kernels": "--c4",
    "engine": "--c5",
}
_WIDTH, _HEIGHT = 1360, 900
#: Smallest share of a step with a label under the roof.
_LABELLED_FRACTION = 0.025


def roofline_svg(figure: RooflineFigure) -> str:
    """Figure as an SVG file; equal figures give equal files."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _drawing(figure)


def roofline_html(figure: RooflineFigure) -> str:
    """HTML page with the figure and its numbers as tables."""
    title = html.escape(f"{figure.title} · servetune")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_tokens()}{_style('roofline_page.css')}</style></head><body><main>\n"
        f'<div class="drawing">{_drawing(figure)}</div>\n'
        f"<details><summary>The same as numbers</summary>\n"
        f"{''.join(_tables(figure))}</details></main></body></html>\n"
    )


def _tables(figure: RooflineFigure) -> Iterator[str]:
    for bar in figure.bars:
        rows = [(s.name, s.kind, s.time, f"{s.share_fraction:.1%}") for s in bar.slices]
        yield _table(_caption(bar), ("operation", "kind", "time", "share"), rows)
    for curve in figure.curves:
        shown = _shown(curve.unit)
        rows = [
            (f"{p.concurrency:,}", shown(p.value), shown(p.low), shown(p.high))
            for p in curve.points
        ]
        yield _table(curve.title, ("concurrency", "predicted", "low", "high"), rows)


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><caption>{html.escape(caption)}</caption><tr>{head}</tr>{body}</table>\n"


@cache
def _style(name: str) -> str:
    """Style sheet of this room, which begins a line of its own."""
    return "\n" + (resources.files("servetune.report") / "templates" / name).read_text("utf-8")


@cache
def _tokens() -> str:
    """CSS colours of the dashboard, light and dark."""
    style = _style("dashboard.css")
    light = re.search(r":root \{(.*?)\}", style, re.S)
    dark = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', style, re.S)
    assert light is not None
    assert dark is not None
    return f":root {{{light[1]}}}\n@media (prefers-color-scheme: dark) {{ :root {{{dark[1]}}} }}\n"


class _Axis:
    """Logarithmic axis from `low` to `high`, in pixels from `start` to `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.log10(self.high) + 1e-9
        return [10.0**power for power in range(first, math.floor(last) + 1)]

    def ticks(self, fewest: int = 3) -> list[float]:
        """Decades; where few fall inside also their doubles and fives."""
        if len(self.decades()) >= fewest:
            return self.decades()
        first = math.floor(math.log10(self.low))
        return [
            digit * 10.0**power
            for power in range(first, math.ceil(math.log10(self.high)) + 1)
            for digit in (1, 2, 5)
            if self.low * 0.999 <= digit * 10.0**power <= self.high * 1.001
        ]


def _drawing(figure: RooflineFigure) -> str:
    label = html.escape(f"Roofline of {figure.title}: {figure.subtitle}")
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    names = f'class="roofline" role="img" aria-label="{label}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {names}>',
        f"<title>{label}</title><style>{_tokens()}{_style('roofline.css')}</style>",
        # Background for viewers that show the file without a page.
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="var(--page)"/>',
        _text(24, 42, figure.title, "h1"),
        _text(24, 66, figure.subtitle, ""),
        _card(24, 84, 856, 508),
        *_roof_panel(figure),
        _card(24, 606, 856, 224),
        *_bars_panel(figure),
        _card(896, 84, 440, 746),
        *_curves_panel(figure),
        *(
            _text(24, 852 + 17 * line, text, "small")
            for line, text in enumerate(_wrapped(figure.footnote, 215))
        ),
        "</svg>",
    ]
    return "\n".join(parts)


def _roof_panel(figure: RooflineFigure) -> Iterator[str]:
    left, right, top, bottom = 92.0, 856.0, 164.0, 548.0
    peak = max(roof.flops_per_s for roof in figure.roofs)
    ridge = peak / figure.memory_bytes_per_s
    intensities = [dot.flops_per_byte for dot in figure.dots] + [ridge]
    rates = [dot.flops_per_s for dot in figure.dots] + [peak]
    x = _Axis(min(intensities) / 2.2, max(intensities) * 3.2, left, right)
    y = _Axis(min(rates) / 2.5, peak * 2.2, bottom, top)
    yield _text(44, 112, f"Roofline of one {figure.device}", "h2")
    yield from _legend(figure, 44, 134)
    for tick in x.decades():
        yield _line(x(tick), top, x(tick), bottom, "grid")
        yield _text(x(tick), bottom + 18, _plain(tick), "", "middle")
    for tick in y.decades():
        yield _line(left, y(tick), right, y(tick), "grid")
        yield _text(left - 8, y(tick) + 4, _si(tick), "", "end")
    yield _line(left, bottom, right, bottom, "base")
    yield _text((left + right) / 2, bottom + 36, "FLOP per byte of memory traffic", "", "middle")
    yield _text(left - 8, top - 6, "FLOP/s", "small", "end")
    for roof in figure.roofs:
        yield _roof_line(roof, figure.memory_bytes_per_s, x, y)
    dots = sorted(figure.dots, key=lambda dot: -dot.share_fraction)
    places = [(x(dot.flops_per_byte), y(dot.flops_per_s), _radius(dot)) for dot in dots]
    taken = list(_roof_labels(figure, x, y, places))
    yield from (_dot(dot, *place) for dot, place in zip(dots, places, strict=True))
    yield from (mark for mark, _ in taken)
    boxes = [box for _, box in taken]
    yield from _dot_labels(dots, places, boxes, (left, top, right, bottom))


def _roof_line(roof: Roof, bytes_per_s: float, x: _Axis, y: _Axis) -> str:
    ridge = roof.flops_per_s / bytes_per_s
    start = max(x.low, y.low / bytes_per_s)
    points = [(start, start * bytes_per_s), (ridge, roof.flops_per_s), (x.high, roof.flops_per_s)]
    tip = html.escape(f"{roof.dtype}: {_si(roof.flops_per_s)}FLOP/s, ridge at {ridge:.0f}")
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    return f'<polyline class="roof" points="{path}"><title>{tip}</title></polyline>'


_Box = tuple[float, float, float, float]


def _roof_labels(
    figure: RooflineFigure, x: _Axis, y: _Axis, places: Sequence[tuple[float, float, float]]
) -> Iterator[tuple[str, _Box]]:
    for roof in figure.roofs:
        text = f"{roof.dtype} {_si(roof.flops_per_s)}FLOP/s"
        at = (x.end - 6, y(roof.flops_per_s) - 7)
        box = (at[0] - _width_of(text), at[1] - 12, at[0], at[1] + 4)
        yield _text(*at, text, "name halo", "end"), box
    yield _memory_label(figure, x, y, places)


def _memory_label(
    figure: RooflineFigure, x: _Axis, y: _Axis, places: Sequence[tuple[float, float, float]]
) -> tuple[str, _Box]:
    """Label along the memory roof, at the place that covers the fewest dots."""
    bytes_per_s = figure.memory_bytes_per_s
    lowest = max(x.low, y.low / bytes_per_s)
    ridge = min(roof.flops_per_s for roof in figure.roofs) / bytes_per_s
    text = f"memory {_si(bytes_per_s)}B/s"
    run = x(2 * lowest) - x(lowest)
    rise = y(2 * lowest * bytes_per_s) - y(lowest * bytes_per_s)
    angle = math.atan2(rise, run)
    wide = _width_of(text) / 2 * math.cos(angle) + 6
    high = _width_of(text) / 2 * -math.sin(angle) + 6

    def placed(part: float) -> _Box:
        at = lowest ** (1 - part) * ridge**part
        px, py = x(at), y(at * bytes_per_s) - 9
        return (px - wide, py - high, px + wide, py + high)

    def covered(box: _Box) -> int:
        # The label next to a dot takes space as well.
        return sum(
            _overlap(box, (px - r - 70, py - r, px + r + 70, py + r)) for px, py, r in places
        )

    box = min((placed(part) for part in (0.5, 0.62, 0.38, 0.74, 0.26)), key=covered)
    px, py = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    mark = (
        f'<text class="name halo" text-anchor="middle" transform="translate({px:.1f} {py:.1f}) '
        f'rotate({math.degrees(angle):.1f})">{html.escape(text)}</text>'
    )
    return mark, box


def _radius(dot: Dot) -> float:
    return max(4.0, 30 * math.sqrt(dot.share_fraction))


def _dot(dot: Dot, px: float, py: float, radius: float) -> str:
    colour = _COLOURS[dot.kind]
    tip = html.escape(
        f"{dot.phase}, {dot.name}: {dot.share_fraction:.1%} of the step, "
        f"{dot.flops_per_byte:,.3g} FLOP/byte at {_si(dot.flops_per_s)}FLOP/s"
    )
    style = f'class="dot" style="fill: var({colour})"'
    if dot.phase == "prefill":
        return (
            f'<circle {style} cx="{px:.1f}" cy="{py:.1f}" r="{radius:.1f}">'
            f"<title>{tip}</title></circle>"
        )
    r = radius * math.sqrt(math.pi / 2)  # a diamond of the circle's area
    corners = (
        f"{px:.1f},{py - r:.1f} {px + r:.1f},{py:.1f} {px:.1f},{py + r:.1f} {px - r:.1f},{py:.1f}"
    )
    return f'<polygon {style} points="{corners}"><title>{tip}</title></polygon>'


def _dot_labels(
    dots: Sequence[Dot],
    places: Sequence[tuple[float, float, float]],
    taken: list[_Box],
    frame: _Box,
) -> Iterator[str]:
    """Labels next to their dots, largest shares first, where there is space.

    A dot without a label still has its tooltip and its share in the bar below.
    """
    solid = [(px - r, py - r, px + r, py + r) for px, py, r in places]
    for dot, (px, py, r), own in zip(dots, places, solid, strict=True):
        text = f"{dot.name} {dot.share_fraction:.0%}"
        if dot.share_fraction < _LABELLED_FRACTION:
            continue
        width = _width_of(text)
        for reach in (4.0, 16.0, 30.0, 46.0, 64.0):
            found = _free_place(
                px, py, r + reach, width, [*taken, *(s for s in solid if s != own)], frame
            )
            if found is None:
                continue
            box, anchor = found
            taken.append(box)
            middle = (box[1] + box[3]) / 2
            near_x = min(max(px, box[0]), box[2])
            if reach > 4.0:
                yield _line(px, py, near_x, middle, "lead")
            at = {"start": box[0], "end": box[2], "middle": (box[0] + box[2]) / 2}[anchor]
            yield _text(at, middle + 4, text, "name halo", anchor)
            break


def _free_place(
    px: float, py: float, reach: float, width: float, taken: Sequence[_Box], frame: _Box
) -> tuple[_Box, str] | None:
    slant = reach * 0.75
    candidates: tuple[tuple[_Box, str], ...] = (
        ((px + reach, py - 8, px + reach + width, py + 8), "start"),
        ((px - reach - width, py - 8, px - reach, py + 8), "end"),
        ((px - width / 2, py + reach, px + width / 2, py + reach + 16), "middle"),
        ((px - width / 2, py - reach - 16, px + width / 2, py - reach), "middle"),
        ((px + slant, py + slant - 4, px + slant + width, py + slant + 12), "start"),
        ((px + slant, py - slant - 12, px + slant + width, py - slant + 4), "start"),
        ((px - slant - width, py + slant - 4, px - slant, py + slant + 12), "end"),
        ((px - slant - width, py - slant - 12, px - slant, py - slant + 4), "end"),
    )
    for box, anchor in candidates:
        inside = (
            box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
        )
        if inside and not any(_overlap(box, other) for other in taken):
            return box, anchor
    return None


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _legend(figure: RooflineFigure, left: float, baseline: float) -> Iterator[str]:
    """Legend: shapes of the steps, and colours of the kinds of operation."""
    right, above = 862.0, baseline - 22
    for bar in reversed(figure.bars):
        right -= 40 + _width_of(bar.label)
        at = right
        if bar.phase == "prefill":
            yield f'<circle cx="{at + 6}" cy="{above - 4}" r="5" fill="var(--muted)"/>'
        else:
            yield (f'<path d="M{at + 6} {above - 11}l7 7l-7 7l-7 -7z" fill="var(--muted)"/>')
        yield _text(at + 18, above, bar.label, "")
    at = left
    used = {slice_.kind for bar in figure.bars for slice_ in bar.slices}
    for kind, colour in _COLOURS.items():
        if kind not in used:
            continue
        yield (
            f'<rect x="{at}" y="{baseline - 10}" width="11" height="11" rx="2.5" '
            f'style="fill: var({colour})"/>'
        )
        yield _text(at + 17, baseline, kind, "")
        at += 34 + _width_of(kind)


def _bars_panel(figure: RooflineFigure) -> Iterator[str]:
    left, right = 44.0, 860.0
    yield _text(left, 634, "Where a step's time goes, all layers together", "h2")
    for number, bar in enumerate(figure.bars):
        top = 650 + 90 * number
        yield _text(left, top + 12, _caption(bar), "name")
        at = left
        for slice_ in bar.slices:
            width = (right - left) * slice_.share_fraction
            tip = html.escape(f"{slice_.name}: {slice_.time}, {slice_.share_fraction:.1%}")
            yield (
                f'<rect x="{at:.1f}" y="{top + 20}" width="{max(0.5, width - 1.5):.1f}" '
                f'height="30" rx="3" style="fill: var({_COLOURS[slice_.kind]})">'
                f"<title>{tip}</title></rect>"
            )
            share = f"{slice_.share_fraction:.0%}"
            if width > _width_of(slice_.name) + 6:
                yield _text(at + 7, top + 39, slice_.name, "inside")
            if width > _width_of(share) + 4:
                yield _text(at + 2, top + 66, share, "small")
            at += width


def _caption(bar: StepBar) -> str:
    return f"{bar.label}: {bar.time}, bound by {bar.bound}"


def _curves_panel(figure: RooflineFigure) -> Iterator[str]:
    left, right, each = 972.0, 1316.0, 240.0
    yield _text(916, 112, "Against concurrency, with the 90% band", "h2")
    most = max(point.concurrency for curve in figure.curves for point in curve.points)
    x = _Axis(1, max(2, most), left, right)
    for number, curve in enumerate(figure.curves):
        top = 152 + each * number - (8 * number)
        bottom = top + 156
        last = number == len(figure.curves) - 1
        yield from _curve(curve, figure.chosen_concurrency, x, top, bottom, with_label=number == 0)
        if last:
            yield _text((left + right) / 2, bottom + 36, "requests in flight", "", "middle")


def _curve(
    curve: Curve, chosen: int, x: _Axis, top: float, bottom: float, *, with_label: bool
) -> Iterator[str]:
    low = min(point.low for point in curve.points)
    high = max(point.high for point in curve.points)
    y = _Axis(low / 1.15, high * 1.15, bottom, top)
    shown = _shown(curve.unit)
    yield _text(916, top - 12, curve.title, "name")
    for tick in y.ticks():
        yield _line(x.start, y(tick), x.end, y(tick), "grid")
        yield _text(x.start - 8, y(tick) + 4, shown(tick), "small", "end")
    doubles = [
        point.concurrency
        for point in curve.points
        if point.concurrency & (point.concurrency - 1) == 0
    ]
    step = max(1, math.ceil(len(doubles) / 7))
    for users in doubles[::step]:
        yield _text(x(users), bottom + 17, f"{users:,}", "small", "middle")
    yield _line(x.start, bottom, x.end, bottom, "base")
    upper = " ".join(f"{x(p.concurrency):.1f},{y(p.high):.1f}" for p in curve.points)
    lower = " ".join(f"{x(p.concurrency):.1f},{y(p.low):.1f}" for p in reversed(curve.points))
    yield f'<polygon class="band" points="{upper} {lower}"/>'
    yield _line(x(chosen), top, x(chosen), bottom, "mark")
    if with_label:
        side = "end" if x(chosen) > (x.start + x.end) / 2 else "start"
        gap = -6 if side == "end" else 6
        yield _text(x(chosen) + gap, top + 8, f"best throughput: {chosen:,}", "marked halo", side)
    path = " ".join(f"{x(p.concurrency):.1f},{y(p.value):.1f}" for p in curve.points)
    yield f'<polyline class="line" points="{path}"/>'
    for point in curve.points:
        tip = html.escape(
            f"{point.concurrency:,} in flight: {shown(point.value)} "
            f"({shown(point.low)} to {shown(point.high)})"
        )
        yield (
            f'<circle class="point" cx="{x(point.concurrency):.1f}" cy="{y(point.value):.1f}" '
            f'r="3.2"><title>{tip}</title></circle>'
        )


def _shown(unit: str) -> Callable[[float], str]:
    return format_seconds if unit == "s" else format_rate


def _card(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="card" x="{x}" y="{y}" width="{width}" height="{height}" rx="12"/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _width_of(text: str) -> float:
    """Width of a 12 px sans-serif text in pixels, an upper estimate."""
    return 6.5 * len(text)


def _wrapped(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _si(value: float) -> str:
    """Number with three digits and an SI prefix, to be followed by a unit: `989 T`."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {prefix}"
    return f"{value:,.3g} "
