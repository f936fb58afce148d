"""Timelines of trials: kept beside a study's journal as its trials end, and read for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from servetune.api.inputs import journals_in
from servetune.api.notes import note
from servetune.errors import StoreError
from servetune.json_value import JsonObject
from servetune.report import timeline_of
from servetune.report.ranking import pareto_of
from servetune.search import Recommendation
from servetune.store import Artifacts, TimelineLog, TrialRecord, is_report, read_timelines
from servetune.trials import TrialRequests

WhichTimelines = Literal["all", "picks", "none"]
"""Trials with a timeline: all, those that a run picks and of its Pareto front, or none."""

#: Most bytes of timelines on a page, where not all are asked for.
MOST_BYTES_ON_PAGE = 4_000_000


def timeline_of_requests(requests: TrialRequests) -> JsonObject:
    """Timeline of one trial, as the page draws it."""
    return timeline_of(
        requests.records,
        requests.admitted_s,
        requests.kv_use,
        seen_by_client=requests.seen_by_client,
    )


class TimelineKeeper:
    """Timelines of a study in progress; a disk that is full ends the keeping and not the study.

    Args:
        path: Path of the file; `None` to keep none.
        resume: Whether timelines of an earlier call are kept.
    """

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        self._log: TimelineLog | None = None
        if path is not None:
            try:
                self._log = TimelineLog(path, resume=resume)
            except StoreError as error:
                self._give_up(error)

    @property
    def keeps(self) -> bool:
        """Whether timelines are kept, as far as is known now."""
        return self._log is not None

    def take(self, requests: TrialRequests) -> None:
        """Keep the timeline of a trial, out of its requests."""
        if self._log is None:
            return
        try:
            self.keep(requests.key, timeline_of_requests(requests))
        except Exception as error:  # a picture of a trial must not cost its record
            self._give_up(StoreError(f"a timeline cannot be made: {type(error).__name__}: {error}"))

    def keep(self, key: str, timeline: JsonObject) -> None:
        """Keep the timeline of a trial."""
        if self._log is None:
            return
        try:
            self._log.append(key, timeline)
        except StoreError as error:
            self._give_up(error)

    def make_room(self) -> bool:
        """Remove the file, so that a disk has room for a record; whether there was one."""
        if self._log is None:
            return False
        path = self._log.path
        self.close()
        path.unlink(missing_ok=True)
        note(f"note: {path} was removed to make room for a record; no trial has a timeline")
        return True

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _give_up(self, error: StoreError) -> None:
        self.close()
        note(f"note: {error.message}; trials from here on have no timeline")


def interesting_keys(
    records: Sequence[TrialRecord], chosen: Mapping[str, Recommendation]
) -> tuple[str, ...]:
    """Keys of the picks, then of the Pareto front."""
    picked = (pick.chosen.key for pick in chosen.values() if pick.chosen is not None)
    return tuple(dict.fromkeys([*picked, *pareto_of(records, chosen)]))


def timelines_for_page(
    paths: Sequence[Path],
    records: Sequence[TrialRecord],
    chosen: Mapping[str, Recommendation],
    which: WhichTimelines = "picks",
    *,
    most_bytes: int = MOST_BYTES_ON_PAGE,
) -> dict[str, JsonObject]:
    """Timelines that a page of these trials has, by the keys of the trials.

    Args:
        paths: Files of timelines; those that are missing hold none.
        records: Trials of the page.
        chosen: Picks among them.
        which: Trials whose timelines it has.
        most_bytes: Most bytes of all together, where not all are asked for.
    """
    if which == "none":
        return {}
    every = which == "all"
    keys = [record.key for record in records] if every else interesting_keys(records, chosen)
    found: dict[str, JsonObject] = {}
    for path in paths:
        left_bytes = None if every else most_bytes - len(msgspec.json.encode(found))
        found |= read_timelines(path, keys, most_bytes=left_bytes)
    return found


def timeline_files_of(sources: Sequence[Path]) -> list[Path]:
    """Files of timelines beside journals, summaries, and the journals in folders."""
    ours = [source for source in sources if not is_report(source)]
    runs = chain.from_iterable(journals_in(each) if each.is_dir() else [each] for each in ours)
    return [Artifacts.at(run.with_suffix(".json")).timelines for run in runs]
