"""Bundled tables of each engine's folder; of `settings.toml`, one part a version.

`tools/engine_tables.py` writes settings out of each package's own source. The newest version
stands whole; an older one says what it has otherwise. A setting is one short text:
`int >=1`, `bool no` (there is a `--no-` form), `str of auto|fp8`, `int aka tp`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from servetune.bundled import bundled
from servetune.engines.settings import SettingSpec, SettingTable
from servetune.json_value import JsonObject


def folder_name(engine: str) -> str:
    """An engine's folder in this room, also a Python package: `_` stands for dots and dashes."""
    return engine.replace("-", "_").replace(".", "_")


def engine_table(engine: str, file: str) -> JsonObject:
    """A table of an engine's folder; empty where it has none."""
    return bundled("engines", f"{folder_name(engine)}/{file}")


def known_versions(engine: str) -> tuple[str, ...]:
    """Versions with a table of their own, newest first; none where there is no file."""
    return tuple(part["version"] for part in _parts(engine))


def table_of(engine: str, version: str | None) -> SettingTable | None:
    """The table of a version, else of the nearest known one; `None` where there is none.

    Nearest is the newest known that is not newer than the version, else the oldest known:
    settings are added more often than they are taken away.
    """
    parts = _parts(engine)
    if not parts:
        return None
    number = 0
    if version is not None:
        version_numbers = version_key(version)
        known = [version_key(part["version"]) for part in parts]
        number = next((n for n, key in enumerate(known) if key <= version_numbers), len(known) - 1)
    part = parts[number]
    return SettingTable(
        version=part["version"],
        source=part["source"],
        settings=_settings(engine, number),
        complete=part.get("complete", True),
        exact=version is not None and version_key(part["version"]) == version_key(version),
    )


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version for ordering; what stands behind `+` or `rc` does not count.

    Example:
        >>> version_key("0.32.0+cpu") == version_key("v0.32.0")
        True
        >>> version_key("0.5.10.post1") < version_key("0.5.21")
        True
    """
    base = re.split(r"[+-]|rc|\.dev|\.post", version.lstrip("vb"))[0]
    return tuple(int(number) for number in re.findall(r"\d+", base))


def read_spec(name: str, text: str) -> SettingSpec:
    """A setting from its short text.

    Example:
        >>> read_spec("max_num_seqs", "int >=1").minimum
        1.0
    """
    rest, _, choices = text.partition(" of ")
    rest, _, aliases = rest.partition(" aka ")
    kind, *marks = rest.split()
    bounds = {mark[:2]: float(mark[2:]) for mark in marks if mark[:2] in {">=", "<="}}
    return SettingSpec(
        name=name,
        kind=kind,
        negatable="no" in marks,
        minimum=bounds.get(">="),
        maximum=bounds.get("<="),
        aliases=tuple(aliases.split(",")) if aliases else (),
        choices=tuple(choices.split("|")) if choices else (),
    )


def written_spec(spec: SettingSpec) -> str:
    """The short text of a setting; `read_spec` reads it back."""
    words = [spec.kind]
    if spec.negatable:
        words.append("no")
    if spec.minimum is not None:
        words.append(f">={spec.minimum:g}")
    if spec.maximum is not None:
        words.append(f"<={spec.maximum:g}")
    if spec.aliases:
        words += ["aka", ",".join(spec.aliases)]
    if spec.choices:
        words += ["of", "|".join(spec.choices)]
    return " ".join(words)


def _parts(engine: str) -> list[JsonObject]:
    return engine_table(engine, "settings.toml").get("versions", [])  # type: ignore[no-any-return]


@functools.cache
def _settings(engine: str, number: int) -> Mapping[str, SettingSpec]:
    parts = _parts(engine)
    texts: dict[str, str] = dict(parts[0]["settings"])
    if number:
        part = parts[number]
        for removed in part.get("without", ()):
            texts.pop(removed, None)
        texts.update(part.get("settings", {}))
    return MappingProxyType({name: read_spec(name, text) for name, text in sorted(texts.items())})
