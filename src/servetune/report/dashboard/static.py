"""Static part of the dashboard: the findings as plain tables, readable without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from servetune.metrics import Constraint
from servetune.report.quantities import QUANTITIES, quantity_value, shown
from servetune.report.ranking import (
    any_failed,
    check_constraints,
    failed_text,
    label_of,
    picks,
    ranked,
    varying,
)
from servetune.report.tables import recommendation_text, simulated_notice
from servetune.store.schema import TrialRecord

_COLUMNS = (
    ("output_throughput", "mean"),
    ("request_throughput", "mean"),
    ("ttft", "mean"),
    ("ttft", "p99"),
    ("itl", "mean"),
    ("e2e_latency", "p99"),
    ("cost_per_million_tokens", "mean"),
)


def static_html(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...], *, title: str
) -> str:
    """Heading, picks with their reasons, and all trials, as escaped HTML."""
    if not records:
        return f'<div class="static"><h1>{html.escape(title)}</h1><p>No trials yet.</p></div>'
    names = varying(records)
    reasons = (recommendation_text(pick) for pick in picks(records, constraints).values())
    failing = any_failed(records)
    heads = [
        "Configuration",
        *(_head(name, statistic) for name, statistic in _COLUMNS),
        *(["Failed requests"] if failing else []),
        "Standing",
    ]
    rows = [
        [
            label_of(record, names),
            *(
                shown(quantity_value(record.results, name, statistic), QUANTITIES[name].unit)
                for name, statistic in _COLUMNS
            ),
            *([failed_text(record)] if failing else []),
            _constraint_text(record, constraints),
        ]
        for record in ranked(records, constraints)
    ]
    rows += [
        [
            label_of(record, names),
            *["–"] * (len(_COLUMNS) + failing),
            f"failed: {record.failure.reason}" if record.failure else "failed",
        ]
        for record in records
        if record.status == "failed"
    ]
    return "\n".join(
        [
            '<div class="static">',
            f"<h1>{html.escape(title)}</h1>",
            f"<p><strong>{html.escape(simulated_notice(records))}</strong></p>",
            *(f"<pre>{html.escape(text)}</pre>" for text in reasons),
            "<table><thead>",
            _row("th", heads),
            "</thead><tbody>",
            *(_row("td", row) for row in rows),
            "</tbody></table></div>",
        ]
    )


def _head(name: str, statistic: str) -> str:
    quantity = QUANTITIES[name]
    return f"{quantity.short} {statistic}" if quantity.has_statistics else quantity.title


def _constraint_text(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str:
    check = check_constraints(record, constraints)
    words = ["meets every constraint"] if check.meets_all and constraints else []
    words += [f"misses {c.label}" for c in check.missed]
    words += [f"{c.label} not measured" for c in check.unknown]
    words += ["simulated"] if record.simulated else []
    return ", ".join(words)


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
