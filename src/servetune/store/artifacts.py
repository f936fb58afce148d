"""Files beside a journal: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from servetune.errors import StoreError

__all__ = ["Artifacts", "read_json", "write_json", "write_text"]


class Artifacts(msgspec.Struct, frozen=True):
    """Where a run leaves what it made; all share one stem.

    Attributes:
        summary: `X.json`.
    """

    summary: Path

    @property
    def journal(self) -> Path:
        return self.summary.with_suffix(".jsonl")

    @property
    def dashboard(self) -> Path:
        return self.summary.with_suffix(".html")

    @property
    def logs(self) -> Path:
        """Folder of the servers' logs."""
        return self.summary.with_suffix(".logs")


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`; a reader sees the old file or the new one, never a part.

    Raises:
        StoreError: It could not be written; an older file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    scratch = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Put `value` at `path` as indented JSON; non-finite numbers become null."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Decoded JSON.

    Raises:
        StoreError: The file cannot be read or is not JSON.
    """
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not JSON: {error}") from None
