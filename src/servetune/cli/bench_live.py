"""Progress of `servetune bench` on the terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from servetune.loadgen import Progress
from servetune.trials import Bench as PreparedLoad
from servetune.units import format_seconds


class Live:
    """Table of the run's progress on the terminal; nothing where there is no terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._shown = enabled and sys.stderr.isatty()
        self._display: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.live import Live as Display

            self._display = Display(
                console=Console(stderr=True), transient=True, auto_refresh=False
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
        """Show requests that ended, failed and are in flight, and the rate of tokens."""
        if self._display is None:
            return
        if progress is None:
            self._display.update("warming up", refresh=True)
            return
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
        table.add_row("elapsed", elapsed)
        table.add_row("ended", ended)
        table.add_row("in flight", f"{progress.in_flight_count:,}")
        table.add_row("failed", f"{progress.failed_count:,}")
        table.add_row("output tokens/s", f"{rate:,.0f}")
        self._display.update(table, refresh=True)
