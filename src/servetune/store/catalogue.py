"""Catalogue of this machine: an SQLite index over the register and the journals.

Nothing is lost with it: it is made again from `register.jsonl` and the journals whenever it is
missing, broken or of an older form, and where it cannot be written it is made in memory. Runs
themselves never write it; whoever lists runs brings it up to date first.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import itertools
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError, StoreError
from servetune.processes import ProcessMark
from servetune.store.artifacts import Artifacts
from servetune.store.catalogue_rows import (
    DeploymentRow,
    FactsOf,
    MeasurementRow,
    RunRow,
    RunState,
    TrialRow,
)
from servetune.store.deployments import Deployments, Taken
from servetune.store.live import STALE_S, read_status
from servetune.store.register import (
    HOME_VARIABLE,
    AnyEntry,
    DeploymentPlace,
    JournalIdentity,
    RegisterPart,
    RunBegan,
    RunEnded,
    RunFound,
    RunRemoved,
    home,
    journal_identity,
    journals_below,
    read_register,
    whole_path,
)
from servetune.store.tags import read_tags

_NOTES = logging.getLogger("servetune")

#: Version of the tables. Older ones are made anew, newer ones are left alone.
CATALOGUE_SCHEMA = 2
#: Time that a statement waits for another process that writes.
_BUSY_S = 10.0
#: Depth of folders in which journals are looked for, as of `servetune ui`.
LOOKED_FOR_DEPTH = 4
#: Folders and time that the search for a journal that moved may take.
_MOST_LOOKED_AT, _LOOKING_S = 2000, 0.5

_TABLES = """
CREATE TABLE register (inode INTEGER NOT NULL, offset INTEGER NOT NULL);
INSERT INTO register VALUES (0, 0);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, path TEXT NOT NULL, told TEXT NOT NULL DEFAULT '', verb TEXT, model TEXT,
    engine TEXT, machine TEXT, host TEXT, workload TEXT, seed INTEGER, version TEXT, began_at TEXT,
    ended_at TEXT, simulated INTEGER, trials INTEGER, failed INTEGER, pick TEXT, pick_key TEXT,
    objective TEXT, best REAL, problem TEXT, process TEXT, head TEXT,
    stamp TEXT NOT NULL DEFAULT 'unread'
);
CREATE INDEX runs_by_path ON runs (path);
CREATE TABLE copies (path TEXT PRIMARY KEY, run TEXT NOT NULL);
CREATE TABLE trials (
    run TEXT NOT NULL, number INTEGER NOT NULL, key TEXT NOT NULL, status TEXT, label TEXT,
    server_args TEXT, client_args TEXT, output_throughput REAL, request_throughput REAL,
    mean_ttft_ms REAL, p99_ttft_ms REAL, mean_itl_ms REAL, cost_per_million_tokens REAL,
    failure TEXT, PRIMARY KEY (run, number)
);
CREATE TABLE tags (run TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (run, name));
CREATE TABLE deployments (
    deployment TEXT PRIMARY KEY, target TEXT, name TEXT, region TEXT, account TEXT, folder TEXT,
    state TEXT, model TEXT, run TEXT, trial TEXT, changed_at TEXT, row BLOB NOT NULL
);
CREATE TABLE adapters (deployment TEXT NOT NULL, name TEXT NOT NULL, base TEXT, source TEXT,
    PRIMARY KEY (deployment, name));
