"""Named workloads: TOML files beside this one, and files in folders of the user's own."""

from __future__ import annotations

import importlib.resources
import os
import tomllib
from pathlib import Path

from servetune.errors import UnknownName
from servetune.workload.workload import Workload, read_workload, workload_of

__all__ = [
    "DEFAULT",
    "FOLDERS_VARIABLE",
    "known_workloads",
    "preset",
    "preset_names",
    "preset_text",
    "user_folders",
    "user_workloads",
]

#: Name of the workload that is asked when none is named.
DEFAULT = "default"

#: Environment variable with the user's folders of workloads, separated as in `PATH`.
FOLDERS_VARIABLE = "SERVETUNE_WORKLOADS"


def preset_names() -> tuple[str, ...]:
    """Names of the workloads that come with servetune, the default last."""
    folder = importlib.resources.files(__name__)
    found = (each.name for each in folder.iterdir() if each.name.endswith(".toml"))
    names = sorted(name.removesuffix(".toml") for name in found)
    return tuple(sorted(names, key=lambda name: name == DEFAULT))


def user_folders() -> tuple[Path, ...]:
    """Folders of the user's own workloads, first ones first; they need not exist.

    `SERVETUNE_WORKLOADS` names them; the default is `servetune/workloads` in `XDG_CONFIG_HOME` or
    in `~/.config`.
    """
    named = os.environ.get(FOLDERS_VARIABLE)
    if named is not None:
        return tuple(Path(each).expanduser() for each in named.split(os.pathsep) if each.strip())
    base = os.environ.get("XDG_CONFIG_HOME")
    home = os.environ.get("HOME")
    if not (base or home):
        return ()
    config = Path(base) if base else Path(str(home)) / ".config"
    return (config / "servetune" / "workloads",)


def user_workloads() -> dict[str, Path]:
    """Files of the user's own workloads by name; a name of servetune's own is not among them."""
    found: dict[str, Path] = {}
    taken = set(preset_names())
    for folder in user_folders():
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            if path.stem not in taken:
                found.setdefault(path.stem, path)
    return found


def known_workloads() -> tuple[str, ...]:
    """Names that a workload can be asked by: those of servetune, then the user's."""
    return (*preset_names(), *user_workloads())


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
        UnknownName: It is no name of `known_workloads`, and no file.
        InputError: The file cannot be read, with the line or the key.
    """
    text = str(name)
    if text in preset_names():
        return workload_of({"name": text, **tomllib.loads(preset_text(text))}, where=text)
    own = user_workloads().get(text)
    if own is not None:
        return read_workload(own)
    if text.endswith(".toml") or Path(text).is_file():
        return read_workload(text)
    names = known_workloads()
    raise UnknownName(
        "workload", text, names, hint=f"known are {', '.join(names)}; or give a .toml file"
    )
