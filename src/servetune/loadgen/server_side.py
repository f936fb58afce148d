"""Server side of a run: series of servers and machines over time, and their totals."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from servetune.engines.metrics import COUNTERS, GAUGES

Kind = Literal["engine", "gpu", "host", "process"]

Values = Sequence[float | None]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one source over time.

    Attributes:
        source: Address of a server, `gpu0`, `host`, or the name of a process.
        kind: `engine` has the names of `EngineReading`; `gpu` use_fraction, memory_bytes, power_w
            and energy_j; `host` cpu_use_fraction and memory_bytes; `process` cpu_cores and
            memory_bytes.
        label: Name of the engine or the card.
        times_s: Times on the machine's monotonic clock, never falling. A scrape is stamped in the
            middle between question and answer.
        values: Values by name; `None` where that answer did not have one.
        failed_count: Scrapes that got no answer; they have no time.
        problem: Last such failure, in words.
        longest_s: Slowest answer: times may be wrong by half of it.
    """

    source: str
    kind: Kind
    label: str = ""
    times_s: tuple[float, ...] = ()
    values: Mapping[str, tuple[float | None, ...]] = msgspec.field(default_factory=dict)
    failed_count: int = 0
    problem: str = ""
    longest_s: float = 0.0

    def since(self, start_s: float) -> Series:
        """Series with times counted from `start_s`, as a run's records are."""
        return msgspec.structs.replace(self, times_s=tuple(t - start_s for t in self.times_s))

    def within(self, start_s: float, end_s: float) -> Series:
        """Part of the series that belongs to a time span.

        A server's last scrape before and first scrape after it stay, because its counters changed
        in between. For a machine, whose quantities are interpolated linearly, the two ends are
        added.
        """
        first = max(0, bisect.bisect_right(self.times_s, start_s) - 1)
        last = bisect.bisect_left(self.times_s, end_s) + 1
        cut = msgspec.structs.replace(
            self,
            times_s=self.times_s[first:last],
            values={name: column[first:last] for name, column in self.values.items()},
        )
        if self.kind == "engine" or len(cut.times_s) < 2:
            return cut
        edges_s = np.clip(np.asarray(cut.times_s), start_s, end_s)
        return msgspec.structs.replace(
            cut,
            times_s=tuple(edges_s.tolist()),
            values={
                name: _drawn_at(edges_s, cut.times_s, column) for name, column in cut.values.items()
            },
        )


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Server's own metrics of a run, as totals; `None` where no source has a value.

    Counters are the increase between the first and the last scrape, gauges the largest value that a
    scrape saw (a peak between two scrapes is missed) and the mean over time. Several engines behind
    one address and several addresses are added up, except for shares.

    Attributes:
        engine: Engine's name, a key of `engines.ENGINES`.
        prefix_queries_tokens: Prompt tokens looked up in the prefix cache.
        prefix_hits_tokens: Prompt tokens found there.
        max_kv_usage_fraction: KV cache use of the fullest engine.
        draft_acceptance_fraction: Share of drafted tokens that were accepted; where the engine does
            not count them, its own figure, averaged.
        energy_j: Energy of all watched cards, by their own counters; where a card has none, its
            power over time.
        output_tokens_per_joule: Output tokens per joule, by the server's count of tokens.
        mean_gpu_use_fraction: Share of time in which a kernel ran, over all cards; a card in use is
            not a card at its limit.
        max_gpu_use_fraction: Largest of these of any card at any reading.
        max_gpu_memory_bytes: Memory in use, of all cards together: largest.
        mean_gpu_memory_bytes: Memory in use of one card: mean over time and cards.
        client_cpu_cores: Cores that the load generator kept busy, likewise the server.
        scrape_failed_count: Scrapes that got no answer.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    preemption_count: int | None = None
    max_running_count: int | None = None
    max_waiting_count: int | None = None
    max_kv_usage_fraction: float | None = None
    engine: str | None = None
    mean_running_count: float | None = None
    mean_waiting_count: float | None = None
    mean_kv_usage_fraction: float | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    draft_acceptance_fraction: float | None = None
    gpu_count: int | None = None
    energy_j: float | None = None
    output_tokens_per_joule: float | None = None
    mean_power_w: float | None = None
    max_power_w: float | None = None
    mean_gpu_use_fraction: float | None = None
    max_gpu_use_fraction: float | None = None
    max_gpu_memory_bytes: float | None = None
    mean_gpu_memory_bytes: float | None = None
    mean_host_cpu_use_fraction: float | None = None
    max_host_memory_bytes: float | None = None
    client_cpu_cores: float | None = None
    server_cpu_cores: float | None = None
    scrape_count: int | None = None
    scrape_failed_count: int | None = None

    @property
    def prefix_hit_fraction(self) -> float | None:
        if not self.prefix_queries_tokens or self.prefix_hits_tokens is None:
            return None
        return self.prefix_hits_tokens / self.prefix_queries_tokens


