"""Texts that must not change unnoticed; SERVETUNE_WRITE_GOLDEN=1 accepts a change."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden" / "report"


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("SERVETUNE_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
