"""Quantities of a report: name, unit, direction and display names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from servetune.metrics import LATENCIES, value_of
from servetune.metrics.results import ResultFields
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd

#: Text for a missing value; never `NaN`, never 0.
DASH = "–"
#: Statistics of a latency that the dashboard offers.
STATISTICS = ("mean", "median", "p90", "p95", "p99")

Unit = Literal["ms", "tokens/s", "requests/s", "USD", "fraction", "J"]


class Quantity(msgspec.Struct, frozen=True):
    """Quantity of a trial.

    Attributes:
        name: Key of the quantity.
        title: Full name, for an axis.
        short: Short name, for a table heading.
        unit: Unit of the value from `quantity_value`.
        maximize: Whether more is better.
    """

    name: str
    title: str
    short: str
    unit: Unit
    maximize: bool

    @property
    def has_statistics(self) -> bool:
        """Whether the quantity is a distribution and needs a statistic."""
        return self.name in LATENCIES


QUANTITIES: Mapping[str, Quantity] = {
    row[0]: Quantity(*row)
    for row in (
        ("e2e_latency", "End-to-end latency", "E2E", "ms", False),
        ("ttft", "Time to first token", "TTFT", "ms", False),
        ("itl", "Inter-token latency", "ITL", "ms", False),
        ("tpot", "Time per output token", "TPOT", "ms", False),
        ("output_throughput", "Output throughput", "Output", "tokens/s", True),
        ("request_throughput", "Request throughput", "Requests", "requests/s", True),
        ("input_throughput", "Input throughput", "Input", "tokens/s", True),
        (
            "output_throughput_per_gpu",
            "Output throughput per GPU in use",
            "Output per GPU",
            "tokens/s",
            True,
        ),
        (
            "user_throughput",
            "Output speed that one user sees (1 / median TPOT)",
            "Per user",
            "tokens/s",
            True,
        ),
        ("goodput", "Goodput", "Goodput", "requests/s", True),
        ("cost_per_million_tokens", "Cost per million output tokens", "$/M tokens", "USD", False),
        ("cost_per_hour", "Cost of the machine per hour", "$/hour", "USD", False),
        ("energy_per_token_j", "Energy per output token", "J/token", "J", False),
        ("error_rate", "Failed requests", "Errors", "fraction", False),
        (
            "wrong_length_rate",
            "Answers of another length than requested",
            "Wrong lengths",
            "fraction",
            False,
        ),
    )
}


def quantity_value(
    results: ResultFields, name: str, statistic: str = "mean", *, devices: int | None = None
) -> float | None:
    """Value of a quantity in its own unit; `None` without data.

    Two quantities are derived: throughput per GPU needs the number of `devices` of the trial,
    and throughput per user is the inverse of the median time per output token.
    """
    if name == "output_throughput_per_gpu" and results.get(name) is None:
        total = value_of(results, "output_throughput")
        return total / devices if total is not None and devices else None
    if name == "user_throughput":
        tpot_ms = value_of(results, "tpot", "median")
        return MS_PER_S / tpot_ms if tpot_ms else None
    value = value_of(results, name, statistic)
    return value if value is not None and math.isfinite(value) else None


def shown(value: float | None, unit: Unit) -> str:
    """Value with its unit, for display; a dash without a value."""
    if value is None or not math.isfinite(value):
        return DASH
    if unit == "ms":
        return format_seconds(value / MS_PER_S)
    if unit == "USD":
        return format_usd(value)
    if unit == "fraction":
        return f"{value * 100:.3g}%"
    if unit == "J":
        return f"{value:,.3g} J"
    return f"{format_rate(value)} {'tok/s' if unit == 'tokens/s' else 'req/s'}"