class ServerSide(msgspec.Struct, frozen=True, kw_only=True):
    """Server side of a run.

    Attributes:
        every_s: Interval between two scrapes of a source.
        series: Series of each server, card, host and process.
        totals: Totals over all of them.
        problem: Reason why the sampler gave nothing, or not all.
    """

    every_s: float
    series: tuple[Series, ...] = ()
    totals: ServerMetrics = ServerMetrics()
    problem: str = ""

    def within(self, start_s: float, end_s: float) -> ServerSide:
        """Part that belongs to a run with this start and end, on the same monotonic clock."""
        cut = tuple(each.within(start_s, end_s) for each in self.series)
        return msgspec.structs.replace(self, series=cut, totals=totals_of(cut))

    def since(self, start_s: float) -> ServerSide:
        """Side with times counted from `start_s`."""
        shifted = tuple(each.since(start_s) for each in self.series)
        return msgspec.structs.replace(self, series=shifted)


def totals_of(series: Sequence[Series], *, timed: bool = True) -> ServerMetrics:
    """Totals over all series.

    Args:
        series: Series of all sources.
        timed: Whether times mean something; means over time need them.
    """
    engines = [each for each in series if each.kind == "engine"]
    increases = {name: _added(engines, name) for name in COUNTERS}
    peaks = {name: _peak(engines, name) for name in GAUGES}
    means = {name: _mean(engines, name) if timed else None for name in GAUGES}
    kv_full = [v for each in engines for v in _known(each, "kv_usage_fraction")]
    drafted, accepted = increases["draft_tokens"], increases["accepted_draft_tokens"]
    of_engines = ServerMetrics(
        **{name: None if value is None else round(value) for name, value in increases.items()},
        engine=next((each.label for each in engines if each.label), None),
        max_running_count=_rounded(peaks["running_count"]),
        max_waiting_count=_rounded(peaks["waiting_count"]),
        max_kv_usage_fraction=max(kv_full, default=None),
        mean_running_count=means["running_count"],
        mean_waiting_count=means["waiting_count"],
        mean_kv_usage_fraction=_share(means["kv_usage_fraction"], engines, "kv_usage_fraction"),
        draft_acceptance_fraction=(
            accepted / drafted
            if drafted and accepted is not None
            else _share(means["draft_acceptance_fraction"], engines, "draft_acceptance_fraction")
        ),
        gpu_count=sum(each.kind == "gpu" for each in series) or None,
        scrape_count=sum(len(each.times_s) for each in engines) if timed and engines else None,
        scrape_failed_count=sum(e.failed_count for e in engines) if timed and engines else None,
    )
    machine = _of_machine(series, increases["output_tokens"])
    return msgspec.structs.replace(of_engines, **machine)


