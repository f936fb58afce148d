"""Tables that ship with servetune: TOML files in its packages."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any


@functools.cache
def bundled(package: str, file: str) -> dict[str, Any]:
    """Contents of a TOML file, by its path in a package of servetune; empty if there is none."""
    source = resources.files(f"servetune.{package}") / file
    return tomllib.loads(source.read_text("utf-8")) if source.is_file() else {}
