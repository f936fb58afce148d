"""The instrument's own error: how late the event loop and the departures were."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

__all__ = ["LATE_S", "Departures", "Instrument", "LagMeter"]

LATE_S = 0.010
"""A departure later than this is counted: it is an interval between two tokens."""

LAG_INTERVAL_S = 0.020


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator says about itself. `None` where nothing was sampled.

    Attributes:
        loop_lag_max_s: Longest that the event loop came late to a timer: an upper bound
            of the error of any single time stamp. One millisecond is the loop's own grain.
        sent_late_max_s: Longest from when a request was due, and one of the users free, to
            when it was begun; waiting for a user or a connection is not in it.
        late_count: Departures later than `LATE_S`.
        held_count: Requests that were due while all users were busy, where requests have
            due times of their own; their wait is in every latency.
        connections_opened: TCP (and TLS) connections made, warm-up included.
        connections_reused: Requests that left on a connection made before.
        retried_count: Requests sent twice, because the kept connection that they left on
            had just been closed by the server.
    """

    loop_lag_max_s: float | None
    loop_lag_p99_s: float | None
    sent_late_max_s: float | None
    sent_late_p99_s: float | None
    late_count: int
    held_count: int
    connections_opened: int
    connections_reused: int
    retried_count: int


class LagMeter:
    """Measures how late the running event loop comes to its timers."""

    def __init__(self, interval_s: float = LAG_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.lags_s: list[float] = []

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        due_s = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(due_s, self._sample, due_s)

    def _sample(self, due_s: float) -> None:
        self.lags_s.append(max(0.0, self._loop.time() - due_s))
        self._arm()


class Departures:
    """Keeps how late requests were begun, and which had to wait for a user."""

    def __init__(self) -> None:
        self.lates_s: list[float] = []
        self.held_count = 0

    def note(self, late_s: float, *, held: bool = False) -> None:
        self.lates_s.append(max(0.0, late_s))
        self.held_count += held

    @property
    def late_count(self) -> int:
        return sum(late_s > LATE_S for late_s in self.lates_s)


def worst_s(values_s: Sequence[float]) -> float | None:
    """The largest, if there is any."""
    return max(values_s, default=None)


def p99_s(values_s: Sequence[float]) -> float | None:
    """The 99th percentile, if there is any value."""
    return float(np.percentile(values_s, 99)) if values_s else None
