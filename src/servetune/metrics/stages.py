"""Results of a run by stages, such as the steps of a rate."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.metrics.record import Record
from servetune.units import MS_PER_S


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were due in one stage, whenever they ended.

    Attributes:
        begin_s: Time of its beginning, from the start of the run.
        rate_per_s: Requests per second that were asked for.
        requests: Number of requests that were due.
        completed: Number of complete answers; all latencies are of these, and `None` without any.
    """

    begin_s: float
    rate_per_s: float
    requests: int
    completed: int
    mean_ttft_ms: float | None
    p99_ttft_ms: float | None
    mean_tpot_ms: float | None
    mean_e2e_ms: float | None
    p99_e2e_ms: float | None


def by_stage(records: Sequence[Record], steps: Sequence[tuple[float, float]]) -> tuple[Stage, ...]:
    """Results of each stage; requests after the last belong to it.

    Args:
        records: One record per request.
        steps: Seconds and requests per second of each stage.
    """
    begins_s = np.cumsum([0.0, *(length_s for length_s, _ in steps)])[:-1]
    of = np.searchsorted(begins_s, [record.due_s for record in records], side="right") - 1
    return tuple(
        _stage(
            [record for record, stage in zip(records, of, strict=True) if stage == number],
            float(begins_s[number]),
            rate,
        )
        for number, (_, rate) in enumerate(steps)
    )


def _stage(records: Sequence[Record], begin_s: float, rate_per_s: float) -> Stage:
    done = [record for record in records if record.outcome == "ok"]
    ttft_s = [record.ttft_s for record in done if record.ttft_s is not None]
    tpot_s = [record.tpot_s for record in done if record.tpot_s is not None]
    e2e_s = [record.e2e_s for record in done]
    return Stage(
        begin_s=begin_s,
        rate_per_s=rate_per_s,
        requests=len(records),
        completed=len(done),
        mean_ttft_ms=_mean_ms(ttft_s),
        p99_ttft_ms=_p99_ms(ttft_s),
        mean_tpot_ms=_mean_ms(tpot_s),
        mean_e2e_ms=_mean_ms(e2e_s),
        p99_e2e_ms=_p99_ms(e2e_s),
    )


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return float(np.mean(seconds)) * MS_PER_S if seconds else None


def _p99_ms(seconds: Sequence[float]) -> float | None:
    return float(np.percentile(seconds, 99)) * MS_PER_S if seconds else None
