"""Trials of one or several runs, as they are read, compared and chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.api.frames import frame
from servetune.api.inputs import constraints_of, read_records
from servetune.metrics import Constraint, parse_constraints
from servetune.report import candidates_of
from servetune.search import Recommendation, recommend
from servetune.store import TrialRecord

if TYPE_CHECKING:
    import pandas as pd


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that ended, well or not.

    Attributes:
        records: One record per trial, as its journal has it.
        constraints: Limits that a choice among them must hold.
        source: File that they were read from; `None` where they were not.
    """

    records: tuple[TrialRecord, ...]
    constraints: tuple[Constraint, ...] = ()
    source: Path | None = None

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[TrialRecord]:
        return iter(self.records)

    @property
    def df(self) -> pd.DataFrame:
        """One row per trial: settings of server and load, then results, as a pandas frame.

        Raises:
            InputError: pandas is not installed.
        """
        return frame(_row(record) for record in self.records)

    def recommend(
        self, objective: str = "throughput", constraints: str | None = None
    ) -> Recommendation:
        """The best trial among those that hold the constraints, and why.

        Args:
            objective: `throughput`, `latency` or `cost`.
            constraints: Limits in place of the run's own.
        """
        limits = self.constraints if constraints is None else parse_constraints(constraints)
        return recommend(candidates_of(self.records), limits, objective)

    def record(self, key: str) -> TrialRecord:
        """The trial of that key, such as the one that `recommend` chose.

        Raises:
            KeyError: There is none.
        """
        for each in self.records:
            if each.key == key:
                return each
        raise KeyError(key)


def read(source: str | Path, constraints: str | None = None) -> Trials:
    """Trials of a journal (`.jsonl`), a summary or a single record (`.json`).

    llm-optimizer's journals and summaries are read, too.

    Args:
        source: The file.
        constraints: Limits in place of those that the run was given.

    Raises:
        StoreError: It is not there or holds no trial.
        InputError: The constraints cannot be read.
    """
    path = Path(source)
    records = read_records(path)
    limits = constraints_of(constraints, records)
    return Trials(records=tuple(records), constraints=limits, source=path)


def _row(record: TrialRecord) -> dict[str, Any]:
    """One flat row: plain values only, settings prefixed where two sides share a name."""
    config = record.config
    sides: Sequence[tuple[str, dict[str, Any]]] = (
        ("server.", config.server_args),
        ("client.", config.client_args),
        ("", record.results),
    )
    row: dict[str, Any] = {
        "key": record.key,
        "status": record.status,
        "simulated": record.simulated,
        "model": record.metadata.model,
        "engine": record.metadata.engine,
        "gpu": record.metadata.gpu_type,
        "gpus_used": record.metadata.gpus_used,
    }
    for prefix, values in sides:
        row |= {
            prefix + name: value
            for name, value in values.items()
            if value is None or isinstance(value, bool | int | float | str)
        }
    return row
