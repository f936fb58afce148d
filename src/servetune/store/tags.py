"""Tags of a run: a small file beside its journal, which goes where the run's files go."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from servetune.errors import InputError, StoreError
from servetune.store.artifacts import Artifacts, write_text

_NAME = re.compile(r"[\w][\w.-]{0,63}")


def read_tags(journal: Path) -> dict[str, str]:
    """Tags of a journal's run; none where their file is missing or cannot be read."""
    try:
        return msgspec.json.decode(_file(journal).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def write_tags(journal: Path, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Set tags, and take away those whose value is `None`; the tags that there are then.

    Raises:
        StoreError: They could not be written.
    """
    try:
        folder = os.open(journal.parent, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"cannot tag {journal}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        tags = {**read_tags(journal), **changes}
        kept = {name: value for name, value in sorted(tags.items()) if value is not None}
        write_text(_file(journal), msgspec.json.format(msgspec.json.encode(kept)).decode() + "\n")
    finally:
        os.close(folder)
    return kept


def parse_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """Tags of texts such as `release=1.2` or `baseline`.

    Raises:
        InputError: A text is none.
    """
    tags = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not _NAME.fullmatch(name) or not value.isprintable():
            raise InputError(
                f"'{text}' is no tag", hint="write NAME or NAME=VALUE: letters, digits, _ . -"
            )
        tags[name] = value
    return tags


def _file(journal: Path) -> Path:
    return Artifacts(journal.parent, journal.stem).tags
