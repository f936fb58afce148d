"""Evidence: what is known of a Plan's performance, how it came to be known, and where it saturates.

Autoscalers hold requests per copy at a target. The right target is where more concurrency
buys latency and little throughput else; without limits that is where the latency has become
twice its smallest (utilisation one half of an M/M/1 queue). The midpoint of smallest and largest
latency is not used: it moves with how far the sweep was pushed.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import msgspec

from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE
from servetune.json_value import JsonObject
from servetune.secret import redacted


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The trial that a Plan rests on.

    Attributes:
        results: Results of the trial, under the journal's names.
        simulated: Whether no real server answered.
        concurrency: Requests in flight during the trial.
        engine: Engine that ran, or was simulated.
        engine_version: Version of it; `None` where no real engine ran and none was named.
        hardware: Machine on which the trial ran, such as `4x NVIDIA L4`.
        workload: Requests that were sent, for a reader.
        source: Place of the trial: journal and key.
        doubt: Probability that the trial is the best of its study, and its rivals, as a clause;
            empty where that is not known.
        copies: Copies that shared the trial's requests, per what an endpoint's scaling adds: one
            where it adds whole instances.
        levels: Requests in flight per copy and output tokens per second per copy, of the trials
            with the same server.
    """

    results: JsonObject = {}
    simulated: bool = False
    concurrency: int | None = None
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    hardware: str = ""
    workload: str = ""
    source: str = ""
    doubt: str = ""
    copies: int = 1
    levels: tuple[tuple[float, float], ...] = ()

    def public(self) -> Evidence:
        """The evidence as JSON can hold it, without credentials that a command line had."""
        plain = json.loads(msgspec.json.encode(self))  # non-finite numbers become null
        return msgspec.convert(redacted(plain), ready(Evidence))

    def throughput_at(self, requests_per_copy: float) -> float | None:
        """Output tokens per second of one copy with so many requests in flight.

        Linear between the loads that were tried and from nothing to the first; beyond the last it
        is that of the last. The trial alone counts where no others are known; `None` where it has
        no load either.

        Example:
            >>> Evidence(levels=((8, 400.0), (16, 600.0))).throughput_at(12)
            500.0
        """
        levels = sorted(self.levels)
        per_s = self.results.get("output_throughput")
        if not levels and self.concurrency and per_s:
            levels = [(self.concurrency / self.copies, float(per_s) / self.copies)]
        if not levels:
            return None
        before = (0.0, 0.0)
        for level in levels:
            if requests_per_copy <= level[0]:
                share = (requests_per_copy - before[0]) / (level[0] - before[0])
                return before[1] + share * (level[1] - before[1])
            before = level
        return before[1]


#: Share of the saturation point that is kept free for what arrives while a new copy starts.
HEADROOM = 0.2


class Level(msgspec.Struct, frozen=True):
    """One trial of a sweep over concurrency, with the same server.

    Attributes:
        concurrency: Requests in flight.
        latency_ms: Median latency, end to end.
        meets_limits: Whether it met the limits that were given; `None` where there were none.
    """

    concurrency: int
    latency_ms: float
    meets_limits: bool | None = None


class SaturationPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in flight that one copy serves well.

    Attributes:
        per_copy: Requests in flight at the saturation point.
        rule: Rule by which it was found, for a reader.
    """

    per_copy: float
    rule: str

    @property
    def target(self) -> int:
        """Requests in flight at which an autoscaler holds each copy: less the headroom."""
        return max(1, math.floor(self.per_copy * (1 - HEADROOM)))


def saturation_point(levels: Sequence[Level], copies: int) -> SaturationPoint | None:
    """The saturation point of one server's trials at several concurrencies; `None` for none.

    Args:
        levels: The trials, in any order.
        copies: Copies that shared each trial's requests.

    Example:
        >>> levels = [Level(1, 100.0), Level(8, 150.0), Level(16, 250.0)]
        >>> saturation_point(levels, copies=2).per_copy
        6.0
    """
    ordered = sorted(levels, key=lambda level: level.concurrency)
    if not ordered:
        return None
    if any(level.meets_limits is not None for level in ordered):
        good = [level.concurrency for level in ordered if level.meets_limits]
        if not good:
            return None
        return SaturationPoint(
            per_copy=good[-1] / copies, rule=f"largest concurrency within the limits, {good[-1]}"
        )
    if len(ordered) == 1:
        only = ordered[0].concurrency
        return SaturationPoint(
            per_copy=only / copies, rule=f"the only concurrency that was tried, {only}"
        )
    edge_ms = 2 * min(level.latency_ms for level in ordered)
    for before, after in itertools.pairwise(ordered):
        if before.latency_ms <= edge_ms < after.latency_ms:
            share = (edge_ms - before.latency_ms) / (after.latency_ms - before.latency_ms)
            at = before.concurrency + share * (after.concurrency - before.concurrency)
            return SaturationPoint(per_copy=at / copies, rule=f"median latency doubles at {at:.0f}")
    most = ordered[-1].concurrency
    return SaturationPoint(
        per_copy=most / copies,
        rule=f"median latency had not doubled at the largest concurrency, {most}",
    )
