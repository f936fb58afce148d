"""Progress of a load test in words: what is done and left, and the latest latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from servetune.loadgen import Progress
from servetune.trials import Bench as PreparedLoad
from servetune.units import format_seconds


def done_fraction(load: PreparedLoad, progress: Progress) -> float | None:
    """Share of the run that is over, by time or by requests; `None` where a precision ends it."""
    if load.workload.duration_s is not None:
        return min(1.0, progress.elapsed_s / load.workload.duration_s)
    if load.until is not None or not progress.request_count:
        return None
    return progress.finished_count / progress.request_count


def left_s(load: PreparedLoad, progress: Progress) -> float | None:
    """Seconds to the end of the run at its pace so far; `None` before the first answer."""
    done = done_fraction(load, progress)
    return progress.elapsed_s * (1 / done - 1) if done else None


def latencies(progress: Progress) -> Iterator[tuple[str, str]]:
    """Latencies of the answers that ended last, in words."""
    answered = [record for record in progress.recent if record.outcome == "ok"]
    ttfts_s = [record.ttft_s for record in answered if record.ttft_s is not None]
    tpots_s = [record.tpot_s for record in answered if record.tpot_s is not None]
    if ttfts_s:
        yield "TTFT p50, p99", _percentiles(ttfts_s)
    if tpots_s:
        yield "TPOT p50, p99", _percentiles(tpots_s)
    if answered and not ttfts_s:
        yield "E2E p50, p99", _percentiles([record.e2e_s for record in answered])


def _percentiles(values_s: Sequence[float]) -> str:
    return ", ".join(format_seconds(float(each)) for each in np.percentile(values_s, (50, 99)))


def level_of(load: PreparedLoad) -> str:
    """What sets this load apart from the other levels of a run: users, or requests per second."""
    rate = load.client_args.get("request_rate")
    return f"{rate:g} requests/s" if rate is not None else f"{load.workload.concurrency} users"


def progress_rows(load: PreparedLoad, progress: Progress) -> Iterator[tuple[str, str]]:
    """What is done and left, requests by what became of them, rate and latencies."""
    duration_s, until = load.workload.duration_s, load.until
    elapsed, ended = format_seconds(progress.elapsed_s), f"{progress.finished_count:,}"
    if duration_s is not None:
        elapsed += f" of {format_seconds(duration_s)}"
    elif until is not None:
        ended += f", until {until.label}"
    else:
        ended += f" of {progress.request_count:,}"
    yield "elapsed", elapsed
    left, remaining_s = progress.request_count - progress.finished_count, left_s(load, progress)
    if progress.draining or 0 < progress.in_flight_count == left:
        yield "draining", f"{progress.in_flight_count:,} answers left"
    elif remaining_s is not None:
        yield "left, about", format_seconds(remaining_s)
    yield "ended", ended
    yield "in flight", f"{progress.in_flight_count:,}"
    yield "failed", f"{progress.failed_count:,}"
    rate = progress.output_tokens / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    yield "output tokens/s", f"{rate:,.0f}"
    yield from latencies(progress)
