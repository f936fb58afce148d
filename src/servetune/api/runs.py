"""Runs of this machine: listed, shown, tagged and removed, and the catalogue made again."""

from __future__ import annotations

import contextlib
import datetime as dt
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from servetune.api.frames import TableRow, Tabular, json_object
from servetune.api.notes import note
from servetune.api.registry import DeployedRow, deployed_rows
from servetune.api.request import WRITTEN, Request, request_of
from servetune.api.run_facts import facts_of
from servetune.api.trials import Pick, recommend
from servetune.deploy.bundle import PLAN_FILE
from servetune.deploy.registry import RegisteredBundle, is_bundle, registered_bundle
from servetune.errors import InputError, ServetuneError, StoreError
from servetune.json_value import JsonObject
from servetune.option import argument, option
from servetune.store import Artifacts
from servetune.store.catalogue import LOOKED_FOR_DEPTH, Catalogue, discard_catalogue
from servetune.store.catalogue_rows import DeploymentRow, RunRow, TrialRow
from servetune.store.register import (
    DeploymentNoted,
    DeploymentRemoved,
    RunRemoved,
    append_entry,
    folders_below,
    journal_identity,
    journals_below,
    whole_path,
)
from servetune.store.run_files import RunFiles, run_files
from servetune.store.tags import parse_tags, write_tags
from servetune.units import counted

STATES = ("running", "ended", "interrupted", "failed", "lost", "gone")

RUN = argument(
    "Run: its identity or the beginning of it, a tag, or its journal.",
    metavar="RUN",
)
"""Declaration of the argument that names a run."""


class ListRuns(Request, frozen=True, kw_only=True):
    """Runs of this machine that are listed."""

    verb: ClassVar[str] = "runs list"
    first: ClassVar[str] = "model"

    model: Annotated[
        str | None,
        option("Model of the runs: a part of its name, or a pattern with *.", metavar="TEXT"),
    ] = None
    machine: Annotated[
        str | None,
        option(
            "Machine of the runs: a part of its devices' name, or of its host's.", metavar="TEXT"
        ),
    ] = None
    engine: Annotated[
        str | None,
        option(
            "Engine of the runs: a part of its name.", "--engine", "--framework", metavar="TEXT"
        ),
    ] = None
    only_status: Annotated[
        str | None,
        option(
            "Status of the runs; lost: the process ended without a word; gone: the journal is not "
            "there.",
            "--status",
            choices=STATES,
        ),
    ] = None
    tag: Annotated[
        tuple[str, ...],
        option("Tag of the runs, as NAME or NAME=VALUE; repeatable.", metavar="TAG"),
    ] = ()
    since: Annotated[
        str | None,
        option(
            "Time of the earliest start: a date, or an age such as 12h, 7d or 4w.", metavar="WHEN"
        ),
    ] = None


class ShowRun(Request, frozen=True, kw_only=True):
    """A run that is shown: what it is, its pick, its trials and what was deployed from it."""

    verb: ClassVar[str] = "runs show"

    run: Annotated[str, RUN]


class TagRun(Request, frozen=True, kw_only=True):
    """A run that gets tags, or loses some."""

    verb: ClassVar[str] = "runs tag"

    run: Annotated[str, RUN]
    tags: Annotated[
        tuple[str, ...], argument("Tags to set: NAME or NAME=VALUE.", metavar="[TAG..]")
    ] = ()
    untag: Annotated[
        tuple[str, ...], option("Name of a tag to take away; repeatable.", metavar="NAME")
    ] = ()


class RemoveRun(Request, frozen=True, kw_only=True):
    """A run that is removed from the catalogue, or a deployment from the registry."""

    verb: ClassVar[str] = "runs rm"

    run: Annotated[
        str,
        argument(
            "Run: its identity or the beginning of it, a tag, or its journal; or a deployment's "
            "identity, name or bundle.",
            metavar="RUN|DEPLOYMENT",
        ),
    ]
    files: Annotated[
        bool, option("Deletion of the run's files as well; no other file is touched.")
    ] = False
    yes: Annotated[bool, option("Consent: nothing is asked.")] = False


class RebuildRuns(Request, frozen=True, kw_only=True):
    """The catalogue, made again from the register and from the journals of folders."""

    verb: ClassVar[str] = "runs rebuild"
    first: ClassVar[str] = "folders"

    folders: Annotated[
        tuple[Path, ...],
        argument(
            "Folders whose journals and bundles are taken in besides those that are known.",
            metavar="[FOLDER..]",
        ),
    ] = ()


