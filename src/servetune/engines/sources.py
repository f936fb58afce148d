"""Settings as an installed package declares them: its files, and what is read off them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from servetune.engines.settings import SettingSpec

Named = dict[str, SettingSpec]
Trees = Mapping[str, ast.Module]


class Declarations(msgspec.Struct, frozen=True):
    """Files of an engine's package that declare its settings, and their reader.

    Attributes:
        patterns: Globs below the folder that packages are installed in.
        read: Function from file names with syntax trees to settings by name.
    """

    patterns: tuple[str, ...]
    read: Callable[[Trees], Named]


def read_declarations(declarations: Declarations | None, site_packages: Path) -> Named:
    """The settings that the package installed in a folder declares; empty where there is none."""
    if declarations is None:
        return {}
    paths = sorted({path for one in declarations.patterns for path in site_packages.glob(one)})
    trees = {
        path.relative_to(site_packages).as_posix(): tree
        for path in paths
        if (tree := _tree(path)) is not None
    }
    return declarations.read(trees) if trees else {}


def _tree(path: Path) -> ast.Module | None:
    """`None` for a file that needs a newer Python to read; a bundled table then stands in."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
