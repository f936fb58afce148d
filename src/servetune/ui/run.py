"""One run as it is served: its trials as they come, its status, and orders to it."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from servetune.errors import ServetuneError, StoreError
from servetune.json_value import JsonObject
from servetune.store import (
    Artifacts,
    JournalFollower,
    Order,
    RunStatus,
    TrialRecord,
    read_status,
    write_order,
)
from servetune.store.live import Action

#: Least time between two pages, and between two rows of the index, as multiples of the time that
#: the last one took: a long journal that grows quickly is not read and drawn all the time.
PAGE_REST, ROW_REST = 4.0, 20.0

#: Version of a page.
_VERSION = re.compile("[0-9a-f]{16}")

Standing = Literal["running", "ended", "interrupted"]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a run by its trials, for the index.

    Attributes:
        model: Model; `None` where unknown.
        machine: Machine with its devices.
        engine: Engine.
        trials: Number of trials.
        failed: Number of those that failed.
        pick: Recommended trial with its value; `None` without one.
        problem: Reason why the trials cannot be read; empty where they can.
    """

    model: str | None = None
    machine: str | None = None
    engine: str | None = None
    trials: int = 0
    failed: int = 0
    pick: str | None = None
    problem: str = ""


class PageRenderer(Protocol):
    """What makes pages of records; raises `ServetuneError` where none can be made."""

    def read(self, path: Path) -> Sequence[TrialRecord]:
        """Trials of a source that is no journal."""
        ...

    def html(self, path: Path, records: Sequence[TrialRecord], live: JsonObject) -> str:
        """The whole page."""
        ...

    def data(self, path: Path, records: Sequence[TrialRecord], live: JsonObject) -> str:
        """The page's data as JSON."""
        ...

    def row(self, records: Sequence[TrialRecord]) -> RunRow:
        """Facts for the index."""
        ...


class Run:
    """One run, by its journal or another source.

    Args:
        path: Journal, summary, record or report.
        name: Name of the run in the index.
        renderer: What makes pages.

    Attributes:
        key: Name of the run in addresses; it says nothing of the path.
        path: Source.
        name: Name of the run in the index.
    """

    def __init__(self, path: Path, name: str, renderer: PageRenderer) -> None:
        self.path, self.name, self._renderer = path, name, renderer
        self.key = hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()
        self._artifacts = Artifacts(path.parent, path.stem)
        self._lock = threading.Lock()
        self._records = _Records(path, renderer.read)
        self._html = _Kept()
        self._data = _Kept()
        self._row, self._next_row_s = RunRow(), 0.0
        self._row_stamp: str | None = None
        self._last: RunStatus | None = None
        self.used_s = 0.0

    @property
    def live(self) -> JsonObject:
        """Addresses of the page's events and control."""
        return {"events": _events(self.key), "control": f"/runs/{self.key}/control"}

    def html(self) -> str:
        """The whole page as the source is now.

        Raises:
            ServetuneError: None can be made of the source.
        """
        with self._lock:
            self.used_s = time.monotonic()
            version, records = self._records.now()
            if version != self._html.version:
                live = {**self.live, "events": self._events_of(version)}
                self._html.make(version, lambda: self._renderer.html(self.path, records, live))
            return self._html.text

    def news(self, have: str, begun: str) -> tuple[str, str] | None:
        """Version and data of the page; `None` where the reader has them, or drawing them now would
        be too often.

        Args:
            have: Version that the reader has now.
            begun: Version with which its page was opened, which the address of its events has: the
                page's addresses stay what they are.

        Raises:
            ServetuneError: None can be made of the source.
        """
        with self._lock:
            self.used_s = time.monotonic()
            version, records = self._records.now()
            if version == have:
                return None
            if version != self._data.version:
                if self._data.rests(PAGE_REST):
                    return None
                live = self.live
                self._data.make(version, lambda: self._renderer.data(self.path, records, live))
            mine, its = (
                msgspec.json.encode(each).decode()
                for each in (_events(self.key), self._events_of(begun))
            )
            return version, self._data.text.replace(mine, its, 1)

    def _events_of(self, version: str) -> str:
        """Address of the events for a page that was opened with a version."""
        events = _events(self.key)
        return f"{events}?have={version}" if _VERSION.fullmatch(version) else events

    def forget(self) -> None:
        """Let go of the trials, which are read again when they are asked for."""
        with self._lock:
            self._records = _Records(self.path, self._renderer.read)
            self._html, self._data, self.used_s = _Kept(), _Kept(), 0.0

    # what the run tells of itself

    def status(self) -> RunStatus | None:
        """Status as it is now, `ended` where its file went away; `None` where none was seen.

        Raises:
            StoreError: It cannot be read.
        """
        status = read_status(self._artifacts.status)
        if status is None and self._last is not None:
            status = msgspec.structs.replace(self._last, state="ended", running=())
        self._last = status
        return status

    def standing(self) -> Standing:
        """Whether the run goes on, is over, or was broken off."""
        try:
            on_disk = read_status(self._artifacts.status)
        except StoreError:
            return "ended"
        if on_disk is None:
            return "ended"
        return "running" if on_disk.state == "running" else "interrupted"

    def order(self, action: Action, trial: str = "") -> str:
        """Tell the run what to do; the reason why it cannot be told, empty otherwise.

        Raises:
            StoreError: The order could not be written.
        """
        status = read_status(self._artifacts.status)
        if status is None or status.state != "running":
            return "the run is not in progress"
        if action == "put_off":
            if status.refuses_put_off:
                return status.refuses_put_off
            running = [each.key for each in status.running if each.key]
            if not running or (trial and trial not in running):
                return "no such trial is running now"
            trial = trial or running[0]
        write_order(self._artifacts, Order(run=status.run, action=action, trial=trial))
        return ""

    # the index

    def changed_unix_s(self) -> float:
        """Time of the last change of the source or the status."""
        return max(map(_changed_s, (self.path, self._artifacts.status)))

    def row(self) -> RunRow:
        """Facts for the index, renewed where the source has changed and the last time is past."""
        stamp, now_s = _stamp(self.path), time.monotonic()
        if stamp != self._row_stamp and now_s >= self._next_row_s and self._lock.acquire(False):
            try:
                # Of a page that nobody looks at nothing is kept but its row.
                read = self._records if self.used_s else _Records(self.path, self._renderer.read)
                self._row = self._renderer.row(read.now()[1])
            except ServetuneError as error:
                self._row = RunRow(problem=error.message)
            finally:
                self._lock.release()
            self._row_stamp = stamp
            self._next_row_s = time.monotonic() + ROW_REST * (time.monotonic() - now_s)
        return self._row

    @property
    def row_is_known(self) -> bool:
        """Whether the facts for the index were read once."""
        return self._row_stamp is not None


