"""Journal: one line per trial, on disk before the next trial begins.

A line is whole or absent: it is written with one call, synced, and cut off again if the write
failed half-way. The part of a line that a killed process leaves is cut off when the journal is next
opened for writing; the trial it belonged to runs again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from servetune.errors import StoreError
from servetune.secret import redactor
from servetune.store.artifacts import decoded_json, require_regular, write_text
from servetune.store.schema import TrialRecord, record_from_json


def read_journal(path: Path) -> list[TrialRecord]:
    """Records of a journal, in the order they were written.

    A last line without its end is the rest of a killed write, and is skipped.

    Raises:
        StoreError: The file cannot be read, or a line of it is not a trial record; the message
            names the line.
    """
    return list(journal_records(path))


def journal_records(path: Path, *, containing: bytes = b"") -> Iterator[TrialRecord]:
    """Records of a journal one by one, so that it may be larger than memory; see `read_journal`.

    Args:
        path: Journal.
        containing: Bytes that the lines of these records contain; others are passed over.

    Raises:
        StoreError: As `read_journal`.
    """
    try:
        with path.open("rb") as lines:
            clean = redactor()
            for number, line in enumerate(lines, start=1):
                if containing not in line or not line.strip():
                    continue
                if line.endswith(b"\n") or _decoded(line) is not None:  # not the rest of a kill
                    yield parsed_line(line, path, number, clean)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def write_record(path: Path, record: TrialRecord) -> None:
    """Write a journal of one record, in place of an earlier state of the same trial.

    Raises:
        StoreError: It could not be written; an older file is unchanged.
    """
    write_text(path, record.to_json().decode() + "\n")


def of_run(record: TrialRecord, run: str) -> TrialRecord:
    """The record with the run that it is of, in its provenance.

    A simulated one has no provenance: it depends on nothing but its settings, and equal runs make
    equal journals.
    """
    if not run or not record.provenance:
        return record
    return msgspec.structs.replace(record, provenance={**record.provenance, "run": run})


def latest(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Last record of each trial, at the place of its first."""
    by_key: dict[str, TrialRecord] = {}
    for record in records:
        by_key[record.key] = record
    return list(by_key.values())


class Journal:
    """Journal open for appending, by one writer at a time.

    Args:
        path: Path `X.jsonl`.
        resume: Whether records that exist already are kept. Without it an existing file is an
            error.
        run: Identity of the run, which measured records name in their provenance.

    Raises:
        StoreError: The file exists and `resume` is not set, another run is writing it, or a line of
            it cannot be read. Nothing has been changed then.
    """

    def __init__(self, path: Path, *, resume: bool = False, run: str = "") -> None:
        self.path, self.run = path, run
        require_regular(path)
        if path.exists() and path.stat().st_size and not resume:
            raise StoreError(
                f"{path} exists already",
                hint="continue that run with --resume, or choose another --output-json",
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab")
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}", hint="choose another --output-json"
            ) from None
        try:
            self._lock()
            self.records = self._recover()
        except BaseException:
            self._file.close()
            raise
        _sync_folder(path.parent)

    def append(self, record: TrialRecord) -> None:
        """Add a record; when this returns it is on disk.

        Raises:
            StoreError: It could not be written; what was there before is unharmed.
        """
        record = of_run(record, self.run)
        end = os.fstat(self._file.fileno()).st_size
        line = record.to_json() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file.fileno(), line[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), end)
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}",
                hint="finished trials are safe; make room and run again with --resume",
            ) from None
        self.records.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"another run is writing {self.path}",
                hint="wait for it, or choose another --output-json",
            ) from None

    def _recover(self) -> list[TrialRecord]:
        whole, torn = whole_lines(self.path.read_bytes())
        records = _parsed(whole, self.path)
        if torn:
            os.ftruncate(self._file.fileno(), len(whole))
            os.fsync(self._file.fileno())
        elif whole and not whole.endswith(b"\n"):
            os.write(self._file.fileno(), b"\n")
        return records


def whole_lines(raw: bytes) -> tuple[bytes, bytes]:
    """Text up to the last line end, and the rest that a kill may have left behind it.

    Journals of other tools may end without a line end: a last line that reads as JSON counts as
    whole.
    """
    end = raw.rfind(b"\n") + 1
    tail = raw[end:]
    if tail.strip() and _decoded(tail) is not None:
        return raw, b""
    return raw[:end], tail


def _parsed(raw: bytes, path: Path) -> list[TrialRecord]:
    clean, lines = redactor(), enumerate(raw.split(b"\n"), start=1)
    return [parsed_line(line, path, number, clean) for number, line in lines if line.strip()]


def parsed_line(
    line: bytes, path: Path, number: int, clean: Callable[[object], object]
) -> TrialRecord:
    """Record of a journal's line.

    Raises:
        StoreError: It is none; the message names the line.
    """
    decoded = _decoded(line)
    try:
        if decoded is None:
            raise StoreError("not JSON")
        return record_from_json(decoded, clean)
    except StoreError as error:
        raise StoreError(
            f"{path} line {number}: {error.message}",
            hint=error.hint or "correct or remove that line; nothing was changed",
        ) from None


def _decoded(line: bytes) -> Any:
    try:
        return decoded_json(line)
    except ValueError:
        return None


def _sync_folder(folder: Path) -> None:
    """Sync the folder, so that a new file's name lasts as its content does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
