"""Progress of `servetune bench` on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from servetune.api.benchmark import level_label
from servetune.cli.terminal import plain_stream
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


class Live:
    """Table of the run's progress on the terminal; nothing where there is no terminal."""

    def __init__(self, *, enabled: bool, levels: int = 1) -> None:
        self._shown = enabled and sys.stderr.isatty()
        self._levels = levels
        self._level = 0
        self._display: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.live import Live as Display

            self._display = Display(
                console=Console(file=plain_stream(sys.stderr)), transient=True, auto_refresh=False
            )
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def show(self, load: PreparedLoad, progress: Progress | None) -> None:
        """Show what is done and left, requests by what became of them, rate and latencies."""
        if self._display is None:
            return
        self._level += progress is None
        head = ""
        if self._levels > 1:
            head = f"level {self._level} of {self._levels}: {level_label(load)}"
        if progress is None:
            self._display.update(f"{head}  warming up".strip(), refresh=True)
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        rate = progress.output_tokens / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
        duration_s, until = load.workload.duration_s, load.until
        elapsed, ended = format_seconds(progress.elapsed_s), f"{progress.finished_count:,}"
        if duration_s is not None:
            elapsed += f" of {format_seconds(duration_s)}"
        elif until is not None:
            ended += f", until {until.label}"
        else:
            ended += f" of {progress.request_count:,}"
        done, remaining_s = done_fraction(load, progress), left_s(load, progress)
        if head:
            table.add_row("level", head.removeprefix("level "))
        if done is not None:
            table.add_row("done", ProgressBar(total=1.0, completed=done, width=30))
        table.add_row("elapsed", elapsed)
        left = progress.request_count - progress.finished_count
        if progress.draining or 0 < progress.in_flight_count == left:
            table.add_row("draining", f"{progress.in_flight_count:,} answers left")
        elif remaining_s is not None:
            table.add_row("left, about", format_seconds(remaining_s))
        table.add_row("ended", ended)
        table.add_row("in flight", f"{progress.in_flight_count:,}")
        table.add_row("failed", f"{progress.failed_count:,}")
        table.add_row("output tokens/s", f"{rate:,.0f}")
        for name, words in latencies(progress):
            table.add_row(name, words)
        self._display.update(table, refresh=True)