CREATE TABLE measurements (
    deployment TEXT NOT NULL, at TEXT NOT NULL, run TEXT, trial TEXT, row BLOB NOT NULL,
    PRIMARY KEY (deployment, at, run, trial)
);
"""


def catalogue_path() -> Path:
    """Path of the catalogue."""
    return home() / "catalogue.sqlite"


class Catalogue:
    """The catalogue, as it is when it was opened.

    Args:
        facts_of: Function that reads a journal.

    Raises:
        StoreError: A newer servetune made it.
    """

    def __init__(self, facts_of: FactsOf) -> None:
        self._facts_of = facts_of
        self._db = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _opened(self) -> sqlite3.Connection:
        """The tables, up to date: on disk, else in memory."""
        path = catalogue_path()
        for again in (False, True):
            db = None
            try:
                db = _connected(path)
                self._db = db
                self.refresh()
            except (sqlite3.DatabaseError, OSError) as error:
                _close(db)
                if again or not _is_broken(error):
                    reason = getattr(error, "strerror", None) or error
                    _NOTES.warning("note: %s cannot be written (%s); nothing is lost", path, reason)
                    break
                _NOTES.warning("note: %s is broken (%s) and is made anew", path, error)
                _discard(path)
            except BaseException:
                _close(db)
                raise
            else:
                return db
        self._db = _connected(None)
        self.refresh(quiet=True)
        return self._db

    def refresh(self, *, quiet: bool = False) -> None:
        """Take in what is new in the register, and journals that changed, moved or went.

        Args:
            quiet: Whether a register that cannot be read goes without a note, after another one.
        """
        [(inode, offset)] = self._db.execute("SELECT inode, offset FROM register")
        try:
            part = read_register(offset, inode)
        except StoreError as error:
            if not quiet:
                _NOTES.warning("note: %s", error.message)
            part = RegisterPart(end=offset, inode=inode)
        if part.newer:
            _NOTES.warning(
                "note: %d entries of the register are of a newer servetune and passed over",
                part.newer,
            )
        if part.entries or part.end != offset:
            with _writing(self._db):
                # Another process may have been quicker.
                if [(inode, offset)] == list(self._db.execute("SELECT * FROM register")):
                    if part.begin < offset:  # another register, or one that was cut
                        for table in ("deployments", "adapters", "measurements"):
                            self._db.execute(f"DELETE FROM {table}")  # noqa: S608
                    deployments = Deployments(self.deployments())
                    for entry in part.entries:
                        self._take(entry, deployments)
                    values = (part.inode, part.end)
                    self._db.execute("UPDATE register SET inode = ?, offset = ?", values)
        rows = list(self._db.execute("SELECT run, path, stamp, head FROM runs ORDER BY began_at"))
        owners = {path: run for run, path, _, _ in rows}  # the last begun, of several at one place
        for run, path, stamp, head in rows:
            found = _stamp(Path(path)) if owners[path] == run else ""
            if found != stamp:
                self._renew(run, Path(path), found, head or "")

    # what the register says

    def _take(self, entry: AnyEntry, deployments: Deployments) -> None:
        match entry:
            case RunBegan():
                self._begin(entry)
            case RunEnded():
                self._db.execute(
                    "UPDATE runs SET told = ?, ended_at = ?, trials = ?, failed = ?, pick = ?,"
                    " pick_key = ?, objective = ?, best = ?, head = ?, process = NULL"
                    " WHERE run = ?",
                    (entry.state, entry.at, entry.trials, entry.failed, entry.pick,
                     entry.pick_key, entry.objective, entry.best, entry.head, entry.run),
                )  # fmt: skip
            case RunFound():
                self._find(entry.run, entry.path)
            case RunRemoved():
                for table in ("runs", "trials", "tags", "copies"):
                    self._db.execute(f"DELETE FROM {table} WHERE run = ?", (entry.run,))  # noqa: S608
            case _:
                self._keep(deployments.take(entry))

    def _begin(self, entry: RunBegan) -> None:
        process = msgspec.json.encode(entry.process).decode() if entry.process else None
        self._db.execute(
            "INSERT INTO runs (run, path, told, verb, model, engine, machine, host, workload, seed,"
            " version, began_at, process) VALUES (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (run) DO UPDATE SET path = excluded.path, told = 'running',"
            " ended_at = NULL, process = excluded.process, host = excluded.host,"
            " version = excluded.version, stamp = 'unread'",
            (entry.run, entry.path, entry.verb, entry.model, entry.engine, entry.machine,
             entry.host, entry.workload, entry.seed, entry.version, entry.at, process),
        )  # fmt: skip

    def _find(self, run: str, path: str) -> None:
        [*known] = self._db.execute("SELECT path FROM runs WHERE run = ?", (run,))
        if not known:
            self._db.execute("INSERT INTO runs (run, path) VALUES (?, ?)", (run, path))
        elif known[0][0] != path:
            self._settle(run, [known[0][0], path])

    def _settle(self, run: str, paths: Sequence[str]) -> None:
        """Have a run at the first of these places that is there, and copies at the others."""
        there = [path for path in paths if Path(path).is_file()] or [paths[0]]
        self._db.execute(
            "UPDATE runs SET path = ?, stamp = 'unread' WHERE run = ?", (there[0], run)
        )
        self._db.execute("DELETE FROM copies WHERE path = ?", (there[0],))
        for path in there[1:]:
            self._db.execute("INSERT OR REPLACE INTO copies VALUES (?, ?)", (path, run))

    def _keep(self, told: Taken) -> None:
        """Keep what an entry told of a deployment."""
        for identity in told.gone:
            for table in ("deployments", "adapters"):
                self._db.execute(f"DELETE FROM {table} WHERE deployment = ?", (identity,))  # noqa: S608
            if told.row is None:
                self._db.execute("DELETE FROM measurements WHERE deployment = ?", (identity,))
            else:
                self._db.execute(
                    "UPDATE OR REPLACE measurements SET deployment = ? WHERE deployment = ?",
                    (told.row.deployment, identity),
                )
        if told.row is not None:
            self._put_deployment(told.row)
        if told.measured is not None:
            row = told.measured
            self._db.execute(
                "INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)",
                (row.deployment, row.at, row.run, row.trial, msgspec.json.encode(row)),
            )

    def _put_deployment(self, row: DeploymentRow) -> None:
        place, config = row.place, row.config
        self._db.execute(
            "INSERT OR REPLACE INTO deployments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row.deployment, place.target, place.name, place.region, place.account, place.folder,
             row.state, config.model, config.run, config.trial, row.changed_at,
             msgspec.json.encode(row)),
        )  # fmt: skip
        self._db.execute("DELETE FROM adapters WHERE deployment = ?", (row.deployment,))
        for each in config.adapters:
            self._db.execute(
                "INSERT OR REPLACE INTO adapters VALUES (?, ?, ?, ?)",
                (row.deployment, each.name, each.base, each.source),
            )

    # what the journals say

    def _renew(self, run: str, path: Path, stamp: str, head: str) -> None:
        """Take in the journal of a run that changed, and look for one that went."""
        identity = journal_identity(path)
        if stamp and identity is not None and not _is_of(identity, run, head):
            stamp = ""  # another run's, at the same place
        if not stamp:
            moved = self._moved(run, path, head)
            if moved is not None:
                with _writing(self._db):
                    self._settle(run, [str(moved)])
                path, stamp, identity = moved, _stamp(moved), journal_identity(moved)
        about: dict[str, Any] = {"stamp": stamp, "problem": ""}
        rows: tuple[TrialRow, ...] | None = None
        if stamp:
            try:
                facts = self._facts_of(path)
            except Exception as error:  # one journal must not hide all others
                about["problem"] = str(error) or type(error).__name__
            else:
                rows = facts.trials
                about |= facts.about
                about["head"] = identity.head if identity else head
                if not about.get("ended_at"):  # simulated records say no time
                    about["ended_at"] = _changed_at(path)
        with _writing(self._db):
            if rows is not None:
                self._db.execute("DELETE FROM trials WHERE run = ?", (run,))
                marks = ", ".join("?" * len(TrialRow.__struct_fields__))
                self._db.executemany(
                    f"INSERT INTO trials VALUES ({marks})",  # noqa: S608
                    [(run, *msgspec.structs.astuple(each)[1:]) for each in rows],
                )
            # The register knows these from the moment itself.
            kept = {"verb", "model", "engine", "machine", "host", "workload", "seed", "version"}
            conditions = dict.fromkeys((*kept, "began_at"), "{0} IS NULL OR {0} = ''")
            conditions["ended_at"] = "told IN ('', 'running')"
            names = ", ".join(
                f"{name} = CASE WHEN {conditions[name].format(name)} THEN ? ELSE {name} END"
                if name in conditions
                else f"{name} = ?"
                for name in about
            )
            self._db.execute(f"UPDATE runs SET {names} WHERE run = ?", (*about.values(), run))  # noqa: S608
            if stamp:
                self._db.execute("DELETE FROM tags WHERE run = ?", (run,))
                values = [(run, name, value) for name, value in read_tags(path).items()]
                self._db.executemany("INSERT INTO tags VALUES (?, ?, ?)", values)

    def _moved(self, run: str, path: Path, head: str) -> Path | None:
        """Place of a journal that is not at its path any more, near it or where it was found."""
        taken = {each for (each,) in self._db.execute("SELECT path FROM runs")}
        places: Iterable[tuple[str]] = self._db.execute(
            "SELECT path FROM copies WHERE run = ?", (run,)
        )
        near = next((each for each in path.parents if each.is_dir()), None)
        around = () if near is None or near in (Path("/"), Path.home()) else _near(near)
        candidates = [Path(place) for (place,) in places]
        for each in itertools.chain(candidates, around):
            identity = None if str(each) in taken else journal_identity(each)
            if identity and _is_of(identity, run, head or run):
                return each
        return None

    def found_in(self, folder: Path) -> Iterator[RunFound]:
        """Entries for the journals below a folder that the catalogue has not at their places."""
        known = {each for (each,) in self._db.execute("SELECT path FROM runs")}
        known |= {each for (each,) in self._db.execute("SELECT path FROM copies")}
        heads = dict(self._db.execute("SELECT head, run FROM runs WHERE head IS NOT NULL"))
        for path in sorted(
            journals_below(whole_path(folder), most_depth=LOOKED_FOR_DEPTH),
            key=lambda path: (len(path.parts), str(path)),
        ):
            identity = journal_identity(path)
            if identity is not None and str(path) not in known:
                run = identity.run or heads.get(identity.head) or identity.head
                yield RunFound(run=run, path=str(path))

    # what is asked

    def runs(self) -> list[RunRow]:
        """All runs, the last begun first."""
        tags: dict[str, dict[str, str]] = {}
        for run, name, value in self._db.execute("SELECT run, name, value FROM tags"):
            tags.setdefault(run, {})[name] = value
        copies: dict[str, list[str]] = {}
        for path, run in self._db.execute("SELECT path, run FROM copies ORDER BY path"):
            copies.setdefault(run, []).append(path)
        rows = self._rows(
            "SELECT * FROM runs ORDER BY COALESCE(NULLIF(began_at, ''), ended_at) DESC, rowid DESC"
        )
        return [_run_row(row, tags.get(row["run"], {}), copies.get(row["run"], ())) for row in rows]

    def run(self, identity: str) -> RunRow | None:
        """The run of an identity; `None` without one."""
        return next((row for row in self.runs() if row.run == identity), None)

    def trials(self, run: str) -> list[TrialRow]:
        """Trials of a run in the order of its journal."""
        rows = self._rows("SELECT * FROM trials WHERE run = ? ORDER BY number", (run,))
        return [TrialRow(**row) for row in rows]

    def deployments(self) -> list[DeploymentRow]:
        """All deployments, the last changed first."""
        found = self._db.execute("SELECT row FROM deployments ORDER BY changed_at DESC, rowid DESC")
        return [msgspec.json.decode(row, type=ready(DeploymentRow)) for (row,) in found]

    def deployment(self, place: DeploymentPlace) -> DeploymentRow | None:
        """The deployment at a place; `None` without one."""
        return Deployments(self.deployments()).find(place)

    def measurements(self, deployment: str = "") -> list[MeasurementRow]:
        """Load tests of a deployment, or of all, in their order."""
        found = self._db.execute(
            "SELECT deployment, row FROM measurements WHERE deployment = ? OR ? = '' ORDER BY at",
            (deployment, deployment),
        )
        rows = ((each, msgspec.json.decode(row, type=ready(MeasurementRow))) for each, row in found)
        # Of a deployment whose account became known later, the row has the earlier identity.
        return [msgspec.structs.replace(row, deployment=each) for each, row in rows]

    def called(self, name: str) -> list[RunRow]:
        """Runs that a name may mean: an identity or the beginning of one, a tag, or a path."""
        runs = self.runs()
        place = str(whole_path(name))
        stem = str(Path(place).with_suffix(".jsonl")) if Path(place).name else place
        tag, _, value = name.partition("=")
        for chosen in (
            [row for row in runs if row.run == name],
            [row for row in runs if place in map(_whole, (row.path, *row.copies))],
            [row for row in runs if stem == _whole(row.path)],
            [row for row in runs if tag in row.tags and value in (row.tags[tag], "")],
            [row for row in runs if name and row.run.startswith(name)],
        ):
            if chosen:
                return chosen
        return []

    def find(self, name: str) -> RunRow:
        """The one run that a name means.

        Args:
            name: Identity or the beginning of one, a tag (`NAME` or `NAME=VALUE`), or a path.

        Raises:
            InputError: No run has that name, or several have.
        """
        chosen = self.called(name)
        if len(chosen) == 1:
            return chosen[0]
        if not chosen:
            raise InputError(
                f"no run is called '{name}'",
                hint="servetune runs list shows them; runs rebuild FOLDER finds journals",
            )
        listed = ", ".join(f"{row.run} ({row.path})" for row in chosen[:5])
        more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
        raise InputError(f"'{name}' is {len(chosen)} runs: {listed}{more}", hint="name one of them")

    def _rows(self, query: str, values: Sequence[object] = ()) -> Iterable[Mapping[str, Any]]:
        cursor = self._db.execute(query, values)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def discard_catalogue() -> None:
    """Delete the catalogue, which is made again when it is next opened.

    Raises:
        StoreError: A newer servetune made it, or it cannot be deleted.
    """
    path = catalogue_path()
    with contextlib.suppress(sqlite3.DatabaseError):
        _close(_connected(path))  # refuses a newer one
    try:
        _discard(path)
    except OSError as error:
        raise StoreError(f"cannot delete {path}: {error.strerror}") from None


def _connected(path: Path | None) -> sqlite3.Connection:
    """Connection to the tables, which are made where they are missing; in memory without a path.

    Raises:
        StoreError: They are of a newer form.
        sqlite3.Error: The file cannot be used.
        OSError: Its folder cannot be made.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_BUSY_S, isolation_level=None
    )
    try:
        found = _version(db)
        if found > CATALOGUE_SCHEMA:
            raise StoreError(
                f"{path} is of schema {found}, this servetune knows {CATALOGUE_SCHEMA}",
                hint=f"upgrade servetune, or set {HOME_VARIABLE} to another folder",
            )
        if path is not None:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
        if found < CATALOGUE_SCHEMA:
            with _writing(db):
                if _version(db) < CATALOGUE_SCHEMA:  # nobody was quicker
                    _make_tables(db)
    except BaseException:
        db.close()
        raise
    return db


