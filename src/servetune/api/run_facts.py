"""Facts of a run by its journal, for the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from servetune.api.inputs import recorded_goal
from servetune.api.light import Lightener
from servetune.engines import ENGINES, engine
from servetune.hardware import Node
from servetune.report import candidates_of, label_of, varying
from servetune.search import Goal, recommend
from servetune.store import TrialRecord, journal_records, latest
from servetune.store.catalogue_rows import RunFacts, TrialRow
from servetune.store.register import workload_digest

#: Results of a trial that the catalogue has.
_RESULTS = (
    "output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms",
    "cost_per_million_tokens",
)  # fmt: skip


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """Recommended trial of a run in words; empty without one.

    Attributes:
        pick: Settings of it, and whether it misses a constraint.
        pick_key: Key of it.
        objective: Objective that it is the best in.
        best: Value of it.
    """

    pick: str = ""
    pick_key: str = ""
    objective: str = ""
    best: float | None = None


def pick_of(records: Sequence[TrialRecord], goal: Goal) -> Pick:
    """The recommended trial of some records."""
    choice = recommend(candidates_of(records), goal.constraints, goal.wanted, ladder=goal.ladder)
    chosen = next(
        (each for each in records if choice.chosen and each.key == choice.chosen.key), None
    )
    if chosen is None:
        return Pick()
    label = label_of(chosen, varying(records))
    return Pick(
        pick=label if choice.feasible else f"{label} (misses a constraint)",
        pick_key=chosen.key,
        objective=goal.wanted[0].title,
        best=goal.wanted[0].value(chosen.results),
    )


def facts_of(path: Path) -> RunFacts:
    """Facts of a journal, which may be larger than memory.

    Raises:
        StoreError: It cannot be read.
    """
    reading = _Reading()
    records = latest(reading.lightened(journal_records(path)))
    if not records:
        return RunFacts(trials=())
    swept = varying(records)
    rows = tuple(
        TrialRow(
            run="",
            number=number,
            key=record.key,
            status=record.status,
            label=label_of(record, swept),
            server_args=msgspec.json.encode(record.config.server_args).decode(),
            client_args=msgspec.json.encode(record.config.client_args).decode(),
            **reading.results[record.key],
        )
        for number, record in enumerate(records, start=1)
    )
    pick = msgspec.structs.asdict(pick_of(records, reading.goal))
    return RunFacts(trials=rows, about={**reading.about(records), **pick})


class _Reading:
    """What is kept of the records of a journal as they are read.

    Attributes:
        results: Results of each trial for its row, by key.
        goal: Goal of the run.
    """

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self.goal = Goal()
        self._values: dict[str, dict[str | int, None]] = {}
        self._times: list[str] = []

    def lightened(self, records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
        """The records, reduced to what a choice among them needs."""
        lighten = Lightener(recorded_goal)
        for number, record in enumerate(records):
            if number == 0:
                self.goal = recorded_goal([record])
            metadata, about = record.metadata, record.provenance
            results = {name: _number(record.results.get(name)) for name in _RESULTS}
            failure = record.failure.reason if record.failure else ""
            self.results[record.key] = {**results, "failure": failure}
            for name, value in (
                ("model", metadata.model),
                ("engine", metadata.engine),
                ("machine", _machine(metadata.gpu_count, metadata.gpu_type)),
                ("host", about.get("host")),
                ("version", about.get("servetune")),
                ("seed", metadata.seed),
            ):
                if value not in (None, ""):
                    self._values.setdefault(name, {})[value] = None  # in the order of the trials
            self._times += [
                time
                for name in ("started_at", "ended_at")
                if isinstance(time := about.get(name), str)
            ]
            yield lighten(record)

    def about(self, records: Sequence[TrialRecord]) -> dict[str, Any]:
        """Fields of the run."""
        found: dict[str, Any] = {
            name: next(iter(values)) if name == "seed" else ", ".join(map(str, list(values)[:3]))
            for name, values in self._values.items()
        }
        if found.get("engine") in ENGINES and not engine(found["engine"]).starts_servers:
            found["verb"] = "bench"
        elif len(records) > 1 or not records[0].simulated:
            found["verb"] = "tune"
        return found | {
            "began_at": min(self._times, default=""),
            "ended_at": max(self._times, default=""),
            "workload": workload_digest(records[0].config.client_args),
            "simulated": all(record.simulated for record in records),
            "trials": len(records),
            "failed": sum(record.status == "failed" for record in records),
        }


def machine_text(node: Node | None) -> str:
    """A machine as the catalogue names it; empty where it is not known."""
    if node is None:
        return ""
    return _machine(node.device_count, f"{node.device.vendor} {node.device.name}".strip())


def _machine(count: int | None, gpu: str | None) -> str:
    if not gpu or gpu == "unknown":
        return ""
    return f"{count}x {gpu}" if count else gpu


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
