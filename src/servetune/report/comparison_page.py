"""Page of a comparison: the verdict, the gate, and each metric's change with its interval.

One file without scripts and without a network. The changes are drawn; all that is drawn is in the
tables as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from servetune.metrics.gate import parse_gate
from servetune.report.changes import MetricChange
from servetune.report.comparison_text import (
    CHANGE_HEADS,
    GATE_HEADS,
    change_cells,
    configuration_heading,
    gate_cells,
    remarks,
    verdict_text,
    verdict_word,
)
from servetune.report.dashboard.page import escaped, table_html
from servetune.report.plain_page import plain_html
from servetune.report.run_comparison import GateOutcome, RunComparison

#: Changes at the ends of a chart; the smallest that holds most changes is taken.
_ENDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Configurations whose metrics are all drawn, and whose tables are open.
_MOST_WHOLE = 4
_WIDTH, _HEIGHT = 200, 12
_STYLE = """
:root { --line: #c0c8d2; --muted: #56606d; --better: #0b7a6f; --worse: #b4540a; --other: #66707d;
  --card: #f2f4f7 }
@media (prefers-color-scheme: dark) { :root { --line: #485261; --muted: #a3adba; --better: #34c9b7;
  --worse: #f0a055; --other: #98a1ae; --card: #1e232b } }
h1, h2 { overflow-wrap: anywhere; line-height: 1.3 } h2 { font-size: 1.1rem; margin-top: 2.5rem }
.verdict { padding: .6rem .9rem; border-left: 4px solid var(--other); background: var(--card);
  font-weight: 600; overflow-wrap: anywhere }
.verdict.failed { border-color: var(--worse) } .verdict.passed { border-color: var(--better) }
.remarks { color: var(--muted); padding-left: 1.2rem; overflow-wrap: anywhere }
.changes { list-style: none; padding: 0; margin: 1.5rem 0; font-variant-numeric: tabular-nums }
.changes li { display: grid; grid-template-columns: 9rem 1fr 12rem; gap: 0 1rem;
  align-items: center }
.changes svg { width: 100%; height: 1.9rem; overflow: hidden; display: block }
.worse { color: var(--worse) } .better { color: var(--better) } .other { color: var(--other) }
.changes .scale { display: flex; justify-content: space-between; color: var(--muted);
  font-size: .85em }
summary { cursor: pointer; color: var(--muted) } td, th { white-space: nowrap }
.gate td:last-child { white-space: normal; min-width: 12rem }
@media (max-width: 640px) {
  .changes li { grid-template-columns: 1fr auto; margin-bottom: .5rem; font-size: .92em }
  .changes svg { height: 1.2rem }
  .changes svg, .changes .scale { grid-row: 2; grid-column: 1 / -1 } }
"""


def comparison_page(found: RunComparison, *, base: str = "", new: str = "") -> str:
    """Page as HTML; equal arguments give equal pages.

    Args:
        found: Comparison.
        base: Name of the base.
        new: Name of the new side.
    """
    title = _title(base, new)
    return plain_html(title, list(_parts(found, title)), _STYLE)


def failure_page(message: str, hint: str, *, base: str = "", new: str = "") -> str:
    """Page of sides that could not be compared, with why.

    Args:
        message: Reason in one line.
        hint: Next step.
        base: Name of the base.
        new: Name of the new side.
    """
    title = _title(base, new)
    told = f'<p class="verdict failed">not compared: {escaped(message)}</p>'
    return plain_html(
        title, [f"<h1>{escaped(title)}</h1>", told, f"<p>{escaped(hint)}</p>"], _STYLE
    )


def _title(base: str, new: str) -> str:
    return f"{base} → {new}" if base or new else "Comparison"


def _parts(found: RunComparison, title: str) -> Iterator[str]:
    yield f"<h1>{escaped(title)}</h1>"
    state = "failed" if found.failed else "passed" if found.gated and not found.undecided else ""
    yield f'<p class="verdict {state}">{escaped(found.words)}</p>'
    if found.gate:
        heads, *rows = (
            (gate, verdict, change, configuration)  # on a narrow screen the verdict is seen first
            for gate, configuration, change, verdict in (GATE_HEADS, *map(gate_cells, found.gate))
        )
        yield f'<div class="gate">{table_html(heads, rows)}</div>'
    notes = [
        f"<strong>{line}</strong>" if "SIMULATED" in line else line
        for line in map(escaped, remarks(found))
    ]
    if notes:
        yield f'<ul class="remarks">{"".join(f"<li>{note}</li>" for note in notes)}</ul>'
    whole = len(found.configurations) <= _MOST_WHOLE
    for each in found.configurations:
        gate = [one for one in found.gate if one.configuration == each.label]
        yield f"<section><h2>{escaped(configuration_heading(each))}</h2>"
        drawn = [row for row in each.rows if whole or row.verdict in ("better", "worse")]
        yield _chart(drawn, _thresholds(gate))
        yield (
            f"<details{' open' if whole else ''}><summary>all metrics</summary>"
            f"{table_html(CHANGE_HEADS, map(change_cells, each.rows))}</details></section>"
        )


def _thresholds(gate: Sequence[GateOutcome]) -> Mapping[tuple[str, str], float]:
    """Changes at which relative conditions fail, by metric and statistic."""
    conditions = [condition for one in gate for condition in parse_gate(one.condition)]
    return {
        (each.metric, each.statistic): -each.amount if each.falls else each.amount
        for each in conditions
        if each.relative
    }


def _chart(rows: Sequence[MetricChange], thresholds: Mapping[tuple[str, str], float]) -> str:
    """Changes with their intervals on one scale; shares have other differences."""
    drawn = [row for row in rows if row.change_fraction is not None and row.method != "shares"]
    if not drawn:
        return ""
    marks = [thresholds.get((row.quantity, row.statistic)) for row in drawn]
    changes = sorted(abs(row.change_fraction or 0.0) for row in drawn)
    usual = changes[len(changes) * 3 // 4]  # a few larger ones, drawn at the edge, hide no others
    held = max([usual, *(abs(mark) for mark in marks if mark)])
    end = next((each for each in _ENDS if each >= held), _ENDS[-1])
    items = [_row(row, end, mark) for row, mark in zip(drawn, marks, strict=True)]
    scale = "".join(f"<span>{text}</span>" for text in (f"−{end:.0%}", "no change", f"+{end:.0%}"))
    axis = (
        f'<li aria-hidden="true"><span></span><span class="scale">{scale}</span><span></span></li>'
    )
    return f'<ul class="changes">{"".join(items)}{axis}</ul>'


def _row(row: MetricChange, end: float, threshold: float | None) -> str:
    tone = row.verdict if row.verdict in ("better", "worse") else "other"
    change = row.change_fraction or 0.0
    low = change if row.change_low is None else row.change_low
    high = change if row.change_high is None else row.change_high
    lines = [_line(0.0, 0.0, 0, end, 'stroke="var(--line)"')]
    if threshold is not None:
        lines.append(
            _line(threshold, threshold, 0, end, 'stroke="var(--worse)" stroke-dasharray="3 2"')
        )
    if high > low:
        lines.append(_line(low, high, _HEIGHT / 2, end, 'stroke="currentColor" stroke-width="2"'))
    lines.append(_line(change, change, 2, end, 'stroke="currentColor" stroke-width="4"'))
    label = escaped(f"{row.name}: {verdict_text(row)}")
    return (
        f"<li><span>{escaped(row.name)}</span>"
        f'<svg class="{tone}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}">{"".join(lines)}</svg>'
        f'<span class="{tone}">{escaped(verdict_word(row))} {change:+.1%}</span></li>'
    )


def _line(low: float, high: float, top: float, end: float, paint: str) -> str:
    """Line between two changes; an upright one, from `top` on, where they are equal."""
    left, right = (_WIDTH / 2 * (1 + min(max(at / end, -1.0), 1.0)) for at in (low, high))
    foot = top if high > low else _HEIGHT - top
    return (
        f'<line x1="{left:.2f}" x2="{right:.2f}" y1="{top:g}" y2="{foot:g}" {paint} '
        'vector-effect="non-scaling-stroke" />'
    )
