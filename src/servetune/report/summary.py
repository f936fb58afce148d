"""JSON summary of a run, for scripts.

Field names are llm-optimizer's; `recommended`, `pareto` and part of `metadata` are added. The
output depends on the records only: equal records give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

import servetune
from servetune.decoding import ready
from servetune.errors import ServetuneError, StoreError
from servetune.hardware import node
from servetune.json_value import JsonObject
from servetune.metrics import Constraint, unmet, value_of
from servetune.models import load_shape, named_in_catalogue
from servetune.perf.roofline import accuracy_like
from servetune.report.ranking import pareto_of, picks
from servetune.search import Recommendation, SearchSummary
from servetune.store.schema import SCHEMA, TrialRecord, record_from_json

_BEST = {
    "best_output_throughput": "output_throughput",
    "best_input_throughput": "input_throughput",
    "best_request_throughput": "request_throughput",
}


def summary(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation] | None = None,
    search: SearchSummary | None = None,
) -> JsonObject:
    """Summary as JSON values, but for the trials themselves.

    Args:
        records: Trials of the run in order.
        constraints: Constraints of the run.
        chosen: Picks of the run, where they have been made.
        search: What the search of the run did, and its doubt about the pick, where there was one.
    """
    chosen = picks(records, constraints) if chosen is None else chosen
    by_key = {record.key: record for record in reversed(records)}
    return {
        "metadata": _metadata(records, constraints),
        "best_configurations": _best_configurations(records, constraints),
        "recommended": {name: _recommended(pick, by_key) for name, pick in chosen.items()},
        "pareto": pareto_of(records, chosen),
        **({"search": search.to_json()} if search is not None else {}),
    }


def summary_json(records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]) -> bytes:
    """Summary as indented UTF-8 text with a final newline; see `summary_pieces`."""
    return "".join(summary_pieces(records, constraints)).encode()


def summary_pieces(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation] | None = None,
    search: SearchSummary | None = None,
) -> Iterator[str]:
    """Summary as indented text with a final newline, one piece for each trial.

    Top-level fields keep their order; nested ones are sorted, because equal settings may have
    been written in another order.
    """
    parts = {
        name: msgspec.Raw(msgspec.json.encode(value, order="deterministic"))
        for name, value in summary(records, constraints, chosen, search).items()
    }
    head = msgspec.json.format(msgspec.json.encode(parts), indent=2).decode()
    yield head.removesuffix("\n}") + ("," + _RESULTS)
    end = "\n    "
    for record in records:
        text = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2).decode()
        yield end + text.replace("\n", "\n    ")
        end = ",\n    "
    yield "\n  ]\n}\n" if records else "]\n}\n"


#: Start of the trials in a summary, which everything else of it precedes.
_RESULTS = '\n  "test_results": ['


class _Head(msgspec.Struct):
    """What a summary says beside its trials."""

    metadata: JsonObject = {}
    search: SearchSummary | None = None


def search_in_summary(head: str, record_count: int | None = None) -> SearchSummary | None:
    """What the search of a summary did; `None` where it does not say.

    Args:
        head: Text of the summary, or its beginning.
        record_count: Trials of the journal that it is beside; with another number it is of an
            earlier state of the journal, and not taken.
    """
    before, trials, _ = head.partition(_RESULTS)
    try:
        found = msgspec.json.decode(before.rstrip(",") + "}" if trials else head, type=ready(_Head))
    except msgspec.DecodeError:  # another tool's, or a search of a newer version
        return None
    stale = record_count is not None and found.metadata.get("total_tests") != record_count
    return None if stale else found.search


def records_from_summary(raw: object) -> list[TrialRecord]:
    """Trials of a decoded JSON document: a summary, one record, or a list of records.

    Values shared by all trials of a summary (model, GPU, constraints) are filled into records
    that lack them.

    Raises:
        StoreError: The document is none of these; the message has the position.
    """
    if isinstance(raw, dict) and "test_results" in raw:
        shared = raw.get("metadata")
        rows = raw["test_results"]
        if not isinstance(rows, list):
            raise StoreError("'test_results' is not a list", hint=_ACCEPTED)
        filled = [_filled(row, shared if isinstance(shared, dict) else {}) for row in rows]
        return _records(filled, "test_results")
    if isinstance(raw, list):
        return _records(raw, "record ")
    if isinstance(raw, dict) and "config" in raw:
        return [record_from_json(raw)]
    raise StoreError("neither a summary nor trial records", hint=_ACCEPTED)


def simulated_share(records: Sequence[TrialRecord]) -> bool | Literal["mixed"]:
    """Whether all trials were simulated, none (`False`), or some (`"mixed"`)."""
    kinds = {record.simulated for record in records}
    return "mixed" if len(kinds) > 1 else kinds == {True}


def simulated_accuracy(records: Sequence[TrialRecord]) -> str:
    """Errors of predictions for measured runs like the simulated trials; empty if unknown.

    It is what the first of them recorded. For records without, of earlier versions, it is found
    again, with networks of the bundled catalogue alone.
    """
    simulated = [record for record in records if record.simulated]
    for record in simulated:
        if record.interval is not None and record.interval.accuracy:
            return record.interval.accuracy
    first = next((record for record in simulated if record.plan), None)
    if first is None or first.plan is None or not named_in_catalogue(first.plan.model):
        return ""
    try:
        machine = node(gpu=str(first.metadata.gpu_type).removeprefix("NVIDIA "))
        shape = load_shape(first.plan.model, catalogue_first=True)
        return accuracy_like(machine, first.plan, shape).sentence
    except ServetuneError:  # a machine or a storage that this version does not know
        return ""


def simulated_speed(records: Sequence[TrialRecord]) -> float | None:
    """Highest time-lapse factor of the simulated servers; `None` where all ran in real time.

    Latencies and costs of such a trial are too low and its rates too high by this factor.
    """
    speeds = (record.results.simulated_speed for record in records)
    return max(
        (speed for speed in speeds if isinstance(speed, int | float) and speed != 1), default=None
    )


_ACCEPTED = "give a journal (.jsonl), a summary with 'test_results', one record or a list of them"


def _records(rows: list[Any], place: str) -> list[TrialRecord]:
    records = []
    for index, row in enumerate(rows):
        try:
            records.append(record_from_json(row))
        except StoreError as error:
            where = f"{place}[{index}]" if not place.endswith(" ") else f"{place}{index + 1}"
            error.args = (f"{where}: {error.message}",)
            error.message = error.args[0]
            raise
    return records


def _filled(row: object, shared: JsonObject) -> Any:
    if not isinstance(row, dict):
        return row
    common = {
        name: shared[name]
        for name in ("gpu_type", "gpu_count", "framework", "model_tag")
        if shared.get(name) is not None
    }
    filled = {**row, "metadata": {**common, **(row.get("metadata") or {})}}
    if not row.get("constraints") and isinstance(shared.get("constraints"), list):
        filled["constraints"] = shared["constraints"]
    return filled


def _metadata(records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]) -> JsonObject:
    return {
        "gpu_type": _common(records, "gpu_type"),
        "gpu_count": _common(records, "gpu_count"),
        "framework": _framework(records),
        "model_tag": _common(records, "model_tag"),
        "total_tests": len(records),
        "failed_tests": sum(record.status == "failed" for record in records),
        "constraints": [constraint.to_json() for constraint in constraints],
        "input_len": _common(records, "input_tokens"),
        "output_len": _common(records, "output_tokens"),
        "simulated": simulated_share(records),
        "servetune_version": servetune.__version__,
        "servetune_schema": SCHEMA,
    }


def _common(records: Sequence[TrialRecord], name: str) -> Any:
    """Metadata value shared by all records; `None` where they differ or lack it."""
    values = [record.metadata.get(name) for record in records]
    return values[0] if values and all(value == values[0] for value in values) else None


def _framework(records: Sequence[TrialRecord]) -> Any:
    names = {str(record.metadata.engine or record.results.backend or "") for record in records} - {
        ""
    }
    return names.pop() if len(names) == 1 else None


def _best_configurations(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]
) -> JsonObject:
    ok = [record for record in records if record.status == "ok"]
    feasible = [record for record in ok if not unmet(constraints, record.results)]
    best: JsonObject = {}
    for name, metric in _BEST.items():
        best[name] = _best(ok, metric)
        best[f"{name}_constrained"] = _best(feasible, metric)
    return best


def _best(records: Sequence[TrialRecord], metric: str) -> JsonObject | None:
    valued = [(value_of(record.results, metric), record) for record in records]
    known = [(value, record) for value, record in valued if value is not None]
    if not known:
        return None
    value, record = max(known, key=lambda pair: pair[0])
    return {"throughput": value, "config": _config(record), "cmd": record.cmd}


def _config(record: TrialRecord) -> Any:
    return msgspec.json.decode(msgspec.json.encode(record.config))


def _recommended(pick: Recommendation, by_key: Mapping[str, TrialRecord]) -> JsonObject:
    record = by_key[pick.chosen.key] if pick.chosen is not None else None
    return {
        "key": record.key if record else None,
        "config": _config(record) if record else None,
        "cmd": record.cmd if record else None,
        "feasible": pick.feasible,
        "reasons": list(pick.reasons),
        **choice_json(pick, by_key),
    }


def choice_json(pick: Recommendation, by_key: Mapping[str, TrialRecord]) -> JsonObject:
    """Further facts of a choice as JSON values; each member is absent where it has no meaning.

    `pareto` has the members of the Pareto set with settings and values, `ties` the keys of trials
    that cannot be told apart from the choice, `binding` and `reaches` how far trials are from the
    constraints where none meets all.

    Args:
        pick: The choice.
        by_key: Records of the Pareto set, at least, by their keys.
    """
    facts: JsonObject = {}
    if pick.pareto:
        facts["pareto"] = [
            {
                "key": member.key,
                "label": member.label,
                "server_args": by_key[member.key].config.server_args,
                "client_args": by_key[member.key].config.client_args,
                "values": {each.name: each.value(member.results) for each in pick.objectives},
                "knee": member is pick.chosen,
            }
            for member in pick.pareto
        ]
    if pick.ties:
        facts["ties"] = [tied.key for tied in pick.ties]
    if pick.binding is not None:
        facts["binding"] = pick.binding.to_json()
        facts["reaches"] = [
            {
                "constraint": each.constraint.to_json(),
                "best": each.best,
                "miss_fraction": each.miss if math.isfinite(each.miss) else None,
                "held_count": each.held_count,
                "freed_count": each.freed_count,
            }
            for each in pick.reaches
        ]
    return facts
