"""Records reduced to what a choice among them needs, so that a journal may exceed the memory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from servetune.json_value import JsonObject
from servetune.metrics import Constraint, parse_constraints, value_of
from servetune.metrics.slo import field_of
from servetune.search import OBJECTIVES
from servetune.store import Metadata, Results, TrialConfig, TrialRecord, journal_records

#: Results that a choice reads beside its objectives and limits.
_FIELDS = ("output_throughput", "completed", "failed", "error_rate", "arrived")


class Lightener:
    """Function that keeps of each record what a choice needs; equal settings are held once.

    Args:
        constraints: Limits of the choice; without them, those of the first record.

    Raises:
        GrammarError: The limits cannot be read.
    """

    def __init__(self, constraints: str | None) -> None:
        self._limits = None if constraints is None else parse_constraints(constraints)
        self._held: dict[bytes, JsonObject] = {}

    def __call__(self, record: TrialRecord) -> TrialRecord:
        if self._limits is None:
            self._limits = record.limits()
        config, metadata = record.config, record.metadata
        return TrialRecord(
            key=record.key,
            status=record.status,
            simulated=record.simulated,
            config=TrialConfig(
                client_args=self._once(config.client_args),
                server_args=self._once(config.server_args),
            ),
            results=self._results(record.results, self._limits),
            constraints=[self._once(limit) for limit in record.constraints],
            metadata=Metadata({"framework": metadata.engine}),
        )

    def _results(self, results: Results, limits: tuple[Constraint, ...]) -> Results:
        kept = {name: results[name] for name in _FIELDS if name in results}
        wanted = [(each.metric, each.statistic) for each in OBJECTIVES.values()]
        for metric, statistic in (*wanted, *((limit.metric, limit.statistic) for limit in limits)):
            value = value_of(results, metric, statistic)
            if value is not None:
                kept[field_of(metric, statistic)] = value
        return Results(kept)

    def _once(self, settings: JsonObject) -> JsonObject:
        return self._held.setdefault(msgspec.json.encode(settings), settings)


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