def increase(values: Values) -> float | None:
    """Increase of a counter; a counter that falls has restarted with its server.

    A counter that is missing at first comes into being with the load and counts from zero.

    Example:
        >>> increase([None, 5.0, 9.0, 2.0])
        11.0
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    before = 0.0 if values[0] is None else known[0]
    total = 0.0
    for value in known:
        total += value - before if value >= before else value
        before = value
    return total


def _of_machine(series: Sequence[Series], output_tokens: float | None) -> dict[str, float | None]:
    cards = [each for each in series if each.kind == "gpu"]
    hosts = [each for each in series if each.kind == "host"]
    energies_j = [joules for each in cards if (joules := _energy_j(each)) is not None]
    energy_j = sum(energies_j) if energies_j else None
    return {
        "energy_j": energy_j,
        "output_tokens_per_joule": output_tokens / energy_j if output_tokens and energy_j else None,
        "mean_power_w": _mean(cards, "power_w"),
        "max_power_w": _peak(cards, "power_w"),
        "mean_gpu_use_fraction": _share(_mean(cards, "use_fraction"), cards, "use_fraction"),
        "max_gpu_use_fraction": max(
            (value for each in cards for value in _known(each, "use_fraction")), default=None
        ),
        "max_gpu_memory_bytes": _peak(cards, "memory_bytes"),
        "mean_gpu_memory_bytes": _share(_mean(cards, "memory_bytes"), cards, "memory_bytes"),
        "mean_host_cpu_use_fraction": _mean(hosts, "cpu_use_fraction"),
        "max_host_memory_bytes": _peak(hosts, "memory_bytes"),
        **{
            f"{name}_cpu_cores": _mean(
                [e for e in series if e.kind == "process" and e.source == name], "cpu_cores"
            )
            for name in ("client", "server")
        },
    }


def _energy_j(card: Series) -> float | None:
    """Energy by the card's counter, else its power over time."""
    counted = _known(card, "energy_j")
    if len(counted) > 1:
        return increase(counted)
    times_s, watts = _points(card, "power_w")
    return _area(watts, times_s) if len(times_s) > 1 else None


def _known(series: Series, name: str) -> list[float]:
    return [value for value in series.values.get(name, ()) if value is not None]


def _points(series: Series, name: str) -> tuple[list[float], list[float]]:
    column = series.values.get(name, ())
    pairs = [(t, v) for t, v in zip(series.times_s, column, strict=False) if v is not None]
    return [t for t, _ in pairs], [v for _, v in pairs]


def _added(series: Sequence[Series], name: str) -> float | None:
    grown = [increase(each.values.get(name, ())) for each in series]
    known = [value for value in grown if value is not None]
    return sum(known) if known else None


def _peak(series: Sequence[Series], name: str) -> float | None:
    """Largest sum at any time, each source counting with its latest value."""
    points = [points for each in series if (points := _points(each, name))[0]]
    if not points:
        return None
    moments = np.unique(np.concatenate([times_s for times_s, _ in points]))
    total = np.zeros(len(moments))
    for times_s, values in points:
        at = np.searchsorted(times_s, moments, side="right") - 1
        total += np.where(at >= 0, np.asarray(values)[np.maximum(at, 0)], 0.0)
    return float(total.max())


def _mean(series: Sequence[Series], name: str) -> float | None:
    """Sum over sources of each one's mean over time."""
    means = []
    for each in series:
        times_s, values = _points(each, name)
        if len(times_s) > 1 and times_s[-1] > times_s[0]:
            span_s = times_s[-1] - times_s[0]
            means.append(_area(values, times_s) / span_s)
        elif values:
            means.append(values[-1])
    return sum(means) if means else None


def _area(values: Sequence[float], times_s: Sequence[float]) -> float:
    """Integral under straight lines from one value to the next."""
    heights = np.asarray(values)
    return float(np.sum((heights[1:] + heights[:-1]) / 2 * np.diff(times_s)))


def _share(total: float | None, series: Sequence[Series], name: str) -> float | None:
    """Mean over sources, for quantities that are shares."""
    sources = sum(bool(_known(each, name)) for each in series)
    return None if total is None or not sources else total / sources


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _drawn_at(
    moments_s: np.ndarray, times_s: Sequence[float], column: Values
) -> tuple[float | None, ...]:
    """Column at other times, interpolated linearly; gaps stay gaps."""
    known = [(t, v) for t, v in zip(times_s, column, strict=True) if v is not None]
    if not known:
        return tuple(column)
    drawn = np.interp(moments_s, [t for t, _ in known], [v for _, v in known])
    return tuple(
        None if value is None else float(at) for value, at in zip(column, drawn, strict=True)
    )
