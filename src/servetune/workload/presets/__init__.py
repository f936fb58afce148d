"""Named workloads: TOML files beside this one, and files of the user's own."""

from __future__ import annotations

import importlib.resources
import tomllib
from pathlib import Path

from servetune.errors import UnknownName
from servetune.workload.workload import Workload, read_workload, workload_of

__all__ = ["DEFAULT", "preset", "preset_names", "preset_text"]

#: Name of the workload that is asked when none is named.
DEFAULT = "default"


def preset_names() -> tuple[str, ...]:
    """Names of the workloads that come with servetune, the default last."""
    folder = importlib.resources.files(__name__)
    found = (each.name for each in folder.iterdir() if each.name.endswith(".toml"))
    names = sorted(name.removesuffix(".toml") for name in found)
    return tuple(sorted(names, key=lambda name: name == DEFAULT))


def preset_text(name: str) -> str:
    """The file of a named workload, to be read or to begin one's own with.

    Raises:
        UnknownName: There is no such workload.
    """
    if name not in preset_names():
        raise UnknownName("workload", name, preset_names())
    return (importlib.resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def preset(name: str | Path) -> Workload:
    """Workload of this name, or of a TOML file of the user's own.

    Raises:
        UnknownName: It is no name of `preset_names`, and no file.
        InputError: The file cannot be read, with the line or the key.
    """
    text = str(name)
    if text in preset_names():
        return workload_of({"name": text, **tomllib.loads(preset_text(text))}, where=text)
    if text.endswith(".toml") or Path(text).is_file():
        return read_workload(text)
    names = preset_names()
    raise UnknownName(
        "workload", text, names, hint=f"known are {', '.join(names)}; or give a .toml file"
    )
