"""Page: template, style, script and data joined into one file that loads nothing.

The content policy names the script and the style by their digest, so that nothing else
runs even if a model's name or a log's tail were markup; and they cannot be, because data
travels as JSON with `<` escaped and enters the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from servetune.metrics import Constraint
from servetune.report.dashboard.static import static_html
from servetune.report.figures import page_data
from servetune.store.schema import TrialRecord

__all__ = ["dashboard_html"]

#: In the order in which they build on each other.
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
    timeline: dict[str, Any] | None = None,
) -> str:
    """The whole page as text; equal arguments give equal pages.

    Args:
        records: The run's trials, in the order tried; may be empty.
        constraints: Those that are switched on when the page opens.
        title: Of the window, and of the page where the records name no model.
        comparison: Measured records to set beside the run's.
        timeline: Of the requests of a single trial, as `timeline_of` makes it.
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
    """All scripts as one function, so that nothing is left in the global scope."""
    parts = "\n".join(_text(name) for name in _SCRIPTS)
    return f"(() => {{\n'use strict';\n{parts}}})();"


@cache
def _text(name: str) -> str:
    return (resources.files("servetune.report") / "templates" / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that cannot end its own element: `<`, `>` and `&` only as escapes."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _joined(template: str, parts: Mapping[str, str]) -> str:
    """The template with each `{{name}}` replaced, once: what is put in is not read again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
