"""Comparison of runs as a terminal table, as Markdown and as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.report.baseline import with_ends
from servetune.report.changes import MetricChange
from servetune.report.markdown import escaped, table_lines
from servetune.report.quantities import DASH
from servetune.report.run_comparison import (
    ComparedConfiguration,
    GateOutcome,
    RunComparison,
    RunLength,
    change_text,
)
from servetune.visible import visible

_HEADS = ("metric", "base", "new", "change", "95% interval", "verdict", "tells from")
#: Configurations of which all metrics are shown on a terminal; of more those that changed.
_MOST_WHOLE = 4
#: Words of verdicts that stand otherwise in a table.
_SHOWN = {"unknown": "cannot tell"}

#: Characters beside controls that no XML document may have.
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def comparison_view(found: RunComparison) -> RenderableType:
    """Tables of all configurations, the gate and the notes, for a terminal."""
    parts: list[RenderableType] = []
    brief = len(found.configurations) > _MOST_WHOLE
    for each in found.configurations:
        parts.append(Text(_heading(each), style="bold"))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in _HEADS:
            words = head in ("metric", "verdict")
            table.add_column(head, justify="left" if words else "right", no_wrap=True)
        shown = [row for row in each.rows if not brief or row.verdict in ("better", "worse")]
        for row in shown:
            table.add_row(*map(visible, _cells(row)))
        parts += [table] if shown else []
        if len(shown) < len(each.rows):
            parts.append(Text(f" {len(each.rows) - len(shown)} metrics the same or not told\n"))
    parts += [Text(visible(line)) for line in _lines(found)]
    parts.append(Text(visible(found.words), style="bold"))
    return Group(*parts)


def comparison_markdown(found: RunComparison, *, base: str = "", new: str = "") -> str:
    """Comparison as GitHub's Markdown, such as for a job's summary.

    Args:
        found: Comparison.
        base: Name of the base.
        new: Name of the new side.
    """
    return "\n".join(_markdown(found, base, new)) + "\n"


def comparison_junit(found: RunComparison, *, strict: bool = False) -> str:
    """Comparison as JUnit XML: a suite for each configuration, a case for each condition.

    Without a gate the cases are the metrics, and none fails. What the runs cannot tell is skipped.

    Args:
        found: Comparison.
        strict: Whether a condition that the runs cannot tell about fails.
    """
    root = ET.Element("testsuites", name="servetune compare")
    for each in found.configurations:
        suite = ET.SubElement(root, "testsuite", name=_clean(each.label))
        own = [gate for gate in found.gate if gate.configuration == each.label]
        for case in own:
            _gate_case(suite, case, strict=strict)
        for row in () if own else each.rows:
            case_of = ET.SubElement(
                suite, "testcase", classname=_clean(each.label), name=_clean(row.name), time="0"
            )
            text = _row_text(row)
            if row.verdict == "unknown":
                ET.SubElement(case_of, "skipped", message=_clean(text))
            else:
                ET.SubElement(case_of, "system-out").text = _clean(text)
    if found.broken:
        suite = ET.SubElement(root, "testsuite", name="runs that failed")
        for label in found.broken:
            case_of = ET.SubElement(
                suite, "testcase", classname="runs", name=_clean(label), time="0"
            )
            ET.SubElement(case_of, "failure", message="the run failed", type="run")
    for suite in root:
        _count(suite)
    _count(root)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def run_length_text(lengths: Sequence[RunLength]) -> str:
    """Run length of each condition, a line each."""
    return "\n".join(f"  {each}" for each in lengths)


def _heading(each: ComparedConfiguration) -> str:
    runs = f"{each.base_runs} and {each.new_runs} runs of {each.requests:,} requests"
    paired = ", in pairs with equal seeds" if each.paired and each.base_runs > 1 else ""
    differs = f"; differs: {', '.join(each.differences)}" if each.differences else ""
    return visible(f"{each.label}: {runs}{paired}{differs}")


def _cells(row: MetricChange) -> tuple[str, ...]:
    interval = DASH
    if row.change_low is not None or row.change_high is not None:
        ends = (row.change_low, row.change_high)
        interval = ", ".join("?" if end is None else f"{end:+.1%}" for end in ends)
    tells = row.tellable_fraction
    return (
        row.name,
        with_ends(row, row.before, None),
        with_ends(row, row.now, None),
        DASH if row.change_fraction is None else f"{row.change_fraction:+.1%}",
        interval,
        _SHOWN.get(row.verdict, row.verdict),
        DASH if tells is None else f"{tells:.1%}",
    )


def _row_text(row: MetricChange) -> str:
    change = change_text(row.change_fraction, row.change_low, row.change_high)
    told = f"{_SHOWN.get(row.verdict, row.verdict)}: changed {change}"
    if row.tellable_fraction is not None:
        told += f"; such runs tell {row.tellable_fraction:.1%}"
    return told


def _lines(found: RunComparison) -> Iterator[str]:
    for names, side in ((found.only_base, "BASE"), (found.only_new, "NEW")):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            yield f"only in {side}: {'; '.join(names[:8])}{more}"
    several = len(found.configurations) > 1
    for each in found.gate:
        yield f"gate {each}{f' ({each.configuration})' if several else ''}"
    for note in found.notes:
        yield f"note: {note}"
    if found.run_lengths and not found.gate:  # each condition says its own
        yield "runs that would tell, in 90% of comparisons:"
        yield run_length_text(found.run_lengths)


def _markdown(found: RunComparison, base: str, new: str) -> Iterator[str]:
    named = f": {escaped(base)} → {escaped(new)}" if base or new else ""
    yield f"# Comparison{named}"
    yield from ("", f"**{escaped(found.words)}**")
    if found.gate:
        heads = ("gate", "configuration", "change", "verdict")
        rows = [
            (
                each.condition,
                each.configuration,
                change_text(each.change_fraction, each.change_low, each.change_high),
                each.verdict,
            )
            for each in found.gate
        ]
        yield from ("", *table_lines(heads, rows))
    for each in found.configurations:
        yield from ("", f"## {escaped(_heading(each))}", "")
        yield from table_lines(_HEADS, map(_cells, each.rows))
    rest = [
        line
        for line in _lines(found)
        if not line.startswith("gate ") or line.startswith("gate cannot tell")
    ]
    if rest:
        yield from ("", *(f"- {escaped(line)}" for line in rest))


def _gate_case(suite: ET.Element, outcome: GateOutcome, *, strict: bool) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(outcome.configuration),
        name=_clean(outcome.condition),
        time="0",
    )
    text = _clean(str(outcome))
    if outcome.verdict == "failed" or (strict and outcome.verdict == "cannot tell"):
        ET.SubElement(case, "failure", message=text, type="regression")
    elif outcome.verdict == "cannot tell":
        ET.SubElement(case, "skipped", message=text)
    else:
        ET.SubElement(case, "system-out").text = text


def _count(element: ET.Element) -> None:
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        element.set(name, str(sum(1 for _ in element.iter(tag))))
    element.set("errors", "0")
    element.set("time", "0")


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_XML.sub("?", visible(text).replace("\n", " "))
