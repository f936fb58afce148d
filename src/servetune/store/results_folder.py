"""Folder of the table of results, on this disk or elsewhere, and the export of trials into it.

An export may be killed, repeated, or run beside another: each file is replaced whole, a trial that
is there already is not there twice, and no export takes away another's trials. Whoever wrote a file
in between makes this export read it again (`Folder.write` answers `False`).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from servetune.errors import StoreError
from servetune.store.artifacts import REQUESTS_PARQUET, write_bytes
from servetune.store.results_columns import PARTITIONS
from servetune.store.results_parquet import (
    merged,
    not_superseded,
    parquet_bytes,
    read_parquet,
    same_rows,
    table_of,
    without_trials,
)
from servetune.store.results_rows import Row, grouped

if TYPE_CHECKING:
    import pyarrow as pa

#: Attempts at a file that other exports keep writing.
_ATTEMPTS = 8
_LOCK = ".servetune-export.lock"

FileState = Literal["written", "unchanged", "removed"]


class Stored(msgspec.Struct, frozen=True):
    """File as it was read.

    Attributes:
        content: Content of the file.
        version: Mark that changes with the content.
    """

    content: bytes
    version: str


class Folder(Protocol):
    """Files of a table by their paths below it, with slashes."""

    @property
    def name(self) -> str:
        """Path or address, without a slash at its end."""

    async def paths(self) -> list[str]:
        """Paths of all files that `is_table_file` knows."""

    async def read(self, path: str) -> Stored | None:
        """A file; `None` where there is none."""

    async def write(self, path: str, content: bytes, replaces: Stored | None) -> bool:
        """Put a whole file in the place of what was read; `False` where it is no more there."""

    async def remove(self, path: str, replaces: Stored) -> bool:
        """Remove a file as it was read; `False` where another is there by now."""


class Preview:
    """Folder that reads another and changes nothing.

    Args:
        folder: Folder that an export would write to.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return self._folder.name

    async def paths(self) -> list[str]:
        return await self._folder.paths()

    async def read(self, path: str) -> Stored | None:
        return await self._folder.read(path)

    async def write(self, path: str, content: bytes, replaces: Stored | None) -> bool:
        return True

    async def remove(self, path: str, replaces: Stored) -> bool:
        return True


class LocalFolder:
    """Folder on this disk.

    Args:
        root: Path of the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    async def paths(self) -> list[str]:
        return [each.relative_to(self._root).as_posix() for each in parquet_files(self._root)]

    async def read(self, path: str) -> Stored | None:
        try:
            return Stored((self._root / path).read_bytes(), "")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"cannot read {self._root / path}: {error.strerror}", hint="choose another --to"
            ) from None

    async def write(self, path: str, content: bytes, replaces: Stored | None) -> bool:
        """Put a whole file; `locked` keeps other exports away."""
        write_bytes(self._root / path, content)
        return True

    async def remove(self, path: str, replaces: Stored) -> bool:
        (self._root / path).unlink(missing_ok=True)
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the folder alone among exports; a killed one keeps nobody waiting.

        Raises:
            StoreError: It cannot be made or written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            file = (self._root / _LOCK).open("ab")
        except OSError as error:
            raise StoreError(
                f"cannot write {self._root}: {error.strerror}", hint="choose another --to"
            ) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove what killed exports were writing."""
        for each in self._root.glob("model=*/instance=*/target=*/.run-*.parquet.*"):
            each.unlink(missing_ok=True)


def parquet_files(root: Path) -> list[Path]:
    """Files of tables in and below a folder, by path.

    Raises:
        StoreError: A folder cannot be read.
    """
    try:
        found = sorted(root.rglob("*.parquet"))
    except OSError as error:
        raise StoreError(f"cannot read {root}: {error.strerror}") from None
    return [each for each in found if is_table_file(each.relative_to(root).as_posix())]


def is_table_file(path: str) -> bool:
    """Whether a path is of a Parquet file that may have trials.

    Hidden ones, those of Hive's `_`, and the requests beside a journal are none.
    """
    return (
        path.endswith(".parquet")
        and not path.endswith(REQUESTS_PARQUET)
        and not any(part.startswith((".", "_")) for part in path.split("/"))
    )


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """File of an export.

    Attributes:
        path: Path below the folder of the table.
        partition: Values of the partition keys.
        rows: Rows that it has now.
        state: State: written, unchanged, or removed since its trials are in another partition now.
    """

    path: str
    partition: Mapping[str, str]
    rows: int
    state: FileState


async def export_rows(rows: Sequence[Row], folder: Folder) -> list[ExportedFile]:
    """Write trials into their files, and take them out of other partitions' files of their runs.

    Tables in folders below, such as `prod/model=...` below `lakes`, are others and stay as they
    are.

    Raises:
        StoreError: A file cannot be read or written; those before it are whole, and the same
            export again goes on from there.
    """
    files = grouped(rows)
    done = [await _put(path, files[path], folder) for path in sorted(files)]
    runs: dict[str, list[Row]] = {}
    for path, some in files.items():
        runs.setdefault(path.rpartition("/")[2], []).extend(some)
    for path in await folder.paths():
        own = runs.get(path.rpartition("/")[2])
        if path not in files and own and _is_partition(path.rpartition("/")[0]):
            done += await _take_out(path, own, folder)
    return done


def _is_partition(folder: str) -> bool:
    """Whether a folder below the table's is a partition of it, `model=/instance=/target=`."""
    keys = [part.partition("=")[0] for part in folder.split("/")]
    return keys == [each.name for each in PARTITIONS]


async def _put(path: str, rows: Sequence[Row], folder: Folder) -> ExportedFile:
    new = table_of(rows)
    partition = {name: rows[0][name] for name in ("model", "instance", "target")}
    for _ in range(_ATTEMPTS):
        held = await folder.read(path)
        table = new
        state: FileState = "written"
        if held is not None:
            existing = read_parquet(held.content, f"{folder.name}/{path}")
            table = merged(existing, new)
            state = "unchanged" if same_rows(existing, table) else state
        if state == "unchanged" or await folder.write(path, parquet_bytes(table), held):
            return _exported(path, partition, table, state)
    raise _contended(path, folder)


async def _take_out(path: str, rows: Sequence[Row], folder: Folder) -> list[ExportedFile]:
    new, trial_ids = table_of(rows), {row["trial_id"] for row in rows}
    for _ in range(_ATTEMPTS):
        held = await folder.read(path)
        if held is None:
            return []
        existing = read_parquet(held.content, f"{folder.name}/{path}")
        left = not_superseded(without_trials(existing, trial_ids), new)
        if left.num_rows == existing.num_rows:
            return []
        if left.num_rows:
            if await folder.write(path, parquet_bytes(left), held):
                return [_exported(path, {}, left, "written")]
        elif await folder.remove(path, held):
            return [_exported(path, {}, left, "removed")]
    raise _contended(path, folder)


def _exported(
    path: str, partition: Mapping[str, str], table: pa.Table, state: FileState
) -> ExportedFile:
    return ExportedFile(path=path, partition=partition, rows=table.num_rows, state=state)


def _contended(path: str, folder: Folder) -> StoreError:
    return StoreError(
        f"{folder.name}/{path} is written by other exports all the time",
        hint="run the same command again when they are done",
    )
