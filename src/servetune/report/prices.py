"""Prices behind the costs of trials, and their sources."""

from __future__ import annotations

from collections.abc import Iterable

from servetune.store import TrialRecord
from servetune.units import format_usd


def price_lines(records: Iterable[TrialRecord]) -> list[str]:
    """One line for each price that costs of these records are computed with."""
    priced = (
        (record.metadata.price_per_hour_usd, record.metadata.price_source)
        for record in records
        if record.results.get("cost_per_million_tokens") is not None
    )
    return [
        f"price: {format_usd(usd)} per hour for the whole machine, "
        f"{source or 'source not recorded'}"
        for usd, source in dict.fromkeys(priced)
        if usd is not None
    ]
