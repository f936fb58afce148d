"""Page of the index: it draws what its events bring, as text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)


@cache
def index_html() -> str:
    """The page."""
    style, script = _text("index.css"), _text("index.js")
    parts = {
        "csp": _POLICY.format(script=_digest(script), style=_digest(style)),
        "style": style,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _text("index.html"))


def _text(name: str) -> str:
    return (resources.files("servetune.ui") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
