"""Plain page of a result that is no trial: facts, line charts, sentences, tables and commands.

One file without scripts and without a network; charts are SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from servetune.report.dashboard.page import escaped, table_html

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 16, 36
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c")
_DASHES = ("", "6 3", "2 2")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: 1.5rem 0; display: block; overflow-x: auto }
caption { text-align: left; font-weight: 600 }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .75rem; text-align: left }
pre { background: #f4f4f4; padding: .75rem; white-space: pre-wrap; overflow-wrap: anywhere }
svg { max-width: 100%; height: auto } figure { margin: 1.5rem 0 } figcaption { font-weight: 600 }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #161616 }
  th, td { border-color: #444 } pre { background: #262626 } }
"""


#: Steps between the values written at an axis, of hours and of all else.
_HOURS, _DECIMAL = (1, 2, 3, 4, 6, 12, 24), (1, 2, 5, 10)


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class LineChart(NamedTuple):
    """A chart of lines; `logarithmic` of both axes."""

    title: str
    x_title: str
    series: Sequence[Series]
    logarithmic: bool = False


class PageTable(NamedTuple):
    """A table of texts."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def plain_page(
    title: str,
    *,
    facts: Sequence[tuple[str, str]] = (),
    charts: Sequence[LineChart] = (),
    lines: Sequence[str] = (),
    tables: Sequence[PageTable] = (),
    commands: Sequence[str] = (),
) -> str:
    """Page as HTML; equal arguments give equal pages."""
    parts = [f"<h1>{escaped(title)}</h1>"]
    parts += [f"<p>{escaped(name)}: {escaped(value)}</p>" for name, value in facts if value]
    parts += [f"<p>{escaped(line)}</p>" for line in lines if line]
    parts += [
        f"<figure><figcaption>{escaped(chart.title)}</figcaption>{chart_svg(chart)}</figure>"
        for chart in charts
    ]
    parts += [table_html(table.heads, table.rows, table.caption) for table in tables]
    if commands:
        parts.append("<pre>" + "\n".join(map(escaped, commands)) + "</pre>")
    return plain_html(title, parts)


def plain_html(title: str, parts: Sequence[str], style: str = "") -> str:
    """Page of HTML parts, without scripts and addresses.

    Args:
        title: Title of the window.
        parts: Content, escaped.
        style: Rules of style beside those of every plain page.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)} · servetune</title><style>{_STYLE}{style}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def chart_svg(chart: LineChart) -> str:
    """Chart as SVG; empty without a point."""
    xs = [x for series in chart.series for x in series.x]
    ys = [y for series in chart.series for y in series.y]
    if not xs:
        return ""
    across = _Axis(xs, _LEFT, _WIDTH - _RIGHT, logarithmic=chart.logarithmic)
    up = _Axis(
        ys if chart.logarithmic else [0.0, *ys], _HEIGHT - _BOTTOM, _TOP,
        logarithmic=chart.logarithmic,
    )  # fmt: skip
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    label = f'role="img" aria-label="{escaped(chart.title)}"'
    parts = [f'<svg {size} {label} font-size="12" fill="currentColor">']
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#8886" /><text text-anchor="end" '
            f'x="{_LEFT - 6}" y="{y + 4:.1f}">{tick:,.6g}</text>'
        )
    for tick in across.ticks(_HOURS if chart.x_title == "hour" else _DECIMAL):
        x = across.place(tick)
        parts.append(
            f'<text text-anchor="middle" x="{x:.1f}" y="{_HEIGHT - 18}">{tick:,.6g}</text>'
        )
    parts.append(
        f'<text text-anchor="end" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}">'
        f"{escaped(chart.x_title)}</text>"
    )
    for number, series in enumerate(chart.series):
        colour, dash = _COLOURS[number % 3], _DASHES[number % 3]
        points = " ".join(
            f"{across.place(x):.1f},{up.place(y):.1f}"
            for x, y in zip(series.x, series.y, strict=True)
        )
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{dash}" points="{points}" />'
        )
        if len(chart.series) > 1:
            place = _LEFT + 8 + 110 * number
            parts.append(f'<text x="{place}" y="12" fill="{colour}">{escaped(series.label)}</text>')
    return "".join([*parts, "</svg>"])


class _Axis:
    """Places of values between two ends."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, logarithmic: bool
    ) -> None:
        self._log = logarithmic and min(values) > 0
        self.low, self.high = min(values), max(values)
        if self.low == self.high:
            self.low, self.high = self.low * 0.9, self.high * 1.1 or 1.0
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        low, high = (self.low, self.high)
        if self._log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self, steps: Sequence[int] = _DECIMAL) -> list[float]:
        """Round values within the ends."""
        if self._log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [10.0**power for power in powers]
        else:
            rough = (self.high - self.low) / 5
            if steps is not _HOURS or not 1 <= rough <= steps[-1]:
                steps = _DECIMAL
            unit = 1.0 if steps is _HOURS else 10.0 ** math.floor(math.log10(rough))
            step = next(unit * m for m in steps if unit * m >= rough)
            found = [step * n for n in range(math.ceil(self.low / step), int(self.high / step) + 1)]
        return [tick for tick in found if self.low <= tick <= self.high]
