"""Requests of a trial that ended, for those who draw or keep them; a record has their summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from servetune.loadgen import LoadResult, SentRequests
from servetune.metrics import Record
from servetune.perf.sim import SimulatedRun


class TrialRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one trial.

    Attributes:
        key: Key of the trial.
        records: Records of the requests, in order of index; at least one.
        admitted_s: Time of each request's first scheduling; its sending, where `seen_by_client`.
        kv_use: Pairs of seconds and used share of the KV cache; empty where it is not known.
        seen_by_client: Whether a client measured them, who cannot see the engine's scheduling.
        sent: Ids and addresses with which they were sent; `None` in virtual time.
    """

    key: str
    records: Sequence[Record]
    admitted_s: Sequence[float | None]
    kv_use: Sequence[tuple[float, float]] = ()
    seen_by_client: bool = False
    sent: SentRequests | None = None


OnRequests = Callable[[TrialRequests], None]
"""Function that takes the requests of each trial, just before its record is made."""


def simulated_requests(key: str, run: SimulatedRun) -> TrialRequests:
    """Requests of a trial in virtual time."""
    return TrialRequests(key=key, records=run.records, admitted_s=run.admitted_s, kv_use=run.kv_use)


def measured_requests(
    key: str, loaded: LoadResult, sent: SentRequests | None = None
) -> TrialRequests:
    """Requests of a trial on a server."""
    return TrialRequests(
        key=key,
        records=loaded.records,
        admitted_s=[record.sent_s for record in loaded.records],
        kv_use=_kv_use(loaded),
        seen_by_client=True,
        sent=sent,
    )


def _kv_use(loaded: LoadResult) -> list[tuple[float, float]]:
    """KV cache in use over time, as the first server that says it has it."""
    for series in loaded.side.series if loaded.side is not None else ():
        values = series.values.get("kv_usage_fraction")
        if values is not None:
            pairs = zip(series.times_s, values, strict=True)
            return [(at_s, value) for at_s, value in pairs if value is not None]
    return []
