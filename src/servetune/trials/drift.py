"""Drift of a machine in a study of one server after another: a reference trial is measured again.

A machine grows warm, another tenant comes, a disk fills: trials of the evening are then not those
of the morning. So a trial on the server of the best one is run again where that costs little: after
some trials while its server is up, and once at the end, where its server may be started once more.
The first results stay; what changed beyond noise is noted in the record (`measured_again`), and the
doubt about every measurement grows by it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

import msgspec

from servetune.json_value import JsonObject
from servetune.store import Results, TrialRecord
from servetune.trials.repeated import changes_between, changes_beyond_noise

#: Trials after which a trial is run again; at the end fewer are enough if they took long.
_TRIALS, _FEW, _LONG_S = 8, 3, 3600.0
#: Times of the doubt by drift, with the figures that show each: in the order of a forecast's times.
_SHOWN_BY = (("output_throughput", "mean_tpot_ms"), ("mean_ttft_ms",))


class DriftWatch:
    """Trials of a study in the order in which they ended, and those that were measured again.

    Args:
        servers: Number of the server configuration of each trial, by its key.
    """

    def __init__(self, servers: Mapping[str, int]) -> None:
        self._servers = servers
        self._records: dict[str, TrialRecord] = {}
        self._notes: dict[str, JsonObject] = {}

    def tell(self, record: TrialRecord) -> None:
        """Take the record of a trial that ended well; a noted one is one that was run again."""
        if record.status != "ok":
            return
        self._records[record.key] = record
        note = record.results.get("measured_again")
        if isinstance(note, dict):
            self._notes[record.key] = note

    def due(self, best: str | None, running: int | None, *, at_end: bool) -> str | None:
        """Key of the trial to run again now; `None` while it is too early.

        Args:
            best: Key of the best trial so far.
            running: Server configuration that is up.
            at_end: Whether no further trial is to run.
        """
        if best is None or best not in self._records:
            return None
        server = self._servers[best]
        if running != server and not at_end:
            return None
        beside = [key for key in self._records if self._servers[key] == server]
        possible: list[str] = [best, *beside, *(self._records if at_end else ())]
        return next((key for key in possible if self._old(key, at_end=at_end)), None)

    def start_and_load_s(self, key: str) -> float:
        """Seconds that a trial took when it was measured, its server's start among them."""
        results = self._records[key].results
        return float(results.get("server_ready_s") or 0.0) + float(results.duration_s or 0.0)

    def noted(self, again: TrialRecord) -> TrialRecord:
        """The first record of a trial, with what its second run shows.

        Args:
            again: Record of the second run.
        """
        first, count = self._records[again.key], len(self._records)
        number = self._number(again.key)
        note = drift_note(first.results, again, between=(number, count))
        note["started_at"] = again.provenance.get("started_at")
        results = first.results.with_fields(measured_again=note)
        return msgspec.structs.replace(first, results=results)

    @property
    def words(self) -> str:
        """What repeats have shown; empty without any."""
        drifted = [note for note in self._notes.values() if note.get("drifted")]
        shown = drifted or list(self._notes.values())[-1:]
        return "; ".join(str(note["words"]) for note in shown)

    @property
    def sds(self) -> tuple[float, float]:
        """Standard deviations of the logarithms of time per token and of first tokens by drift."""
        found = []
        for fields in _SHOWN_BY:
            changes = [
                abs(math.log(note["changes"][field]["again"] / note["changes"][field]["first"]))
                for note in self._notes.values()
                for field in note.get("beyond_noise", ())
                if field in fields
            ]
            found.append(max(changes, default=0.0))
        return found[0], found[1]

    def _number(self, key: str) -> int:
        return list(self._records).index(key) + 1

    def _old(self, key: str, *, at_end: bool) -> bool:
        """Whether enough has passed since the last repeat and since a trial was measured."""
        checked = max((note["between"][1] for note in self._notes.values()), default=0)
        passed = len(self._records) - max(self._number(key), checked)
        if passed >= _TRIALS:
            return True
        last = next(reversed(self._records))
        long = _seconds_between(self._records[key], self._records[last]) >= _LONG_S
        return at_end and passed >= _FEW and long


def drift_note(first: Results, again: TrialRecord, *, between: tuple[int, int]) -> JsonObject:
    """What a second run of a trial shows, for its record.

    Args:
        first: Results of the first run.
        again: Record of the second.
        between: Number of the trial in the order in which trials ended, and of the last one before
            the second run.
    """
    note: JsonObject = {"between": list(between), "drifted": False}
    if again.status != "ok":
        reason = again.failure.reason if again.failure else "it failed"
        return note | {"words": f"the reference trial was not measured again: {reason}"}
    if first.get("ended_reason") or again.results.get("ended_reason"):
        return note | {"words": "the reference trial ended early, and tells nothing of drift"}
    changes = changes_between(first, again.results)
    beyond = changes_beyond_noise(first, again.results, changes)
    shown = {
        field: {"first": change.before, "again": change.after, "change": change.relative}
        for field, change in changes.items()
    }
    note |= {"changes": shown, "beyond_noise": [*beyond], "drifted": bool(beyond)}
    if not beyond:
        return note | {"words": f"the reference trial ran as before after trial {between[1]}"}
    moved = [
        f"{change.name}{'' if place else ' of the reference trial'} "
        f"{'rose' if change.relative > 0 else 'fell'} by {abs(change.relative):.0%}"
        for place, change in enumerate(beyond.values())
    ]
    span = f"between trial {between[0]} and trial {between[1]}"
    return note | {"words": f"{', its '.join(moved)} {span}"}


def _seconds_between(one: TrialRecord, other: TrialRecord) -> float:
    """Seconds from the start of a trial to that of another; 0 where a record does not say."""
    try:
        begun, later = (
            dt.datetime.fromisoformat(str(each.provenance.get("started_at")))
            for each in (one, other)
        )
        return (later - begun).total_seconds()
    except (TypeError, ValueError):
        return 0.0
