"""Records reduced to what a choice among them needs, so that a journal may exceed the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from servetune.json_value import JsonObject
from servetune.metrics import value_of
from servetune.metrics.results import ResultFields
from servetune.metrics.slo import field_of
from servetune.plan import Plan
from servetune.report import results_of
from servetune.search import OBJECTIVES, Goal
from servetune.store import Metadata, Results, TrialConfig, TrialRecord, journal_records

#: Results that a choice reads beside its objectives and limits.
_FIELDS = ("output_throughput", "completed", "failed", "error_rate", "arrived")
#: Metadata that a choice reads: the engine, and the goal of the study.
_METADATA = ("framework", "objective", "ladder")


class Lightener:
    """Function that keeps of each record what a choice needs; equal settings are held once.

    Args:
        goal: Goal of the choice among some records; of the first one here.

    Raises:
        InputError: The goal cannot be read.
    """

    def __init__(self, goal: Callable[[Sequence[TrialRecord]], Goal]) -> None:
        self._goal_of = goal
        self._goal: Goal | None = None
        self._held: dict[bytes, JsonObject] = {}
        self._plans: dict[Plan, Plan] = {}

    def __call__(self, record: TrialRecord) -> TrialRecord:
        if self._goal is None:
            self._goal = self._goal_of([record])
        config, metadata = record.config, record.metadata
        return TrialRecord(
            key=record.key,
            status=record.status,
            simulated=record.simulated,
            plan=record.plan and self._plans.setdefault(record.plan, record.plan),
            config=TrialConfig(
                client_args=self._once(config.client_args),
                server_args=self._once(config.server_args),
            ),
            results=_results(results_of(record), self._goal),
            constraints=[self._once(limit) for limit in record.constraints],
            metadata=Metadata(
                {name: metadata[name] for name in _METADATA if metadata.get(name) is not None}
            ),
        )

    def _once(self, settings: JsonObject) -> JsonObject:
        return self._held.setdefault(msgspec.json.encode(settings), settings)


def _results(results: ResultFields, goal: Goal) -> Results:
    kept = {name: results[name] for name in _FIELDS if name in results}
    usual = ((each.metric, each.statistic) for each in OBJECTIVES.values())
    for metric, statistic in (*usual, *goal.values):
        value = value_of(results, metric, statistic)
        if value is not None:
            kept[field_of(metric, statistic)] = value
    intervals = results.get("intervals")
    if isinstance(intervals, Mapping):
        fields = ["output_throughput", *(field_of(*each) for each in goal.values)]
        kept["intervals"] = {name: intervals[name] for name in fields if name in intervals}
    return Results(kept)


def whole_record(path: Path, key: str) -> TrialRecord:
    """Last record of a trial in a journal, in full.

    Raises:
        KeyError: The journal has no such trial.
    """
    found = None
    for record in journal_records(path, containing=key.encode()):
        if record.key == key:
            found = record
    if found is None:  # another tool's records have no key of their own
        for record in journal_records(path):
            if record.key == key:
                found = record
    if found is None:
        raise KeyError(key)
    return found
