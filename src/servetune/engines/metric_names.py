"""Names of an engine's metrics for the quantities that servetune records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class MetricSum(NamedTuple):
    """Samples that make up one quantity: those of these names, and of these modes if any."""

    names: tuple[str, ...]
    modes: frozenset[str] = frozenset()


MetricNames = Mapping[str, tuple[MetricSum, ...]]
"""Fields of `metrics.EngineReading` to alternatives, newest first: the first that a server has."""


def metric_sum(*names: str, modes: Iterable[str] = ()) -> MetricSum:
    """The sum of the samples of these names, of these values of the label `mode` if any."""
    return MetricSum(names, frozenset(modes))
