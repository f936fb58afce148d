"""Journals as rows of the table of results, for the verbs below `runs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from servetune.api.inputs import (
    journals_below,
    named_files,
    read_records,
    require_file,
    with_journal_named,
)
from servetune.api.notes import note
from servetune.api.trials import Rent
from servetune.deploy.aws.client import AwsError, is_denied
from servetune.errors import SchemaTooNew, StoreError
from servetune.store import TrialRecord, journal_records
from servetune.store.results_rows import (
    Row,
    RowOptions,
    last_measured,
    row_of,
    run_id_of,
    trial_id_of,
)


class JournalRows(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of one journal, summary or record.

    Attributes:
        path: The file.
        run_id: Identity of its run.
        rows: One row per trial; of several records of one trial, the last.
    """

    path: Path
    run_id: str
    rows: tuple[Row, ...]


def read_rows(
    sources: Sequence[Path], *, options: RowOptions | None = None, rent: Rent | None = None
) -> list[JournalRows]:
    """Trials of journals (`.jsonl`), summaries or records (`.json`), and of folders of journals.

    A folder without a journal stands for the folders in it, as `bench --out` makes them.

    Of a trial that several journals of one run have, such as an older copy of a journal in which it
    failed, the last measurement counts. Files of JSON lines in a folder that begin with no trial
    are passed over with a note.

    Raises:
        StoreError: One is not there, or a line of it is no record.
    """
    options, rent = options or RowOptions(), rent or Rent()
    found = []
    for source in named_files(sources):
        whole = source.is_dir()
        for path in journals_below(source) if whole else [source]:
            made = _rows_of(path, options, rent, in_folder=whole)
            if made is not None:
                found.append(made)
    last = last_measured(row for each in found for row in each.rows)
    return [
        msgspec.structs.replace(
            each, rows=tuple(row for row in each.rows if row["trial_id"] in last)
        )
        for each in found
    ]


def _rows_of(path: Path, options: RowOptions, rent: Rent, *, in_folder: bool) -> JournalRows | None:
    require_file(path)
    records = _records(path)
    try:
        first = next(records, None)
    except SchemaTooNew:
        raise
    except StoreError as error:
        if not in_folder:
            raise with_journal_named(error, path) from None
        note(f"note: {path} begins with no trial and is left out")
        return None
    if first is None:
        return None
    run_id = run_id_of(first)
    by_key: dict[str, Row] = {}
    for record in _chained(first, records):
        [priced] = rent.applied([record])
        by_key[record.key] = row_of(
            priced,
            journal=path.stem,
            run_id=run_id,
            trial_id=trial_id_of(record),
            options=options,
        )
    return JournalRows(path=path, run_id=run_id, rows=tuple(by_key.values()))


def _records(path: Path) -> Iterator[TrialRecord]:
    return journal_records(path) if path.suffix == ".jsonl" else iter(read_records(path))


def _chained(first: TrialRecord, rest: Iterator[TrialRecord]) -> Iterator[TrialRecord]:
    yield first
    yield from rest


def with_permissions_named(error: AwsError) -> AwsError:
    """The error; where a permission lacks, its hint names the page that lists them."""
    if is_denied(error):
        error.hint = "your credentials lack this permission: docs/guides/athena.md lists them"
    return error
