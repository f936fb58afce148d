"""Dashboard page: template, style, script and data in one file without external resources.

The content security policy allows the script and the style by their digest, so that no other
script runs. Data is embedded as JSON with `<` escaped and inserted as text, so that a model's
name or a log cannot become markup. The findings are plain tables as well, readable without scripts.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import re
from base64 import b64decode, b64encode
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

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)

#: Most rows of the table that is readable without scripts.
_STATIC_ROWS = 500
#: Bytes of data from which on a page holds them compressed: a browser reads both, a person plain.
_COMPRESSED_FROM_BYTES = 2_000_000


def dashboard_html(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    title: str,
    comparison: Sequence[TrialRecord] | None = None,
    timeline: JsonObject | None = None,
    timelines: Mapping[str, JsonObject] | None = None,
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
        timelines: Request timelines of trials of a sweep, by their keys.
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
        timelines=timelines,
        chosen=chosen,
        search=search,
        live=live,
    )
    keys = {trial.key for trial in data.trials[:_STATIC_ROWS]}
    static = static_html(records, constraints, title=title, keys=keys, chosen=chosen, search=search)
    return page_html(data, static)


def page_html(data: PageData, static: str) -> str:
    """Page as HTML: its data, and what is readable without scripts.

    Args:
        data: Data of the page.
        static: Findings as escaped HTML.
    """
    style, script = _text("page.css"), _text("page.js")
    kind, embedded = _embedded(page_json(data))
    return _joined(
        _text("dashboard.html"),
        {
            "csp": _POLICY.format(
                script=_digest(script),
                style=_digest(style),
                connect="'self'" if data.live else "'none'",
            ),
            "title": escaped(f"{data.title} · servetune"),
            "style": style,
            "static": static,
            "data_type": kind,
            "data": embedded,
            "script": script,
        },
    )


@cache
def _text(name: str) -> str:
    return (resources.files("servetune.report") / "templates" / name).read_text(encoding="utf-8")


_DATA = re.compile(r'<script type="([^"]*)" id="data">(.*?)</script>', re.S)


def page_data_in(page: str) -> JsonObject | None:
    """Data that a page holds as JSON; `None` where it is no page of ours."""
    found = _DATA.search(page)
    if found is None:
        return None
    try:
        text = found[2] if found[1] == "application/json" else gzip.decompress(b64decode(found[2]))
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, OSError, EOFError):
        return None
    return data if isinstance(data, dict) else None


def timeline_in(page: str) -> JsonObject | None:
    """Timeline that a page holds; `None` without one, or where it is no page of ours."""
    timeline = (page_data_in(page) or {}).get("timeline")
    return timeline if isinstance(timeline, dict) else None


def page_json(data: PageData) -> bytes:
    """Data of a page as JSON, with control characters that the page shows as text."""
    return msgspec.json.encode(_visible(msgspec.to_builtins(data)))


def _embedded(data: bytes) -> tuple[str, str]:
    """Media type and text of the data: JSON with `<`, `>` and `&` escaped, so that it cannot end
    its script element; much of it as gzip in base64.
    """
    if len(data) >= _COMPRESSED_FROM_BYTES:
        return "application/gzip", b64encode(gzip.compress(data, mtime=0)).decode()
    text = data.decode()
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return "application/json", escaped


def _visible(value: Any) -> Any:
    """JSON value whose texts show their control characters."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(name): _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _digest(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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
        return f'<div class="static"><h1>{escaped(title)}</h1><p>No trials yet.</p></div>'
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
            f"<h1>{escaped(title)}</h1>",
            f"<p><strong>{escaped(simulated_notice(records))}</strong></p>",
            *(f"<pre>{escaped(text)}</pre>" for text in reasons),
            *([f"<pre>{escaped(str(search))}</pre>"] if search else []),
            *([f"<p>{left_out:,} further trials are in the summary.</p>"] if left_out else []),
            table_html(heads, rows),
            "</div>",
        ]
    )


def escaped(text: str) -> str:
    """Text as HTML, its control characters visible."""
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


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Table of texts as HTML."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escaped(cell)}</{tag}>" for cell in cells) + "</tr>"

    head = f"<caption>{escaped(caption)}</caption>" if caption else ""
    body = "\n".join(row("td", each) for each in rows)
    return f"<table>{head}<thead>{row('th', heads)}</thead><tbody>\n{body}\n</tbody></table>"
