"""Dashboard page: template, style, script and data in one file without external resources.

The content security policy allows the script and the style by their digest, so that no other
script runs. Data is embedded as JSON with `<` escaped and inserted as text, so that a model's
name or a log cannot become markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import msgspec

from servetune.metrics import Constraint
from servetune.metrics.results import JsonObject
from servetune.report.dashboard.static import static_html
from servetune.report.figures import page_data
from servetune.store.schema import TrialRecord

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
) -> str:
    """Dashboard as HTML; equal arguments give equal pages.

    Args:
        records: Trials of the run in order; may be empty.
        constraints: Constraints that are enabled when the page opens.
        title: Window title, and page title where the records name no model.
        comparison: Measured records to compare with the run's.
        timeline: Request timeline of a single trial, from `timeline_of`.
    """
    data = page_data(records, constraints, title=title, comparison=comparison, timeline=timeline)
    style, script = _text("dashboard.css"), _script()
    return _joined(
        _text("dashboard.html"),
        {
            "csp": _POLICY.format(script=_digest(script), style=_digest(style)),
            "title": html.escape(f"{title} · servetune"),
            "style": style,
            "static": static_html(records, constraints, title=title),
            "data": _embedded(data),
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


def _embedded(data: object) -> str:
    """JSON with `<`, `>` and `&` escaped, so that it cannot end its script element."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _joined(template: str, parts: Mapping[str, str]) -> str:
    """Template with each `{{name}}` replaced in a single pass."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
