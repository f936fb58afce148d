"""Error of the load generator itself, as it reports it after each run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.json_value import JsonMembers
from servetune.loadgen.sender_pool import NodeShare, SendStatistics
from servetune.units import MS_PER_S, format_seconds

LATE_S = 0.010
"""Lateness above which a departure is counted: the interval between two tokens."""


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """Error and effort of the load generator. `None` where nothing was sampled.

    Attributes:
        stamped_by: `kernel` where bytes were stamped as they arrived, whatever the process was busy
            with; `process` where the clock was read when they were (TLS).
        loop_lag_max_s: Longest turn of an event loop: a bound of the lateness of any departure and,
            where the process stamps, of the error of any single time.
        loop_lag_p99_s: 99th percentile of the same.
        sent_late_max_s: Longest time from when a request was due, and a user free, to when it was
            begun; waiting for a user or a connection is not in it.
        sent_late_p99_s: 99th percentile of the same.
        late_count: Departures later than `LATE_S`.
        held_count: Requests that were due while all users were busy, where requests have due times
            of their own; their wait is in every latency.
        connections_opened: TCP (and TLS) connections made.
        connections_reused: Requests that left on a connection made before.
        retried_count: Requests sent twice, because the server had just closed the kept connection
            that they left on.
        process_count: Processes that sent.
        cpu_s: CPU time of all of them.
        busy_fraction: Largest share of a core that one of them used over half a second.
        peak_memory_bytes: Largest resident sets, added up.
        clock_error_s: Bound of the difference between the clocks of two nodes; 0 on one machine. It
            is in no latency, as each begins and ends on one node.
        nodes: Shares of the nodes, where a cluster sent.
    """

    stamped_by: str = "process"
    loop_lag_max_s: float | None
    loop_lag_p99_s: float | None
    sent_late_max_s: float | None
    sent_late_p99_s: float | None
    late_count: int
    held_count: int
    connections_opened: int
    connections_reused: int
    retried_count: int
    process_count: int = 1
    cpu_s: float = 0.0
    busy_fraction: float = 0.0
    peak_memory_bytes: int = 0
    clock_error_s: float = 0.0
    nodes: tuple[NodeShare, ...] = ()

    @property
    def stamp_error_s(self) -> float:
        """Bound of the error of a token's time, at the 99th percentile."""
        return 0.0 if self.stamped_by == "kernel" else self.loop_lag_p99_s or 0.0

    @property
    def departure_error_s(self) -> float:
        """Part of a latency from due that late departures add, at the 99th percentile."""
        return self.sent_late_p99_s or 0.0


BUSY_FRACTION = 0.9
TRUSTED_FRACTION = 0.1
"""Error that does not matter, as a share of the smallest latency that is reported."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on whether the figures are the server's or the load generator's.

    Attributes:
        trusted: Whether they are the server's.
        words: Verdict in a sentence.
    """

    trusted: bool
    words: str


def verdict_of(instrument: Instrument, results: JsonMembers) -> Verdict:
    """Verdict from the instrument's error and the smallest latencies that a run reports.

    Late departures count against the time to first token, which they are part of; errors of single
    stamps against the gaps between tokens as well.
    """
    first = _smallest(results, "ttft", "e2e_latency")
    gap = _smallest(results, "itl", "tpot", "ttft", "e2e_latency")
    if first is None or gap is None:
        return Verdict(trusted=True, words="instrument: no latency was reported")
    (first_name, first_s), (_, gap_s) = first, gap
    lateness_s, stamp_s = instrument.departure_error_s, instrument.stamp_error_s
    late_fraction, stamp_fraction = lateness_s / first_s, stamp_s / gap_s
    errors = (
        f"{instrument.stamped_by}'s clock"
        + (f", {format_seconds(stamp_s)} late (p99)" if stamp_s else "")
        + f"; sent {format_seconds(lateness_s)} late (p99), {late_fraction:.1%} of "
        f"median {first_name}" + _nodes_text(instrument)
    )
    if instrument.busy_fraction > BUSY_FRACTION:
        return Verdict(
            trusted=False,
            words=f"THE CLIENT WAS THE LIMIT: it was busy for {instrument.busy_fraction:.0%} of "
            f"a core ({errors}); give it more with --processes, or a core of its own",
        )
    if max(late_fraction, stamp_fraction) > TRUSTED_FRACTION:
        return Verdict(
            trusted=False, words=f"THE CLIENT WAS LATE: {errors}; give it a core of its own"
        )
    return Verdict(trusted=True, words=f"instrument: {errors}")


def _nodes_text(instrument: Instrument) -> str:
    """Words on how well the nodes' clocks agree and which nodes were lost; empty on one machine."""
    nodes = instrument.nodes
    if not nodes:
        return ""
    lost = [f"{node.name} was lost" for node in nodes if node.lost]
    error_s = format_seconds(instrument.clock_error_s)
    return "; ".join(["", f"{len(nodes)} nodes' clocks agree to {error_s}", *lost])


_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "E2E latency"}


def _smallest(results: JsonMembers, *metrics: str) -> tuple[str, float] | None:
    """Title and median, in seconds, of the first of the metrics that has one."""
    for metric in metrics:
        value = results.get(f"median_{metric}_ms")
        if value:
            return _TITLES[metric], float(value) / MS_PER_S
    return None


def instrument_of(statistics: SendStatistics, *, stamped_by: str) -> Instrument:
    """Instrument from the statistics of a run's senders."""
    lateness_s = np.frombuffer(statistics.lateness_s)
    lags_s = np.frombuffer(statistics.lags_s)
    return Instrument(
        stamped_by=stamped_by,
        loop_lag_max_s=_worst_s(lags_s),
        loop_lag_p99_s=_p99_s(lags_s),
        sent_late_max_s=_worst_s(lateness_s),
        sent_late_p99_s=_p99_s(lateness_s),
        late_count=int((lateness_s > LATE_S).sum()),
        held_count=statistics.held_count,
        connections_opened=statistics.opened_count,
        connections_reused=statistics.reused_count,
        retried_count=statistics.retried_count,
        process_count=statistics.process_count,
        cpu_s=statistics.cpu_s,
        busy_fraction=statistics.busy_fraction,
        peak_memory_bytes=statistics.peak_memory_bytes,
        clock_error_s=max((node.clock_error_s for node in statistics.nodes), default=0.0),
        nodes=tuple(statistics.nodes),
    )


def _worst_s(values_s: Sequence[float] | np.ndarray) -> float | None:
    return float(np.max(values_s)) if len(values_s) else None


def _p99_s(values_s: Sequence[float] | np.ndarray) -> float | None:
    return float(np.percentile(values_s, 99)) if len(values_s) else None
