"""What a report shows: each quantity's name, true unit, direction and spelling for a reader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from servetune.metrics import LATENCIES, value_of
from servetune.units import MS_PER_S, format_rate, format_seconds, format_usd

__all__ = ["DASH", "QUANTITIES", "STATISTICS", "Quantity", "quantity_value", "shown"]

#: What stands where nothing was measured; never `NaN`, never 0.
DASH = "–"
#: Statistics of a latency that a reader may choose from.
STATISTICS = ("mean", "median", "p90", "p95", "p99")

Unit = Literal["ms", "tokens/s", "requests/s", "USD", "fraction"]


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of a trial.

    Attributes:
        title: Full name, as on an axis.
        short: As in a table's head.
        unit: Of the value that `quantity_value` gives.
        maximize: Whether more is better.
    """

    name: str
    title: str
    short: str
    unit: Unit
    maximize: bool

    @property
    def has_statistics(self) -> bool:
        """Whether it is a distribution over requests (or gaps) and needs a statistic."""
        return self.name in LATENCIES


QUANTITIES: Mapping[str, Quantity] = {
    q.name: q
    for q in (
        Quantity(
            name="e2e_latency", title="End-to-end latency", short="E2E", unit="ms", maximize=False
        ),
        Quantity(name="ttft", title="Time to first token", short="TTFT", unit="ms", maximize=False),
        Quantity(name="itl", title="Inter-token latency", short="ITL", unit="ms", maximize=False),
        Quantity(
            name="tpot", title="Time per output token", short="TPOT", unit="ms", maximize=False
        ),
        Quantity(
            name="output_throughput",
            title="Output throughput",
            short="Output",
            unit="tokens/s",
            maximize=True,
        ),
        Quantity(
            name="request_throughput",
            title="Request throughput",
            short="Requests",
            unit="requests/s",
            maximize=True,
        ),
        Quantity(
            name="input_throughput",
            title="Input throughput",
            short="Input",
            unit="tokens/s",
            maximize=True,
        ),
        Quantity(
            name="output_throughput_per_gpu",
            title="Output throughput per GPU in use",
            short="Output per GPU",
            unit="tokens/s",
            maximize=True,
        ),
        Quantity(
            name="user_throughput",
            title="Output speed that one user sees (1 / median TPOT)",
            short="Per user",
            unit="tokens/s",
            maximize=True,
        ),
        Quantity(
            name="goodput", title="Goodput", short="Goodput", unit="requests/s", maximize=True
        ),
        Quantity(
            name="cost_per_million_tokens",
            title="Cost per million output tokens",
            short="$/M tokens",
            unit="USD",
            maximize=False,
        ),
        Quantity(
            name="error_rate",
            title="Failed requests",
            short="Errors",
            unit="fraction",
            maximize=False,
        ),
    )
}


def quantity_value(
    results: Mapping[str, Any], name: str, statistic: str = "mean", *, devices: int | None = None
) -> float | None:
    """A quantity of a trial's results in its own unit; `None` when the results do not say.

    Two are derived: throughput per GPU needs the number of `devices` that the trial used,
    and what one user sees is the inverse of the median time per output token.
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
    """A value with its unit, for a reader; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return DASH
    if unit == "ms":
        return format_seconds(value / MS_PER_S)
    if unit == "USD":
        return format_usd(value)
    if unit == "fraction":
        return f"{value * 100:.3g}%"
    return f"{format_rate(value)} {'tok/s' if unit == 'tokens/s' else 'req/s'}"