def _is_broken(error: Exception) -> bool:
    """Whether the tables are not what they should be, rather than locked or not to be written."""
    if isinstance(error, sqlite3.OperationalError):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code == sqlite3.SQLITE_ERROR  # such as a table that is missing
    return isinstance(error, sqlite3.DatabaseError)


def _version(db: sqlite3.Connection) -> int:
    [(version,)] = db.execute("PRAGMA user_version")
    return int(version)


def _make_tables(db: sqlite3.Connection) -> None:
    """Make empty tables in place of all that are there, of an older form."""
    for (table,) in list(
        db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
    ):
        db.execute(f'DROP TABLE "{table}"')
    for statement in _TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {CATALOGUE_SCHEMA}")


@contextlib.contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    """Transaction that waits for other writers before it reads."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.rollback()
        raise
    db.commit()


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        with contextlib.suppress(sqlite3.Error):
            db.close()


def _discard(path: Path) -> None:
    """Delete the database and its log, one process at a time."""
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for ending in ("", "-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)


def _stamp(path: Path) -> str:
    """State of a run's files on disk by which a change is noticed; empty without a journal."""
    try:
        about = path.stat()
    except OSError:
        return ""
    tags = Artifacts(path.parent, path.stem).tags
    with contextlib.suppress(OSError):
        return f"{about.st_ino}/{about.st_size}/{about.st_mtime_ns}/{tags.stat().st_mtime_ns}"
    return f"{about.st_ino}/{about.st_size}/{about.st_mtime_ns}/"


