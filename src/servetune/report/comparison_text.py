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
    end_text,
    share_text,
)
from servetune.visible import visible

#: Heads of a table of changes, and of a table of a gate.
CHANGE_HEADS = ("metric", "base", "new", "change", "95% interval", "verdict", "tells from")
GATE_HEADS = ("gate", "configuration", "change", "verdict")
#: Configurations of which all metrics are shown on a terminal; of more those that changed.
_MOST_WHOLE = 4
#: Words of verdicts that stand otherwise in a table.
_SHOWN = {"unknown": "cannot tell"}

#: Counts of a suite in JUnit, and the elements that they count.
_COUNTED = {"tests": "testcase", "failures": "failure", "skipped": "skipped", "errors": "error"}
#: Characters beside controls that no XML document may have.
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def comparison_view(found: RunComparison) -> RenderableType:
    """Tables of all configurations, the gate and the notes, for a terminal."""
    parts: list[RenderableType] = []
    brief = len(found.configurations) > _MOST_WHOLE
    for each in found.configurations:
        parts.append(Text(configuration_heading(each), style="bold"))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in CHANGE_HEADS:
            words = head in ("metric", "verdict")
            table.add_column(head, justify="left" if words else "right", no_wrap=True)
        shown = [row for row in each.rows if not brief or row.verdict in ("better", "worse")]
        for row in shown:
            table.add_row(*map(visible, change_cells(row)))
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
    return _xml(root)


def failure_markdown(message: str, hint: str, *, base: str = "", new: str = "") -> str:
    """Markdown of sides that could not be compared, with why.

    Args:
        message: Reason in one line.
        hint: Next step.
        base: Name of the base.
        new: Name of the new side.
    """
    lines = [_title(base, new), "", f"**not compared: {escaped(message)}**"]
    return "\n".join([*lines, *(["", escaped(hint)] if hint else [])]) + "\n"


def failure_junit(message: str, hint: str, conditions: Sequence[str] = ()) -> str:
    """JUnit XML of sides that could not be compared: a case in error for each condition.

    Args:
        message: Reason in one line.
        hint: Next step.
        conditions: Conditions of the gate; one case stands for the comparison without any.
    """
    root = ET.Element("testsuites", name="servetune compare")
    suite = ET.SubElement(root, "testsuite", name="not compared")
    for name in conditions or ("comparison",):
        case = ET.SubElement(
            suite, "testcase", classname="not compared", name=_clean(name), time="0"
        )
        ET.SubElement(case, "error", message=_clean(message), type="input").text = _clean(hint)
    return _xml(root)


def run_length_text(lengths: Sequence[RunLength]) -> str:
    """Run length of each condition, a line each."""
    return "\n".join(f"  {each}" for each in lengths)


def configuration_heading(each: ComparedConfiguration) -> str:
    """Configuration, its runs, and what differs between the sides, in a line."""
    runs = f"{each.base_runs} and {each.new_runs} runs of {each.requests:,} requests"
    paired = ", in pairs with equal seeds" if each.paired and each.base_runs > 1 else ""
    differs = f"; differs: {', '.join(each.differences)}" if each.differences else ""
    return visible(f"{each.label}: {runs}{paired}{differs}")


def change_cells(row: MetricChange) -> tuple[str, ...]:
    """Cells of a metric under `CHANGE_HEADS`."""
    interval = DASH
    if row.change_low is not None or row.change_high is not None:
        ends = (row.change_low, row.change_high)
        interval = ", ".join(map(end_text, ends))
    tells = row.tellable_fraction
    return (
        row.name,
        with_ends(row, row.before, None),
        with_ends(row, row.now, None),
        DASH if row.change_fraction is None else f"{row.change_fraction:+.1%}",
        interval,
        verdict_word(row),
        DASH if tells is None else share_text(tells),
    )


def gate_cells(outcome: GateOutcome) -> tuple[str, ...]:
    """Cells of a condition under `GATE_HEADS`."""
    change = change_text(outcome.change_fraction, outcome.change_low, outcome.change_high)
    return outcome.condition, outcome.configuration, change, outcome.verdict


def verdict_word(row: MetricChange) -> str:
    """Verdict of a metric in words."""
    return _SHOWN.get(row.verdict, row.verdict)


def verdict_text(row: MetricChange) -> str:
    """Verdict of a metric with its change: `worse: changed +8.1% [+6.0%, +10.3%]`."""
    change = change_text(row.change_fraction, row.change_low, row.change_high)
    return f"{verdict_word(row)}: changed {change}"


def remarks(found: RunComparison) -> list[str]:
    """Lines beside the tables: configurations without a partner, open conditions, notes."""
    return [
        line
        for line in _lines(found)
        if not line.startswith("gate ") or line.startswith("gate cannot tell")
    ]


def _row_text(row: MetricChange) -> str:
    told = verdict_text(row)
    if row.tellable_fraction is not None:
        told += f"; such runs tell {share_text(row.tellable_fraction)}"
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


def _title(base: str, new: str) -> str:
    return "# Comparison" + (f": {escaped(base)} → {escaped(new)}" if base or new else "")


def _markdown(found: RunComparison, base: str, new: str) -> Iterator[str]:
    yield _title(base, new)
    yield from ("", f"**{escaped(found.words)}**")
    if found.gate:
        yield from ("", *table_lines(GATE_HEADS, map(gate_cells, found.gate)))
    for each in found.configurations:
        yield from ("", f"## {escaped(configuration_heading(each))}", "")
        yield from table_lines(CHANGE_HEADS, map(change_cells, each.rows))
    rest = remarks(found)
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


def _xml(root: ET.Element) -> str:
    """Document of the suites, with their counts."""
    for element in (*root, root):
        for name, tag in _COUNTED.items():
            element.set(name, str(sum(1 for _ in element.iter(tag))))
        element.set("time", "0")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_XML.sub("?", visible(text).replace("\n", " "))
