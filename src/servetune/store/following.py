"""Journal that another process is writing, read as its lines come."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

from servetune.errors import StoreError
from servetune.secret import redactor
from servetune.store.journal import parsed_line, whole_lines
from servetune.store.schema import TrialRecord

#: Bytes before the place that was read to, by which a file that was written anew is recognised.
_MARK_BYTES = 256


class JournalFollower:
    """Trials of a journal so far.

    A last line that is cut is left until it is whole. A file that was replaced, shortened or
    written anew is read from its beginning.

    Args:
        path: Journal; it may be missing as yet.

    Attributes:
        path: The same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self._records: dict[str, TrialRecord] = {}
        self._file: tuple[int, int] | None = None
        self._read_bytes, self._line_count = 0, 0
        self._mark = b""
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Last record of each trial, at the place of its first."""
        return tuple(self._records.values())

    @property
    def version(self) -> str:
        """Digest of the lines that were read: equal for equal lines."""
        return self._digest.hexdigest()

    def refresh(self) -> bool:
        """Read what is new; whether there was anything.

        Raises:
            StoreError: The file cannot be read, or a line of it is not a trial record.
        """
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            had_any = bool(self._read_bytes)
            self._begin()
            return had_any
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from None

    def _read(self, file: IO[bytes]) -> bool:
        about = os.fstat(file.fileno())
        again = self._file is not None and not self._goes_on(file, about)
        if again:
            self._begin()
        self._file = about.st_dev, about.st_ino
        file.seek(self._read_bytes)
        whole, _ = whole_lines(file.read())
        if not whole:
            return again
        clean = redactor()
        added = [
            parsed_line(line, self.path, number, clean)
            for number, line in enumerate(whole.split(b"\n"), start=self._line_count + 1)
            if line.strip()
        ]
        for record in added:
            self._records[record.key] = record
        self._read_bytes += len(whole)
        self._line_count += whole.count(b"\n")
        self._mark = (self._mark + whole)[-_MARK_BYTES:]
        self._digest.update(whole)
        return True

    def _goes_on(self, file: IO[bytes], about: os.stat_result) -> bool:
        """Whether the file begins with what was read."""
        if (about.st_dev, about.st_ino) != self._file or about.st_size < self._read_bytes:
            return False
        file.seek(self._read_bytes - len(self._mark))
        return file.read(len(self._mark)) == self._mark
