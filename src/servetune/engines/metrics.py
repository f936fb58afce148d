"""Readings of an engine's `/metrics`, in one vocabulary for all engines.

Each engine's names stand in `metrics.toml` of its folder, read from its source and from recorded
scrapes (docs/reference/server-metrics.md has them in words, with each engine's traps).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from servetune.decoding import ready
from servetune.engines.registry import ENGINES
from servetune.engines.tables import engine_table

Samples = Mapping[str, float]
"""Values by name and labels, written as the server writes them: `name{label="value"}`."""


class EngineReading(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one scrape under servetune's names; `None` where the engine does not tell.

    Several ranks and engines behind one address are added up; of the fractions the largest
    counts.

    Attributes:
        engine: Name of the engine; `None` for metrics of another program.
        running_count: Requests in the batch.
        waiting_count: Requests in the queue.
        kv_usage_fraction: Share of the KV cache that is taken.
        preemption_count: Requests that lost their cache and are computed again.
        prefix_queries_tokens: Prompt tokens that were looked up in the prefix cache.
        prefix_hits_tokens: Prompt tokens that were found in the prefix cache.
        draft_tokens: Tokens that a draft proposed.
        accepted_draft_tokens: Drafted tokens that were accepted.
        draft_acceptance_fraction: Share of drafted tokens accepted over the engine's last steps, as
            the engine computes it.
    """

    engine: str | None = None
    running_count: float | None = None
    waiting_count: float | None = None
    kv_usage_fraction: float | None = None
    draft_acceptance_fraction: float | None = None
    preemption_count: float | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    draft_tokens: float | None = None
    accepted_draft_tokens: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None


#: Values of the moment; and counters, which only grow until the server starts anew.
GAUGES = ("running_count", "waiting_count", "kv_usage_fraction", "draft_acceptance_fraction")
COUNTERS = tuple(
    name for name in EngineReading.__struct_fields__ if name not in {"engine", *GAUGES}
)

_FRACTIONS = frozenset({"kv_usage_fraction", "draft_acceptance_fraction"})


_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')

#: Labels of ranks that all tell the same of their copy; copies themselves differ in `dp_rank`.
_SAME_ON_EVERY = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})


class _MetricSum(NamedTuple):
    """Samples that make up one quantity: those of these names, and of these modes if any."""

    names: Sequence[str]
    modes: Sequence[str] = ()


_MetricNames = Mapping[str, Sequence[_MetricSum]]
"""Fields of `EngineReading` to alternatives, newest first: the first that a server has."""


@functools.cache
def _tables() -> Mapping[str, _MetricNames]:
    """Each engine's names, where it has its own."""
    tables = {name: engine_table(name, "metrics.toml") for name in ENGINES}
    return {
        name: {quantity: [*map(_metric_sum, metrics)] for quantity, metrics in table.items()}
        for name, table in tables.items()
        if table
    }


def _metric_sum(entry: str | list[str] | dict[str, list[str]]) -> _MetricSum:
    """One name, a list of names that are added, or names with values of the label `mode`."""
    if isinstance(entry, dict):
        return _MetricSum(**entry)
    return _MetricSum([entry] if isinstance(entry, str) else entry)


@functools.cache
def _own_names() -> frozenset[str]:
    return frozenset(
        name
        for quantities in _tables().values()
        for alternatives in quantities.values()
        for metric in alternatives
        for name in metric.names
    )


class Exposition(msgspec.Struct, frozen=True, kw_only=True):
    """Names under which the simulated server exposes what it counts, in place of an engine.

    Attributes:
        gauges: Metric to a value of `simserver.engine_metrics.EngineMetrics`.
        counters: Metric to a value that only grows.
        histograms: Metric to a histogram.
        labels: Labels of every sample.
        rank_label: Label with the number of the rank; without one, ranks are added up.
        model_label: Label with the name of the model; empty where there is none.
    """

    gauges: Mapping[str, str]
    counters: Mapping[str, str]
    histograms: Mapping[str, str]
    labels: Mapping[str, str] = {}
    rank_label: str = ""
    model_label: str = ""


@functools.cache
def exposition_of(name: str) -> Exposition | None:
    """Names of an engine, by `exposition.toml` in its folder; `None` where it has none."""
    table = engine_table(name, "exposition.toml")
    return msgspec.convert(table, ready(Exposition)) if table else None


def metric_prefix(name: str) -> str:
    """Beginning of an engine's metric names, its colon included."""
    first = next(iter(_tables()[name].values()))[0].names[0]
    return first[: first.index(":") + 1]


@functools.cache
def scraped_names() -> frozenset[str]:
    """Every name that is looked at, in each of its spellings."""
    return frozenset(
        spelling
        for name in _own_names()
        for spelling in (name, name.replace(":", "_"), "ray_" + name.replace(":", "_"))
    )


@functools.cache
def _prefix() -> re.Pattern[str]:
    """Beginnings of names: relays that allow no colon write `_`; Ray Serve adds its own."""
    spaces = sorted({name.partition(":")[0] for name in _own_names() if ":" in name})
    return re.compile(rf"^(?:ray_)?({'|'.join(spaces)})[:_]")


def read_engine(samples: Samples) -> EngineReading:
    """A scrape in servetune's words.

    Example:
        >>> read_engine({"tgi_queue_size": 3.0}).waiting_count
        3.0
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for key, value in samples.items():
        name, _, labels = key.partition("{")
        name = _prefix().sub(r"\1:", name)
        if name in _own_names() and not math.isnan(value):
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), value))
    for name, quantities in _tables().items():
        read = {
            quantity: _first(alternatives, found, largest=quantity in _FRACTIONS)
            for quantity, alternatives in quantities.items()
        }
        if any(value is not None for value in read.values()):
            return EngineReading(engine=name, **read)
    return EngineReading()


_Found = Mapping[str, list[tuple[dict[str, str], float]]]


def _first(alternatives: Iterable[_MetricSum], found: _Found, *, largest: bool) -> float | None:
    for metric in alternatives:
        values = [
            value
            for name in metric.names
            if name in found
            for value in _one_per_copy(found[name], metric.modes)
        ]
        if values:
            return max(values) if largest else sum(values)
    return None


def _one_per_copy(rows: list[tuple[dict[str, str], float]], modes: Sequence[str]) -> list[float]:
    """Values without those that say again what others say.

    Totals stand under an empty `priority` where requests have priorities, and a
    draft model's worker is an engine of its own.
    """
    totals = [row for row in rows if not row[0].get("priority")] or rows
    seen: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in totals:
        if labels.get("engine_type") == "draft" or (modes and labels.get("mode") not in modes):
            continue
        key = frozenset((k, v) for k, v in labels.items() if k not in _SAME_ON_EVERY)
        seen[key] = max(value, seen.get(key, value))
    return list(seen.values())
