"""Timelines of a run's trials: one line per trial beside the journal, appended as trials end.

The journal is what a run is continued from. This file is for the eye: it may lack trials, and where
it cannot be written the run goes on without it. A line is whole or passed over, and of two lines of
one trial the later one holds.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

import msgspec

from servetune.errors import StoreError
from servetune.json_value import JsonObject
from servetune.store.artifacts import decoded_json, require_regular, write_pieces

#: Most bytes of one trial's timeline; a larger one is left out.
MOST_BYTES = 2_000_000

#: Beginning of a line, as `TimelineLog` writes it.
_KEY = re.compile(rb'\{"key":("(?:[^"\\]|\\.)*"),"timeline":')


class TimelineLog:
    """Timelines open for appending, by one writer at a time: the one that has the journal open.

    Args:
        path: Path `X.timelines.jsonl`.
        resume: Whether lines that exist already are kept.

    Raises:
        StoreError: The file cannot be written.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        require_regular(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab" if resume else "wb")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None
        self._end = _end_of_whole_lines(path)

    def append(self, key: str, timeline: JsonObject) -> None:
        """Add the timeline of a trial; one that is too large is left out.

        Raises:
            StoreError: It could not be written; the lines before it are unharmed.
        """
        text = msgspec.json.encode(timeline)
        if len(text) > MOST_BYTES:
            return
        line = b'{"key":%b,"timeline":%b}\n' % (msgspec.json.encode(key), text)
        handle = self._file.fileno()
        try:
            os.ftruncate(handle, self._end)  # what a killed or failed write left
            os.lseek(handle, self._end, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            self._end += len(line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._end)
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from None

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


def _end_of_whole_lines(path: Path) -> int:
    """Offset behind the last whole line."""
    with path.open("rb") as lines:
        return sum(len(line) for line in lines if line.endswith(b"\n"))


class _Place(NamedTuple):
    """Place of a line in its file, in bytes."""

    offset: int
    size_bytes: int


def read_timelines(
    path: Path, keys: Iterable[str] | None = None, *, most_bytes: int | None = None
) -> dict[str, JsonObject]:
    """Timelines of trials by their keys; lines that cannot be read are passed over.

    Args:
        path: Path `X.timelines.jsonl`; where it is missing there are none.
        keys: Trials whose timelines are read, in the order of the result; `None` for all.
        most_bytes: Most bytes of all together; a timeline that does not fit is left out.
    """
    if not path.is_file():
        return {}
    found: dict[str, JsonObject] = {}
    with path.open("rb") as file:
        places = _places(file)
        left_bytes = most_bytes
        for key in places if keys is None else dict.fromkeys(keys):
            place = places.get(key)
            if place is None or (left_bytes is not None and place.size_bytes > left_bytes):
                continue
            file.seek(place.offset)
            with contextlib.suppress(ValueError, KeyError, TypeError):
                timeline = decoded_json(file.read(place.size_bytes))["timeline"]
                if isinstance(timeline, dict):
                    found[key] = timeline
                    left_bytes = None if left_bytes is None else left_bytes - place.size_bytes
    return found


def _places(file: IO[bytes]) -> dict[str, _Place]:
    """Place of each trial's last whole line, without decoding the timelines."""
    places: dict[str, _Place] = {}
    offset = 0
    for line in file:
        begin = _KEY.match(line)
        if begin is not None and line.endswith(b"\n"):
            with contextlib.suppress(msgspec.DecodeError):
                places[msgspec.json.decode(begin[1], type=str)] = _Place(offset, len(line))
        offset += len(line)
    return places


def keep_timelines(path: Path, keys: Collection[str]) -> None:
    """Remove the timelines of all trials but these; the file is replaced whole.

    Raises:
        StoreError: It could not be written; the file is unchanged.
    """
    if not path.is_file():
        return
    kept = read_timelines(path, keys)
    write_pieces(
        path,
        (
            msgspec.json.encode({"key": key, "timeline": timeline}).decode() + "\n"
            for key, timeline in kept.items()
        ),
    )
