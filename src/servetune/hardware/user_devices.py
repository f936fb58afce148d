"""User's own device file, which `device` and `node` read by default."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from servetune.errors import InputError
from servetune.hardware.rows import DescribedHardware, described_hardware

#: Cache key of a file: path, modification time and size.
FileStamp: TypeAlias = tuple[str, int, int]


def user_devices_path() -> Path | None:
    """Path of the user's device file, or None without one.

    `SERVETUNE_DEVICES` names it; an empty value disables it. The default is
    `servetune/devices.toml` in `XDG_CONFIG_HOME` or in `~/.config`, if it exists.
    """
    named = os.environ.get("SERVETUNE_DEVICES")
    if named is not None:
        return Path(named).expanduser() if named.strip() else None
    home = os.environ.get("HOME") or str(_home() or "")
    config = os.environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")
    path = _path_in(config) if config else None
    return path if path is not None and path.is_file() else None


def device_file() -> Path:
    """Path of the user's device file, which may not exist yet.

    Raises:
        InputError: `SERVETUNE_DEVICES` is empty, or there is no home directory.
    """
    named = os.environ.get("SERVETUNE_DEVICES")
    if named is not None and named.strip():
        return Path(named).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME") or str(_home() or "")
    if named is not None or not config:
        raise InputError(
            "there is no device file to write to", hint="name one in SERVETUNE_DEVICES"
        )
    if not os.environ.get("XDG_CONFIG_HOME"):
        config = f"{config}/.config"
    return _path_in(config)


@lru_cache(maxsize=8)
def _path_in(config: str) -> Path:
    """Default path, cached because it is needed for every row of a table."""
    return Path(config) / "servetune" / "devices.toml"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None  # a user without a home directory


def file_stamp(path: Path | None) -> FileStamp | None:
    """Cache key of the file's current state; a missing file fails when it is read."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0)
    return (str(path), found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def read_hardware(stamp: FileStamp, links: tuple[str, ...]) -> DescribedHardware:
    """Devices and links of a user's file.

    Raises:
        InputError: The file is unreadable or wrong; see `rows.described_hardware`.
    """
    path = Path(stamp[0])
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            f"the devices in '{path}' cannot be read: {error}",
            hint="name another file in SERVETUNE_DEVICES, or set it to an empty value to use none",
        ) from error
    return described_hardware(text, str(path), links)