class RunList(Tabular, frozen=True, kw_only=True):
    """Runs, the last begun first.

    Attributes:
        runs: The runs.
        known: Number of all runs of the catalogue.
    """

    runs: tuple[RunRow, ...]
    known: int

    def as_rows(self) -> Iterable[TableRow]:
        """One row per run; copies and tags are text."""
        return (
            {
                **msgspec.structs.asdict(row),
                "copies": ", ".join(row.copies),
                "tags": ", ".join(f"{n}={v}" if v else n for n, v in row.tags.items()),
            }
            for row in self.runs
        )

    def __str__(self) -> str:
        from servetune.report import as_text, runs_table

        return as_text(runs_table(self.runs))


class RunDetails(Tabular, frozen=True, kw_only=True):
    """A run with all that is known of it.

    Attributes:
        run: The run.
        pick: Recommended trial, and how sure it is; `None` where no trial can be read.
        trials: Trials.
        deployments: Deployments whose configuration, or one that waits, is a trial of it.
    """

    run: RunRow
    pick: Pick | None
    trials: tuple[TrialRow, ...]
    deployments: tuple[DeployedRow, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per trial."""
        return self.trials

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(
            {
                "run": self.run,
                "pick": self.pick.to_json() if self.pick else None,
                "trials": self.trials,
                "deployments": self.deployments,
            }
        )

    def __str__(self) -> str:
        from servetune.report import as_text, deployments_table, run_facts_text, run_trials_table

        parts = [run_facts_text(self.run)]
        if self.pick is not None:
            parts.append(str(self.pick))
        if self.trials:
            parts.append(as_text(run_trials_table(self.trials, self.run.pick_key)).rstrip())
        if self.deployments:
            parts.append(as_text(deployments_table(self.deployments)).rstrip())
        return "\n\n".join(parts)


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rebuild.

    Attributes:
        runs: Runs of the catalogue now.
        deployments: Deployments of the catalogue now.
        found_runs: Journals that were not known before.
        found_deployments: Bundles that were not known before.
        missing: Folders that are not there.
    """

    runs: int
    deployments: int
    found_runs: int
    found_deployments: int
    missing: tuple[str, ...] = ()


def catalogue() -> Catalogue:
    """The catalogue of this machine, up to date; close it, or use it in `with`.

    Raises:
        StoreError: A newer servetune made it.
    """
    return Catalogue(facts_of)


def list_runs(request: ListRuns | str | None = None, /, **options: object) -> RunList:
    """Runs of this machine, the last begun first.

    Args:
        request: The request, or a part of the model's name.
        options: Fields of `ListRuns`.

    Raises:
        InputError: `since` is no time.
        StoreError: A newer version made the catalogue.
    """
    request = request_of(ListRuns, request, options)
    since = None if request.since is None else _since(request.since)
    wanted = parse_tags(request.tag)
    with catalogue() as index:
        runs = index.runs()

    def fits(row: RunRow) -> bool:
        return (
            _has(row.model, request.model)
            and (_has(row.machine, request.machine) or _has(row.host, request.machine))
            and _has(row.engine, request.engine)
            and request.only_status in (None, row.state)
            and all(
                name in row.tags and value in ("", row.tags[name]) for name, value in wanted.items()
            )
            and (since is None or _time(row.began_at or row.ended_at) >= since)
        )

    return RunList(runs=tuple(row for row in runs if fits(row)), known=len(runs))


def show_run(request: ShowRun | str | None = None, /, **options: object) -> RunDetails:
    """A run with its pick, its trials and its deployments.

    Args:
        request: The request, or the name of the run.
        options: Fields of `ShowRun`.

    Raises:
        InputError: No run has that name, or several have.
    """
    request = request_of(ShowRun, request, options)
    with catalogue() as index:
        row = index.find(request.run)
        trials = tuple(index.trials(row.run))
        deployments = deployed_rows(index, run=row.run)
    pick = None
    if trials and row.state != "gone":
        with contextlib.suppress(ServetuneError):  # a journal of which nothing can be picked
            pick = recommend(Path(row.path))
    return RunDetails(run=row, pick=pick, trials=trials, deployments=deployments)


def tag_run(request: TagRun | str | None = None, /, **options: object) -> dict[str, str]:
    """Set tags of a run, or take some away; the tags that it has then.

    They are in a file beside the journal (`X.tags.json`), so they go where the run's files go.

    Args:
        request: The request, or the name of the run.
        options: Fields of `TagRun`.

    Raises:
        InputError: No run has that name, several have, or a tag cannot be read.
        StoreError: The tags could not be written, or the journal is gone.
    """
    request = request_of(TagRun, request, options)
    changes: dict[str, str | None] = {**parse_tags(request.tags)}
    changes |= dict.fromkeys(parse_tags(request.untag))
    with catalogue() as index:
        row = index.find(request.run)
        _require_no_identities(request.tags, index.runs())
    if row.state == "gone":
        raise StoreError(
            f"the journal of {row.run} is not at {row.path} any more",
            hint="servetune runs rebuild FOLDER finds it where it is now",
        )
    if not changes:
        return row.tags
    unknown = set(parse_tags(request.untag)) - set(row.tags)
    if unknown:
        raise InputError(f"{row.run} has no tag '{min(unknown)}'")
    return write_tags(Path(row.path), changes)


def _require_no_identities(tags: Sequence[str], runs: Sequence[RunRow]) -> None:
    """Raise `InputError` where a tag would stand before a run that its identity names."""
    for name in parse_tags(tuple(tags)):
        same = next((row for row in runs if row.run.startswith(name)), None)
        if same is not None:
            raise InputError(
                f"the tag '{name}' is the beginning of run {same.run}, which it would hide",
                hint="choose another name",
            )


def files_of_run(row: RunRow) -> RunFiles:
    """Files of a run that are there, those of its levels among them, and others named like them."""
    journal = Path(row.path)
    identity = journal_identity(journal)
    if row.state == "gone" or identity is None:
        return RunFiles()
    journals = (journal, *(_levels(journal, row.run) if identity.run else ()))
    found = [run_files(Artifacts(each.parent, each.stem), WRITTEN) for each in journals]
    return RunFiles(
        own=tuple(path for each in found for path in each.own),
        others=tuple(path for each in found for path in each.others),
    )


def _levels(journal: Path, run: str) -> list[Path]:
    """Journals of a load test's levels, each in a folder beside that of all."""
    below = journals_below(journal.parent, most_depth=1)
    named = [path for path in below if path.name == journal.name and path != journal]
    return [path for path in named if (found := journal_identity(path)) and found.run == run]


def remove_run(
    request: RemoveRun | str | None = None,
    /,
    *,
    confirm: Callable[[str], bool] | None = None,
    **options: object,
) -> tuple[Path, ...]:
    """Remove a run from the catalogue, with `files` its files as well; the files that are gone.

    A deployment is taken out of the registry likewise; what is deployed goes on as it is.

    Args:
        request: The request, or the name of the run or deployment.
        confirm: Asked before anything is removed; without it, `yes` must be given.
        options: Fields of `RemoveRun`.

    Raises:
        InputError: Nothing has that name, several have, it runs, or nobody agreed.
        StoreError: The register or a file could not be changed.
    """
    request = request_of(RemoveRun, request, options)
    with catalogue() as index:
        deployment = None if index.called(request.run) else _deployment(index, request)
        row = index.find(request.run) if deployment is None else None
    if row is None:
        assert deployment is not None, "find raises where there is neither"
        name = deployment.place.name or deployment.place.folder
        what = f"deployment {name} ({deployment.state}) from the registry; it goes on as it is"
        _require_consent(request, what, confirm)
        append_entry(DeploymentRemoved(place=deployment.place))
        return ()
    if row.state == "running":
        raise InputError(f"{row.run} is running", hint="end it first; servetune ui can stop it")
    files = files_of_run(row) if request.files else RunFiles()
    what = f"run {row.run} ({row.path})"
    if files.own:
        names = ", ".join(each.name for each in files.own)
        what += f" and delete {counted(len(files.own), 'file')}: {names}"
    _require_consent(request, what, confirm)
    for path in files.own:
        try:
            path.unlink()
        except OSError as error:
            raise StoreError(f"cannot delete {path}: {error.strerror}") from None
    for folder in {path.parent for path in files.own} - {Path(row.path).parent}:
        with contextlib.suppress(OSError):  # what is not empty stays
            folder.rmdir()
    if files.others:
        note(f"note: kept, as not of servetune: {', '.join(map(str, files.others))}")
    append_entry(RunRemoved(run=row.run))
    return files.own


def _require_consent(request: RemoveRun, what: str, confirm: Callable[[str], bool] | None) -> None:
    """Raise `InputError` where nobody agrees to a removal."""
    if request.yes:
        return
    if confirm is None:
        raise InputError(f"nobody agreed to remove {what}", hint="give --yes (yes=True)")
    if not confirm(f"Remove {what}?"):
        raise InputError("nothing was removed: it was not agreed to")


def _deployment(index: Catalogue, request: RemoveRun) -> DeploymentRow | None:
    """Deployment of an identity, a name or a bundle's folder; `None` without one.

    Raises:
        InputError: Several have that name, or its files are asked for.
    """
    folder = str(whole_path(request.run))
    found = [
        row
        for row in index.deployments()
        if request.run in (row.deployment, row.place.name) or folder == row.place.folder
    ]
    if len(found) > 1:
        listed = ", ".join(
            f"{each.deployment} ({' '.join(filter(None, _where(each)))})" for each in found
        )
        raise InputError(
            f"'{request.run}' is {len(found)} deployments: {listed}", hint="name one of them"
        )
    if found and request.files:
        raise InputError(
            f"{request.run} is a deployment, and --files is of runs",
            hint="leave --files out; delete its bundle yourself",
        )
    return found[0] if found else None


def _where(row: DeploymentRow) -> tuple[str, str, str]:
    return row.place.target, row.place.region, row.place.account


def rebuild_runs(
    request: RebuildRuns | Sequence[str | Path] | None = None, /, **options: object
) -> Rebuilt:
    """Make the catalogue again, from the register and the journals.

    Args:
        request: The request, or folders.
        options: Fields of `RebuildRuns`.

    Raises:
        StoreError: None of the folders is there, the register cannot be written, or a newer
            version made the catalogue.
    """
    if isinstance(request, str | Path):
        request = (request,)
    if request is not None and not isinstance(request, RebuildRuns):
        request = RebuildRuns(folders=tuple(map(Path, request)))
    request = request_of(RebuildRuns, request or RebuildRuns(), options)
    folders = [folder for folder in request.folders if folder.is_dir()]
    missing = tuple(str(folder) for folder in request.folders if folder not in folders)
    if missing and not folders:
        raise StoreError(f"{', '.join(missing)} is no folder", hint="give folders of results")
    discard_catalogue()
    found, bundles = 0, 0
    with catalogue() as index:
        for folder in folders:
            for entry in index.found_in(folder):
                append_entry(entry)
                found += 1
            index.refresh()
            for bundle in _bundles_below(folder):
                if index.deployment(bundle.place) is None:
                    append_entry(
                        DeploymentNoted(place=bundle.place, action="rendered", config=bundle.config)
                    )
                    bundles += 1
            index.refresh()
        return Rebuilt(
            runs=len(index.runs()),
            deployments=len(index.deployments()),
            found_runs=found,
            found_deployments=bundles,
            missing=missing,
        )


def _bundles_below(folder: Path) -> Iterable[RegisteredBundle]:
    """Bundles in a folder and below that can be read."""
    for each, names in folders_below(folder, most_depth=LOOKED_FOR_DEPTH):
        if PLAN_FILE in names and is_bundle(each):
            with contextlib.suppress(ServetuneError, OSError):
                yield registered_bundle(each)


def _has(text: str, part: str | None) -> bool:
    if part is None:
        return True
    if "*" in part:
        return fnmatch.fnmatch(text.lower(), part.lower())
    return part.lower() in text.lower()


_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def _since(text: str) -> dt.datetime:
    """Time of a date, or of an age.

    Raises:
        InputError: It is neither.
    """
    if text[-1:] in _UNITS and text[:-1].isdecimal() and len(text) < 6:
        return dt.datetime.now(dt.UTC) - dt.timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"'{text}' is no time", hint="write 2026-11-24, 2026-11-24T08:00, 12h, 7d or 4w"
        ) from None
    return found.astimezone(dt.UTC)


def _time(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    except ValueError:
        return dt.datetime.min.replace(tzinfo=dt.UTC)