def _events(key: str) -> str:
    """Address of the events of a run."""
    return f"/runs/{key}/events"


class _Records:
    """Records of a source as it is now, with a version that is equal for equal records."""

    def __init__(self, path: Path, read: Callable[[Path], Sequence[TrialRecord]]) -> None:
        self._path, self._read = path, read
        self._follower = JournalFollower(path) if path.suffix == ".jsonl" else None
        self._summary = path.with_suffix(".json")
        self._stamp: str | None = None
        self._records: Sequence[TrialRecord] = ()

    def now(self) -> tuple[str, Sequence[TrialRecord]]:
        """Version and records; the summary beside a journal has the doubt about its pick.

        Raises:
            StoreError: The source cannot be read.
        """
        if self._follower is not None:
            if self._follower.refresh() or self._stamp is None:
                self._records = self._follower.records
            self._stamp = self._follower.version
            return _digest(self._stamp, _stamp(self._summary)), self._records
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._records, self._stamp = self._read(self._path), stamp
        return _digest(stamp), self._records


class _Kept:
    """Text that was made of one version.

    Attributes:
        version: The version; empty before the first.
        text: The text.
    """

    def __init__(self) -> None:
        self.version = self.text = ""
        self._took_s, self._made_s = 0.0, 0.0

    def make(self, version: str, text: Callable[[], str]) -> None:
        """Keep the text of another version."""
        begin_s = time.monotonic()
        self.version, self.text = version, text()
        self._made_s = time.monotonic()
        self._took_s = self._made_s - begin_s

    def rests(self, share: float) -> bool:
        """Whether so many times the time that the last one took are not over."""
        return time.monotonic() - self._made_s < share * self._took_s


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _stamp(path: Path) -> str:
    """Mark of a file that changes with it; empty where it is not there."""
    try:
        about = path.stat()
    except OSError:
        return ""
    return f"{about.st_dev}:{about.st_ino}:{about.st_size}:{about.st_mtime_ns}"


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
