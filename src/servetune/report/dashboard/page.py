"""Dashboard page: template, style, script and data in one file without external resources.

The content security policy allows the script and the style by their digest, so that no other
script runs. Data is embedded as JSON with `<` escaped and inserted as text, so that a model's
name or a log cannot become markup. The findings are plain tables as well, readable without scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.report.page_data import Live, PageData, page_data
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
from servetune.search import Recommendation, SearchSummary
from servetune.store.schema import TrialRecord
from servetune.visible import visible

#: Script files in the order of their dependencies.
_SCRIPTS = (
    "guard.js",
    "values.js",
    "draw.js",
    "charts.js",
    "timeline.js",
    "panels.js",
    "table.js",
    "main.js",
)

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def dashboard_html(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    title: str,
    comparison: Sequence[TrialRecord] | None = None,
    timeline: JsonObject | None = None,
    chosen: Mapping[str, Recommendation] | None = None,
    search: SearchSummary | None = None,
    live: Live | None = None,
) -> str:
    """Dashboard as HTML; equal arguments give equal pages.

    Args:
        records: Trials of the run in order; may be empty.
        constraints: Constraints that are enabled when the page opens.
        title: Window title, and page title where the records name no model.
        comparison: Measured records to compare with the run's.
        timeline: Request timeline of a single trial, from `timeline_of`.
        chosen: Picks of the run, where they have been made.
        search: What the search of the run did, where there was one.
        live: Addresses of the server of a page that follows a run; such a page may ask its server.
    """
    chosen = picks(records, constraints) if chosen is None else chosen
    data = page_data(
        records,
        constraints,
        title=title,
        comparison=comparison,
        timeline=timeline,
        chosen=chosen,
        search=search,
        live=live,
    )
    keys = {trial.key for trial in data.trials}
    style, script = _text("dashboard.css"), _script()
    return _joined(
        _text("dashboard.html"),
        {
            "csp": _POLICY.format(script=_digest(script), style=_digest(style)),
            "title": _escaped(f"{title} · servetune"),
            "style": style,
            "static": static_html(
                records, constraints, title=title, keys=keys, chosen=chosen, search=search
            ),
            "data": _embedded(page_json(data)),
            "script": script,
        },
    )


@cache
def _script() -> str:
    """Scripts joined in one function, so that the global scope stays empty."""
    parts = "\n".join(_text(name) for name in _SCRIPTS)
    return f"(() => {{\n'use strict';\n{parts}}})();"


@cache
def _text(name: str) -> str:
    return (resources.files("servetune.report") / "templates" / name).read_text(encoding="utf-8")


_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def timeline_in(page: str) -> JsonObject | None:
    """Timeline that a page holds; `None` without one, or where it is no page of ours."""
    found = _DATA.search(page)
    if found is None:
        return None
    try:
        data = msgspec.json.decode(found[1])
    except msgspec.DecodeError:
        return None
    timeline = data.get("timeline") if isinstance(data, dict) else None
    return timeline if isinstance(timeline, dict) else None


def page_json(data: PageData) -> bytes:
    """Data of a page as JSON, with control characters that the page shows as text."""
    return msgspec.json.encode(_visible(msgspec.to_builtins(data)))


def _embedded(data: bytes) -> str:
    """JSON with `<`, `>` and `&` escaped, so that it cannot end its script element."""
    text = data.decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _visible(value: Any) -> Any:
    """JSON value whose texts show their control characters."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(name): _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _joined(template: str, parts: Mapping[str, str]) -> str:
    """Template with each `{{name}}` replaced in a single pass."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


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
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    title: str,
    keys: Set[str],
    chosen: Mapping[str, Recommendation],
    search: SearchSummary | None = None,
) -> str:
    """Heading, picks with their reasons, and the trials with `keys`, as escaped HTML."""
    if not records:
        return f'<div class="static"><h1>{_escaped(title)}</h1><p>No trials yet.</p></div>'
    names = varying(records)
    reasons = (recommendation_text(pick) for pick in chosen.values())
    failing = any_failed(records)
    shown_records = [record for record in records if record.key in keys]
    left_out = len(records) - len(shown_records)
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
        for record in ranked(shown_records, constraints)
    ]
    rows += [
        [
            label_of(record, names),
            *["–"] * (len(_COLUMNS) + failing),
            f"failed: {record.failure.reason}" if record.failure else "failed",
        ]
        for record in shown_records
        if record.status == "failed"
    ]
    return "\n".join(
        [
            '<div class="static">',
            f"<h1>{_escaped(title)}</h1>",
            f"<p><strong>{_escaped(simulated_notice(records))}</strong></p>",
            *(f"<pre>{_escaped(text)}</pre>" for text in reasons),
            *([f"<pre>{_escaped(str(search))}</pre>"] if search else []),
            *([f"<p>{left_out:,} further trials are in the summary.</p>"] if left_out else []),
            "<table><thead>",
            _row("th", heads),
            "</thead><tbody>",
            *(_row("td", row) for row in rows),
            "</tbody></table></div>",
        ]
    )


def _escaped(text: str) -> str:
    return html.escape(visible(text))


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
    return "<tr>" + "".join(f"<{tag}>{_escaped(cell)}</{tag}>" for cell in cells) + "</tr>"
