"""Finished trials a page at a time, for readers that cannot take thousands at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.request import Request, request_of
from servetune.api.shared_options import GoalOptions
from servetune.api.trials import Rent, read_with_goal
from servetune.json_value import JsonObject
from servetune.option import NonNegativeCount, argument, option
from servetune.report import ranked

PageSize = Annotated[int, msgspec.Meta(ge=1, le=200)]


class ListTrials(Request, frozen=True, kw_only=True):
    """Rows of finished trials, a page at a time."""

    verb: ClassVar[str] = "trials"

    source: Annotated[
        Path, argument("Journal (.jsonl), summary (.json) or folder of journals.", metavar="SOURCE")
    ]
    offset: Annotated[NonNegativeCount, option("Number of trials to skip.", metavar="COUNT")] = 0
    limit: Annotated[PageSize, option("Most trials of a page.", metavar="COUNT")] = 20
    sort: Annotated[
        Literal["ended", "best"],
        option("Order: as they ended, or the best within the constraints first."),
    ] = "ended"
    limits: GoalOptions = GoalOptions()
    rent: Rent = Rent()


class TrialPage(Tabular, frozen=True, kw_only=True):
    """One page of finished trials.

    Attributes:
        total: Number of trials of all pages.
        offset: Number of trials before these.
        next_offset: Offset of the next page; `None` at the end.
        rows: A row per trial: what it is, settings of server and load, results, why it failed.
    """

    total: int
    offset: int
    next_offset: int | None
    rows: tuple[JsonObject, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per trial."""
        return self.rows

    def __str__(self) -> str:
        last = self.offset + len(self.rows)
        return f"trials {self.offset + 1 if self.rows else 0} to {last} of {self.total}"

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        found: JsonObject = msgspec.to_builtins(self)
        return found


def list_trials(request: ListTrials | str | Path | None = None, /, **options: object) -> TrialPage:
    """One page of the trials of a journal, a summary or a folder.

    Raises:
        StoreError: The file is not there or holds no trial.
        InputError: An option cannot be read.
    """
    request = request_of(ListTrials, request, options)
    trials = read_with_goal(request.source, request.limits, request.rent)
    if request.sort == "best":
        records = tuple(ranked(trials.records, trials.constraints))
        trials = msgspec.structs.replace(trials, records=records)
    total, end = len(trials), request.offset + request.limit
    page = msgspec.structs.replace(trials, records=trials.records[request.offset : end])
    return TrialPage(
        total=total,
        offset=request.offset,
        next_offset=end if end < total else None,
        rows=tuple(msgspec.to_builtins(row) for row in page.as_rows()),
    )