def _is_of(identity: JournalIdentity, run: str, head: str) -> bool:
    """Whether a journal is a run's; `head` is empty where its first record is not known yet."""
    if identity.run:
        return identity.run == run
    return identity.head == run or head in ("", identity.head)


def _whole(path: str) -> str:
    return str(whole_path(path)) if ".." in path else path


def _changed_at(path: Path) -> str:
    try:
        changed = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC)
    except OSError:
        return ""
    return changed.isoformat(timespec="milliseconds")


def _near(folder: Path) -> Iterator[Path]:
    """Journals in a folder and its neighbours' depth, as many as can be looked at quickly."""
    until_s = time.monotonic() + _LOOKING_S
    for count, path in enumerate(journals_below(folder, most_depth=2)):
        if count == _MOST_LOOKED_AT or time.monotonic() > until_s:
            return
        yield path


def _run_row(row: Mapping[str, Any], tags: dict[str, str], copies: Sequence[str]) -> RunRow:
    own = {name for name in RunRow.__struct_fields__ if row.get(name) is not None}
    fields = {name: row[name] for name in own}
    fields["simulated"] = bool(fields.get("simulated"))
    state = _state(row)
    if state == "running":
        fields.pop("ended_at", None)
    return RunRow(**fields, state=state, tags=tags, copies=tuple(copies))


def _state(row: Mapping[str, Any]) -> RunState:
    """State of a run now, by what it told, its process and its files."""
    told, path = row["told"], Path(row["path"])
    if told == "running":
        process = (
            msgspec.json.decode(row["process"], type=ready(ProcessMark)) if row["process"] else None
        )
        lives = process.lives() if process else None
        if lives is None:
            lives = _written_lately(path)
        if lives:
            return "running"
        told = "" if row["stamp"] and row["trials"] else "lost"  # its files tell how it ended
    if told and (row["stamp"] or not row["trials"]):
        return cast("RunState", told)
    if not row["stamp"]:
        return "gone"
    status = None
    with contextlib.suppress(StoreError):
        status = read_status(Artifacts(path.parent, path.stem).status)
    if status is None:  # the file of a run that ended well is not there
        return "ended"
    return "interrupted" if status.state == "ended" else status.state


def _written_lately(journal: Path) -> bool:
    """Whether the status of a run elsewhere was written a moment ago."""
    status = Artifacts(journal.parent, journal.stem).status
    try:
        return time.time() - status.stat().st_mtime < STALE_S
    except OSError:
        return False
