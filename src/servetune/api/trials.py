"""Trials of one or several runs, as they are read, compared and chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from servetune.api.frames import frame
from servetune.api.inputs import constraints_of, records_of
from servetune.errors import InputError
from servetune.hardware import cost_per_million_tokens_usd, instance
from servetune.metrics import Constraint, parse_constraints
from servetune.option import NonNegative, option
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
        source: First file or folder that they were read from; `None` where they were not.
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


class Rent(msgspec.Struct, frozen=True, kw_only=True):
    """Price of the machine that finished trials ran on, where their records have none."""

    group: ClassVar[str] = "Machine"

    instance: Annotated[
        str | None,
        option("Instance type whose price per hour costs are of.", metavar="NAME"),
    ] = None
    price_per_hour_usd: Annotated[
        NonNegative | None,
        option(
            "Price of the whole machine, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the records'",
        ),
    ] = None

    def applied(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """The records at this price; as they are where none is named.

        Raises:
            UnknownName: There is no such instance.
            InputError: The catalogue has no price of it.
        """
        usd, source = self.price_per_hour_usd, "given by the user"
        if usd is None:
            if self.instance is None:
                return tuple(records)
            price = instance(self.instance).price
            if price is None:
                raise InputError(
                    f"the price of {self.instance} is not known", hint="give --price-per-hour"
                )
            usd, source = price.usd_per_hour, f"{price.source}, {price.date}"
        return tuple(_at_price(record, usd, source, self.instance) for record in records)


def _at_price(
    record: TrialRecord, usd_per_hour: float, source: str, instance_type: str | None
) -> TrialRecord:
    results, about = record.results, {"price_per_hour_usd": usd_per_hour, "price_source": source}
    if instance_type is not None:
        about["instance_type"] = instance_type
    if results:
        usd = cost_per_million_tokens_usd(usd_per_hour, results.output_throughput)
        results = results.with_fields(cost_per_million_tokens=usd, cost_per_hour=usd_per_hour)
    return msgspec.structs.replace(
        record, results=results, metadata=record.metadata.with_fields(**about)
    )


def read(
    source: str | Path | Sequence[str | Path],
    constraints: str | None = None,
    *,
    rent: Rent | None = None,
) -> Trials:
    """Trials of a journal (`.jsonl`), a summary or a single record (`.json`).

    llm-optimizer's journals and summaries are read, too.

    Args:
        source: The file, a folder of journals, or several of these.
        constraints: Limits in place of those that the run was given.
        rent: Price of the machine in place of the records' own.

    Raises:
        StoreError: It is not there or holds no trial.
        InputError: The constraints cannot be read.
    """
    paths = [Path(source)] if isinstance(source, str | Path) else [Path(each) for each in source]
    records = records_of(paths)
    limits = constraints_of(constraints, records)
    priced = rent.applied(records) if rent else tuple(records)
    return Trials(records=priced, constraints=limits, source=paths[0])


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
