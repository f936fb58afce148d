"""Runs of the folders and files that were given to be served; nothing else can be reached."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from servetune.errors import StoreError
from servetune.store import REQUESTS, TIMELINES, is_report
from servetune.ui.run import PageRenderer, Run, RunRow, Standing

#: Depth of folders in which runs are looked for, and the most runs of the index.
MOST_DEPTH, MOST_RUNS = 4, 2000
#: Runs whose trials are held in memory, the last used ones.
MOST_HELD = 8
#: Time that one look at the index may spend on reading journals.
_READING_S = 0.5


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the index.

    Attributes:
        key: Name of the run in addresses.
        name: Path of the run below what was given.
        standing: State of the run: running, ended or interrupted.
        changed_unix_s: Time of its last change.
        read: Whether the facts were read already.
        facts: Facts by its trials.
    """

    key: str
    name: str
    standing: Standing
    changed_unix_s: float
    read: bool
    facts: RunRow


class Library:
    """Runs below the given folders and the given files, found anew with each look.

    Args:
        sources: Folders and files.
        renderer: What makes pages.

    Raises:
        StoreError: A source is not there.
    """

    def __init__(self, sources: Sequence[Path], renderer: PageRenderer) -> None:
        self._sources, self._renderer = tuple(sources), renderer
        self._runs: dict[Path, Run] = {}
        self._lock = threading.Lock()
        for source in self._sources:
            if not source.exists():
                raise StoreError(
                    f"{source} is not there", hint="give the folder of results, or a run's .jsonl"
                )

    @property
    def only_run(self) -> Run | None:
        """The run, where a single file was given; `None` otherwise."""
        if len(self._sources) != 1 or _is_folder_of_runs(self._sources[0]):
            return None
        return self.runs()[0]

    def runs(self) -> list[Run]:
        """All runs that are there now, the last changed first."""
        with self._lock:
            found: dict[Path, Run] = {}
            for source in self._sources:
                for path, name in _found_in(source):
                    run = self._runs.get(path) or Run(path, name, self._renderer)
                    found.setdefault(path, run)
                    if len(found) == MOST_RUNS:
                        break
            self._runs = found
            runs = list(found.values())
        return sorted(runs, key=lambda run: -run.changed_unix_s())

    def run(self, key: str) -> Run | None:
        """The run of a key; `None` where there is none."""
        known = next((run for run in self._runs.values() if run.key == key), None)
        found = known or next((run for run in self.runs() if run.key == key), None)
        if found is not None:
            self._let_go_but(found)
        return found

    def index(self) -> tuple[IndexRow, ...]:
        """Rows of all runs; those that take long to read come with a later look."""
        begin_s = time.monotonic()
        rows = []
        for run in self.runs():
            late = time.monotonic() - begin_s > _READING_S
            facts = RunRow() if late and not run.row_is_known else run.row()
            rows.append(
                IndexRow(
                    key=run.key,
                    name=run.name,
                    standing=run.standing(),
                    changed_unix_s=run.changed_unix_s(),
                    read=run.row_is_known,
                    facts=facts,
                )
            )
        return tuple(rows)

    def _let_go_but(self, used: Run) -> None:
        held = [run for run in self._runs.values() if run.used_s and run is not used]
        for run in sorted(held, key=lambda run: -run.used_s)[MOST_HELD - 1 :]:
            run.forget()


def _is_folder_of_runs(source: Path) -> bool:
    return source.is_dir() and not is_report(source)


def _found_in(source: Path) -> Iterator[tuple[Path, str]]:
    """Sources of runs with their names: a file itself, or all journals below a folder."""
    if not _is_folder_of_runs(source):
        yield source, source.name
        return
    root, folder_name = source.resolve(), source.resolve().name
    for folder, below, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        below[:] = sorted(
            name
            for name in below
            if depth < MOST_DEPTH and not name.startswith(".") and not name.endswith(".logs")
        )
        for name in sorted(_journals(files)):
            path = Path(folder) / name
            # A link may lead out of what was given, and a pipe would be waited for.
            inside = path.resolve().is_relative_to(root)
            if inside and (path.is_file() or not path.exists()):
                yield path, f"{folder_name}/{path.relative_to(root)}"


def _journals(files: Sequence[str]) -> set[str]:
    """Journals among the files of a folder; also of a run that has none as yet."""
    journals = {
        name
        for name in files
        if name.endswith(".jsonl") and not name.endswith((REQUESTS, TIMELINES)) and name[0] != "."
    }
    begun = {name.removesuffix(".status.json") for name in files if name.endswith(".status.json")}
    return journals | {f"{stem}.jsonl" for stem in begun if stem and stem[0] != "."}
