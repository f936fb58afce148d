"""Files beside a journal: written whole or not at all."""

from __future__ import annotations

import codecs
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from servetune.errors import InputError, StoreError

#: Endings of the files of JSON lines that are beside a journal and are none.
REQUESTS, TIMELINES = ".requests.jsonl", ".timelines.jsonl"
#: Ending of the requests of `bench --out` as a table.
REQUESTS_PARQUET = ".requests.parquet"
#: Content of the files beside a journal that hold no trials, by their endings.
BESIDE_JOURNAL: Mapping[str, str] = {
    REQUESTS: "requests", ".requests.csv": "requests", REQUESTS_PARQUET: "requests",
    TIMELINES: "timelines", ".status.json": "the state", ".order.json": "an order to",
    ".tags.json": "tags", ".server.json": "readings of the server", ".html": "the page",
    ".toml": "options", ".logs": "logs",
}  # fmt: skip


class Artifacts(msgspec.Struct, frozen=True):
    """Paths of a run's files; all share one stem.

    Attributes:
        folder: Folder of all files.
        stem: Name without an ending; it may contain dots.
    """

    folder: Path
    stem: str

    @classmethod
    def at(cls, summary: Path) -> Self:
        """Artifacts whose summary is at `summary`; `.json` is added where it is missing.

        Raises:
            InputError: The name is that of another artifact, or empty.
        """
        name = summary.name
        if name in ("", ".", ".."):
            raise InputError(f"'{summary}' names no file", hint="write it like results/run.json")
        if summary.suffix in (".jsonl", ".html", ".logs"):
            raise InputError(
                f"{summary} is named like a journal, dashboard or log folder",
                hint=f"name the summary: {summary.with_suffix('.json')}",
            )
        return cls(summary.parent, name.removesuffix(".json"))

    @property
    def summary(self) -> Path:
        return self.folder / f"{self.stem}.json"

    @property
    def journal(self) -> Path:
        return self.folder / f"{self.stem}.jsonl"

    @property
    def dashboard(self) -> Path:
        return self.folder / f"{self.stem}.html"

    @property
    def configuration(self) -> Path:
        """TOML file of options that repeats the run."""
        return self.folder / f"{self.stem}.toml"

    @property
    def requests(self) -> Path:
        """Path of the requests of a single trial."""
        return self.folder / f"{self.stem}{REQUESTS}"

    @property
    def timelines(self) -> Path:
        """Path of the timelines of the trials, one line each."""
        return self.folder / f"{self.stem}{TIMELINES}"

    @property
    def status(self) -> Path:
        """Status of the run in progress."""
        return self.folder / f"{self.stem}.status.json"

    @property
    def order(self) -> Path:
        """Order to the run in progress."""
        return self.folder / f"{self.stem}.order.json"

    @property
    def tags(self) -> Path:
        """Tags of the run."""
        return self.folder / f"{self.stem}.tags.json"

    @property
    def logs(self) -> Path:
        """Folder of the servers' logs."""
        return self.folder / f"{self.stem}.logs"

    def require_free(self, *, renew: bool) -> None:
        """Refuse to begin where the results could not be written, or would replace another's.

        Args:
            renew: Whether summary and dashboard may exist already, as an earlier state of the same
                run.

        Raises:
            StoreError: Something is in the way; nothing has been changed.
        """
        for path in (self.summary, self.dashboard, self.journal):
            require_regular(path)
        for path in (self.summary, self.dashboard):
            if not renew and path.exists():
                raise StoreError(
                    f"{path} exists already",
                    hint="choose another --output-json, or continue its run with --resume",
                )


def require_regular(path: Path) -> None:
    """Raise `StoreError` when something other than a file is at `path`."""
    try:
        in_the_way = path.exists() and not path.is_file()
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}", hint=_ELSEWHERE) from None
    if in_the_way:
        kind = "a folder" if path.is_dir() else "not a file"
        raise StoreError(f"{path} is {kind}", hint=_ELSEWHERE)


_ELSEWHERE = "choose another place"


def write_text(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write `text` to `path`; a reader sees the old file or the new one, never a part.

    Args:
        path: Path of the file.
        text: Its whole text.
        lasting: Whether it is on disk when this returns, which takes the disk's time.

    Raises:
        StoreError: It could not be written; an older file is unchanged.
    """
    write_pieces(path, (text,), lasting=lasting)


def write_pieces(path: Path, pieces: Iterable[str], *, lasting: bool = True) -> None:
    """Write a text that is too long to be held at once, whole or not at all; see `write_text`.

    Raises:
        StoreError: It could not be written; an older file is unchanged.
    """
    encoded = (piece.encode() for piece in pieces)
    _write(path, encoded, lasting=lasting)


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write a file that is no text, whole or not at all; see `write_text`.

    Raises:
        StoreError: It could not be written; an older file is unchanged.
    """
    _write(path, (content,), lasting=lasting)


def _write(path: Path, pieces: Iterable[bytes], *, lasting: bool) -> None:
    require_regular(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=_ELSEWHERE) from None
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write {path}: {error.strerror}", hint="make room, or choose another place"
        ) from None
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Decoded JSON; the non-finite numbers that some tools write become `None`.

    Raises:
        StoreError: The file cannot be read or is not JSON.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    try:
        return decoded_json(raw)
    except ValueError as error:
        raise StoreError(
            f"{path} is not JSON: {error}", hint="give a summary or a record"
        ) from None


def decoded_json(raw: bytes) -> Any:
    """JSON of any tool: a byte-order mark, `NaN` and `Infinity` are accepted.

    Raises:
        ValueError: It is not JSON, or nested deeper than any record is.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            return json.loads(raw, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise ValueError(str(error)) from None
